package store

import (
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// needed lists the settings that Weir's calls need in their session, whatever the defaults of the server, the database or the role. The
// functions check for READ COMMITTED and limit their waits themselves; the other settings affect how texts are read and written, even
// through a pooler. Settings that a version does not have are left out, and a stricter synchronous_commit is kept.
const needed = `(VALUES
	('default_transaction_isolation', 'read committed'),
	('statement_timeout', '0'),
	('lock_timeout', '0'),
	('transaction_timeout', '0'),
	('synchronous_commit', 'on'),
	('search_path', 'pg_catalog, pg_temp'),
	('jit', 'off'),
	('plan_cache_mode', 'auto'),
	('client_encoding', 'UTF8'),
	('standard_conforming_strings', 'on'),
	('DateStyle', 'ISO'),
	('bytea_output', 'hex'),
	('extra_float_digits', '1')) n(name, value)
	CROSS JOIN LATERAL pg_catalog.current_setting(n.name, true) c(now)
	WHERE c.now IS NOT NULL AND (n.name <> 'synchronous_commit' OR c.now = 'off')`

const (
	// First, the settings that could keep the other statements here from completing.
	sqlSettle = `SET jit = off; SET statement_timeout = 0; SELECT pg_catalog.set_config(n.name, n.value, false) FROM ` + needed + `;
		SET idle_in_transaction_session_timeout = 0; SET idle_session_timeout = 0`
	sqlFrame = `SELECT pg_catalog.set_config(n.name, n.value, true) FROM ` + needed
	// sqlUneasy reports whether a session has other values in a way that matters. jit matters only if every statement is compiled, and
	// search_path only if it does not search pg_catalog first.
	sqlUneasy = `SELECT EXISTS (SELECT FROM ` + needed + ` AND pg_catalog.left(pg_catalog.lower(c.now), pg_catalog.length(n.value)) <> pg_catalog.lower(n.value)
		AND n.name NOT IN ('jit', 'search_path'))
		OR (SELECT s FROM pg_catalog.unnest(pg_catalog.current_schemas(true)) s WHERE pg_catalog.left(s, 7) <> 'pg_temp' LIMIT 1) <> 'pg_catalog'
		OR EXISTS (SELECT FROM pg_catalog.pg_settings j WHERE j.name = 'jit' AND j.reset_val = 'on')
			AND pg_catalog.current_setting('jit_above_cost')::pg_catalog.float8 BETWEEN 0 AND 1000`
)

// Settle sets what Weir needs in a session of its own. Through a pooler, which would pass the session on to other clients with these
// settings, it sets nothing. It is for pgxpool's AfterConnect.
func Settle(ctx context.Context, conn *pgx.Conn) error {
	direct, err := IsDirect(ctx, conn)
	if err == nil && direct {
		conn.PgConn().CustomData()[directKey] = true
		_, err = conn.PgConn().Exec(ctx, sqlSettle).ReadAll() // not prepared, because it runs once
	}
	if err != nil {
		return fmt.Errorf("prepare a connection of Weir's own: %w", err)
	}
	return nil
}

// IsDirect reports whether a connection has a session of the server to itself, which keeps settings and locks. Through a pooler, it has
// not: the process id that a pooler reports is not the server's.
func IsDirect(ctx context.Context, conn *pgx.Conn) (bool, error) {
	pid, err := ask(ctx, conn, `SELECT pg_catalog.pg_backend_pid()`)
	return err == nil && pid == strconv.FormatUint(uint64(conn.PgConn().PID()), 10), err
}

// ask returns the single value of a statement, run without JIT.
func ask(ctx context.Context, conn *pgx.Conn, sql string) (value string, err error) {
	results, err := conn.PgConn().Exec(ctx, `BEGIN; SET LOCAL jit = off; `+sql+`; COMMIT`).ReadAll()
	if err != nil {
		return "", err
	}
	for _, r := range results {
		if len(r.Rows) > 0 {
			value = string(r.Rows[0][0])
		}
	}
	return value, nil
}

// Whether a store's calls must bring the settings that they need.
const (
	unknown int32 = iota
	easy          // no: its sessions have them
	uneasy        // yes
)

// framed reports whether calls must bring the settings that they need: sessions of an application's pool, or behind a pooler, can't be
// changed.
func (s *Store) framed(ctx context.Context) (bool, error) {
	state := s.ease.Load()
	if state == unknown {
		err := s.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
			yes, err := ask(ctx, c.Conn(), sqlUneasy)
			if state = easy; yes == "t" {
				state = uneasy
			}
			return err
		})
		if err != nil {
			return false, err
		}
		s.ease.Store(state)
	}
	return state == uneasy, nil
}

// frame runs a statement in its own transaction with the needed settings, in one round trip.
func (s *Store) frame(ctx context.Context, sql string, args []any, read func(pgx.Rows) error) error {
	return s.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) (err error) {
		conn := c.Conn().PgConn()
		defer func() {
			if err != nil && conn.TxStatus() == 'E' {
				_, _ = conn.Exec(ctx, "ROLLBACK").ReadAll() // if it fails, the pool closes the connection
			}
		}()
		var values pgx.ExtendedQueryBuilder
		if err := values.Build(c.Conn().TypeMap(), nil, args); err != nil {
			return err
		}
		batch := &pgconn.Batch{}
		before := []string{"BEGIN ISOLATION LEVEL READ COMMITTED", "SET LOCAL jit = off", "SET LOCAL statement_timeout = 0", sqlFrame}
		for _, statement := range before {
			batch.ExecParams(statement, nil, nil, nil, nil)
		}
		batch.ExecParams(sql, values.ParamValues, nil, values.ParamFormats, values.ResultFormats)
		batch.ExecParams("COMMIT", nil, nil, nil, nil)
		results := conn.ExecBatch(ctx, batch)
		for i := 0; results.NextResult() && err == nil; i++ {
			if i == len(before) {
				err = read(pgx.RowsFromResultReader(c.Conn().TypeMap(), results.ResultReader()))
			} else {
				_, err = results.ResultReader().Close()
			}
		}
		if closed := results.Close(); err == nil {
			err = closed
		}
		return err
	})
}
