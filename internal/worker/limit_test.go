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
	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/store"
)

// TestASlotThatAnotherWorkerFreesIsFilled: workers that share a limit of one run all jobs one after the other, and each release is noticed by the worker
// that is idle. A rate's jobs are started at its times, without anything that would wake a worker. In a large fleet, of which most workers sleep, the one
// that has freed a slot fills it again.
func TestASlotThatAnotherWorkerFreesIsFilled(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		limit                       string
		workers, concurrency, fleet int
		pause                       time.Duration // how long each slot would stay free without a wake-up, at least
	}{
		"running":    {`SELECT weir.set_limit('q', running => 1)`, 3, 5, 0, time.Second / 2},
		"rate":       {`SELECT weir.set_limit('q', rate => 20, burst => 1)`, 3, 5, 0, time.Second / 2},
		"in a fleet": {`SELECT weir.set_limit('q', running => 1)`, 1, 1, 1000, time.Second / 8},
	} {
		t.Run(name, func(t *testing.T) {
			const jobs, patience = 60, 4 * time.Minute
			url := pgtest.Database(t)
			pool := pgtest.Pool(t, url)
			if _, err := pool.Exec(t.Context(), `SELECT weir.start('sleeper', ARRAY['q'], '5 minutes') FROM generate_series(1, $1::int)`, c.fleet); err != nil {
				t.Fatal(err)
			}
			if _, err := pool.Exec(t.Context(), c.limit); err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithTimeout(t.Context(), patience)
			defer stop()
			var mu sync.Mutex
			now, most, ran := 0, 0, 0
			byWorker := map[int32]int{}
			var starts []time.Time
			log := slog.New(slog.NewTextHandler(t.Output(), nil))
			var all sync.WaitGroup
			var w *Worker
			for range c.workers {
				st := store.New(pool, 0)
				w = New(Config{Store: st, Keep: st, Name: "w", Queues: map[string]int{"q": c.concurrency}, Lease: 6 * time.Second, StopTimeout: time.Second,
					Poll: 3500 * time.Microsecond, Log: log, Outage: outage.New(log), Handler: func(_ context.Context, task *Task, r *Result) {
						mu.Lock()
						now++
						most = max(most, now)
						byWorker[task.Worker]++
						starts = append(starts, time.Now())
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
				run := w.Run
				all.Go(func() { _ = run(ctx) })
			}
			pgtest.Until(t, "a worker knows how many there are", func() bool { return int(w.fleet.Load()) > c.fleet })
			begin := time.Now()
			if _, err := pool.Exec(t.Context(), `SELECT weir.enqueue('q', 'k') FROM generate_series(1, $1::int)`, jobs); err != nil {
				t.Fatal(err)
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
			if len(starts) == 0 {
				t.Fatalf("no job started in %v", time.Since(begin))
			}
			took := starts[len(starts)-1].Sub(begin)
			t.Logf("%d jobs in %v, by worker %v, at most %d at a time; the workers have stopped after %v", ran, took.Round(time.Millisecond), byWorker, most, time.Since(begin).Round(time.Millisecond))
			if ran != jobs || name != "rate" && most != 1 {
				t.Errorf("%d of %d jobs ran in %v, at most %d at a time", ran, jobs, took, most)
			}
			// With a wake-up, each waits for some calls, which a busy machine makes slow.
			if each := took / jobs; each > c.pause+20*call {
				t.Errorf("%d jobs took %v, that is %v for each, where a call takes %v; they started at %v", jobs, took, each, call, starts)
			}
		})
	}
}

// TestWorkersThatHaveNoSlotLeaveTheQueueAlone: of many workers that share a limit, those that end jobs claim the next ones, and the others look now and then.
func TestWorkersThatHaveNoSlotLeaveTheQueueAlone(t *testing.T) {
	t.Parallel()
	const workers, limit, jobs = 16, 2, 200
	url := pgtest.Database(t)
	for _, sql := range []string{fmt.Sprintf(`SELECT weir.set_limit('q', running => %d)`, limit), fmt.Sprintf(`SELECT weir.enqueue('q', 'k') FROM generate_series(1, %d)`, jobs)} {
		if _, err := pgtest.Pool(t, url).Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	claims := &counter{what: "weir._claim("}
	config.ConnConfig.Tracer = claims
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	ctx, stop := context.WithTimeout(t.Context(), 4*time.Minute)
	defer stop()
	quiet := slog.New(slog.DiscardHandler)
	var ran atomic.Int64
	var all sync.WaitGroup
	begin := time.Now()
	for range workers {
		st := store.New(pool, 0)
		w := New(Config{Store: st, Keep: st, Name: "w", Queues: map[string]int{"q": 1}, Lease: 6 * time.Second, StopTimeout: time.Second,
			Poll: 3500 * time.Microsecond, Log: quiet, Outage: outage.New(quiet), Handler: func(_ context.Context, task *Task, r *Result) {
				<-time.After(5 * time.Millisecond) // part of the plan: others look meanwhile
				if ran.Add(1) == jobs {
					stop()
				}
				r.Outcome = store.Completed
			}})
		all.Go(func() { _ = w.Run(ctx) })
	}
	all.Wait()
	took := time.Since(begin)
	// Each takes one claim, and all others together make one in 50 ms.
	t.Logf("%d jobs took %v and %d claims", ran.Load(), took, claims.n.Load())
	if most := 2*jobs + 4*workers + int64(took/(slowly/2)); ran.Load() < jobs || claims.n.Load() > most {
		t.Errorf("%d of %d jobs ran, with %d claims in %v, want at most %d", ran.Load(), jobs, claims.n.Load(), took, most)
	}
}

// counter counts the statements that contain a text.
type counter struct {
	what string
	n    atomic.Int64
}

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.Contains(data.SQL, c.what) {
		c.n.Add(1)
	}
	return ctx
}

func (*counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
