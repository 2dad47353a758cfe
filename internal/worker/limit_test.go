package worker

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/outage"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/store"
)

// TestASlotThatAnotherWorkerFreesIsFilled: workers that share a limit of one run all jobs one after the other, and each release is noticed by the worker
// that is idle. A rate's jobs are started at its times, without anything that would wake a worker.
func TestASlotThatAnotherWorkerFreesIsFilled(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]string{
		"running": `SELECT weir.set_limit('q', running => 1)`,
		"rate":    `SELECT weir.set_limit('q', rate => 20, burst => 1)`,
	} {
		t.Run(name, func(t *testing.T) {
			const workers, jobs, patience = 3, 60, 4 * time.Minute
			url := pgtest.Database(t)
			pool := pgtest.Pool(t, url)
			for _, sql := range []string{limit, `SELECT weir.enqueue('q', 'k') FROM generate_series(1, 60)`} {
				if _, err := pool.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			ctx, stop := context.WithTimeout(t.Context(), patience)
			defer stop()
			var mu sync.Mutex
			now, most, ran := 0, 0, 0
			byWorker := map[int32]int{}
			quiet := slog.New(slog.DiscardHandler)
			var all sync.WaitGroup
			begin := time.Now()
			for range workers {
				st := store.New(pool, 0)
				w := New(Config{Store: st, Keep: st, Name: "w", Queues: map[string]int{"q": 5}, Lease: 30 * time.Second, StopTimeout: time.Second,
					Poll: 3500 * time.Microsecond, Log: quiet, Outage: outage.New(quiet), Handler: func(_ context.Context, task *Task, r *Result) {
						mu.Lock()
						now++
						most = max(most, now)
						byWorker[task.Worker]++
						mu.Unlock()
						<-time.After(time.Millisecond) // part of the plan: others look meanwhile
						mu.Lock()
						now--
						if ran++; ran == jobs {
							stop()
						}
						mu.Unlock()
						r.Outcome = store.Completed
					}})
				all.Go(func() { _ = w.Run(ctx) })
			}
			var call time.Duration // how long one takes meanwhile
			for calls := 1; ctx.Err() == nil; calls++ {
				before := time.Now()
				if _, err := pool.Exec(t.Context(), `SELECT weir.enqueue('other', 'k')`); err != nil {
					t.Fatal(err)
				}
				call += (time.Since(before) - call) / time.Duration(calls)
				sleep.For(ctx, 50*time.Millisecond)
			}
			all.Wait()
			took := time.Since(begin)
			t.Logf("%d jobs in %v, by worker %v, at most %d at a time", ran, took.Round(time.Millisecond), byWorker, most)
			if ran != jobs || name == "running" && most != 1 {
				t.Errorf("%d of %d jobs ran in %v, at most %d at a time", ran, jobs, took, most)
			}
			// Without a wake-up, each would wait for a second or more. With one, it waits for some calls, which a busy machine makes slow.
			if each := took / jobs; each > time.Second/2+20*call {
				t.Errorf("%d jobs took %v, that is %v for each, where a call takes %v", jobs, took, each, call)
			}
		})
	}
}
