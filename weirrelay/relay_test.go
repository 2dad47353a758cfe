package weirrelay_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
	"github.com/weir-pg/weir/weirrelay"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func exec(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func value[T any](t *testing.T, pool *pgxpool.Pool, sql string, args ...any) (v T) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// run runs a relay until stop is called, or the test ends.
func run(t *testing.T, c weirrelay.Config) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- weirrelay.Run(ctx, c) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the relay ended: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// TestAnotherDatabaseGetsEveryMessageOnceInOrder: two processes run the relay; again and again the sessions of the one that passes messages on are ended, at both databases.
func TestAnotherDatabaseGetsEveryMessageOnceInOrder(t *testing.T) {
	t.Parallel()
	from, to := pgtest.Pool(t, pgtest.Database(t)), pgtest.Pool(t, pgtest.Database(t))
	c := weirrelay.Config{Name: "copy", Pool: from, Since: time.Now().Add(-time.Hour), MaxRecords: 20, Routes: []weirrelay.Route{{Channels: "orders.>", Subject: "copy.{channel}"}}}
	for range 2 {
		c.Target = &weirrelay.Database{Pool: to, Name: "copy"}
		run(t, c)
	}
	sub, err := weir.Subscribe(t.Context(), weir.SubscribeConfig{Client: weir.NewClient(to), Channels: []string{"copy.>"}})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	operator, err := pgx.Connect(t.Context(), to.Config().ConnString()) // no connection of the pool, which the relays use, too
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = operator.Close(context.WithoutCancel(t.Context())) }()
	const rounds, each = 15, 40
	for round := range rounds {
		for i := range each {
			exec(t, from, `SELECT weir.publish('orders.made', $1, true), weir.publish('others', 'x')`, fmt.Sprint(round*each+i))
		}
		if round%3 == 1 {
			exec(t, from, `SELECT pg_terminate_backend(l.pid) FROM pg_locks l JOIN pg_database d ON d.oid = l.database WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.classid = 1464158565`)
		}
		if round%3 == 2 {
			if _, err := operator.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%relay%'`); err != nil {
				t.Fatal(err)
			}
		}
	}
	for n := range rounds * each {
		e, err := sub.Next(t.Context())
		if err != nil || e.Message == nil || string(e.Message.Payload) != fmt.Sprint(n) || e.Message.Channel != "copy.orders.made" {
			t.Fatalf("message %d: %+v, %v", n, e.Message, err)
		}
	}
}

// TestATargetThatRefusesTheRelayIsWaitedFor: another database that has no schema yet, say, ends no process, which may have other relays.
func TestATargetThatRefusesTheRelayIsWaitedFor(t *testing.T) {
	t.Parallel()
	from, to := pgtest.Pool(t, pgtest.Database(t)), pgtest.Pool(t, pgtest.Empty(t))
	var log pgtest.Log
	run(t, weirrelay.Config{Name: "copy", Pool: from, Target: &weirrelay.Database{Pool: to, Name: "copy"}, Since: time.Now().Add(-time.Hour), Logger: log.Logger(), Routes: []weirrelay.Route{{Channels: "c"}}})
	pgtest.Until(t, "the log says why it waits", func() bool {
		return log.Count("begin at the target: weir is not installed in this database") > 0
	})
	exec(t, from, `SELECT weir.publish('c', 'a')`)
	conn, err := to.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = schema.Apply(t.Context(), conn.Conn())
	conn.Release()
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Until(t, "the message has arrived", func() bool { return value[int](t, to, `SELECT count(*) FROM weir.message`) == 1 })
}

