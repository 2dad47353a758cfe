package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/cmd/internal/doctor"
	"github.com/weir-pg/weir/internal/connstring"
)

// devURLPath is the file in which a running `weir dev` stores its connection string.
const devURLPath = ".weir/url"

// connectTimeout limits the first call, and each connection of a pool, unless the URL says for how long to try.
const connectTimeout = 10 * time.Second

// database is the database of the command. It is connected when first needed.
type database struct {
	url string // from --database or DATABASE_URL; empty: that of weir dev
	err io.Writer
}

// find returns the connection string, and whether it is that of weir dev.
func (d *database) find() (url string, dev bool, err error) {
	if strings.TrimSpace(d.url) != "" {
		return d.url, false, nil
	}
	text, err := os.ReadFile(devURLPath)
	if errors.Is(err, os.ErrNotExist) {
		return "", false, usagef("no database given: pass --database or set DATABASE_URL, or start one here with `weir dev` (a weir dev in another directory is not found)")
	}
	if err != nil {
		return "", false, fmt.Errorf("read the connection string of weir dev: %w: pass --database or set DATABASE_URL instead", err)
	}
	return strings.TrimSpace(string(text)), true, nil
}

// pool returns a pool that has connected to the server.
func (d *database) pool(ctx context.Context) (*pgxpool.Pool, error) { return d.poolOf(ctx, 0) }

// poolOf returns a pool with at least so many connections.
func (d *database) poolOf(ctx context.Context, connections int) (*pgxpool.Pool, error) {
	url, dev, err := d.find()
	if err != nil {
		return nil, err
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, notValid(err)
	}
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "weir"
	}
	config.MaxConns = max(config.MaxConns, int32(connections))
	if config.ConnConfig.ConnectTimeout == 0 { // otherwise a connection that nobody answers keeps its place for two minutes
		config.ConnConfig.ConnectTimeout = connectTimeout
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open a pool of connections: %w", err)
	}
	bounded, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := pool.Ping(bounded); err != nil {
		pool.Close()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, unreachable(config.ConnConfig, dev, err)
	}
	if dev {
		fmt.Fprintln(d.err, "weir: using the database of weir dev in "+devURLPath)
	}
	return pool, nil
}

// notValid returns the error for a connection string that can't be parsed.
func notValid(err error) error { return &failure{exitUsage, connstring.Invalid(err)} }

// client returns a client of the database; close ends its connections.
func (d *database) client(ctx context.Context) (client *weir.Client, close func(), err error) {
	pool, err := d.pool(ctx)
	if err != nil {
		return nil, nil, err
	}
	return weir.NewClient(pool), pool.Close, nil
}

// conn calls f with one connection.
func (d *database) conn(ctx context.Context, f func(*pgx.Conn) error) error {
	pool, err := d.pool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	return pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error { return f(c.Conn()) })
}

// unreachable returns an error that says which server could not be reached, why, and what to do. It never contains the password.
func unreachable(c *pgx.ConnConfig, dev bool, err error) error {
	at := net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))
	todo := "check --database or DATABASE_URL, and that PostgreSQL is running there"
	var refused *pgconn.PgError
	switch {
	case errors.As(err, &refused) && refused.Code == "3D000": // invalid_catalog_name
		todo = "create it with createdb, or name another in --database or DATABASE_URL"
	case errors.As(err, &refused) && refused.Code == "28000" && strings.HasPrefix(c.Host, "/"): // invalid_authorization_specification; wrong passwords have another code
		todo = "over this socket the server may accept only the operating system user of the same name: run as that user, or connect by TCP, with a host and a password in --database or DATABASE_URL"
	case errors.As(err, &refused) && strings.HasPrefix(refused.Code, "28"):
		todo = "check user and password in --database or DATABASE_URL"
	case errors.As(err, &refused) && refused.Code == "08P01" && strings.Contains(refused.Message, "startup parameter"): // PgBouncer
		todo = "a pooler answered: for this command, connect to the PostgreSQL server itself"
	case errors.As(err, &refused) && (refused.Code == "42704" || refused.Code == "22023"): // a setting in the connection string
		todo = "correct or remove it in --database or DATABASE_URL"
	case errors.As(err, &refused) && refused.Code == "42501": // insufficient_privilege
		todo = "GRANT CONNECT ON DATABASE to this role, or use another in --database or DATABASE_URL"
	case errors.As(err, &refused) && refused.Code == "55000": // object_not_in_prerequisite_state: allow_connections
		todo = "name another database in --database or DATABASE_URL, or ALTER DATABASE … ALLOW_CONNECTIONS true"
	case errors.As(err, &refused) && doctor.IsLimitOfItsOwn(refused):
		todo = "the role, or the database, has a limit of its own: raise it (ALTER ROLE or ALTER DATABASE … CONNECTION LIMIT); weir doctor needs two connections at least"
	case errors.As(err, &refused) && refused.Code == "55P03": // lock_not_available
		todo = "something holds a lock on a catalog that every login needs, so nobody can connect: end it in a session that is open already " +
			"(SELECT pid FROM pg_locks WHERE granted AND mode = 'AccessExclusiveLock' shows who), or end that server process with SIGTERM"
	case errors.As(err, &refused):
		todo = "try again when the server is ready"
	case dev:
		todo = devURLPath + " was left by a weir dev that no longer runs: start weir dev again, or pass --database"
	}
	return &failure{exitUnreachable, fmt.Errorf("cannot connect to database %s at %s: %s: %s", c.Database, at, reason(err), todo)}
}

// reason returns the innermost wrapped error, which does not repeat the address.
func reason(err error) string {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return refused.Message
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Sprintf("no answer in %s", connectTimeout)
	}
	var lookup *net.DNSError
	if errors.As(err, &lookup) {
		return lookup.Err
	}
	for {
		if many, ok := err.(interface{ Unwrap() []error }); ok && len(many.Unwrap()) > 0 {
			err = many.Unwrap()[0]
			continue
		}
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}
