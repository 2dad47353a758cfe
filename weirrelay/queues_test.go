package weirrelay_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirrelay"
)

// keeping is a target that keeps how often it got each record, by subject and ID.
type keeping struct {
	mu   sync.Mutex
	got  map[string]map[string]int
	asks chan struct{} // of each Send; nil: none asks
	goOn chan struct{} // what it waits for then
}

func (k *keeping) Begin(context.Context, weir.Position) (weir.Position, error) { return "", nil }

func (k *keeping) Send(ctx context.Context, records []weirrelay.Record) error {
	if k.asks != nil {
		select {
		case k.asks <- struct{}{}:
		default:
		}
		select {
		case <-k.goOn:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.got == nil {
		k.got = map[string]map[string]int{}
	}
	for _, r := range records {
		if k.got[r.Subject] == nil {
			k.got[r.Subject] = map[string]int{}
		}
		k.got[r.Subject][r.ID]++
	}
	return nil
}

// all says how many records each subject has, in the order of their names, and which were doubled.
func (k *keeping) all() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var text []string
	for _, subject := range slices.Sorted(maps.Keys(k.got)) {
		text = append(text, fmt.Sprintf("%s: %d", subject, len(k.got[subject])))
		for id, n := range k.got[subject] {
			if n != 1 {
				text = append(text, fmt.Sprintf("%s came %d times", id, n))
			}
		}
	}
	return strings.Join(text, ", ")
}

func (k *keeping) n() (n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, records := range k.got {
		n += len(records)
	}
	return n
}

// runJobs runs a relay of jobs until stop is called, or the test ends.
func runJobs(t *testing.T, c weirrelay.JobsConfig) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	if c.Logger == nil {
		c.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	go func() { done <- weirrelay.RunJobs(ctx, c) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := pgtest.Receive(t, done, "the relay ends"); err != nil {
			t.Errorf("the relay ended: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// TestARelayPassesOnTheQueuesThatFitAPattern: those that are there and those that come into being while it runs, by the first route that fits. What fits none stays, and so do
// dead letters.
func TestARelayPassesOnTheQueuesThatFitAPattern(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Pool(t, url)
	target := &keeping{}
	runJobs(t, weirrelay.JobsConfig{Name: "mail", Pool: pool, Target: target, Routes: []weirrelay.Route{
		{Queue: "mail.vip", Subject: "vip"}, {Queue: "mail.*", Subject: "one"}, {Queue: "mail.late", Subject: "never"}, {Queue: "mail.>", Subject: "deep"}, {Queue: "r-dead-letters", Subject: "letters"},
	}})
	exec(t, pool, `SELECT weir.enqueue(q, 'k') FROM unnest(ARRAY['mail.a', 'mail', 'mailbox.a', 'post', 'mail.orders-dead-letters', 'r-dead-letters', 's-dead-letters']) q`)
	pgtest.Until(t, "what is there is passed on", func() bool { return target.all() == "letters: 1, one: 1" })
	exec(t, pool, `SELECT weir.enqueue(q, 'k') FROM unnest(ARRAY['mail.b', 'mail.late', 'mail.vip', 'mail.c.d', 'mail.*', 'mail.>', 'mail.', 'mail.{x}, "y" %', 'post.a']) q`)
	pgtest.Until(t, "what comes later is passed on", func() bool { return target.n() == 10 })
	if got := target.all(); got != "deep: 1, letters: 1, one: 7, vip: 1" {
		t.Errorf("the target has %s", got)
	}
	exec(t, pool, `SELECT weir.enqueue('mail.orders-dead-letters', 'k'), weir.enqueue('mail.vip', 'k')`)
	pgtest.Until(t, "the rest is passed on", func() bool { return target.n() == 11 })
	left := value[[]string](t, pool, `SELECT array_agg(queue ORDER BY queue COLLATE "C") FROM weir.available_jobs`)
	if want := []string{"mail", "mail.orders-dead-letters", "mail.orders-dead-letters", "mailbox.a", "post", "post.a", "s-dead-letters"}; !slices.Equal(left, want) {
		t.Errorf("%q are left, want %q", left, want)
	}
}

// TestJobsAreNotDoubledWhenQueuesCome: those on their way while a queue comes into being are passed on once, by the worker that has them; and so is all that comes to many new queues, of
// which two processes run the relay.
func TestJobsAreNotDoubledWhenQueuesCome(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	held := &keeping{asks: make(chan struct{}, 1), goOn: make(chan struct{})}
	stop := runJobs(t, weirrelay.JobsConfig{Name: "r", Pool: pool, Target: held, Routes: []weirrelay.Route{{Queue: "q.>"}}})
	exec(t, pool, `SELECT weir.enqueue('q.1', 'k') FROM generate_series(1, 100)`)
	pgtest.Receive(t, held.asks, "a batch is on its way")
	exec(t, pool, `SELECT weir.enqueue('q.2', 'k') FROM generate_series(1, 100)`)
	pgtest.Until(t, "the new queue is worked", func() bool {
		return value[int](t, pool, `SELECT count(*) FROM weir.running_jobs WHERE queue = 'q.2'`) > 0
	})
	close(held.goOn)
	pgtest.Until(t, "all have been passed on", func() bool { return held.n() == 200 })
	stop()
	if got := held.all(); got != "q.1: 100, q.2: 100" {
		t.Errorf("the target has %s", got)
	}
	if n := value[int](t, pool, `SELECT count(DISTINCT id) FROM weir.worker`); n != 1 {
		t.Errorf("there were %d workers, want one", n)
	}

	const queues, each = 40, 25
	target := &keeping{}
	for range 2 {
		runJobs(t, weirrelay.JobsConfig{Name: "r", Pool: pool, Target: target, Routes: []weirrelay.Route{{Queue: "q.>", Subject: "all"}}})
	}
	for i := range queues {
		exec(t, pool, `SELECT weir.enqueue('q.new.' || $1::int, 'k') FROM generate_series(1, $2)`, i, each)
		if i%8 == 7 {
			pgtest.Until(t, "all that have come are passed on", func() bool { return target.n() >= (i+1)*each })
		}
	}
	if got := target.all(); got != fmt.Sprintf("all: %d", queues*each) {
		t.Errorf("the target has %s", got)
	}
	pgtest.Until(t, "all have completed", func() bool {
		return value[int](t, pool, `SELECT count(*) FROM weir.completed_jobs`) == 200+queues*each
	})
	if n := value[int](t, pool, `SELECT max(attempt) FROM weir.job`); n != 1 {
		t.Errorf("a job had %d attempts", n)
	}
}

// calls counts the statements that call each function.
type calls struct{ names, claims atomic.Int64 }

func (c *calls) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	for text, n := range map[string]*atomic.Int64{"weir._queue_names": &c.names, "weir._claim(": &c.claims} {
		if strings.Contains(q.SQL, text) {
			n.Add(1)
		}
	}
	return ctx
}

func (c *calls) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (c *calls) String() string {
	return fmt.Sprintf("%d lists of names, %d claims", c.names.Load(), c.claims.Load())
}

func tracedPool(t *testing.T, url string, c *calls) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.Tracer = c
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// TestTenThousandQueuesCostARelayFewStatements: they are taken up together, and jobs that come to few of them are claimed without a look at the others. An exact queue needs no look at all.
func TestTenThousandQueuesCostARelayFewStatements(t *testing.T) {
	t.Parallel()
	const queues, jobs = 10_000, 50
	url := pgtest.Installed(t, map[string]string{"autovacuum": "off"}).URL("postgres") // names are read again when transactions of others end
	pool := pgtest.Pool(t, url)
	exec(t, pool, `SELECT weir._queue_id('mail.' || n) FROM generate_series(1, $1) n`, queues)
	var many, exact calls
	target, named := &keeping{}, &keeping{}
	runJobs(t, weirrelay.JobsConfig{Name: "many", Pool: tracedPool(t, url, &many), Target: target, Routes: []weirrelay.Route{{Queue: "mail.>", Subject: "all"}}, Logger: slog.New(slog.DiscardHandler)})
	runJobs(t, weirrelay.JobsConfig{Name: "exact", Pool: tracedPool(t, url, &exact), Target: named, Routes: []weirrelay.Route{{Queue: "post", Subject: "all"}}, Logger: slog.New(slog.DiscardHandler)})
	for i := range jobs {
		exec(t, pool, `SELECT weir.enqueue('mail.' || 1 + $1::int % 5, 'k'), weir.enqueue('post', 'k')`, i)
		pgtest.Until(t, "the jobs are passed on", func() bool { return target.n() == i+1 && named.n() == i+1 })
	}
	if n := value[int](t, pool, `SELECT count(*) FROM weir.queues() WHERE name LIKE 'mail.%' AND workers = 1`); n != queues {
		t.Errorf("of %d queues a worker is known, want %d", n, queues)
	}
	// New queues: post; and each read of names may be followed by one when a transaction has ended that was in progress then.
	if many.names.Load() > 10 {
		t.Errorf("of 10,000 queues: %s; want few lists", &many)
	}
	if n := exact.names.Load(); n != 0 {
		t.Errorf("of an exact queue: %s; want none of names", &exact)
	}
	t.Logf("%d jobs: %s; of an exact queue: %s", jobs, &many, &exact)
}

// TestTheWorkersOfAQueueAreThoseWhosePatternItFits: the database counts them by a regular expression of its own, which fits what the pattern fits.
func TestTheWorkersOfAQueueAreThoseWhosePatternItFits(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	var target keeping
	runJobs(t, weirrelay.JobsConfig{Name: "fits", Pool: pool, Target: &target, Routes: []weirrelay.Route{{Queue: "mail.*"}, {Queue: "a+b.(c).>"}, {Queue: "*.out-dead-letters"}, {Queue: "*.x"}, {Queue: "post"}}, Logger: slog.New(slog.DiscardHandler)})
	fit := []string{"mail.a", "mail.Ä b", "mail.x\ny", "mail.", ".x", "a+b.(c).d", "a+b.(c).d.e", "r.out-dead-letters", "post"}
	for _, queue := range append([]string{"mail", "mail.a.b", "a+b.(c).", "mailxa", "xmail.a", "mail.a-dead-letters", "aab.(c).d", "a+b.c.d", "a+b.(c)", "r.in-dead-letters", "posts"}, fit...) {
		exec(t, pool, `SELECT weir.enqueue($1, 'k')`, queue)
	}
	pgtest.Until(t, "all that fit are passed on", func() bool { return target.n() == len(fit) })
	slices.Sort(fit)
	if worked := value[[]string](t, pool, `SELECT array_agg(name ORDER BY name COLLATE "C") FROM weir.queues() WHERE workers = 1`); !slices.Equal(worked, fit) {
		t.Errorf("there are workers of %q, want %q", worked, fit)
	}
	if n := value[int](t, pool, `SELECT length(weir._fitting(ARRAY[repeat('x', 100000), 'mail.*']))`); n > 1000 {
		t.Errorf("a pattern that is longer than any queue's name makes an expression of %d characters", n)
	}
	exec(t, pool, `SELECT weir._start('exact', '{posts}')`)
	if takers := value[int](t, pool, `SELECT count(*) FROM weir.worker WHERE others IS NOT NULL`); takers != 1 {
		t.Errorf("%d workers take up others, want the relay alone", takers)
	}
	if waiting := value[int](t, pool, `SELECT count(*) FROM weir.queues() WHERE available = 1 AND workers = 0`); waiting != 10 {
		t.Errorf("jobs wait in %d queues of nobody, want 10", waiting)
	}
}

// TestAPatternOfQueuesThatIsWrongIsRefused: before the relay begins; any name that is not one is a queue's.
func TestAPatternOfQueuesThatIsWrongIsRefused(t *testing.T) {
	t.Parallel()
	check := func(queue string) error {
		return weirrelay.CheckJobs(weirrelay.JobsConfig{Name: "r", Routes: []weirrelay.Route{{Queue: queue}}})
	}
	for queue, want := range map[string]string{
		"mail.>.x":                      `Config.Routes: queue: pattern "mail.>.x": > may only be its last word`,
		strings.Repeat("a.", 10) + "*":  "has 11 words, at most 10 are allowed",
		strings.Repeat("x", 300) + ".>": "name too long: 302 bytes, at most 255 are allowed",
		"":                              "a route of jobs names a queue, and no channels",
	} {
		if err := check(queue); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", queue, err, want)
		}
	}
	for _, queue := range []string{"mail", "mail.>", ">", "*", "*.mail.*", "mail*", "a>b.c", strings.Repeat("a.", 60) + "a"} {
		if err := check(queue); err != nil {
			t.Errorf("%q: %v", queue, err)
		}
	}
}
