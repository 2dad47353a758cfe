package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
)

// OwnMost is how many connections an Own has at most.
const OwnMost = 3

// Connecting, and asking whether a connection still lives, take no longer than this: whoever waits for them has a lease to renew.
const ownTimeout = 10 * time.Second

// Own are a worker's own connections. They are made as another pool's are, and none is taken from that pool: an application that has
// all of its own connections in use, or waiting for its own locks, does not silence its worker.
type Own struct {
	pool *pgxpool.Pool
	// Work uses two connections at most, and Keep the third: what the keeper says waits for nothing but the server.
	Work, Keep *Store
}

// OpenOwn returns connections that are opened when they are needed. They have the configuration of the pool, its hooks included.
func OpenOwn(from *pgxpool.Pool) (*Own, error) {
	config := from.Config()
	config.MaxConns, config.MinConns, config.MinIdleConns = OwnMost, 0, 0
	if config.PingTimeout <= 0 {
		config.PingTimeout = ownTimeout
	}
	if c := config.ConnConfig; c.ConnectTimeout <= 0 || c.ConnectTimeout > ownTimeout {
		c.ConnectTimeout = ownTimeout
	}
	// The keeper ends its listening at every call: that must not wait for anything, as a handler that asks the server to cancel does.
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
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, err
	}
	own := &Own{pool: pool, Work: New(pool, OwnMost-1), Keep: New(pool, 1)}
	for _, s := range []*Store{own.Work, own.Keep} {
		s.own, s.bound = true, ownCall
	}
	return own, nil
}

// Close closes the connections, once what runs on them has ended.
func (o *Own) Close() { o.pool.Close() }