// TestMessagesBecomeJobs: of the kind that is named, in the queue that the route makes, with a key.
func TestMessagesBecomeJobs(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	run(t, weirrelay.Config{Name: "hooks", Pool: pool, Target: &weirrelay.Database{Pool: pool, Name: "hooks as jobs", Kind: "webhook"}, Since: time.Now().Add(-time.Hour),
		Routes: []weirrelay.Route{{Channels: "orders.*", Subject: "hooks", Key: "{payload.customer}"}}})
	exec(t, pool, `SELECT weir.publish('orders.made', '{"customer": "acme"}'), weir.publish('orders.lost', 'text'), weir.publish_bytes('orders.raw', '\xff')`)
	client := weir.NewClient(pool)
	var jobs []weir.JobInfo
	pgtest.Until(t, "there are three jobs", func() bool {
		page, err := client.Jobs(t.Context(), weir.JobsParams{Queue: "hooks"})
		if err != nil {
			t.Fatal(err)
		}
		jobs = page.Jobs
		return len(jobs) == 3
	})
	var got []string
	for _, j := range jobs {
		var args map[string]any
		if err := json.Unmarshal(j.Args, &args); err != nil || j.Kind != "webhook" || args["position"] == "" {
			t.Errorf("job %+v, %v", j, err)
		}
		got = append(got, fmt.Sprintf("%s %v %v %s", args["channel"], args["payload"], args["bytes"], j.Key))
	}
	slices.Sort(got)
	if want := "orders.lost text <nil> |orders.made map[customer:acme] <nil> acme|orders.raw <nil> /w== "; strings.Join(got, "|") != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// refusing is a target that refuses messages whose payload begins with "bad", and otherwise keeps them.
type refusing struct {
	mu  sync.Mutex
	got []string
	off atomic.Bool
}

func (r *refusing) Begin(_ context.Context, recorded weir.Position) (weir.Position, error) {
	return recorded, nil
}

func (r *refusing) Send(_ context.Context, records []weirrelay.Record) error {
	if r.off.Load() {
		return fmt.Errorf("the target is off")
	}
	for i := range records {
		if strings.HasPrefix(string(records[i].Payload), "bad") || strings.Contains(records[i].Subject, "\x00") {
			return &weirrelay.Refused{Index: i, Err: fmt.Errorf("it is bad")}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range records {
		r.got = append(r.got, string(records[i].Payload))
	}
	return nil
}

func (r *refusing) all() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.got, " ")
}

func (r *refusing) has(payload string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.got, payload)
}

// TestWhatTheTargetRefusesIsKeptAsAJob: and the others go on.
func TestWhatTheTargetRefusesIsKeptAsAJob(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	target := &refusing{}
	run(t, weirrelay.Config{Name: "r", Pool: pool, Target: target, Since: time.Now().Add(-time.Hour), Routes: []weirrelay.Route{{Channels: "c"}, {Channels: "named", Subject: "{payload.s}"}}})
	exec(t, pool, `SELECT weir.publish('c', 'a'), weir.publish('c', 'bad'), weir.publish('c', 'b')`)
	exec(t, pool, `SELECT weir.publish('c', 'z')`)
	pgtest.Until(t, "the others have arrived", func() bool { return target.all() == "a b z" })
	page, err := weir.NewClient(pool).Jobs(t.Context(), weir.JobsParams{Queue: "r-dead-letters"})
	if err != nil || len(page.Jobs) != 1 {
		t.Fatalf("%+v, %v", page, err)
	}
	var letter weirrelay.DeadLetter
	if err := json.Unmarshal(page.Jobs[0].Args, &letter); err != nil || letter.Payload != "bad" || letter.Channel != "c" || letter.Relay != "r" || letter.Error != "it is bad" || letter.Position == "" {
		t.Errorf("%+v, %v", letter, err)
	}

	// What would not fit into a job is left out, and the letter says so.
	exec(t, pool, `SELECT weir.publish('c', 'bad' || repeat('x', 1000000)), weir.publish('c', 'after it')`)
	pgtest.Until(t, "the relay goes on", func() bool { return target.all() == "a b z after it" })
	if page, err = weir.NewClient(pool).Jobs(t.Context(), weir.JobsParams{Queue: "r-dead-letters"}); err != nil || len(page.Jobs) != 2 {
		t.Fatalf("%+v, %v", page, err)
	}
	letter = weirrelay.DeadLetter{}
	if err := json.Unmarshal(page.Jobs[1].Args, &letter); err != nil || letter.Payload != "" || letter.Error != "its 1000003 bytes are left out: it is bad" {
		t.Errorf("%+v, %v", letter, err)
	}

	// So is what is too large for a job when it is escaped; and what the JSON of PostgreSQL can't have is replaced.
	exec(t, pool, `SELECT weir.publish('c', 'bad' || repeat(chr(1), 500000)), weir.publish('named', '{"s": "a\u0000b"}'), weir.publish('c', 'the end')`)
	pgtest.Until(t, "the relay goes on", func() bool { return target.all() == "a b z after it the end" })
	if page, err = weir.NewClient(pool).Jobs(t.Context(), weir.JobsParams{Queue: "r-dead-letters"}); err != nil || len(page.Jobs) != 4 {
		t.Fatalf("%+v, %v", page, err)
	}
	for i, want := range []weirrelay.DeadLetter{{Error: "its 500003 bytes are left out: it is bad", Subject: "c"}, {Error: "it is bad", Subject: "a?b", Payload: `{"s": "a\u0000b"}`}} {
		letter = weirrelay.DeadLetter{}
		if err := json.Unmarshal(page.Jobs[2+i].Args, &letter); err != nil || letter.Payload != want.Payload || letter.Error != want.Error || letter.Subject != want.Subject {
			t.Errorf("%+v, %v; want %+v", letter, err, want)
		}
	}
}

