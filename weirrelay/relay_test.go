package weirrelay_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
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
		if strings.HasPrefix(string(records[i].Payload), "bad") {
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

// TestWhatTheTargetRefusesIsKeptAsAJob: and the others go on.
func TestWhatTheTargetRefusesIsKeptAsAJob(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	target := &refusing{}
	run(t, weirrelay.Config{Name: "r", Pool: pool, Target: target, Since: time.Now().Add(-time.Hour), Routes: []weirrelay.Route{{Channels: "c"}}})
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
}

// elsewhere is a target that knows where it is.
type elsewhere struct {
	refusing
	at weir.Position
}

func (e *elsewhere) Begin(context.Context, weir.Position) (weir.Position, error) { return e.at, nil }

func (e *elsewhere) Send(ctx context.Context, records []weirrelay.Record) error {
	if e.at == "" {
		e.at = records[0].Position
	}
	return e.refusing.Send(ctx, records)
}

// TestARelayGoesOnBehindWhatIsRecorded: although its target's position is older, as it is when nothing was for this relay since then.
func TestARelayGoesOnBehindWhatIsRecorded(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	target := &elsewhere{}
	c := weirrelay.Config{Name: "quiet", Pool: pool, Target: target, Since: time.Now().Add(-time.Hour), Routes: []weirrelay.Route{{Channels: "c"}}}
	stop := run(t, c)
	for _, payload := range []string{"a", "b"} {
		exec(t, pool, `SELECT weir.publish('c', $1)`, payload)
		pgtest.Until(t, "it has arrived", func() bool { return strings.HasSuffix(target.all(), payload) })
	}
	stop() // and so has recorded where it is
	stop = run(t, c)
	exec(t, pool, `SELECT weir.publish('c', 'z')`)
	pgtest.Until(t, "the last message has arrived", func() bool { return strings.HasSuffix(target.all(), "z") })
	stop()
	if got := target.all(); got != "a b z" {
		t.Errorf("got %q", got)
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
	if !value[bool](t, pool, `SELECT weir.forget_relay('r')`) || value[bool](t, pool, `SELECT weir.forget_relay('unknown')`) {
		t.Error("forget_relay")
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
		`{order is not one of`:           func(c *weirrelay.Config) { c.Routes = []weirrelay.Route{{Channels: "c", Subject: "{order"}} },
		`{payload. is not one of`:        func(c *weirrelay.Config) { c.Routes = []weirrelay.Route{{Channels: "c", Key: "{payload.}"}} },
		`> may only be its last word`:    func(c *weirrelay.Config) { c.Routes = []weirrelay.Route{{Channels: ">.c"}} },
		`MaxRecords must be 1 to 100000`: func(c *weirrelay.Config) { c.MaxRecords = -1 },
	} {
		c := good
		change(&c)
		if err := weirrelay.Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
