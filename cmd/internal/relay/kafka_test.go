package relay_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/cmd/internal/relay"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirrelay"
	"github.com/weir-pg/weir/weirrelay/kafkarelay"
)

// unique returns a name that no other test of this broker has.
func unique(name string) string { return name + "-" + strings.ToLower(rand.Text()[:10]) }

// createTopic creates a topic, with settings as in "max.message.bytes=1000".
func (s *kafkaServer) createTopic(t testing.TB, name string, partitions int32, settings ...string) {
	t.Helper()
	c := s.consumer(t)
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, partitions, 1
	for _, setting := range settings {
		config := kmsg.NewCreateTopicsRequestTopicConfig()
		name, value, _ := strings.Cut(setting, "=")
		config.Name, config.Value = name, &value
		topic.Configs = append(topic.Configs, config)
	}
	r := kmsg.NewPtrCreateTopicsRequest()
	r.TimeoutMillis, r.Topics = 10_000, append(r.Topics, topic)
	pgtest.Eventually(t, func() error { // a broker that has just begun has no place for it yet
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		made, err := r.RequestWith(ctx, c)
		if err == nil {
			err = kerr.ErrorForCode(made.Topics[0].ErrorCode)
		}
		if errors.Is(err, kerr.TopicAlreadyExists) {
			return nil
		}
		return err
	})
}

// consumer returns a client that reads what is committed of the topics, from their beginnings.
func (s *kafkaServer) consumer(t testing.TB, topics ...string) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(s.address()), kgo.ConsumeTopics(topics...), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.MetadataMinAge(100*time.Millisecond), kgo.FetchMaxWait(250*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// read returns the records in the topics, of each partition in order, once there are n.
func (s *kafkaServer) read(t testing.TB, n int, topics ...string) (all []*kgo.Record) {
	t.Helper()
	c := s.consumer(t, topics...)
	pgtest.Until(t, fmt.Sprintf("%d records are in %v", n, topics), func() bool {
		all = append(all, poll(t, c)...)
		return len(all) >= n
	})
	return append(all, poll(t, c)...) // what should not be there may come now
}

// poll waits for a moment for what has arrived.
func poll(t testing.TB, c *kgo.Client) []*kgo.Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	return c.PollFetches(ctx).Records()
}

func values(records []*kgo.Record) (all []string) {
	for _, r := range records {
		all = append(all, string(r.Value))
	}
	return all
}

