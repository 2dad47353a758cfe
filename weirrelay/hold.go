package weirrelay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/internal/clock"
	"github.com/weir-pg/weir/internal/outage"
	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/store"
)

// hold is this process's hold of a relay: a lock of a session, which the server releases when the session ends.
type hold struct {
	conn   *pgxpool.Conn
	cancel context.CancelCauseFunc
	ctx    context.Context
	done   chan struct{}                // closed when watch has ended
	alive  atomic.Pointer[clock.Moment] // when the session answered last
}

const (
	// sureFor is for how long a hold is relied on after its session has answered.
	sureFor = 3 * aliveEvery
	// idleFor is how long a session may be silent before the server ends it, and another process takes the relay: longer than any process relies on it, whose check may have taken
	// callTimeout.
	idleFor = 2 * sureFor
)

// take takes the relay, until the hold's context ends. It returns nil if another process has it.
func take(ctx context.Context, pool *pgxpool.Pool, name string, idle time.Duration) (*hold, error) {
	asked, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := pool.Acquire(asked)
	if err != nil {
		return nil, err
	}
	locked, err := store.LockRelay(asked, conn.Conn(), name, idle)
	if err != nil {
		discard(conn)
		return nil, err
	} else if !locked {
		conn.Release()
		return nil, nil
	}
	h := &hold{conn: conn, done: make(chan struct{})}
	h.ctx, h.cancel = context.WithCancelCause(ctx)
	h.answered()
	go h.watch()
	return h, nil
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
		h.answered()
	}
}

func (h *hold) answered() {
	at := clock.Now()
	h.alive.Store(&at)
}

// sure waits until it is known that the hold is not lost, or ctx ends. After a process stood still, or its machine did, another one may have the relay.
func (h *hold) sure(ctx context.Context) error {
	for alive := h.alive.Load(); !clock.Now().IsWithin(*alive, alive.Add(sureFor)); alive = h.alive.Load() {
		if !sleep.For(ctx, sleep.Jitter(retryFirst)) {
			return ctx.Err()
		}
	}
	return ctx.Err()
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

// holder holds a relay for one of the processes that run it.
type holder struct {
	name    string
	pool    *pgxpool.Pool
	log     *slog.Logger
	outage  *outage.Log
	observe func(Progress)
	retry   backoff
	sure    func(context.Context) error // of the hold that it has
	waiting time.Time                   // since when messages may wait; zero: none does, as far as this process knows
}

func newHolder(name string, pool *pgxpool.Pool, log *slog.Logger, observe func(Progress)) holder {
	return holder{name: name, pool: pool, log: log, outage: outage.Of(log, "calls of the database or of the broker"), observe: observe}
}

func (h *holder) what() string { return "the relay " + h.name }

// worked says that a stint has begun well.
func (h *holder) worked() {
	h.log.Info("weir: the relay passes messages on")
	h.outage.Worked(h.what())
	h.retry = backoff{}
}

// run runs stints until ctx ends, each while this process holds the relay. It waits out what waiting can fix.
func (h *holder) run(ctx context.Context, stint func(context.Context) error) error {
	said := false // that it stands by
	for ctx.Err() == nil {
		held, err := h.try(ctx, stint)
		said = said && !held
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, errReached):
			return nil
		case errors.Is(err, errSetBack):
			h.log.Warn("weir: the database was set back: the relay begins anew")
			sleep.For(ctx, sleep.Jitter(h.retry.next()))
		case errors.Is(err, ErrMoved):
			h.log.Warn("weir: another process has gone further than this one knows: the relay begins anew", "error", err)
			sleep.For(ctx, sleep.Jitter(h.retry.next()))
		case err == nil && !held:
			if !said {
				h.log.Info("weir: the relay stands by: another process has it")
				said = true
			}
			if !h.waiting.IsZero() {
				h.waiting = time.Time{} // for the other process to say
				h.observe(Progress{})
			}
			sleep.For(ctx, sleep.Jitter(standbyEvery)) // another process has the relay
		case store.IsRefused(err) && !errors.As(err, new(*elsewhere)):
			return fmt.Errorf("weirrelay: relay %s: %w", h.name, store.Explain(err, "weir_hub"))
		default:
			h.outage.Failed(h.what(), err)
			h.waitFrom(time.Now())
			h.observe(Progress{})
			sleep.For(ctx, sleep.Jitter(h.retry.next()))
		}
	}
	return nil
}

func (h *holder) try(ctx context.Context, stint func(context.Context) error) (held bool, err error) {
	hold, err := take(ctx, h.pool, h.name, idleFor)
	if hold == nil {
		return false, err
	}
	defer hold.end()
	h.sure = hold.sure
	h.observe(Progress{Active: true})
	defer h.observe(Progress{})
	return true, hold.or(stint(hold.ctx))
}
