package pgwire_test

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/lib/pq"

	"github.com/weir-pg/weir/cmd/internal/pgwire"
	"github.com/weir-pg/weir/internal/drivertest"
	"github.com/weir-pg/weir/internal/pgtest"
)

var driverPayloads = []string{`it's "quoted" \ and $1`, "Grüße, 世界 🎉\nsecond line", "", strings.Repeat("long ", 10_000)}

func TestDriverPgx(t *testing.T) {
	t.Parallel()
	config := pgwire.Config{Auth: usersFile(t, "someone secret\n")}
	e := startAt(t, config, pgtest.Address(t))
	for range 2 {
		for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
			pool := pgtest.Pool(t, e.url("someone", "secret", "sslmode=disable&default_query_exec_mode="+mode))
			conn, err := pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			listener := conn.Conn()
			run(t, listener, "LISTEN "+pgx.Identifier{driverChannel}.Sanitize())
			for _, payload := range driverPayloads {
				publish(t, e, driverChannel, payload)
				if n := notification(t, listener); n.Channel != driverChannel || n.Payload != payload {
					t.Errorf("%s: got %.200q, want %.200q", mode, n.Payload, payload)
				}
			}
			rollBackAndCommit(t, pool.Ping, func(f func(exec func(string, ...any) error) error) error {
				return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
					return f(func(sql string, args ...any) error { _, err := tx.Exec(t.Context(), sql, args...); return err })
				})
			})
			if n := notification(t, listener); n.Payload != "committed" {
				t.Errorf("%s: got %q", mode, n.Payload)
			}
			run(t, listener, "UNLISTEN *")
			conn.Release()
			pool.Close()
		}
		e.stop()
		e = startAt(t, config, e.addr.String())
	}
}

// rollBackAndCommit notifies in a transaction that is rolled back, and then in one that commits.
func rollBackAndCommit(t *testing.T, ping func(context.Context) error, inTx func(func(exec func(string, ...any) error) error) error) {
	t.Helper()
	if err := ping(t.Context()); err != nil {
		t.Error(err)
	}
	back := fmt.Errorf("back")
	if err := inTx(func(exec func(string, ...any) error) error {
		if err := exec("SELECT pg_notify($1, $2)", driverChannel, "rolled back"); err != nil {
			t.Error(err)
		}
		return back
	}); err != back {
		t.Errorf("got %v", err)
	}
	if err := inTx(func(exec func(string, ...any) error) error {
		return exec("SELECT pg_notify($1, $2)", driverChannel, "committed")
	}); err != nil {
		t.Error(err)
	}
}

// Its Listener reconnects and listens again automatically.
func TestDriverLibPQ(t *testing.T) {
	t.Parallel()
	config := pgwire.Config{Auth: usersFile(t, "someone secret\n")}
	e := startAt(t, config, pgtest.Address(t))
	url := e.url("someone", "secret", "sslmode=disable")
	listener := pq.NewListener(url, 10*time.Millisecond, 50*time.Millisecond, nil)
	defer listener.Close()
	if err := listener.Listen(driverChannel); err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		if round > 0 {
			e.stop()
			e = startAt(t, config, e.addr.String())
			if n := receive(t, listener.Notify, "the sign that it has connected again"); n != nil {
				t.Fatalf("got %+v", n)
			}
		}
		if err := listener.Ping(); err != nil {
			t.Fatal(err)
		}
		for _, payload := range driverPayloads {
			publish(t, e, driverChannel, payload)
			if n := receive(t, listener.Notify, "a notification"); n == nil || n.Channel != driverChannel || n.Extra != payload {
				t.Errorf("got %+v, want %.200q", n, payload)
			}
		}
		db, err := sql.Open("postgres", url) // its pool still has the dead connections of the previous round
		if err != nil {
			t.Fatal(err)
		}
		rollBackAndCommit(t, db.PingContext, func(f func(exec func(string, ...any) error) error) error {
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := f(func(sql string, args ...any) error { _, err := tx.Exec(sql, args...); return err }); err != nil {
				_ = tx.Rollback()
				return err
			}
			return tx.Commit()
		})
		db.Close()
		if n := receive(t, listener.Notify, "a notification"); n == nil || n.Extra != "committed" {
			t.Errorf("got %+v", n)
		}
	}
}

