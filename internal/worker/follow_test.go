package worker

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/internal/outage"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/store"
)

// follows returns a worker of the queues that begin with "in.".
func follows(t *testing.T, pool *pgxpool.Pool, most int, handle func(*Task)) *Worker {
	t.Helper()
	st, log := store.New(pool, 0), slog.New(slog.NewTextHandler(t.Output(), nil))
	return New(Config{Store: st, Keep: st, Name: "follows", Fits: func(queue string) bool { return strings.HasPrefix(queue, "in.") }, Others: []string{"in.>"}, Most: most, Lease: 30 * time.Second, StopTimeout: time.Minute,
		Poll: PollEvery, Log: log, Outage: outage.New(log), Handler: func(_ context.Context, task *Task, r *Result) {
			handle(task)
			r.Outcome = store.Completed
		}})
}

// following runs such a worker, until stop is called or the test ends.
func following(t *testing.T, pool *pgxpool.Pool, most int, handle func(*Task)) (w *Worker, stop func()) {
	t.Helper()
	w = follows(t, pool, most, handle)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := pgtest.Receive(t, done, "the worker ends"); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return w, stop
}

// ran counts the attempts of each job.
type ran struct {
	mu      sync.Mutex
	jobs    map[int64]int
	queues  map[string]int
	workers map[int32]bool
}

func (r *ran) add(task *Task) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.jobs == nil {
		r.jobs, r.queues, r.workers = map[int64]int{}, map[string]int{}, map[int32]bool{}
	}
	r.jobs[task.ID]++
	r.queues[task.Queue]++
	r.workers[task.Worker] = true
}

func (r *ran) of(queue string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.queues[queue]
}

// TestAWorkerTakesUpQueuesThatComeIntoBeing: those that are there, those that come later, also by a transaction that commits late, and none that does not fit. It stays the same worker: jobs that
// it has meanwhile end once, there, and it needs no job to begin with.
func TestAWorkerTakesUpQueuesThatComeIntoBeing(t *testing.T) {
	t.Parallel()
	const later = 60 // more than claims look at without a hint
	pool := pgtest.Pool(t, pgtest.Database(t))
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	var all ran
	release, holds := make(chan struct{}), make(chan struct{}, 1)
	letGo := sync.OnceFunc(func() { close(release) })
	_, stop := following(t, pool, 100, func(task *Task) {
		if task.Kind == "long" {
			holds <- struct{}{}
			<-release
		}
		all.add(task)
	})
	defer letGo()
	exec(`SELECT weir.enqueue('out', 'k'), weir.enqueue('in.0', 'long'), weir.enqueue('in. "odd", {name}\', 'k')`)
	pgtest.Receive(t, holds, "the first job runs")
	late, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = late.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := late.Exec(t.Context(), `SELECT weir.enqueue('in.late', 'k')`); err != nil {
		t.Fatal(err)
	}
	for i := range later {
		exec(`SELECT weir.enqueue($1, 'k'), weir.enqueue('out', 'k')`, fmt.Sprint("in.", i+1))
		if i%20 == 0 {
			pgtest.Until(t, "a later queue is worked", func() bool { return all.of(fmt.Sprint("in.", i+1)) == 1 })
		}
	}
	pgtest.Until(t, "all that have come are worked", func() bool {
		for i := range later {
			if all.of(fmt.Sprint("in.", i+1)) != 1 {
				return false
			}
		}
		return all.of(`in. "odd", {name}\`) == 1
	})
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	pgtest.Until(t, "what is committed late is worked", func() bool { return all.of("in.late") == 1 })
	letGo()
	pgtest.Until(t, "the long job has ended", func() bool { return all.of("in.0") == 1 })
	stop()
	if len(all.jobs) != later+3 || len(all.workers) != 1 {
		t.Errorf("%d jobs were run by %d workers, want %d by one", len(all.jobs), len(all.workers), later+3)
	}
	for id, n := range all.jobs {
		if n != 1 {
			t.Errorf("job %d ran %d times", id, n)
		}
	}
	var waits, workers int
	if err := pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM weir.available_jobs WHERE queue = 'out'), (SELECT count(DISTINCT id) FROM weir.worker)`).Scan(&waits, &workers); err != nil || waits != later+1 || workers != 1 {
		t.Errorf("%d jobs wait in the other queue, and there were %d workers: %v", waits, workers, err)
	}
}

// TestAWorkerThatWasFencedHasTheQueuesThatItHasTakenUp: and those that come then.
func TestAWorkerThatWasFencedHasTheQueuesThatItHasTakenUp(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	var all ran
	following(t, pool, 100, all.add)
	for round := range 3 {
		if _, err := pool.Exec(t.Context(), `SELECT weir.enqueue('in.a', 'k'), weir.enqueue('in.' || $1::int, 'k')`, round); err != nil {
			t.Fatal(err)
		}
		pgtest.Until(t, "both jobs have run", func() bool { return all.of("in.a") == round+1 && all.of(fmt.Sprint("in.", round)) == 1 })
		pgtest.Until(t, "the worker is fenced", func() bool {
			var done bool
			err := pool.QueryRow(t.Context(), `SELECT coalesce(bool_and(weir._fence(id)), true) FROM weir.worker w WHERE NOT fenced AND NOT EXISTS (SELECT FROM weir.worker f WHERE f.id = w.id AND f.fenced)`).Scan(&done)
			return err == nil && done
		})
	}
}

// TestQueuesShareWhatAWorkerMayHave: however many have jobs at once, little more than that runs; and one that alone has jobs gets all of it.
func TestQueuesShareWhatAWorkerMayHave(t *testing.T) {
	t.Parallel()
	const most, queues, each = 400, 500, 20
	for what, enqueue := range map[string]string{
		"many queues": `SELECT weir.enqueue_many(array_agg('in.' || n % 500), array_agg('k'::text), array_agg('{}'::jsonb)) FROM generate_series(1, $1) n`,
		"one queue":   `SELECT weir.enqueue_many(array_agg('in.one'::text), array_agg('k'::text), array_agg('{}'::jsonb)) FROM generate_series(1, $1) n`,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, pgtest.Database(t))
			if _, err := pool.Exec(t.Context(), enqueue, queues*each); err != nil {
				t.Fatal(err)
			}
			release := make(chan struct{})
			letGo := sync.OnceFunc(func() { close(release) })
			var all ran
			var runs atomic.Int64
			w, _ := following(t, pool, most, func(task *Task) {
				runs.Add(1)
				defer runs.Add(-1)
				<-release
				all.add(task)
			})
			defer letGo()
			pgtest.Until(t, "the worker has all that it may have", func() bool {
				s := w.now.Load()
				return s != nil && s.left() == 0 && runs.Load() == s.all.Load()
			})
			if n := runs.Load(); n < most || n > 2*most+manyLanes {
				t.Errorf("%d jobs run, want about %d", n, most)
			}
			letGo()
			pgtest.Until(t, "all have run", func() bool {
				all.mu.Lock()
				defer all.mu.Unlock()
				return len(all.jobs) == queues*each
			})
			pgtest.Until(t, "nothing is left", func() bool { return w.now.Load().all.Load() == 0 && runs.Load() == 0 })
		})
	}
}

