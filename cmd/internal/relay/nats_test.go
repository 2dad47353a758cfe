package relay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/cmd/internal/natstest"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirrelay"
	"github.com/weir-pg/weir/weirrelay/natsrelay"
)

const patience = time.Minute

// jetStream starts a NATS server with JetStream.
func jetStream(t testing.TB) *server.Server {
	t.Helper()
	return natstest.Start(t, &server.Options{JetStream: true, StoreDir: t.TempDir()})
}

// begun returns a target for a relay that begins at the stream ORDERS.
func begun(t *testing.T, nc *nats.Conn) *natsrelay.Target {
	t.Helper()
	target, err := natsrelay.New(natsrelay.Config{Conn: nc, Name: "r", Stream: "ORDERS"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := target.Begin(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	return target
}

func dial(t testing.TB, url string) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	nc, err := nats.Connect(url, nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return nc, js
}

// run runs a relay until stop is called, or the test ends.
func run(t *testing.T, c weirrelay.Config) (stop func()) {
	t.Helper()
	return relaying(t, func(ctx context.Context) error { return weirrelay.Run(ctx, c) })
}

// relaying runs a relay of any sort until stop is called, or the test ends.
func relaying(t testing.TB, relay func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- relay(ctx) }() // ends with ctx
	stop = sync.OnceFunc(func() {
		cancel()
		if err := pgtest.Receive(t, done, "the relay ends"); err != nil {
			t.Errorf("the relay ended: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// stored returns the payloads in a stream, in order, once there are n.
func stored(t *testing.T, js jetstream.JetStream, stream string, n int) (all []string) {
	t.Helper()
	ctx := t.Context()
	s, err := js.Stream(ctx, stream)
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Until(t, fmt.Sprintf("%d messages are in the stream", n), func() bool {
		info, err := s.Info(ctx)
		return err == nil && info.State.Msgs >= uint64(n)
	})
	c, err := s.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	info, err := s.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := c.Messages()
	if err != nil {
		t.Fatal(err)
	}
	defer messages.Stop()
	for range info.State.Msgs {
		m, err := messages.Next()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(m.Data()))
	}
	return all
}

// TestJetStreamGetsEveryMessageOnceInOrder: though the relay is stopped and started again and again.
func TestJetStreamGetsEveryMessageOnceInOrder(t *testing.T) {
	t.Parallel()
	for _, atomic := range []bool{true, false} {
		t.Run(fmt.Sprintf("atomic %t", atomic), func(t *testing.T) {
			t.Parallel()
			getsEveryMessageOnce(t, atomic)
		})
	}
}

func getsEveryMessageOnce(t *testing.T, atomic bool) {
	pool := pgtest.Pool(t, pgtest.Database(t))
	nc, js := dial(t, jetStream(t).ClientURL())
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"shop.>"}, Duplicates: time.Second, AllowAtomicPublish: atomic}); err != nil {
		t.Fatal(err)
	}
	var want []string
	publish := func(n int) {
		t.Helper()
		for range n {
			want = append(want, fmt.Sprintf(`{"n": %d}`, len(want)))
		}
		if _, err := pool.Exec(t.Context(), `SELECT weir.publish_many(array_fill('orders.made'::text, ARRAY[$1::integer]), $2)`, n, want[len(want)-n:]); err != nil {
			t.Fatal(err)
		}
		if _, err := pool.Exec(t.Context(), `SELECT weir.publish('others', 'x')`); err != nil {
			t.Fatal(err)
		}
	}
	target, err := natsrelay.New(natsrelay.Config{Conn: nc, Name: "orders", Stream: "ORDERS"})
	if err != nil {
		t.Fatal(err)
	}
	c := weirrelay.Config{Name: "orders", Pool: pool, Target: target, Since: time.Now().Add(-time.Hour),
		Routes: []weirrelay.Route{{Channels: "orders.>", Subject: "shop.{channel}", Headers: map[string]string{"N": "{payload.n}"}}}}
	for range 5 {
		publish(1000)
		stop := run(t, c)
		stored(t, js, "ORDERS", len(want)-500)
		stop()
	}
	run(t, c)
	if got := stored(t, js, "ORDERS", len(want)); !slices.Equal(got, want) {
		t.Errorf("got %d messages, want %d, in their order: %.200s …", len(got), len(want), strings.Join(got, " "))
	}
}

// TestMessagesDoNotCommandNATS: by a channel whose name is a subject of NATS itself. That, and a subject which the server would not read, is kept as a job; and the relay goes on.
func TestMessagesDoNotCommandNATS(t *testing.T) {
	t.Parallel()
	for _, atomic := range []bool{true, false} {
		t.Run(fmt.Sprintf("atomic %t", atomic), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, pgtest.Database(t))
			nc, js := dial(t, jetStream(t).ClientURL())
			for _, c := range []jetstream.StreamConfig{{Name: "ORDERS", Subjects: []string{"shop.>"}, AllowAtomicPublish: atomic}, {Name: "OTHER", Subjects: []string{"other"}}} {
				if _, err := js.CreateStream(t.Context(), c); err != nil {
					t.Fatal(err)
				}
			}
			target, err := natsrelay.New(natsrelay.Config{Conn: nc, Name: "orders", Stream: "ORDERS"})
			if err != nil {
				t.Fatal(err)
			}
			run(t, weirrelay.Config{Name: "orders", Pool: pool, Target: target, Since: time.Now().Add(-time.Hour), Logger: slog.New(slog.DiscardHandler), Routes: []weirrelay.Route{{Channels: "long", Subject: "shop.{payload.s}"}, {Channels: ">"}}})
			if _, err := pool.Exec(t.Context(), `SELECT weir.publish('_INBOX.x', i::text) FROM generate_series(1, 400) i`); err != nil {
				t.Fatal(err)
			}
			if _, err := pool.Exec(t.Context(), `SELECT weir.publish('$JS.API.STREAM.DELETE.OTHER', ''), weir.publish('long', json_build_object('s', repeat('x', 5000))::text), weir.publish('shop.x', 'the last')`); err != nil {
				t.Fatal(err)
			}
			if got := stored(t, js, "ORDERS", 1); !slices.Equal(got, []string{"the last"}) {
				t.Errorf("got %q", got)
			}
			if _, err := js.Stream(t.Context(), "OTHER"); err != nil {
				t.Errorf("the other stream: %v", err)
			}
			letters := 0
			if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM weir.job WHERE kind = 'relay.dead_letter'`).Scan(&letters); err != nil || letters != 402 {
				t.Errorf("%d dead letters, %v; want 402", letters, err)
			}
		})
	}
}

// TestAWorkQueueOfNATSGetsEveryJobOnce: though nobody else may read it, and the relay is stopped and started.
func TestAWorkQueueOfNATSGetsEveryJobOnce(t *testing.T) {
	t.Parallel()
	for _, atomic := range []bool{true, false} {
		t.Run(fmt.Sprintf("atomic %t", atomic), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, pgtest.Database(t))
			nc, js := dial(t, jetStream(t).ClientURL())
			if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "JOBS", Subjects: []string{"mail"}, Retention: jetstream.WorkQueuePolicy, AllowAtomicPublish: atomic}); err != nil {
				t.Fatal(err)
			}
			target, err := natsrelay.New(natsrelay.Config{Conn: nc, Name: "r", Stream: "JOBS"})
			if err != nil {
				t.Fatal(err)
			}
			stream, err := js.Stream(t.Context(), "JOBS")
			if err != nil {
				t.Fatal(err)
			}
			for round := range 3 {
				stop := run(t, weirrelay.Config{Name: "r", Pool: pool, Target: target, Since: time.Now().Add(-time.Hour), Routes: []weirrelay.Route{{Channels: "mail"}}})
				if _, err := pool.Exec(t.Context(), `SELECT weir.publish('mail', i::text) FROM generate_series(1, 10) i`); err != nil {
					t.Fatal(err)
				}
				pgtest.Until(t, "they have arrived", func() bool {
					info, err := stream.Info(t.Context())
					return err == nil && info.State.Msgs == uint64(10*(round+1))
				})
				stop()
			}
			// What was sent, and is not recorded, is sent again: the stream drops it.
			if _, err := target.Begin(t.Context(), ""); err != nil {
				t.Fatal(err)
			}
			again := make([]weirrelay.Record, 30)
			messages, err := stream.CreateOrUpdateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "worker", AckPolicy: jetstream.AckExplicitPolicy})
			if err != nil {
				t.Fatal(err)
			}
			batch, err := messages.Fetch(30)
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for m := range batch.Messages() {
				position := m.Headers().Get(natsrelay.HeaderPosition)
				again[n] = weirrelay.Record{ID: "r/" + position, Position: weir.Position(position), Channel: "mail", Subject: "mail", Payload: m.Data()}
				n++
			}
			if err := target.Send(t.Context(), append(again, weirrelay.Record{ID: "r/9.9999.1", Position: "9.9999.1", Channel: "mail", Subject: "mail", Payload: []byte("new")})); err != nil {
				t.Fatal(err)
			}
			if info, err := stream.Info(t.Context()); err != nil || info.State.LastSeq != 31 {
				t.Errorf("the stream has had %d messages, %v; want 31", info.State.LastSeq, err)
			}
		})
	}
}

// TestAStreamThatIsMadeAnewGetsWhatComesThen: also if it does not allow batches any more, and without a new process.
func TestAStreamThatIsMadeAnewGetsWhatComesThen(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	nc, js := dial(t, jetStream(t).ClientURL())
	target, err := natsrelay.New(natsrelay.Config{Conn: nc, Name: "r", Stream: "ORDERS"})
	if err != nil {
		t.Fatal(err)
	}
	var sent atomic.Int64
	for i, batches := range []bool{true, false, true} {
		// In memory: of a stream in files that is deleted soon after it was written, the next one sometimes has what it had.
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders"}, AllowAtomicPublish: batches, Storage: jetstream.MemoryStorage}); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			run(t, weirrelay.Config{Name: "r", Pool: pool, Target: target, Since: time.Now().Add(-time.Hour), Routes: []weirrelay.Route{{Channels: "orders"}}, Observe: func(p weirrelay.Progress) { sent.Add(int64(p.Sent)) }})
		}
		if _, err := pool.Exec(t.Context(), `SELECT weir.publish('orders', i::text) FROM generate_series(1, 3) i`); err != nil {
			t.Fatal(err)
		}
		if got := stored(t, js, "ORDERS", 3); !slices.Equal(got, []string{"1", "2", "3"}) {
			t.Errorf("got %q", got)
		}
		// A message whose answer is lost with the stream goes into the next one, too.
		pgtest.Until(t, "the relay knows that the stream has them", func() bool { return sent.Load() == int64(3*(i+1)) })
		if err := js.DeleteStream(t.Context(), "ORDERS"); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAStreamWhoseNewestMessagesAreGoneIsSentTo: its consumers have taken them, or somebody has deleted them, and an old one is left.
func TestAStreamWhoseNewestMessagesAreGoneIsSentTo(t *testing.T) {
	t.Parallel()
	nc, js := dial(t, jetStream(t).ClientURL())
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"shop.>"}, Storage: jetstream.MemoryStorage})
	if err != nil {
		t.Fatal(err)
	}
	const newer = 200_001 // than those that a relay looks at when it begins
	for n := range newer + 1 {
		subject := "shop.taken"
		if n == 0 {
			subject = "shop.left"
		}
		if err := nc.Publish(subject, nil); err != nil {
			t.Fatal(err)
		}
	}
	pgtest.Until(t, "all are stored", func() bool {
		info, err := stream.Info(t.Context())
		return err == nil && info.State.LastSeq == newer+1
	})
	if err := stream.Purge(t.Context(), jetstream.WithPurgeSubject("shop.taken")); err != nil {
		t.Fatal(err)
	}
	target := begun(t, nc)
	if err := target.Send(t.Context(), []weirrelay.Record{{ID: "r/1.1.1", Position: "1.1.1", Channel: "orders", Subject: "shop.orders"}}); err != nil {
		t.Error(err)
	}
}

// TestOfABatchNATSRefusesTheMessageThatIsToBlame: one whose headers, made from its payload, are too large or say nothing that NATS knows, or that is larger than the stream takes since it was changed.
func TestOfABatchNATSRefusesTheMessageThatIsToBlame(t *testing.T) {
	t.Parallel()
	for _, atomic := range []bool{true, false} {
		t.Run(fmt.Sprintf("atomic %t", atomic), func(t *testing.T) {
			t.Parallel()
			nc, js := dial(t, jetStream(t).ClientURL())
			config := jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"shop.>"}, AllowAtomicPublish: atomic, AllowMsgTTL: true, AllowRollup: true, AllowMsgSchedules: true}
			if _, err := js.CreateStream(t.Context(), config); err != nil {
				t.Fatal(err)
			}
			target := begun(t, nc)
			var want []string
			send := func(what string, change func(*weirrelay.Record)) {
				t.Helper()
				var records []weirrelay.Record
				for range 5 {
					at := weir.Position(fmt.Sprintf("1.1.%d", len(want)+len(records)+1))
					records = append(records, weirrelay.Record{ID: "r/" + string(at), Position: at, Channel: "orders", Subject: "shop.orders", Payload: []byte(at)})
				}
				change(&records[2])
				pgtest.Eventually(t, func() error {
					err := target.Send(t.Context(), records)
					if no := (*weirrelay.Refused)(nil); !errors.As(err, &no) {
						return fmt.Errorf("%s: %w, want that record 2 is refused", what, err)
					} else if no.Index != 2 {
						t.Fatalf("%s: record %d is refused, want 2", what, no.Index)
					}
					return nil
				})
				records = slices.Delete(records, 2, 3)
				for _, r := range records {
					want = append(want, string(r.Payload))
				}
				want = append(want, "")
				if err := target.Send(t.Context(), records); err != nil {
					t.Fatalf("%s: the others: %v", what, err)
				}
			}
			send("large headers", func(r *weirrelay.Record) { r.Headers = map[string]string{"customer": strings.Repeat("x", 70_000)} })
			for name, value := range map[string]string{"Nats-TTL": "soon", "Nats-Rollup": "some", "Nats-Schedule": "at times", "Nats-Incr": "more"} {
				send(name, func(r *weirrelay.Record) { r.Headers = map[string]string{name: value} })
			}
			config.MaxMsgSize = 1000
			if _, err := js.UpdateStream(t.Context(), config); err != nil {
				t.Fatal(err)
			}
			send("a large payload", func(r *weirrelay.Record) { r.Payload = make([]byte, 2000) })
			want = slices.DeleteFunc(want, func(payload string) bool { return payload == "" })
			if got := stored(t, js, "ORDERS", len(want)); !slices.Equal(got, want) {
				t.Errorf("the stream has %q, want %q", got, want)
			}
		})
	}
}

// TestBatchesAreAsLongAsNATSTakesThem: its server may be set to take shorter ones.
func TestBatchesAreAsLongAsNATSTakesThem(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t, &server.Options{JetStream: true, StoreDir: t.TempDir(), JetStreamLimits: server.JSLimitOpts{MaxBatchSize: 30}})
	nc, js := dial(t, s.ClientURL())
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"shop.>"}, AllowAtomicPublish: true}); err != nil {
		t.Fatal(err)
	}
	target := begun(t, nc)
	var records []weirrelay.Record
	var want []string
	for n := range 1234 {
		at := weir.Position(fmt.Sprintf("1.1.%d", n+1))
		records = append(records, weirrelay.Record{ID: "r/" + string(at), Position: at, Channel: "orders", Subject: "shop.orders", Payload: []byte(at)})
		want = append(want, string(at))
	}
	for range 2 { // the second time, the stream has all of them
		if err := target.Send(t.Context(), records); err != nil {
			t.Fatal(err)
		}
		if got := stored(t, js, "ORDERS", len(want)); !slices.Equal(got, want) {
			t.Fatalf("the stream has %d messages: %q", len(got), got)
		}
	}
}

// TestWhatAStreamOfNATSMayAllowLaterWaits: a message that is to be dropped after some time; and messages of which each replaces the one before are no batch.
func TestWhatAStreamOfNATSMayAllowLaterWaits(t *testing.T) {
	t.Parallel()
	for _, atomic := range []bool{true, false} {
		t.Run(fmt.Sprintf("atomic %t", atomic), func(t *testing.T) {
			t.Parallel()
			nc, js := dial(t, jetStream(t).ClientURL())
			config := jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"shop.>"}, AllowAtomicPublish: atomic}
			if _, err := js.CreateStream(t.Context(), config); err != nil {
				t.Fatal(err)
			}
			target := begun(t, nc)
			var records []weirrelay.Record
			for n, headers := range []map[string]string{{"Nats-TTL": "1h"}, {"Nats-Rollup": "sub"}, {"Nats-Rollup": "sub"}} {
				at := weir.Position(fmt.Sprintf("1.1.%d", n+1))
				records = append(records, weirrelay.Record{ID: "r/" + string(at), Position: at, Channel: "orders", Subject: "shop.orders", Payload: []byte(at), Headers: headers})
			}
			err := target.Send(t.Context(), records)
			if no := (*weirrelay.Refused)(nil); err == nil || errors.As(err, &no) {
				t.Errorf("sent to a stream that does not allow it: %v", err)
			}
			config.AllowMsgTTL, config.AllowRollup = true, true
			if _, err := js.UpdateStream(t.Context(), config); err != nil {
				t.Fatal(err)
			}
			if err := target.Send(t.Context(), records); err != nil {
				t.Fatal(err)
			}
			if got := stored(t, js, "ORDERS", 1); !slices.Equal(got, []string{"1.1.3"}) {
				t.Errorf("the stream has %q, want what has replaced the others", got)
			}
		})
	}
}

// TestASubjectOfAnotherStreamIsSaid: with both names, since the subject is either wrong or the stream is.
func TestASubjectOfAnotherStreamIsSaid(t *testing.T) {
	t.Parallel()
	nc, js := dial(t, jetStream(t).ClientURL())
	for _, config := range []jetstream.StreamConfig{{Name: "ORDERS", Subjects: []string{"shop.>"}}, {Name: "OTHERS", Subjects: []string{"other.>"}}} {
		if _, err := js.CreateStream(t.Context(), config); err != nil {
			t.Fatal(err)
		}
	}
	err := begun(t, nc).Send(t.Context(), []weirrelay.Record{{ID: "r/1.1.1", Position: "1.1.1", Channel: "orders", Subject: "other.orders", Payload: []byte("a")}})
	if err == nil || !strings.Contains(err.Error(), `the subject "other.orders" is one of another stream than ORDERS: name that one, or change the route`) {
		t.Error(err)
	}
}