// TestWhatADatabaseCantHaveIsKeptAsAJob: and the others go on. PostgreSQL's texts and JSON have no NUL.
func TestWhatADatabaseCantHaveIsKeptAsAJob(t *testing.T) {
	t.Parallel()
	from, to := pgtest.Pool(t, pgtest.Database(t)), pgtest.Pool(t, pgtest.Database(t))
	for name, c := range map[string]weirrelay.Config{
		"copy": {Target: &weirrelay.Database{Pool: to, Name: "copy"}, Routes: []weirrelay.Route{{Channels: "c", Subject: "copy{payload.s}"}}},
		"jobs": {Target: &weirrelay.Database{Pool: to, Name: "jobs", Kind: "k"}, Routes: []weirrelay.Route{{Channels: "c", Subject: "q"}}},
	} {
		c.Name, c.Pool, c.Since = name, from, time.Now().Add(-time.Hour)
		run(t, c)
	}
	exec(t, from, `SELECT weir.publish('c', '1'), weir.publish('c', '{"s": "\u0000"}'), weir.publish('c', '3')`)
	pgtest.Until(t, "what can be there is there, and the rest is kept", func() bool {
		return value[int](t, to, `SELECT count(*) FROM weir.message WHERE channel = 'copy'`) == 2 && value[int](t, to, `SELECT count(*) FROM weir.job WHERE kind = 'k'`) == 2 &&
			value[int](t, from, `SELECT count(*) FROM weir.job WHERE kind = 'relay.dead_letter' `) == 2
	})
}