func header(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

func (s *kafkaServer) target(t testing.TB, name string, options ...kgo.Opt) *kafkarelay.Target {
	t.Helper()
	target, err := kafkarelay.New(kafkarelay.Config{Name: name, Options: append([]kgo.Opt{kgo.SeedBrokers(s.address())}, options...)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(target.Close)
	return target
}

// TestKafkaGetsEveryMessageOnceInOrder: those of each key in order, with key and headers, in the topics of the routes; though two processes run the relay, and the sessions of the one
// that passes messages on are ended again and again.
func TestKafkaGetsEveryMessageOnceInOrder(t *testing.T) {
	t.Parallel()
	kafka, pool := sharedKafka(t), pgtest.Pool(t, pgtest.Database(t))
	name := unique("orders")
	kafka.createTopic(t, name+".made", 4)
	kafka.createTopic(t, name+".paid", 2)
	for range 2 {
		run(t, weirrelay.Config{Name: name, Pool: pool, Target: kafka.target(t, name), Since: time.Now().Add(-time.Hour), MaxRecords: 30,
			Routes: []weirrelay.Route{{Channels: "orders.*", Subject: name + ".{payload.what}", Key: "{payload.customer}", Headers: map[string]string{"n": "{payload.n}"}}}})
	}
	const customers, rounds, each = 7, 8, 60
	for round := range rounds {
		for i := range each {
			n := round*each + i
			what := map[bool]string{true: "paid", false: "made"}[n%3 == 0]
			if _, err := pool.Exec(t.Context(), `SELECT weir.publish('orders.' || $1, jsonb_build_object('n', $2::integer, 'customer', $3::text, 'what', $1::text)::text), weir.publish('others', 'x')`, what, n, fmt.Sprint("c", n%customers)); err != nil {
				t.Fatal(err)
			}
		}
		if round%2 == 1 {
			if _, err := pool.Exec(t.Context(), `SELECT pg_terminate_backend(l.pid) FROM pg_locks l JOIN pg_database d ON d.oid = l.database WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.classid = 1464158565`); err != nil {
				t.Fatal(err)
			}
		}
	}
	last, seen := map[string]int{}, 0
	for _, r := range kafka.read(t, rounds*each, name+".made", name+".paid") {
		var payload struct {
			N              int
			Customer, What string
		}
		if err := json.Unmarshal(r.Value, &payload); err != nil {
			t.Fatal(err)
		}
		key := r.Topic + string(r.Key)
		if n, ok := last[key]; ok && n >= payload.N {
			t.Errorf("of %s, message %d comes after %d", key, payload.N, n)
		}
		last[key] = payload.N
		seen++
		if string(r.Key) != payload.Customer || r.Topic != name+"."+payload.What || header(r, "n") != fmt.Sprint(payload.N) || header(r, kafkarelay.HeaderChannel) != "orders."+payload.What || header(r, kafkarelay.HeaderPosition) == "" {
			t.Errorf("record %+v", r)
		}
	}
	if seen != rounds*each {
		t.Errorf("got %d records, want %d", seen, rounds*each)
	}
}

// made returns records with payloads from one number to another, excluded.
func made(topic string, from, to int) (all []weirrelay.Record) {
	for n := from; n < to; n++ {
		position := weir.Position(fmt.Sprintf("1.7.%d", n))
		all = append(all, weirrelay.Record{ID: "r/" + string(position), Position: position, Channel: "c", Payload: fmt.Append(nil, n), Subject: topic, Key: "k"})
	}
	return all
}

// endTxn is the request that commits a transaction, by its number in Kafka's protocol.
const endTxn = 26

// line is a connection to Kafka that tells a test of requests, by their number in the protocol. Each is written at once.
type line struct {
	net.Conn
	written  func(key int16) // before it is written
	answered func() error    // after something was read
}

func (l *line) Write(b []byte) (int, error) {
	if len(b) > 6 {
		l.written(int16(b[4])<<8 | int16(b[5]))
	}
	return l.Conn.Write(b)
}

func (l *line) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	if err == nil && l.answered != nil {
		if err := l.answered(); err != nil {
			return 0, err
		}
	}
	return n, err
}

// pausing makes a client pause when it first commits, until resume is closed.
func pausing() (option kgo.Opt, paused, resume chan struct{}) {
	paused, resume = make(chan struct{}), make(chan struct{})
	var once sync.Once
	return kgo.Dialer(func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		return &line{Conn: conn, written: func(key int16) {
			if key == endTxn {
				once.Do(func() { close(paused); <-resume })
			}
		}}, err
	}), paused, resume
}

// TestAProcessThatWasPausedForTooLongSendsAgain: Kafka has given its transaction up by then, although no other process has followed it.
func TestAProcessThatWasPausedForTooLongSendsAgain(t *testing.T) {
	t.Parallel()
	kafka := sharedKafka(t)
	name := unique("paused")
	kafka.createTopic(t, name, 1)
	pauses, paused, resume := pausing()
	target := kafka.target(t, name, pauses, kgo.TransactionTimeout(time.Second))
	ctx := t.Context()
	if _, err := target.Begin(ctx, ""); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- target.Send(ctx, made(name, 0, 10)) }() // ends when it is resumed
	pgtest.Receive(t, paused, "the process commits")
	c := kafka.consumer(t)
	pgtest.Eventually(t, func() error {
		r := kmsg.NewPtrDescribeTransactionsRequest()
		r.TransactionalIDs = []string{"weir.relay." + name}
		described, err := r.RequestWith(ctx, c)
		if err == nil && described.TransactionStates[0].State != "CompleteAbort" {
			err = fmt.Errorf("the transaction is in the state %s", described.TransactionStates[0].State)
		}
		return err
	})
	close(resume)
	if err := pgtest.Receive(t, ended, "the process goes on"); !errors.Is(err, weirrelay.ErrMoved) {
		t.Errorf("got %v, want %v", err, weirrelay.ErrMoved)
	}
	if at, err := target.Begin(ctx, "1.6.0"); err != nil || at != "1.6.0" {
		t.Errorf("it begins anew at %q, %v", at, err)
	}
	if err := target.Send(ctx, made(name, 0, 10)); err != nil {
		t.Error(err)
	}
	if got := values(kafka.read(t, 10, name)); !slices.Equal(got, numbers(10)) {
		t.Errorf("got %q", got)
	}
}

