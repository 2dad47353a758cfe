package worker

import (
	"context"
	"errors"
	"testing"
	"time"

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