// TestATargetThatHangsIsSaid: and it gets the messages, once, when it answers again.
func TestATargetThatHangsIsSaid(t *testing.T) {
	t.Parallel()
	from, to := pgtest.Pool(t, pgtest.Database(t)), pgtest.Pool(t, pgtest.Database(t))
	var log lines
	run(t, weirrelay.Config{Name: "copy", Pool: from, Target: &weirrelay.Database{Pool: to, Name: "copy"}, Since: time.Now().Add(-time.Hour), Logger: slog.New(slog.NewTextHandler(&log, nil)), Routes: []weirrelay.Route{{Channels: "c"}}})
	arrived := func(n int) func() bool {
		return func() bool { return value[int](t, to, `SELECT count(*) FROM weir.message WHERE channel = 'c'`) == n }
	}
	exec(t, from, `SELECT weir.publish('c', '1')`)
	pgtest.Until(t, "the first has arrived", arrived(1))
	tx, err := to.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `LOCK TABLE weir.relay IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	exec(t, from, `SELECT weir.publish('c', '2')`)
	pgtest.Until(t, "the log says it", func() bool { return log.has("sending to the target") })
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	exec(t, from, `SELECT weir.publish('c', '3')`)
	pgtest.Until(t, "the others have arrived", arrived(3))
}

// given are messages of a broker, which keeps them.
type given struct {
	mu   sync.Mutex
	all  []string
	more chan struct{}
	id   string // of each
	at   int
}

func (g *given) add(payload string) {
	g.mu.Lock()
	g.all = append(g.all, payload)
	g.mu.Unlock()
	g.more <- struct{}{}
}

func (g *given) Begin(_ context.Context, position string) (string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.at = 0; position != "" {
		_, err := fmt.Sscan(position, &g.at)
		return "", err
	}
	return "", nil
}

func (g *given) Next(ctx context.Context, _ int) (arrived []weirrelay.Arrival, position string, err error) {
	for {
		g.mu.Lock()
		for _, payload := range g.all[g.at:] {
			arrived = append(arrived, weirrelay.Arrival{Subject: "s", ID: g.id, Payload: []byte(payload)})
		}
		g.at = len(g.all)
		g.mu.Unlock()
		if len(arrived) > 0 {
			return arrived, fmt.Sprint(g.at), nil
		}
		select {
		case <-g.more:
		case <-ctx.Done():
			return nil, "", ctx.Err()
		}
	}
}

// TestADeadLetterHasAnIDThatADatabaseCanHave: or a relay would try for ever to keep a message of a source whose ids are any bytes.
func TestADeadLetterHasAnIDThatADatabaseCanHave(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	source := &given{more: make(chan struct{}, 1), id: "\x00\xff"}
	ended := make(chan error, 1)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	go func() { // ends with ctx
		ended <- weirrelay.RunFrom(ctx, weirrelay.FromConfig{Name: "in", Pool: pool, Source: source, Queue: "q", Kind: "k", Logger: slog.New(slog.DiscardHandler)})
	}()
	defer func() {
		stop()
		if err := pgtest.Receive(t, ended, "the relay ends"); err != nil {
			t.Error(err)
		}
	}()
	source.add(`{"s": "\u0000"}`)
	pgtest.Until(t, "the message is kept", func() bool {
		return value[string](t, pool, `SELECT coalesce(max(args ->> 'position'), '') FROM weir.job WHERE kind = 'relay.dead_letter'`) == "??"
	})
}

// TestADatabaseThatDoesNotAnswerIsSaid: to a relay that begins, nor to one that makes jobs. Both go on, once, when it answers again.
func TestADatabaseThatDoesNotAnswerIsSaid(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool, operator := pgtest.Pool(t, url), pgtest.Pool(t, url)
	var out, in lines
	source := &given{more: make(chan struct{}, 10)}
	relaying := make(chan error, 1)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	go func() { // ends with ctx
		relaying <- weirrelay.RunFrom(ctx, weirrelay.FromConfig{Name: "in", Pool: pool, Source: source, Queue: "q", Kind: "k", Logger: slog.New(slog.NewTextHandler(&in, nil))})
	}()
	defer func() {
		stop()
		if err := pgtest.Receive(t, relaying, "the relay ends"); err != nil {
			t.Error(err)
		}
	}()
	jobs := func(n int) func() bool {
		return func() bool { return value[int](t, operator, `SELECT count(*) FROM weir.job WHERE kind = 'k'`) == n }
	}
	source.add("1")
	pgtest.Until(t, "the first is a job", jobs(1))
	tx, err := operator.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `LOCK TABLE weir.relay IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	source.add("2")
	target := &refusing{}
	run(t, weirrelay.Config{Name: "out", Pool: pool, Target: target, Since: time.Now().Add(-time.Hour), Logger: slog.New(slog.NewTextHandler(&out, nil)), Routes: []weirrelay.Route{{Channels: "c"}}})
	exec(t, operator, `SELECT weir.publish('c', 'a')`)
	pgtest.Until(t, "both logs say it", func() bool { return in.has("fail, retrying") && out.has("fail, retrying") })
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	source.add("3")
	pgtest.Until(t, "all are jobs", jobs(3))
	pgtest.Until(t, "the message has arrived", func() bool { return target.all() == "a" })
}

// lines is a log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), text)
}

// elsewhere is a target that knows where it is.
type elsewhere struct {
	refusing
	at weir.Position
}

func (e *elsewhere) Begin(context.Context, weir.Position) (weir.Position, error) {
	return e.place(), nil
}

