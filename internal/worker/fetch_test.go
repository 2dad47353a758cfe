package worker

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/outage"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/store"
)

// TestAClaimAfterOneThatTookTooLongMayTakeLonger: what a claim had to do is still to be done by the next one, so a time limit that it did not meet
// would never be met.
func TestAClaimAfterOneThatTookTooLongMayTakeLonger(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := pgtest.Pool(t, pgtest.Database(t))
	st := store.New(pool, 0)
	w := New(Config{Queues: map[string]int{"q": 1}, Lease: time.Hour, Store: st})
	id, err := st.StartWorker(ctx, "claims", w.queues, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	s := newSession(w, id, time.Now())
	defer s.lease.stop()
	claim := func() error {
		_, _, _, err := s.claim(ctx, []int32{1}, &hint{session: s, left: map[string]bool{}})
		return err
	}
	if err := claim(); err != nil || s.patience != claimTimeout {
		t.Errorf("after a claim (%v), the next one may take %v, want %v", err, s.patience, claimTimeout)
	}

	tx, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(1464158552, $1)`, id); err != nil { // the worker's claims
		t.Fatal(err)
	}
	s.patience = 10 * time.Millisecond
	if err := claim(); !errors.Is(err, context.DeadlineExceeded) || s.patience != longClaimTimeout {
		t.Errorf("after a claim that took too long (%v), the next one may take %v, want %v", err, s.patience, longClaimTimeout)
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if err := claim(); err != nil || s.patience != claimTimeout {
		t.Errorf("after a claim that took longer (%v), the next one may take %v, want %v", err, s.patience, claimTimeout)
	}
}

// TestJobsGatherNoLongerThanAFullQueueIsFull: after a claim, jobs gather for a moment; but if a queue had more than room, its jobs are claimed once it has room.
func TestJobsGatherNoLongerThanAFullQueueIsFull(t *testing.T) {
	t.Parallel()
	s := newSession(New(Config{Queues: map[string]int{"full": 1, "other": 2}, Lease: time.Hour}), 1, time.Now())
	defer s.lease.stop()
	full, other := s.byName["full"], s.byName["other"]
	full.filled = true
	full.inFlight.Store(1)
	other.inFlight.Store(1)
	gathered := make(chan struct{})
	go func() {
		s.letGather(t.Context(), time.Hour)
		close(gathered)
	}()
	s.freed(other, time.Second)
	pgtest.Until(t, "the end of the other queue's job is noticed", func() bool { return len(s.room) == 0 })
	select {
	case <-gathered:
		t.Error("jobs gather no longer, because of a queue that had fewer than room")
	default:
	}
	s.freed(full, time.Second)
	pgtest.Receive(t, gathered, "the end of gathering")
}

// TestAWorkerThatAwaitsItsTurnWorksItsOtherQueues: others are before it in a queue at its limit, so it leaves that alone for minutes; meanwhile a job of
// another queue starts.
func TestAWorkerThatAwaitsItsTurnWorksItsOtherQueues(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	pool := pgtest.Pool(t, pgtest.Database(t))
	exec := func(query string, args ...any) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), query, args...); err != nil {
			t.Fatal(err)
		}
	}
	st, log := store.New(pool, 0), slog.New(slog.NewTextHandler(t.Output(), nil))
	w := New(Config{Queues: map[string]int{"limited": 5, "free": 5}, Lease: time.Hour, Store: st, Poll: 5 * time.Millisecond, Log: log, Outage: outage.New(log)})
	exec(`SELECT weir.set_limit('limited', running => 1)`)
	exec(`SELECT weir.enqueue('limited', 'k')`)
	id, err := st.StartWorker(t.Context(), "turns", w.queues, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	s := newSession(w, id, time.Now())
	defer s.lease.stop()
	started := make(chan struct{}, 1)
	s.byName["free"].start = func() { started <- struct{}{} }
	s.byName["limited"].start = func() { t.Error("a job starts in spite of those before it") }
	s.owes, s.missed = true, 2*missedMost
	s.sharing.Store(100_000)

	before, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for place := range 4 { // others have the gate and the places behind it
		if _, err := before.Exec(t.Context(), `SELECT pg_advisory_xact_lock(1464158560, gate # ($1 << 29)) FROM weir.queue WHERE name = 'limited'`, place); err != nil {
			t.Fatal(err)
		}
	}
	ended := make(chan struct{})
	go func() {
		_ = s.fetch(ctx)
		close(ended)
	}()
	pgtest.Until(t, "it has tried", func() bool {
		var n int
		return pool.QueryRow(t.Context(), `SELECT n FROM (SELECT count(*) FILTER (WHERE query LIKE '%weir._watch%') AS n FROM pg_stat_activity) a`).Scan(&n) == nil && n > 0
	})
	exec(`SELECT weir.enqueue('free', 'k')`)
	pgtest.Receive(t, started, "the start of a job of the other queue")
	stop()
	pgtest.Receive(t, ended, "the end of the fetcher")
	_ = before.Rollback(t.Context())
}
