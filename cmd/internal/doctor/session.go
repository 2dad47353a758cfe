package doctor

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-pg/weir/cmd/internal/horizon"
)

// ApplicationName is the application name of the doctor's own sessions, which never count.
const ApplicationName = horizon.Doctor

const (
	connectTimeout   = 10 * time.Second
	statementTimeout = 5 * time.Second
	lockTimeout      = 100 * time.Millisecond
)

// session is one read-only connection, reopened when it is lost. It serves one caller at a time.
type session struct {
	config *pgx.ConnConfig
	name   string // of a standby, to tell its answers from others; "" for the examined server
	meter  *meter
	clock  *clock
	tape   *tape
	redact *redactor // nil: statements are read as they are

	mu   sync.Mutex
	conn *pgx.Conn
	took time.Duration // to connect
}

// meter measures the examination's cost, over all sessions.
type meter struct {
	statements atomic.Int64
	nanos      atomic.Int64
}

func (m *meter) cost() Cost {
	return Cost{Statements: int(m.statements.Load()), Milliseconds: round(float64(m.nanos.Load()) / 1e6)}
}

// sessionConfig parses a connection string, and sets what keeps its sessions harmless.
func sessionConfig(at string) (*pgx.ConnConfig, error) {
	config, err := pgx.ParseConfig(at)
	if err != nil {
		return nil, fmt.Errorf("read the connection string: %w: write it as postgres://user:password@host:port/database", err)
	}
	config.ConnectTimeout = connectTimeout
	milliseconds := func(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
	for name, value := range map[string]string{
		"application_name":                    ApplicationName,
		"default_transaction_read_only":       "on",
		"statement_timeout":                   milliseconds(statementTimeout),
		"lock_timeout":                        milliseconds(lockTimeout),
		"idle_in_transaction_session_timeout": milliseconds(statementTimeout),
		"search_path":                         "pg_catalog",
		// The postmaster would have to fork parallel workers. And the planner considers functions that return rows
		// expensive enough to compile.
		"max_parallel_workers_per_gather": "0",
		"jit":                             "off",
	} {
		config.RuntimeParams[name] = value
	}
	horizon.Unconverted(config)
	return config, nil
}

// open connects unless connected.
func (s *session) open(ctx context.Context) error {
	if s.conn != nil && !s.conn.IsClosed() {
		return nil
	}
	begin := time.Now()
	conn, err := pgx.ConnectConfig(ctx, s.config)
	if err != nil {
		return &connectError{err}
	}
	s.conn, s.took = conn, time.Since(begin)
	return nil
}

func (s *session) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = s.conn.Close(ctx) // read-only: nothing can be lost
	s.conn = nil
}

// connected returns how long it took to connect.
func (s *session) connected() time.Duration {
	return recall(s.tape, "connected", func() time.Duration {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.took
	})
}

// examines returns the command that examines a database of this server. A password is left to the environment, or to the reader.
func (s *session) examines(database string) string {
	return recall(s.tape, "how to examine "+database, func() string {
		u := url.URL{Scheme: "postgres", User: url.User(s.config.User), Path: "/" + database}
		if port := strconv.Itoa(int(s.config.Port)); strings.HasPrefix(s.config.Host, "/") {
			u.RawQuery = url.Values{"host": {s.config.Host}, "port": {port}}.Encode()
		} else {
			u.Host = net.JoinHostPort(s.config.Host, port)
		}
		return "weir doctor --database '" + u.String() + "'"
	})
}

// now returns the time.
func (s *session) now() time.Time { return recall(s.tape, "now", s.clock.now) }

// pause waits for a time, but not in a replay.
func (s *session) pause(ctx context.Context, d time.Duration) error {
	if s.tape != nil && s.tape.replays {
		return ctx.Err()
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// pid returns the backend's pid; 0 while not connected.
func (s *session) pid() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		return 0
	}
	return s.conn.PgConn().PID()
}

// list runs one statement and collects its rows by position.
func list[T any](ctx context.Context, s *session, sql string, args ...any) ([]T, error) {
	return collect(ctx, s, pgx.RowToStructByPos[T], sql, args...)
}

// scalars is list for a single column.
func scalars[T any](ctx context.Context, s *session, sql string, args ...any) ([]T, error) {
	return collect(ctx, s, pgx.RowTo[T], sql, args...)
}

// one runs a statement that returns one row.
func one[T any](ctx context.Context, s *session, sql string, args ...any) (T, error) {
	var none T
	found, err := list[T](ctx, s, sql, args...)
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("got %d rows, want one", len(found))
	}
	if err != nil {
		return none, err
	}
	return found[0], nil
}

func collect[T any](ctx context.Context, s *session, to pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	return asked(s.tape, s.name+sql, func() ([]T, error) { return query(ctx, s, to, sql, args...) })
}

func query[T any](ctx context.Context, s *session, to pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// The server's timeout has no effect if the network or the server has stopped.
	ctx, cancel := context.WithTimeout(ctx, statementTimeout+connectTimeout)
	defer cancel()
	if err := s.open(ctx); err != nil {
		return nil, err
	}
	begin := time.Now()
	defer func() {
		s.meter.statements.Add(1)
		s.meter.nanos.Add(int64(time.Since(begin)))
	}()
	rows, err := s.conn.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	found, err := pgx.CollectRows(rows, to)
	s.redact.rows(found)
	return found, err
}

// endpoint returns the address of the connected server, because a URL may name several.
func (s *session) endpoint() (network, address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		return pgconn.NetworkAddress(s.config.Host, s.config.Port)
	}
	at := s.conn.PgConn().Conn().RemoteAddr()
	return at.Network(), at.String()
}
