// Package store makes typed calls of Weir's SQL functions. No other package that runs jobs, publishes or serves contains SQL.
package store

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Querier runs one statement. It is a pool, a connection or a transaction.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Store makes calls through a pool. Behind a pooler in transaction mode, prepared statements are lost between calls; after the first such
// error, the store works without them.
type Store struct {
	pool       *pgxpool.Pool
	conn       *pgx.Conn     // makes all calls; nil: any connection of the pool
	slots      chan struct{} // nil: limited only by the pool
	unprepared atomic.Bool
	ease       atomic.Int32  // see framed
	own        bool          // the pool is used by Weir alone
	bound      time.Duration // time limit of each call except re-basing, which has none; 0: the caller's context alone
}

// New returns a store on the pool, which the caller closes. It uses up to that many connections at a time; 0: no limit but the pool's.
func New(pool *pgxpool.Pool, connections int) *Store {
	s := &Store{pool: pool}
	if connections > 0 {
		s.slots = make(chan struct{}, connections)
	}
	return s
}

// Bound limits how long each call may take, whatever its context says: a server that accepts calls and does not answer fails them then. Call it before the first call.
func (s *Store) Bound(each time.Duration) *Store {
	s.bound = each
	return s
}

// Pool returns the pool.
func (s *Store) Pool() *pgxpool.Pool { return s.pool }

// call runs f, which makes one round trip and passes mode in front of its arguments. It runs f again if nothing was executed: without
// prepared statements if they turn out to be lost, and on another connection if the server has ended one for being idle.
func (s *Store) call(ctx context.Context, f func(mode pgx.QueryExecMode) error) error {
	if s.slots != nil {
		select {
		case s.slots <- struct{}{}:
			defer func() { <-s.slots }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	mode := s.pool.Config().ConnConfig.DefaultQueryExecMode
	for tries := int32(0); ; tries++ {
		if s.unprepared.Load() {
			mode = pgx.QueryExecModeExec
		}
		err := f(mode)
		switch {
		case mode == pgx.QueryExecModeCacheStatement && IsStatementLost(err):
			s.unprepared.Store(true)
		case isIdleEnded(err) && s.conn == nil && tries <= s.pool.Config().MaxConns: // each connection at most once
		default:
			return err
		}
	}
}

// Ping checks that the server answers.
func (s *Store) Ping(ctx context.Context) error { return s.exec(ctx, `SELECT 1`) }

// ownCall is how long a call without an answer may take if the caller sets no limit. All calls of workers and chores take well under a
// second and may be repeated. Without the limit, a server that vanished would block them for as long as the kernel retries.
const ownCall = time.Minute

// query runs a statement with the settings that it needs, and passes its rows to read, which must read all of them.
func (s *Store) query(ctx context.Context, sql string, args []any, read func(pgx.Rows) error) error {
	if s.bound > 0 {
		bounded, cancel := context.WithTimeout(ctx, s.bound)
		defer cancel()
		ctx = bounded
	}
	return s.call(ctx, func(mode pgx.QueryExecMode) (err error) {
		if s.conn != nil {
			r, err := s.conn.Query(ctx, sql, append([]any{mode}, args...)...)
			if err != nil {
				return err
			}
			return read(r)
		}
		framed, err := s.framed(ctx)
		if err != nil {
			return err
		}
		defer func() {
			if err != nil && code(err) != "" {
				s.ease.Store(unknown) // the role's settings may have changed
				if s.own && code(err) == "25006" {
					s.pool.Reset() // the server may have changed too: new sessions find out whether it accepts writes now
				}
			}
		}()
		if framed {
			err = s.frame(ctx, sql, args, read)
			return err
		}
		r, err := s.pool.Query(ctx, sql, append([]any{mode}, args...)...)
		if err != nil {
			return err
		}
		err = read(r)
		return err
	})
}

// row runs a statement that returns one row.
func (s *Store) row(ctx context.Context, sql string, args []any, into ...any) error {
	return s.query(ctx, sql, args, func(r pgx.Rows) error {
		_, err := pgx.CollectExactlyOneRow(r, func(row pgx.CollectableRow) (struct{}, error) { return struct{}{}, row.Scan(into...) })
		return err
	})
}

// rows runs a statement and reads its rows into a slice.
func rows[T any](ctx context.Context, s *Store, sql string, args []any, scan pgx.RowToFunc[T]) (all []T, err error) {
	err = s.query(ctx, sql, args, func(r pgx.Rows) error {
		all, err = pgx.CollectRows(r, scan)
		return err
	})
	return all, err
}

// exec runs a statement and discards its result.
func (s *Store) exec(ctx context.Context, sql string, args ...any) error {
	return s.query(ctx, sql, args, func(r pgx.Rows) error {
		r.Close()
		return r.Err()
	})
}

// Direct runs f with a querier of its own, outside any transaction.
func (s *Store) Direct(ctx context.Context, f func(q Querier) error) error {
	return s.call(ctx, func(mode pgx.QueryExecMode) error { return f(moded{s.pool, mode}) })
}

// InTx runs f in a transaction of its own.
func (s *Store) InTx(ctx context.Context, f func(q Querier) error) error {
	return s.call(ctx, func(mode pgx.QueryExecMode) error {
		return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error { return f(moded{tx, mode}) })
	})
}

// moded is a Querier with a fixed mode.
type moded struct {
	Querier
	mode pgx.QueryExecMode
}

func (m moded) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return m.Querier.QueryRow(ctx, sql, append([]any{m.mode}, args...)...)
}
