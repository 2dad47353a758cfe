package weirrelay

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/store"
)

// hold is this process's hold of a relay: a lock of a session, which the server releases when the session ends.
type hold struct {
	conn   *pgxpool.Conn
	cancel context.CancelCauseFunc
	ctx    context.Context
	done   chan struct{} // closed when watch has ended
}

// take takes the relay, and returns a context that ends when the hold is lost. Both are nil if another process has it.
func (r *relay) take(ctx context.Context) (*hold, context.Context, error) {
	asked, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := r.Pool.Acquire(asked)
	if err != nil {
		return nil, nil, err
	}
	locked, err := store.LockRelay(asked, conn.Conn(), r.Name)
	if err != nil || !locked {
		if err == nil {
			conn.Release()
		} else {
			discard(conn)
		}
		return nil, nil, err
	}
	h := &hold{conn: conn, done: make(chan struct{})}
	h.ctx, h.cancel = context.WithCancelCause(ctx)
	go h.watch()
	return h, h.ctx, nil
}

// watch ends the hold when its session has ended.
func (h *hold) watch() {
	defer close(h.done)
	for sleep.For(h.ctx, sleep.Jitter(aliveEvery)) {
		ctx, cancel := context.WithTimeout(h.ctx, callTimeout)
		err := h.conn.Conn().Ping(ctx)
		cancel()
		if err != nil {
			h.cancel(fmt.Errorf("the session that holds the relay is lost: %w", err))
			return
		}
	}
}

// or returns why the hold was lost, if it was; otherwise err.
func (h *hold) or(err error) error {
	if cause := context.Cause(h.ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// end releases the relay. The session ends, so that the lock surely does.
func (h *hold) end() {
	h.cancel(nil)
	<-h.done
	discard(h.conn)
}

// discard closes a connection, which the pool then replaces.
func discard(conn *pgxpool.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	conn.Conn().Close(ctx) //nolint:errcheck // it is of no use any more
	conn.Release()
}
