package guard

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/internal/embedded"
	"github.com/weir-pg/weir/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// servers are a primary, a standby that uses a slot, and a cascaded standby without one. Both send hot_standby_feedback.
type servers struct{ primary, standby, cascaded *embedded.Server }

func startServers(t *testing.T) *servers {
	s := &servers{primary: pgtest.Server(t, nil)}
	pool := pgtest.Pool(t, s.primary.URL("postgres"))
	for _, sql := range []string{
		"CREATE ROLE app LOGIN PASSWORD 'app'", "CREATE ROLE boss LOGIN SUPERUSER PASSWORD 'boss'",
		"CREATE ROLE guard LOGIN PASSWORD 'guard' IN ROLE pg_monitor, pg_signal_backend",
		"CREATE ROLE blind LOGIN PASSWORD 'blind'",
		"CREATE TABLE harmed (n int) WITH (autovacuum_enabled = false)", "INSERT INTO harmed SELECT generate_series(1, 100)",
		"CREATE TABLE other (n int) WITH (autovacuum_enabled = false)", "GRANT ALL ON harmed, other TO app", "CREATE DATABASE elsewhere",
	} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	s.standby = pgtest.Standby(t, s.primary, map[string]string{"hot_standby_feedback": "on", "primary_slot_name": "for_standby"})
	s.cascaded = pgtest.Standby(t, s.standby, map[string]string{"hot_standby_feedback": "on"})
	pgtest.Replayed(t, s.primary, s.cascaded)
	return s
}

// as returns the URL of a database for another role, whose password is its name.
func as(t *testing.T, s *embedded.Server, role, database string) string {
	u, err := url.Parse(s.URL(database))
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(role, role)
	return u.String()
}

func server(t *testing.T, name string, s *embedded.Server) Server {
	config, err := pgxpool.ParseConfig(as(t, s, "guard", "postgres"))
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.RuntimeParams["application_name"] = ApplicationName
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return Server{Name: name, DB: pool}
}

// hasty is a policy for tests: every session may be ended after a moment.
func hasty() Policy {
	p := DefaultPolicy()
	p.Interval = Duration{100 * time.Millisecond}
	p.EndsPerMinute = 600
	p.Protect = Protect{Tables: []string{"public.harm*"}, DeadRows: 150}
	p.Default = Limits{Action: Terminate, After: Duration{300 * time.Millisecond}, Patience: Duration{500 * time.Millisecond}}
	return p
}

// guard returns a guard of the primary and both standbys.
func (s *servers) guard(t *testing.T, p Policy, act bool) *Guard {
	g, err := New(Config{
		Primary: server(t, "primary", s.primary), Standbys: []Server{server(t, "standby", s.standby), server(t, "cascaded", s.cascaded)},
		Policy: p, Act: act,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	return g
}

// client is a session of a test.
type client struct {
	t    *testing.T
	conn *pgx.Conn
}

func connect(t *testing.T, at string) *client {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return &client{t, conn}
}

func (c *client) exec(sql ...string) *client {
	c.t.Helper()
	for _, one := range sql {
		if _, err := c.conn.Exec(c.t.Context(), one); err != nil {
			c.t.Fatalf("%s: %v", one, err)
		}
	}
	return c
}

func (c *client) pid() int32 { return int32(c.conn.PgConn().PID()) }

// lives reports whether the session still answers.
func (c *client) lives() bool {
	_, err := c.conn.Exec(c.t.Context(), "SELECT 1")
	return err == nil
}

// runs starts a slow statement, and returns a channel that receives its error.
func (c *client) runs(sql string) <-chan error {
	ended := make(chan error, 1)
	go func() { // ends with the statement, or with the connection
		_, err := c.conn.Exec(context.Background(), sql)
		ended <- err
	}()
	return ended
}

// watch makes dead rows and polls with the guard until found returns true.
func (s *servers) watch(t *testing.T, g *Guard, found func(*Findings) bool) {
	t.Helper()
	var last *Findings
	deadline := time.Now().Add(time.Minute)
	for tick := time.NewTicker(100 * time.Millisecond); time.Now().Before(deadline); <-tick.C {
		s.harm(t)
		r, err := g.Poll(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if last = r; found(r) {
			return
		}
	}
	t.Fatalf("not seen: %s", describe(last))
}

// harm makes dead rows in the protected table. It ends its session, so that the server sends the session's statistics.
func (s *servers) harm(t *testing.T) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.primary.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "UPDATE harmed SET n = n"); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func describe(r *Findings) string {
	var b strings.Builder
	for _, h := range r.Holders {
		b.WriteString("\n  " + h.Server + " " + string(h.Kind) + " " + h.Name + " by " + h.By + ": step " + string(h.Step) + ": " + h.Why)
	}
	for _, table := range r.Tables {
		if table.Suffers {
			b.WriteString("\n  suffers: " + table.Name)
		}
	}
	return b.String()
}

// outcome reports whether an action on a session had this outcome in this poll.
func (r *Findings) outcome(server, name string, action Action, outcome string) bool {
	for _, a := range r.Actions {
		if a.Server == server && a.Name == name && a.Action == action && a.Outcome == outcome {
			return true
		}
	}
	return false
}

func (r *Findings) holder(server, name string) *Holder {
	for i := range r.Holders {
		if h := &r.Holders[i]; h.Server == server && h.Name == name {
			return h
		}
	}
	return nil
}