// TestAFencedProcessWritesNothing: one that is paused before it commits, and comes back when another has the relay.
func TestAFencedProcessWritesNothing(t *testing.T) {
	t.Parallel()
	kafka := sharedKafka(t)
	name := unique("fenced")
	kafka.createTopic(t, name, 1)
	pauses, paused, resume := pausing()
	older := kafka.target(t, name, pauses)
	ctx := t.Context()
	if at, err := older.Begin(ctx, "1.6.0"); err != nil || at != "1.6.0" {
		t.Fatalf("%q, %v", at, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- older.Send(ctx, made(name, 0, 10)) }() // ends when it is resumed
	pgtest.Receive(t, paused, "the older process commits")
	newer := kafka.target(t, name)
	if at, err := newer.Begin(ctx, "1.6.0"); err != nil || at != "1.6.0" {
		t.Fatalf("the newer process begins at %q, %v", at, err)
	}
	if err := newer.Send(ctx, made(name, 0, 5)); err != nil {
		t.Fatal(err)
	}
	close(resume)
	if err := pgtest.Receive(t, ended, "the older process ends"); !errors.Is(err, weirrelay.ErrMoved) {
		t.Errorf("the older process: %v, want %v", err, weirrelay.ErrMoved)
	}
	if err := newer.Send(ctx, made(name, 5, 10)); err != nil {
		t.Fatal(err)
	}
	if got := values(kafka.read(t, 10, name)); strings.Join(got, " ") != "0 1 2 3 4 5 6 7 8 9" {
		t.Errorf("got %q", got)
	}

	// If it goes on, it knows where the other has come to, and sends only what is behind that.
	if err := older.Send(ctx, made(name, 3, 12)); err != nil {
		t.Error(err)
	}
	if err := newer.Send(ctx, made(name, 10, 15)); !errors.Is(err, weirrelay.ErrMoved) {
		t.Errorf("the process that is fenced now: %v, want %v", err, weirrelay.ErrMoved)
	}
	if at, err := newer.Begin(ctx, "1.6.0"); err != nil || at != "1.7.11" {
		t.Errorf("the newer process begins at %q, %v", at, err)
	}
	if got := values(kafka.read(t, 12, name)); strings.Join(got, " ") != "0 1 2 3 4 5 6 7 8 9 10 11" {
		t.Errorf("got %q", got)
	}
}

// TestACommitWhoseAnswerIsLostIsNotRepeated: what has become of it is read from Kafka, before anything is sent again.
func TestACommitWhoseAnswerIsLostIsNotRepeated(t *testing.T) {
	t.Parallel()
	kafka := sharedKafka(t)
	name := unique("lost")
	kafka.createTopic(t, name, 1)
	var losing atomic.Bool
	var lost atomic.Int32
	target := kafka.target(t, name, kgo.RetryTimeout(time.Second), kgo.Dialer(func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		l := &line{Conn: conn}
		var ending atomic.Bool
		l.written = func(key int16) {
			if key == endTxn && losing.Load() {
				ending.Store(true)
			}
		}
		l.answered = func() error {
			if ending.Load() {
				lost.Add(1)
				l.Close()
				return io.ErrUnexpectedEOF
			}
			return nil
		}
		return l, err
	}))
	if _, err := target.Begin(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	send := func(from, to int) error { return target.Send(t.Context(), made(name, from, to)) }
	sent := func(from, to int) { // also if a broker that is busy takes longer than the client tries
		t.Helper()
		pgtest.Eventually(t, func() error { return send(from, to) })
	}
	sent(0, 10)
	losing.Store(true)
	if err := send(10, 20); err == nil || errors.Is(err, weirrelay.ErrMoved) || lost.Load() == 0 {
		t.Fatalf("%d answers are lost: %v", lost.Load(), err)
	}
	losing.Store(false)
	for from := 10; from <= 20; from += 10 { // the same again, and what follows it
		sent(from, from+10)
	}
	if got := values(kafka.read(t, 30, name)); !slices.Equal(got, numbers(30)) {
		t.Errorf("got %q", got)
	}
}

// numbers are those below n.
func numbers(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint(i))
	}
	return all
}

