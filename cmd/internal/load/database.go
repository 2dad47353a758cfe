package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/internal/embedded"
)

// Config selects the database to measure on.
type Config struct {
	URL            string                       // "": a private server, removed at the end
	Yes            bool                         // measure even if there are unfinished jobs, which the figures then include
	MaxConnections int                          // required by the bench; default 100
	Fit            func(connections int) string // which flags make the bench do with so many, "" if none do; default: none do
	Progress       io.Writer                    // default: none
}

// Database is a database to measure on.
type Database struct {
	Config   Config
	URL      string
	Server   *embedded.Server // nil: an existing database
	Observer *pgxpool.Pool    // for observing only
	private  Server
}

// Open starts a private server, or connects to the given database, and installs the engines.
func Open(ctx context.Context, c Config, engines ...Engine) (d *Database, err error) {
	if c.MaxConnections == 0 {
		c.MaxConnections = 100
	}
	if c.Progress == nil {
		c.Progress = io.Discard
	}
	d = &Database{Config: c, URL: c.URL}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	if c.URL == "" {
		if err := d.start(ctx); err != nil {
			return d, err
		}
	}
	if d.Observer, err = pgxpool.New(ctx, d.URL); err != nil {
		return d, fmt.Errorf("bench: connect: %w", err)
	}
	var available int
	if err := d.Observer.QueryRow(ctx, `SELECT current_setting('max_connections')::int`).Scan(&available); err != nil {
		return d, fmt.Errorf("bench: connect: %w", err)
	}
	if available < c.MaxConnections {
		flags := ""
		if c.Fit != nil {
			flags = c.Fit(available)
		}
		if flags != "" {
			flags = "pass " + flags + ", "
		}
		return d, fmt.Errorf("bench: this bench needs %d connections, but max_connections is %d: %sraise it, or measure on a private server", c.MaxConnections, available, flags)
	}
	for _, e := range engines {
		unfinished, err := e.Unfinished(ctx, d.Observer)
		if err != nil {
			return d, fmt.Errorf("bench: check for unfinished jobs: %w", err)
		}
		if unfinished && !c.Yes {
			return d, errors.New("bench: the database contains unfinished jobs, which the bench would run and which would distort the figures: use another database, or pass --yes")
		}
		err = d.Observer.AcquireFunc(ctx, func(conn *pgxpool.Conn) error { return e.Install(ctx, conn.Conn()) })
		if err != nil {
			return d, fmt.Errorf("bench: install %s: %w", e.Name(), err)
		}
	}
	return d, nil
}

// start starts a private server.
func (d *Database) start(ctx context.Context) error {
	d.Say("starting a private PostgreSQL")
	last := time.Now()
	err := d.private.Start(ctx, embedded.Config{
		Parameters: map[string]string{
			"shared_buffers":  "1GB",
			"max_wal_size":    "8GB",
			"max_connections": strconv.Itoa(max(d.Config.MaxConnections, 100)),
		},
		Progress: func(done, total int64) {
			if time.Since(last) > 2*time.Second {
				last = time.Now()
				d.Say("downloading PostgreSQL: %d of %d MB", done>>20, total>>20)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	d.Server = d.private.Server
	d.URL = d.Server.URL("postgres")
	return nil
}

// Close disconnects, and stops and removes a private server.
func (d *Database) Close() error {
	if d.Observer != nil {
		d.Observer.Close()
	}
	// Remove the server however the bench ended.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return d.private.Remove(ctx)
}

// Say reports progress.
func (d *Database) Say(format string, args ...any) {
	fmt.Fprintf(d.Config.Progress, "%s "+format+"\n", append([]any{time.Now().Format(time.TimeOnly)}, args...)...)
}

// Pool opens a separate pool for a measured part of the program.
func (d *Database) Pool(ctx context.Context, connections int) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(d.URL)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	config.MaxConns = int32(connections)
	return pgxpool.NewWithConfig(ctx, config)
}

// Client opens a pool and a client of the engine on it. The caller must close the pool.
func (d *Database) Client(ctx context.Context, e Engine, connections int) (*pgxpool.Pool, Client, error) {
	pool, err := d.Pool(ctx, connections)
	if err != nil {
		return nil, nil, err
	}
	client, err := e.Client(pool)
	if err != nil {
		pool.Close()
		return nil, nil, fmt.Errorf("bench: %w", err)
	}
	return pool, client, nil
}

// Begin starts a report.
func (d *Database) Begin(ctx context.Context, bench string, e Engine) (*Report, error) {
	r := &Report{
		Bench: bench, Engine: e.Name(), StartedAt: time.Now().UTC().Truncate(time.Second),
		Server:  ServerFacts{Private: d.Server != nil, Settings: map[string]string{}},
		Machine: MachineFacts{Cores: runtime.NumCPU(), OS: runtime.GOOS, Arch: runtime.GOARCH},
	}
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		r.Machine.Load = strings.Join(strings.Fields(string(load))[:3], " ")
	}
	rows, err := d.Observer.Query(ctx, `SELECT name, current_setting(name) FROM pg_settings WHERE name IN (
		'server_version', 'fsync', 'synchronous_commit', 'full_page_writes', 'wal_level', 'wal_compression', 'shared_buffers', 'max_wal_size',
		'checkpoint_timeout', 'max_connections', 'autovacuum', 'jit', 'io_method')`)
	if err != nil {
		return nil, fmt.Errorf("bench: read the server's settings: %w", err)
	}
	var name, value string
	_, err = pgx.ForEachRow(rows, []any{&name, &value}, func() error {
		if name == "server_version" {
			r.Server.Version = value
		} else {
			r.Server.Settings[name] = value
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("bench: read the server's settings: %w", err)
	}
	return r, nil
}

// WAL returns the number of bytes of WAL that the server has written, for all sessions.
func (d *Database) WAL(ctx context.Context) (bytes int64, err error) {
	err = d.Observer.QueryRow(ctx, `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`).Scan(&bytes)
	return bytes, err
}

// Connections returns the number of other sessions in the database.
func (d *Database) Connections(ctx context.Context) (n int, err error) {
	err = d.Observer.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()`).Scan(&n)
	return n, err
}

// DeadTuples counts the dead rows in all tables of the engine, and says which tables have any. Sessions report their statistics once a second while
// they work, and when they end.
func (d *Database) DeadTuples(ctx context.Context, e Engine) (*int64, error) {
	var dead int64
	var tables string
	err := d.Observer.QueryRow(ctx, `SELECT coalesce(sum(n_dead_tup), 0)::bigint, coalesce(string_agg(format('%s %s', relname, n_dead_tup), ', ') FILTER (WHERE n_dead_tup > 0), '')
		FROM pg_stat_all_tables WHERE schemaname || '.' || relname ~ $1`, e.Tables()).Scan(&dead, &tables)
	if tables != "" {
		d.Say("dead tuples: %s", tables)
	}
	return &dead, err
}
