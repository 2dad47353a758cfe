package weirrelay

import (
	"context"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/clock"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAProcessThatStoodStillAsksBeforeItSends: whether it still has the relay, and sends nothing if it has not. Here its machine was suspended.
func TestAProcessThatStoodStillAsksBeforeItSends(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	h, err := take(t.Context(), pool, "r", idleFor)
	if err != nil || h == nil {
		t.Fatalf("%v, %v", h, err)
	}
	defer h.end()
	suspended := clock.Now()
	suspended.Wall = suspended.Wall.Add(-time.Hour)
	h.alive.Store(&suspended)
	if err := h.sure(h.ctx); err != nil || *h.alive.Load() == suspended {
		t.Errorf("%v: the session was not asked", err)
	}
	if _, err := pool.Exec(t.Context(), `SELECT pg_terminate_backend($1)`, h.conn.Conn().PgConn().PID()); err != nil {
		t.Fatal(err)
	}
	h.alive.Store(&suspended)
	if err := h.sure(h.ctx); err == nil {
		t.Error("the relay may still be sent to, although its session has ended")
	}
}

// TestAnotherProcessTakesOverFromOneThatStandsStill: the server ends the session of one that is silent, as when its machine is gone, and no connection was closed.
func TestAnotherProcessTakesOverFromOneThatStandsStill(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	still, err := take(t.Context(), pool, "r", 100*time.Millisecond) // less than it takes it to check whether it still has the relay
	if err != nil || still == nil {
		t.Fatalf("%v, %v", still, err)
	}
	defer still.end()
	pgtest.Until(t, "another process has the relay", func() bool {
		h, err := take(t.Context(), pool, "r", idleFor)
		if err != nil {
			t.Fatal(err)
		}
		if h != nil {
			h.end()
		}
		return h != nil
	})
	still.alive.Store(&clock.Moment{})
	if err := still.sure(still.ctx); err == nil {
		t.Error("the process that stood still may send")
	}
}

// TestAProcessThatStandsBySaysSo: once, and not again until it has had the relay.
func TestAProcessThatStandsBySaysSo(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	other, err := take(t.Context(), pool, "r", idleFor)
	if err != nil || other == nil {
		t.Fatalf("%v, %v", other, err)
	}
	var log pgtest.Log
	asked := make(chan struct{})
	h := newHolder("r", pool, log.Logger(), func(Progress) {})
	done := make(chan error, 1)
	go func() { // ends when it has had the relay
		done <- h.run(t.Context(), func(context.Context) error { close(asked); return errReached })
	}()
	pgtest.Until(t, "it says that it stands by", func() bool { return log.Count("the relay stands by: another process has it") == 1 })
	other.end()
	pgtest.Receive(t, asked, "it has the relay")
	if err := pgtest.Receive(t, done, "it ends"); err != nil || log.Count("stands by") != 1 {
		t.Errorf("%v, %s", err, log.String())
	}
}
