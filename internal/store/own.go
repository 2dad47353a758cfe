package store

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
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
		return settle(ctx, conn)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, err
	}
	return &Own{pool: pool, Work: New(pool, OwnMost-1), Keep: New(pool, 1)}, nil
}

// Close closes the connections, once what runs on them has ended.
func (o *Own) Close() { o.pool.Close() }

// ownSettings are of a session that is Weir's alone, whatever the role or the database has: the functions ask for READ COMMITTED, and
// bound their waits themselves.
const ownSettings = `SELECT set_config(o.name, o.value, false) FROM (VALUES
	('default_transaction_isolation', 'read committed'),
	('default_transaction_read_only', 'off'),
	('statement_timeout', '0'),
	('lock_timeout', '0'),
	('transaction_timeout', '0'),
	('idle_in_transaction_session_timeout', '0'),
	('idle_session_timeout', '0'),
	('jit', 'off')) o(name, value)
JOIN pg_settings s ON s.name = o.name` // not every version has each

// settle sets what Weir needs, if the session behind the connection is its own.
func settle(ctx context.Context, conn *pgx.Conn) error {
	direct, err := IsDirect(ctx, conn)
	if err == nil && direct {
		// Without a prepared statement: it is needed once.
		_, err = conn.PgConn().Exec(ctx, ownSettings).ReadAll()
	}
	if err != nil {
		return fmt.Errorf("prepare a connection of the worker's own: %w", err)
	}
	return nil
}

// IsDirect tells whether a connection has a session of the server to itself, which keeps settings and locks. Through a pooler it has
// not; a pooler gives itself away by the process id that it names, which is not the server's.
func IsDirect(ctx context.Context, conn *pgx.Conn) (bool, error) {
	results, err := conn.PgConn().Exec(ctx, `SELECT pg_backend_pid()`).ReadAll()
	if err != nil {
		return false, err
	}
	pid := string(results[0].Rows[0][0])
	return pid == strconv.FormatUint(uint64(conn.PgConn().PID()), 10), nil
}