// statements counts those that contain a text.
type statements struct {
	text string
	n    atomic.Int64
}

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.Contains(q.SQL, s.text) {
		s.n.Add(1)
	}
	return ctx
}

func (s *statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestTheNamesOfQueuesAreReadWhenThereMayBeNewOnes: not while jobs come to those that are known, however many there are; and they are read again when a transaction ends that may have made one.
func TestTheNamesOfQueuesAreReadWhenThereMayBeNewOnes(t *testing.T) {
	t.Parallel()
	url := pgtest.Installed(t, map[string]string{"autovacuum": "off"}).URL("postgres") // transactions of others would count
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	read := &statements{text: "weir._queue_names"}
	config.ConnConfig.Tracer = read
	traced, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer traced.Close()
	pool := pgtest.Pool(t, url)
	exec := func(on store.Querier, sql string) {
		t.Helper()
		var none any
		if err := on.QueryRow(t.Context(), sql).Scan(&none); err != nil {
			t.Fatal(err)
		}
	}
	log := slog.New(slog.DiscardHandler)
	s := &session{Worker: New(Config{Store: store.New(traced, 0), Fits: func(queue string) bool { return queue != "out" }, Most: 10, Log: log, Outage: outage.New(log)}), room: make(chan struct{}, 1)}
	f := newFollower(s)
	looks := func(when string, want int64) {
		t.Helper()
		for range 3 {
			if err := f.look(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if got := read.n.Swap(0); got != want {
			t.Errorf("%s: the names were read %d times, want %d", when, got, want)
		}
	}
	exec(pool, `SELECT max(weir.enqueue('in.' || n, 'k')) FROM generate_series(1, 10000) n`)
	looks("at first", 1)
	exec(pool, `SELECT max(weir.enqueue('in.' || n, 'k')) FROM generate_series(1, 100) n`)
	looks("when jobs have come", 0)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	exec(tx, `SELECT weir.enqueue('in.new', 'k')`)
	looks("while a queue is being made", 1)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	looks("when it has been made", 1)
	exec(pool, `SELECT weir.enqueue('out', 'k')`)
	looks("when one was made that does not fit", 1)
	exec(pool, `SELECT weir.enqueue('in.new', 'k')`)
	looks("then", 0)
	if len(f.found) != 10_001 || f.found[10_000] != "in.new" {
		t.Errorf("%d queues were found, at last %v", len(f.found), f.found[len(f.found)-1])
	}
}

// TestAWorkerThatFollowsEndsWithWhatWaitingCantMend: and does not wait for its look-out, which would go on.
func TestAWorkerThatFollowsEndsWithWhatWaitingCantMend(t *testing.T) {
	t.Parallel()
	for _, gone := range []string{"weir._queue_names", "weir._claim"} {
		pool := pgtest.Pool(t, pgtest.Database(t))
		if _, err := pool.Exec(t.Context(), "DROP FUNCTION "+gone); err != nil {
			t.Fatal(err)
		}
		w := follows(t, pool, 10, func(*Task) {})
		if _, err := pool.Exec(t.Context(), `SELECT weir._queue_id('in.a')`); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		if err := pgtest.Receive(t, ended, "the worker ends"); err == nil || !strings.Contains(err.Error(), gone) {
			t.Errorf("without %s it ended with %v", gone, err)
		}
	}
}

// TestAQueueGivesItsPartBack: also if its part is so small that half of it is none.
func TestAQueueGivesItsPartBack(t *testing.T) {
	t.Parallel()
	w := New(Config{Most: 40})
	s := &session{Worker: w}
	q := &queue{part: s.firstPart()}
	for limit := q.part; limit < w.Most; limit = q.part {
		s.adjust(q, limit, limit)
	}
	if s.grown != 1 {
		t.Errorf("%d queues have grown", s.grown)
	}
	for range w.Most {
		s.adjust(q, 0, 1)
	}
	if q.part != s.firstPart() || s.grown != 0 {
		t.Errorf("its part is %d, and %d queues have grown", q.part, s.grown)
	}
}
