package worker

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/outage"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/store"
)

// taken is room that others take whenever it is to be reserved, until it is open. It is free at any other moment.
type taken struct {
	open  atomic.Bool
	asked chan struct{}
}

func (r *taken) Free() int { return 1 }

func (r *taken) Reserve(n int) int {
	if r.open.Load() {
		return min(n, 1)
	}
	select {
	case r.asked <- struct{}{}:
	default:
	}
	return 0
}

func (r *taken) Settle(int)  {}
func (r *taken) Enter() bool { return true }
func (r *taken) Ended()      {}
func (r *taken) Dropped(int) {}

// TestAWorkerIsNotIdleBeforeItHasLookedEverywhere: a claim that others left no room in one queue does not tell whether that queue has jobs.
func TestAWorkerIsNotIdleBeforeItHasLookedEverywhere(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	st, log := store.New(pool, 0), slog.New(slog.NewTextHandler(t.Output(), nil))
	crowded, roomy := &taken{asked: make(chan struct{})}, &taken{asked: make(chan struct{})}
	roomy.open.Store(true)
	w := New(Config{
		Name: "rooms", Queues: map[string]int{"crowded": 1, "roomy": 1}, Room: map[string]Room{"crowded": crowded, "roomy": roomy}, Idle: time.Millisecond,
		Handler: func(context.Context, *Task, *Result) {}, Lease: time.Minute, StopTimeout: time.Second, Poll: time.Millisecond, Store: st, Keep: st, Log: log, Outage: outage.New(log),
	})
	ended := make(chan error, 1)
	go func() { ended <- w.Run(t.Context()) }()
	for range 3 { // claims, the last ones of which are from the other queue, which has no jobs
		select {
		case err := <-ended:
			t.Fatalf("it says %v, and has not looked whether the crowded queue has jobs", err)
		case <-crowded.asked:
		}
	}
	crowded.open.Store(true)
	if err := pgtest.Receive(t, ended, "the worker has looked, and ends"); !errors.Is(err, ErrIdle) {
		t.Error(err)
	}
}

// closed is room that others have, and never leave.
type closed struct{ taken }

func (r *closed) Free() int { return 0 }

// TestAWorkerThatWaitsForRoomSaysThatItStays: it can't know whether there are jobs, so nobody need wait until it has looked.
func TestAWorkerThatWaitsForRoomSaysThatItStays(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	st, log := store.New(pool, 0), slog.New(slog.NewTextHandler(t.Output(), nil))
	said := make(chan struct{}, 1)
	w := New(Config{
		Name: "rooms", Queues: map[string]int{"full": 1}, Room: map[string]Room{"full": &closed{}}, Idle: time.Millisecond,
		Handler: func(context.Context, *Task, *Result) {}, Lease: time.Minute, StopTimeout: time.Second, Poll: time.Millisecond, Store: st, Keep: st, Log: log, Outage: outage.New(log),
		Hooks: Hooks{Stays: func() {
			select {
			case said <- struct{}{}:
			default:
			}
		}},
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	pgtest.Receive(t, said, "the worker says that it stays")
	stop()
	if err := pgtest.Receive(t, ended, "the worker stops"); err != nil {
		t.Error(err)
	}
}

// TestAWorkerIsIdleAsSoonAsItMay: it does not poll for as long as one that goes on.
func TestAWorkerIsIdleAsSoonAsItMay(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	st, log := store.New(pool, 0), slog.New(slog.NewTextHandler(t.Output(), nil))
	const idle = 50 * time.Millisecond
	best := time.Hour
	for end := time.Now().Add(time.Minute); best > claimAnyway/2 && time.Now().Before(end); { // the machine may be busy
		w := New(Config{
			Name: "idle", Queues: map[string]int{"q": 1}, Idle: idle, Handler: func(context.Context, *Task, *Result) {}, Lease: time.Minute, StopTimeout: time.Second, Poll: time.Millisecond,
			Store: st, Keep: st, Log: log, Outage: outage.New(log),
		})
		var began time.Time
		w.Hooks.Started = func() { began = time.Now() }
		if err := w.Run(t.Context()); !errors.Is(err, ErrIdle) {
			t.Fatal(err)
		}
		took := time.Since(began)
		if took < idle {
			t.Fatalf("it was idle after %v", took)
		}
		best = min(best, took)
	}
	if best > claimAnyway/2 {
		t.Errorf("to be idle for %v, it took %v", idle, best)
	}
}

// TestOthersTransactionsWakeAnIdleWorkerOnce: those that were in progress when it began may have logged jobs. One that comes after it need not wait for those that began later, if no
// job was logged meanwhile: on a busy server, there are always some, of other databases, too.
func TestOthersTransactionsWakeAnIdleWorkerOnce(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Installed(t, nil).URL("postgres")) // a server without others
	st, log := store.New(pool, 0), slog.New(slog.NewTextHandler(t.Output(), nil))
	begin := func() (end func()) { // a transaction that writes
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "SELECT pg_current_xact_id()"); err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	idle := func(known store.Probe) *Worker {
		w := New(Config{
			Name: "idle", Queues: map[string]int{"q": 1}, Idle: time.Hour, Look: time.Millisecond, Known: known, Handler: func(context.Context, *Task, *Result) {}, Lease: time.Minute,
			StopTimeout: time.Second, Poll: time.Millisecond, Store: st, Keep: st, Log: log, Outage: outage.New(log),
		})
		if err := w.Run(t.Context()); !errors.Is(err, ErrIdle) {
			t.Fatal(err)
		}
		return w
	}
	stirs := func(w *Worker) Stir {
		stir, err := w.Stirs(t.Context(), st)
		if err != nil {
			t.Fatal(err)
		}
		return stir
	}
	first := begin()
	w := idle(store.Probe{})
	first()
	second := begin()
	if stirs(w) != Ended {
		t.Error("a transaction has ended that may have logged a job, and nobody was told")
	}
	w = idle(w.Rested())
	second()
	if stirs(w) != Still {
		t.Error("a transaction that began after the last job was logged wakes the worker")
	}
	if _, err := pool.Exec(t.Context(), `SELECT weir.enqueue('q', 'k', '{}')`); err != nil {
		t.Fatal(err)
	}
	if stirs(w) != Moved {
		t.Error("a job wakes nobody")
	}
}
