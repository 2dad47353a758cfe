package wake

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/store"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const patience = time.Minute

func start(t *testing.T) (*Jobs, *pgxpool.Pool) {
	t.Helper()
	pool := pgtest.Pool(t, pgtest.Database(t))
	j := New(store.New(pool, 0), slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); j.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return j, pool
}

func enqueue(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

func token(t *testing.T, j *Jobs, queues ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, now, err := j.Wait(ctx, queues, "")
	if err != nil || now == "" {
		t.Fatalf("no token: %q, %v", now, err)
	}
	return now
}

// TestNoMoreAreWokenThanThereAreJobs: three jobs wake three of the ten waiters of their queue, and no waiter of another queue.
func TestNoMoreAreWokenThanThereAreJobs(t *testing.T) {
	t.Parallel()
	j, pool := start(t)
	enqueue(t, pool, `SELECT weir.enqueue('q', 'k'), weir.enqueue('other', 'k')`)
	// The hub may not have seen these commits yet. Once it has seen a later one, it has.
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	since := token(t, j, "later")
	enqueue(t, pool, `SELECT weir.enqueue('later', 'k')`)
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for ready := []string(nil); len(ready) == 0; {
		var err error
		if ready, since, err = j.Wait(bounded, []string{"later"}, since); err != nil {
			t.Fatal(err)
		}
	}
	woken := make(chan string, 20)
	for _, queue := range []string{"q", "q", "q", "q", "q", "q", "q", "q", "q", "q", "other"} {
		go func() {
			if ready, _, err := j.Wait(ctx, []string{queue}, since); err == nil {
				woken <- ready[0]
			}
		}()
	}
	for j.waitersOf("q") < 10 || j.waitersOf("other") < 1 {
		<-time.After(time.Millisecond)
	}
	enqueue(t, pool, `SELECT weir.enqueue('q', 'k') FROM generate_series(1, 3)`)
	for range 3 {
		select {
		case queue := <-woken:
			if queue != "q" {
				t.Errorf("a waiter for %s was woken", queue)
			}
		case <-time.After(patience):
			t.Fatal("fewer than three were woken")
		}
	}
	enqueue(t, pool, `SELECT weir.enqueue('other', 'k')`) // the next wake-up must be for this job
	if queue := pgtest.Receive(t, woken, "a waiter is woken"); queue != "other" {
		t.Errorf("a fourth waiter for %s was woken", queue)
	}
}

// waitersOf returns the number of waiters of a queue.
func (j *Jobs) waitersOf(queue string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	if all := j.waiting[queue]; all != nil {
		return all.Len()
	}
	return 0
}

func (j *Jobs) tokenNow() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.token()
}

// TestNoCommitFallsBetweenTwoWaits: a worker that receives a token, polls, and waits with the token is woken for every commit that the poll did
// not see, including those of transactions that were open for long.
func TestNoCommitFallsBetweenTwoWaits(t *testing.T) {
	t.Parallel()
	j, pool := start(t)
	const jobs = 200
	var committed atomic.Int64
	go func() {
		for i := range jobs {
			// Some commit late, after transactions that began later.
			if i%10 == 0 {
				tx, err := pool.Begin(context.Background())
				if err != nil {
					return
				}
				_, _ = tx.Exec(context.Background(), `SELECT weir.enqueue('q', 'k')`)
				go func() {
					<-time.After(30 * time.Millisecond)
					if tx.Commit(context.Background()) == nil {
						committed.Add(1)
					}
				}()
				continue
			}
			if _, err := pool.Exec(context.Background(), `SELECT weir.enqueue('q', 'k')`); err == nil {
				committed.Add(1)
			}
		}
	}()
	since := ""
	for seen := int64(0); seen < jobs; {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		_, next, err := j.Wait(ctx, []string{"q"}, since)
		cancel()
		if err != nil {
			t.Fatalf("%d of %d jobs seen, and no wake-up for the others: %v", seen, committed.Load(), err)
		}
		since = next
		if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM weir.job`).Scan(&seen); err != nil {
			t.Fatal(err)
		}
	}
}