func (e *elsewhere) Send(ctx context.Context, records []weirrelay.Record) error {
	if err := e.refusing.Send(ctx, records); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at = records[len(records)-1].Position
	return nil
}

func (e *elsewhere) place() weir.Position {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.at
}

// TestARelayGoesOnBehindWhatIsRecorded: although its target's position is older, as it is when nothing was for this relay since then.
func TestARelayGoesOnBehindWhatIsRecorded(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	target := &elsewhere{}
	c := weirrelay.Config{Name: "quiet", Pool: pool, Target: target, Since: time.Now().Add(-time.Hour), Routes: []weirrelay.Route{{Channels: "c"}}}
	stop := run(t, c)
	exec(t, pool, `SELECT weir.publish('c', 'a')`)
	pgtest.Until(t, "it has arrived", func() bool { return target.all() == "a" })
	exec(t, pool, `SELECT weir.publish('other', 'x')`)
	recorded := func() int64 { return value[int64](t, pool, `SELECT coalesce(max(tick), 0) FROM weir.relays()`) }
	had, err := hub.ParsePosition(string(target.place()))
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Until(t, "the relay has recorded that it is behind the other message", func() bool { return recorded() > had.Tick })
	was := recorded()
	stop()
	stop = run(t, c)
	exec(t, pool, `SELECT weir.publish('c', 'z')`)
	pgtest.Until(t, "the last message has arrived", func() bool { return strings.HasSuffix(target.all(), "z") })
	stop()
	if got := target.all(); got != "a z" {
		t.Errorf("got %q", got)
	}
	var back int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM weir.relay a, weir.relay b WHERE b.no > a.no AND b.tick < a.tick`).Scan(&back); err != nil || back != 0 {
		t.Errorf("what is recorded goes back %d times from %d, %v", back, was, err)
	}
}

// TestATargetThatWasSetBackGetsAgainWhatItHasLost: so its own position is older than that of what it had; and one that knows nothing any more is a gap.
func TestATargetThatWasSetBackGetsAgainWhatItHasLost(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	target := &elsewhere{}
	var gaps atomic.Int32
	c := weirrelay.Config{Name: "r", Pool: pool, Target: target, Since: time.Now().Add(-time.Hour), Routes: []weirrelay.Route{{Channels: "c"}}, Observe: func(p weirrelay.Progress) {
		if p.Gap != nil {
			gaps.Add(1)
		}
	}}
	letters := func() int {
		return value[int](t, pool, `SELECT count(*) FROM weir.job WHERE kind = 'relay.dead_letter'`)
	}
	send := func(payload, want string, dead int) {
		t.Helper()
		stop := run(t, c)
		exec(t, pool, `SELECT weir.publish('c', $1)`, payload)
		pgtest.Until(t, "it has arrived: "+want, func() bool { return target.all() == want && letters() == dead })
		stop()
	}
	send("a", "a", 0)
	backup := target.at
	send("b", "a b", 0)
	send("bad", "a b", 1) // which the target does not know, and which is not sent again
	send("d", "a b d", 1)
	target.at, target.got = backup, []string{"a"}
	send("e", "a b d e", 2) // what is sent again may be refused again
	if n := gaps.Load(); n != 0 {
		t.Errorf("%d gaps, want none", n)
	}
	target.at, target.got = "", nil
	send("f", "f", 2)
	if n := gaps.Load(); n != 1 {
		t.Errorf("%d gaps, want one", n)
	}
}

// TestMessagesAreKeptForARelay: beyond message_retention, until it has passed them on, or relay_retention is over: then it says so.
func TestMessagesAreKeptForARelay(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	exec(t, pool, `SELECT weir.set('message_retention', '0 seconds'), weir.set('relay_retention', '1 hour')`)
	target := &refusing{}
	var gaps atomic.Int32
	c := weirrelay.Config{Name: "r", Pool: pool, Target: target, Routes: []weirrelay.Route{{Channels: "c"}}, Observe: func(p weirrelay.Progress) {
		if p.Gap != nil {
			gaps.Add(1)
		}
	}}
	stop := run(t, c)
	pgtest.Until(t, "the relay is known", func() bool { return value[int](t, pool, `SELECT count(*) FROM weir.relays()`) == 1 })
	exec(t, pool, `SELECT weir.publish('c', 'first')`)
	pgtest.Until(t, "the first message has arrived", func() bool { return target.all() == "first" })
	stop()
	early := weir.Position(value[string](t, pool, `SELECT position FROM weir.relays()`))
	turn := func() {
		t.Helper()
		for range 20 {
			value[*string](t, pool, `SELECT weir._rotate_messages()`)
		}
	}
	for i := range 8 { // the ring has four segments
		exec(t, pool, `SELECT weir.publish('c', $1)`, fmt.Sprint(i))
		exec(t, pool, `SELECT pg_sleep(0.6)`) // a segment is filled for half of retention, but at least half a second: this is the time that it takes, not a wait for something
		turn()
	}
	if kept := value[int](t, pool, `SELECT count(*) FROM weir.message WHERE channel = 'c'`); kept < 8 {
		t.Errorf("%d messages are kept, want at least the 8 that the relay has not passed on", kept)
	}
	if behind := value[bool](t, pool, `SELECT oldest_waiting IS NOT NULL FROM weir.relays()`); !behind {
		t.Error("the relay does not count as behind")
	}
	stop = run(t, c)
	pgtest.Until(t, "the rest has arrived", func() bool { return target.all() == "first 0 1 2 3 4 5 6 7" })
	stop()
	if n := gaps.Load(); n != 0 {
		t.Errorf("%d gaps, want none", n)
	}

	exec(t, pool, `SELECT weir.set('relay_retention', '0 seconds')`)
	for i := range 8 {
		exec(t, pool, `SELECT weir.publish('c', $1)`, fmt.Sprint("late", i))
		exec(t, pool, `SELECT pg_sleep(0.6)`)
		turn()
	}
	run(t, c)
	pgtest.Until(t, "the relay reports a gap", func() bool { return gaps.Load() > 0 })
	for name, from := range map[string]weirrelay.Config{"by time": {Since: time.Now().Add(-time.Hour)}, "by position": {After: early}} {
		was := gaps.Load()
		var said pgtest.Log
		c.Name, c.Since, c.After, c.Logger = name, from.Since, from.After, slog.New(slog.NewTextHandler(&said, nil))
		stop := run(t, c)
		pgtest.Until(t, "a new one that begins "+name+" reports it, too", func() bool { return gaps.Load() > was })
		stop()
		if log := said.String(); strings.Contains(log, "weir relay replay") || !strings.Contains(log, "message_retention") {
			t.Errorf("%s: what is not kept any more can't be passed on again, and what keeps it is named: %s", name, log)
		}
	}
	if !value[bool](t, pool, `SELECT weir.forget_relay('r')`) || value[bool](t, pool, `SELECT weir.forget_relay('unknown')`) {
		t.Error("forget_relay")
	}
}

// unrecorded is a target that keeps no position. After the first record, the database can't record how far the relay has come until the relay begins anew, which the second one causes.
type unrecorded struct {
	refusing
	pool *pgxpool.Pool
	left atomic.Int32 // calls of Send until then
}

func (u *unrecorded) Begin(ctx context.Context, recorded weir.Position) (weir.Position, error) {
	_, err := u.pool.Exec(ctx, `DROP TRIGGER IF EXISTS never ON weir.relay`)
	return recorded, err
}

func (u *unrecorded) Send(ctx context.Context, records []weirrelay.Record) error {
	switch u.left.Add(-1) {
	case 1:
		if _, err := u.pool.Exec(ctx, `CREATE TRIGGER never BEFORE INSERT ON weir.relay FOR EACH ROW EXECUTE FUNCTION public.never()`); err != nil {
			return err
		}
	case 0:
		return weirrelay.ErrMoved
	}
	return u.refusing.Send(ctx, records)
}

// TestATargetWithoutAPositionWasNotSetBack: if it has more than is recorded, this is sent again, without a word about a restore.
func TestATargetWithoutAPositionWasNotSetBack(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	exec(t, pool, `CREATE FUNCTION public.never() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not now'; END $$`)
	var said pgtest.Log
	target := &unrecorded{pool: pool}
	target.left.Store(2)
	run(t, weirrelay.Config{Name: "r", Pool: pool, Target: target, Since: time.Now().Add(-time.Hour), Routes: []weirrelay.Route{{Channels: "c"}}, Logger: slog.New(slog.NewTextHandler(&said, nil))})
	exec(t, pool, `SELECT weir.publish('c', 'a')`)
	pgtest.Until(t, "the first has arrived", func() bool { return target.all() == "a" })
	exec(t, pool, `SELECT weir.publish('c', 'b')`)
	pgtest.Until(t, "both have, the first one again", func() bool { return target.all() == "a a b" })
	if log := said.String(); !strings.Contains(log, "is not recorded") || strings.Contains(log, "was set back") {
		t.Error(log)
	}
}