// TestWhatKafkaRefusesIsKeptAsAJob: a message that is too large, one without the key that the topic needs, and one for what can't be a topic; not messages that are too large only together.
func TestWhatKafkaRefusesIsKeptAsAJob(t *testing.T) {
	t.Parallel()
	kafka, pool := sharedKafka(t), pgtest.Pool(t, pgtest.Database(t))
	name := unique("refused")
	kafka.createTopic(t, name+"-small", 1, "max.message.bytes=20000")
	kafka.createTopic(t, name+"-compacted", 1, "cleanup.policy=compact")
	publish := func(topic, key, payload string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), `SELECT weir.publish('c', jsonb_build_object('topic', $1::text, 'key', $2::text, 'text', $3::text)::text)`, topic, key, payload); err != nil {
			t.Fatal(err)
		}
	}
	var noise strings.Builder // it can't be compressed
	for noise.Len() < 50_000 {
		noise.WriteString(rand.Text())
	}
	const many = 100
	for i := range many {
		publish(name+"-small", "k", noise.String()[i:i+1000])
		switch i {
		case 20:
			publish(name+"-small", "k", noise.String())
		case 40:
			publish("no topic", "k", "x")
		case 60:
			publish(name+"-compacted", "", "without a key")
		case 80:
			publish(name+"-compacted", "k", "with one")
		}
	}
	run(t, weirrelay.Config{Name: name, Pool: pool, Target: kafka.target(t, name), Since: time.Now().Add(-time.Hour), Routes: []weirrelay.Route{{Channels: "c", Subject: "{payload.topic}", Key: "{payload.key}"}}})
	got := kafka.read(t, many+1, name+"-small", name+"-compacted")
	small := 0
	for _, r := range got {
		var payload struct{ Text string }
		if err := json.Unmarshal(r.Value, &payload); err != nil {
			t.Fatal(err)
		}
		if r.Topic != name+"-small" {
			continue
		}
		if payload.Text != noise.String()[small:small+1000] {
			t.Fatalf("message %d is another one", small)
		}
		small++
	}
	if len(got) != many+1 || small != many {
		t.Errorf("got %d messages, %d of them in order, want %d", len(got), small, many+1)
	}
	var letters []weirrelay.DeadLetter
	pgtest.Until(t, "there are three dead letters", func() bool {
		page, err := weir.NewClient(pool).Jobs(t.Context(), weir.JobsParams{Queue: name + "-dead-letters"})
		if err != nil {
			t.Fatal(err)
		}
		letters = make([]weirrelay.DeadLetter, len(page.Jobs))
		for i, j := range page.Jobs {
			if err := json.Unmarshal(j.Args, &letters[i]); err != nil {
				t.Fatal(err)
			}
		}
		return len(letters) >= 3
	})
	slices.SortFunc(letters, func(a, b weirrelay.DeadLetter) int { return strings.Compare(a.Subject, b.Subject) })
	for i, want := range []string{"is no name of a topic", "INVALID_RECORD", "MESSAGE_TOO_LARGE"} {
		if !strings.Contains(letters[i].Error, want) {
			t.Errorf("letter %d: %.200s, want %s", i, letters[i].Error, want)
		}
	}
}

