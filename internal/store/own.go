package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
)

// MaxOwn is the maximum number of connections of an Own.
const MaxOwn = 3

// ownTimeout limits connecting, and checking whether a connection still works: the caller has a lease to renew.
const ownTimeout = 10 * time.Second

// Own holds a worker's own connections. They have the configuration of another pool but are not taken from it, so an application that uses
// all of its connections, or waits for its own locks, does not silence its worker.
type Own struct {
	pool *pgxpool.Pool
	// Work uses up to two connections, and Keep the third, so that the keeper's calls wait for nothing but the server.
	Work, Keep *Store
}

// OpenOwn returns connections that are opened on demand. They have the configuration of the pool, including its hooks.
func OpenOwn(from *pgxpool.Pool) (*Own, error) {
	pool, err := openOwn(from, MaxOwn, nil)
	if err != nil {
		return nil, err
	}
	return &Own{pool: pool, Work: newOwn(pool, MaxOwn-1), Keep: newOwn(pool, 1)}, nil
}

// OpenOne returns a store with a single connection of its own, like those of OpenOwn. Close its pool at the end. Calls come every second or so, and find out
// themselves whether the connection still works: asking before each would cost as much as the call.
func OpenOne(from *pgxpool.Pool) (*Store, error) {
	pool, err := openOwn(from, 1, func(context.Context, pgxpool.ShouldPingParams) bool { return false })
	if err != nil {
		return nil, err
	}
	return newOwn(pool, 1), nil
}

func newOwn(pool *pgxpool.Pool, connections int) *Store {
	s := New(pool, connections)
	s.own, s.bound = true, ownCall
	return s
}

// openOwn opens connections. ping says whether one that was idle is asked before its use; nil: as pgx does.
func openOwn(from *pgxpool.Pool, connections int32, ping func(context.Context, pgxpool.ShouldPingParams) bool) (*pgxpool.Pool, error) {
	config := from.Config()
	if ping != nil {
		config.ShouldPing = ping
	}
	config.MaxConns, config.MinConns, config.MinIdleConns = connections, 0, 0
	if config.PingTimeout <= 0 {
		config.PingTimeout = ownTimeout
	}
	if c := config.ConnConfig; c.ConnectTimeout <= 0 || c.ConnectTimeout > ownTimeout {
		c.ConnectTimeout = ownTimeout
	}
	// The keeper stops listening at every call. That must not wait for anything, but a handler that asks the server to cancel would.
	config.ConnConfig.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.DeadlineContextWatcherHandler{Conn: conn.Conn()}
	}
	if parameters := config.ConnConfig.RuntimeParams; parameters["application_name"] == "" {
		parameters["application_name"] = "weir worker"
	}
	theirs := config.AfterConnect
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if theirs != nil {
			if err := theirs(ctx, conn); err != nil {
				return err
			}
		}
		return Settle(ctx, conn)
	}
	return pgxpool.NewWithConfig(context.Background(), config)
}

// Close closes the connections, after calls in progress have ended.
func (o *Own) Close() { o.pool.Close() }