// TestARelayThatHasPassedOnEverythingIsNotBehind: also if what was published last is not for it.
func TestARelayThatHasPassedOnEverythingIsNotBehind(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	target := &refusing{}
	run(t, weirrelay.Config{Name: "r", Pool: pool, Target: target, Since: time.Now().Add(-time.Hour), Routes: []weirrelay.Route{{Channels: "c"}}})
	exec(t, pool, `SELECT weir.publish('c', 'mine')`)
	pgtest.Until(t, "the message has arrived", func() bool { return target.all() == "mine" })
	exec(t, pool, `SELECT weir.publish('other', 'not mine')`)
	pgtest.Until(t, "nothing waits", func() bool {
		return value[bool](t, pool, `SELECT tick > 2 AND oldest_waiting IS NULL FROM weir.relays()`)
	})
}

// TestARelayOfJobsThatIsRefusedIsNamed: its process may have others.
func TestARelayOfJobsThatIsRefusedIsNamed(t *testing.T) {
	t.Parallel()
	err := weirrelay.RunJobs(t.Context(), weirrelay.JobsConfig{Name: "mail", Pool: pgtest.Pool(t, pgtest.Empty(t)), Target: &refusing{}, Routes: []weirrelay.Route{{Queue: "q"}}})
	if err == nil || !strings.Contains(err.Error(), "relay mail: ") || !strings.Contains(err.Error(), "weir is not installed") {
		t.Errorf("got %v", err)
	}
}