// TestJobsBesideOneThatKafkaRefusesAreSentOnce: also those behind it.
func TestJobsBesideOneThatKafkaRefusesAreSentOnce(t *testing.T) {
	t.Parallel()
	kafka, topic := sharedKafka(t), unique("jobs")
	kafka.createTopic(t, topic, 1)
	kafka.createTopic(t, topic+".small", 1, "max.message.bytes=100")
	target, err := kafkarelay.New(kafkarelay.Config{Name: topic, Options: []kgo.Opt{kgo.SeedBrokers(kafka.address())}, Jobs: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(target.Close)
	if _, err := target.Begin(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	var records []weirrelay.Record
	for i := range 7 {
		r := weirrelay.Record{ID: fmt.Sprint("r/", i), Job: &weir.JobMeta{ID: int64(i), Queue: "q", Kind: "k"}, Subject: topic, Payload: []byte(strconv.Itoa(i))}
		if i == 3 {
			r.Subject, r.Payload = topic+".small", make([]byte, 1000)
		}
		records = append(records, r)
	}
	no := (*weirrelay.Refused)(nil)
	if err := target.Send(t.Context(), records); !errors.As(err, &no) || no.Index != 3 {
		t.Fatalf("%v, want a refusal of the fourth", err)
	}
	if err := target.Send(t.Context(), slices.Delete(records, 3, 4)); err != nil {
		t.Fatal(err)
	}
	if got := values(kafka.read(t, 6, topic)); !slices.Equal(got, []string{"0", "1", "2", "4", "5", "6"}) {
		t.Errorf("got %q", got)
	}
}

// TestATopicThatIsMissingIsWaitedFor: nothing is lost, and nothing passed over.
func TestATopicThatIsMissingIsWaitedFor(t *testing.T) {
	t.Parallel()
	kafka := sharedKafka(t)
	name := unique("missing")
	target := kafka.target(t, name)
	if _, err := target.Begin(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if err := target.Send(t.Context(), made(name, 0, 10)); err == nil || !strings.Contains(err.Error(), "there is no topic \""+name+"\": create it") {
		t.Errorf("without the topic: %v", err)
	}
	kafka.createTopic(t, name, 1)
	pgtest.Eventually(t, func() error { return target.Send(t.Context(), made(name, 0, 10)) })
	if got := values(kafka.read(t, 10, name)); !slices.Equal(got, numbers(10)) {
		t.Errorf("got %q", got)
	}
}

// TestAFileConnectsToKafka: without anything, and with TLS and each form of SASL.
func TestAFileConnectsToKafka(t *testing.T) {
	t.Parallel()
	kafka, pool := sharedKafka(t), pgtest.Pool(t, pgtest.Database(t)+"&pool_max_conns=16")
	name := unique("file")
	text, topics := fmt.Sprintf("[relay.%[1]s]\nsince = \"oldest\"\nroute = [{ channels = \"c\", subject = \"%[1]s\" }]\n[relay.%[1]s.kafka]\nbrokers = \"127.0.0.1:1,%[2]s\"\n", name, kafka.address()), []string{name}
	for _, sasl := range []string{"plain", "scram-sha-256", "scram-sha-512"} {
		text += fmt.Sprintf("[relay.%[1]s]\nsince = \"oldest\"\nroute = [{ channels = \"c\", subject = \"%[1]s\" }]\n[relay.%[1]s.kafka]\nbrokers = \"127.0.0.1:%[2]s\"\ntls_ca = %[3]q\nsasl = %[4]q\nuser = \"weir\"\npassword = \"secret\"\n",
			name+"-"+sasl, kafka.secure, kafka.ca(), sasl)
		topics = append(topics, name+"-"+sasl)
	}
	for _, topic := range topics {
		kafka.createTopic(t, topic, 1)
	}
	path := filepath.Join(t.TempDir(), "relay.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	relays, err := relay.Open(t.Context(), relay.Config{Path: path, Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})), Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(relays.Close)
	relaying(t, func(ctx context.Context) error { return relays.Run(ctx, pool) })
	if _, err := pool.Exec(t.Context(), `SELECT weir.publish('c', 'x')`); err != nil {
		t.Fatal(err)
	}
	if got := kafka.read(t, len(topics), topics...); len(got) != len(topics) {
		t.Errorf("got %d records, want one in each of %d topics", len(got), len(topics))
	}
}
