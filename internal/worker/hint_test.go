package worker

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/outage"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/store"
)

// TestWorkerOfManyQueuesMissesNothing: a worker of hundreds of queues runs every job, although its claims only check queues with new or
// remaining jobs: jobs that did not fit at once, late jobs, and jobs of a queue that was paused.
func TestWorkerOfManyQueuesMissesNothing(t *testing.T) {
	t.Parallel()
	const queues, patience = 300, time.Minute
	url := pgtest.Database(t)
	pool := pgtest.Pool(t, url)
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	names := map[string]int{}
	for i := range queues {
		names[fmt.Sprintf("q%03d", i)] = 3
	}
	var mu sync.Mutex
	ran := map[string]int{}
	wait := func(kind string, want int) {
		t.Helper()
		for until := time.Now().Add(patience); ; <-time.After(5 * time.Millisecond) {
			mu.Lock()
			n := ran[kind]
			mu.Unlock()
			if n == want {
				return
			}
			if n > want || time.Now().After(until) {
				t.Fatalf("%d of kind %s ran, want %d", n, kind, want)
			}
		}
	}
	quiet := slog.New(slog.DiscardHandler)
	st := store.New(pool, 0)
	w := New(Config{Store: st, Keep: st, Name: "many", Queues: names, Lease: 30 * time.Second, StopTimeout: time.Second,
		Poll: time.Millisecond, Log: quiet, Outage: outage.New(quiet),
		Handler: func(_ context.Context, task *Task, r *Result) {
			mu.Lock()
			ran[task.Kind]++
			mu.Unlock()
			r.Outcome = store.Completed
		}})
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	all.Go(func() {
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
	})

	exec(`SELECT weir.enqueue('q001', 'first')`)
	wait("first", 1)
	late, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := late.Exec(t.Context(), `SELECT weir.enqueue('q002', 'late')`); err != nil {
		t.Fatal(err)
	}
	exec(`SELECT weir.enqueue('q002', 'bulk') FROM generate_series(1, 200)`)
	exec(`SELECT weir.enqueue('q' || lpad((n % 300)::text, 3, '0'), 'everywhere') FROM generate_series(1, 3000) n`)
	wait("bulk", 200)
	wait("everywhere", 3000)
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	wait("late", 1)
	exec(`SELECT weir.pause('q003')`)
	exec(`SELECT weir.enqueue('q003', 'paused')`)
	exec(`SELECT weir.enqueue('q004', 'other')`)
	wait("other", 1)
	exec(`SELECT weir.resume('q003')`)
	wait("paused", 1)
	for i := range 20 {
		exec(`SELECT weir.enqueue($1, 'single')`, fmt.Sprintf("q%03d", i*7))
		wait("single", i+1)
	}
}

// TestAQueueIsLookedAtWhenItsResumingHasCommitted: in a worker of many queues, the claim after a queue was resumed checks all queues, and
// so does the claim after that transaction has ended, however late. The claims between and after them check only new jobs.
func TestAQueueIsLookedAtWhenItsResumingHasCommitted(t *testing.T) {
	pgtest.Alone(t, "which queues a claim checks depends on the transactions of the whole server")
	ctx := t.Context()
	pool := pgtest.Pool(t, pgtest.Database(t))
	st := store.New(pool, 0)
	s := &session{Worker: &Worker{Config: Config{Store: st}}}
	for i := range hintFrom {
		s.queues = append(s.queues, newQueue(fmt.Sprintf("q%02d", i), 1))
	}
	h := &hint{session: s, left: map[string]bool{}}
	claims := func(when string, everywhere bool) {
		t.Helper()
		since, _ := h.begin(ctx)
		if got := since == nil; got != everywhere {
			t.Errorf("%s: the claim checks all queues: %t, want %t", when, got, everywhere)
		}
		h.end(make([]int32, len(s.queues)), nil, nil, false, nil)
	}
	cut := func(when string, everywhere bool) {
		t.Helper()
		since, backlog := h.begin(ctx)
		if got := since == nil; got != everywhere {
			t.Errorf("%s: the claim checks all queues: %t, want %t", when, got, everywhere)
		}
		h.end(make([]int32, len(s.queues)), map[string]int{"q05": 1}, nil, true, nil)
		next, left := h.begin(ctx)
		switch {
		case everywhere:
			if next != nil {
				t.Errorf("%s: the claim after one that did not visit all queues does not check all of them", when)
			}
		case next == nil || *next != *since || len(left) < len(backlog) || !slices.Contains(left, "q05"):
			t.Errorf("%s: the claim after one that did not visit all queues looks after %v in %v, that one after %v in %v", when, next, left, since, backlog)
		}
	}
	exec := func(sql string) {
		t.Helper()
		if _, err := pool.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(`SELECT weir.enqueue('q00', 'k'), weir.enqueue('q01', 'k'), weir.pause('q00')`)
	long, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = long.Rollback(context.Background()) }()
	if _, err := long.Exec(ctx, `SELECT pg_current_xact_id()`); err != nil {
		t.Fatal(err)
	}
	cut("at first", true)
	claims("then", true)
	claims("afterwards", false)
	cut("later", false)
	claims("when that is made up for", false)

	resumes, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := resumes.Exec(ctx, `SELECT weir.resume('q00')`); err != nil {
		t.Fatal(err)
	}
	claims("while it is being resumed", true)
	for range 3 {
		exec(`SELECT weir.enqueue('q01', 'k')`)
		claims("when others commit in the meantime", false)
	}
	if err := resumes.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	claims("when it has been resumed", true)
	for range 3 {
		exec(`SELECT weir.enqueue('q01', 'k')`)
		claims("afterwards, although an earlier transaction continues", false)
	}
}