// TestARelayIsConfiguredOrRefused: with the value, and what to do.
func TestARelayIsConfiguredOrRefused(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	good := weirrelay.Config{Name: "r", Pool: pool, Target: &refusing{}, Routes: []weirrelay.Route{{Channels: "c"}}}
	for want, change := range map[string]func(c *weirrelay.Config){
		`Config.Name must have 1 to 100 characters, got ""`: func(c *weirrelay.Config) { c.Name = "" },
		`Config.Pool is nil`:             func(c *weirrelay.Config) { c.Pool = nil },
		`Config.Target is nil`:           func(c *weirrelay.Config) { c.Target = nil },
		`no routes are given`:            func(c *weirrelay.Config) { c.Routes = nil },
		`{order} is not one of`:          func(c *weirrelay.Config) { c.Routes = []weirrelay.Route{{Channels: "c", Subject: "{order}"}} },
		`"{channel": a { has no }`:       func(c *weirrelay.Config) { c.Routes = []weirrelay.Route{{Channels: "c", Subject: "{channel"}} },
		`{payload.} is not one of`:       func(c *weirrelay.Config) { c.Routes = []weirrelay.Route{{Channels: "c", Key: "{payload.}"}} },
		`> may only be its last word`:    func(c *weirrelay.Config) { c.Routes = []weirrelay.Route{{Channels: ">.c"}} },
		`MaxRecords must be 1 to 100000`: func(c *weirrelay.Config) { c.MaxRecords = -1 },
		`use broader patterns`: func(c *weirrelay.Config) {
			c.Routes = nil
			for i := range 1001 {
				c.Routes = append(c.Routes, weirrelay.Route{Channels: fmt.Sprintf("c%d.>", i)})
			}
		},
	} {
		c := good
		change(&c)
		if err := weirrelay.Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