// psql shows notifications after it has executed something.
func TestDriverPsql(t *testing.T) {
	t.Parallel()
	psql := drivertest.Tool(t, "psql")
	tls, root := certificate(t)
	config := pgwire.Config{Auth: usersFile(t, `"app" "secret"`), TLS: tls}
	e := startAt(t, config, pgtest.Address(t))
	for _, options := range []string{
		"sslmode=disable", "sslmode=verify-full channel_binding=require sslrootcert=" + root,
		"target_session_attrs=read-write", "target_session_attrs=primary",
	} {
		s := startPsql(t, psql, fmt.Sprintf("host=127.0.0.1 port=%d user=app dbname=app %s", e.addr.Port, options))
		s.say(`\encoding`)
		s.until("UTF8")
		s.say(`LISTEN "Orders ""new""";`)
		s.until("LISTEN")
		for _, payload := range driverPayloads[:2] {
			publish(t, e, driverChannel, payload)
			s.shows(fmt.Sprintf(`Asynchronous notification "%s" with payload "%s" received from server process with PID 1.`, driverChannel, payload))
		}
		publish(t, e, driverChannel, "")
		s.shows(fmt.Sprintf(`Asynchronous notification "%s" received from server process with PID 1.`, driverChannel))
		s.say(`BEGIN; NOTIFY "Orders ""new""", 'rolled back'; ROLLBACK; SELECT pg_notify('Orders "new"', 'committed');`)
		s.shows(`with payload "committed"`)
		s.say("TABLE account;")
		s.until("this endpoint only listens and notifies: it does not run this TABLE statement")
		s.say("SHOW server_version;")
		s.until("18.0 (Weir)")
		// It does not reconnect automatically when its input is a pipe.
		e.stop()
		s.say("SELECT 1;")
		s.until("terminating connection due to administrator command")
		s.end()
		e = startAt(t, config, e.addr.String())
	}
}

func TestTargetSessionAttributesFindAPrimary(t *testing.T) {
	t.Parallel()
	e := start(t, pgwire.Config{})
	for attributes, found := range map[string]bool{
		"any": true, "read-write": true, "primary": true, "prefer-standby": true, "read-only": false, "standby": false,
	} {
		conn, err := pgx.Connect(t.Context(), e.url("someone", "secret", "sslmode=disable&target_session_attrs="+attributes))
		if (err == nil) != found {
			t.Errorf("%s: %v", attributes, err)
		}
		if err == nil {
			_ = conn.Close(t.Context())
		}
	}
}

// psqlSession is a psql whose standard input is a pipe.
type psqlSession struct {
	t     *testing.T
	in    io.WriteCloser
	lines chan string
	all   strings.Builder
	end   func()
}

func startPsql(t *testing.T, psql, target string) *psqlSession {
	t.Helper()
	cmd := exec.Command(psql, "--no-psqlrc", "--no-align", "--tuples-only", target)
	cmd.Env = append(os.Environ(), "PGPASSWORD=secret", "PGCLIENTENCODING=UTF8")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &psqlSession{t: t, in: in, lines: make(chan string)}
	go func() {
		defer close(s.lines)
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			s.lines <- scanner.Text()
		}
	}()
	s.end = sync.OnceFunc(func() {
		in.Close()
		_ = cmd.Process.Kill()
		for range s.lines {
		}
		_ = cmd.Wait()
	})
	t.Cleanup(s.end)
	return s
}

func (s *psqlSession) say(line string) {
	s.t.Helper()
	if _, err := io.WriteString(s.in, line+"\n"); err != nil {
		s.t.Fatalf("%v, after %s", err, s.all.String())
	}
}

// until reads up to a text, which may span several lines.
func (s *psqlSession) until(text string) {
	s.t.Helper()
	if !s.within(text, patience) {
		s.t.Fatalf("no %q in %s", text, s.all.String())
	}
}

func (s *psqlSession) within(text string, d time.Duration) bool {
	for end := time.After(d); !strings.Contains(s.all.String(), text); {
		select {
		case line, ok := <-s.lines:
			if !ok {
				return false
			}
			s.all.WriteString(line + "\n")
		case <-end:
			return false
		}
	}
	rest := s.all.String()
	s.all.Reset()
	s.all.WriteString(rest[strings.Index(rest, text)+len(text):])
	return true
}

// shows executes a statement until psql prints a text.
func (s *psqlSession) shows(text string) {
	s.t.Helper()
	for end := time.Now().Add(patience); ; {
		s.say("SELECT 1;")
		if s.within(text, 50*time.Millisecond) {
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("no %q in %s", text, s.all.String())
		}
	}
}
