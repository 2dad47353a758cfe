package pgwire_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-pg/weir/cmd/internal/pgwire"
)

// TestWhatAConnectionKeepsCountsByItsSize: prepared statements count by their size, so a hundred wide ones reach the limit of thousands of narrow ones.
func TestWhatAConnectionKeepsCountsByItsSize(t *testing.T) {
	t.Parallel()
	e := start(t, pgwire.Config{})
	conn, err := pgx.Connect(t.Context(), e.url("app", "x", "sslmode=disable"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	prepare := func(n int, sql string) (kept int, err error) {
		for kept = range n {
			if _, err = conn.Prepare(t.Context(), fmt.Sprintf("%.20s %d", sql, kept), sql); err != nil {
				return kept, err
			}
		}
		return n, nil
	}
	if kept, err := prepare(1000, "SELECT pg_notify($1, $2)"); err != nil {
		t.Errorf("a thousand narrow ones: %v after %d", err, kept)
	}
	if kept, err := prepare(100, "SELECT 1"+strings.Repeat(",1", 1600)); err == nil || !strings.Contains(err.Error(), "54000") {
		t.Errorf("%d wide ones are kept: %v", kept, err)
	}
}

// TestOpenTransactionsShareABound: the pending notifications of all open transactions share a limit, and are released by
// the end of a transaction, a savepoint or a connection.
func TestOpenTransactionsShareABound(t *testing.T) {
	t.Parallel()
	e := start(t, pgwire.Config{MaxPending: 2500})
	open := func() *pgx.Conn {
		t.Helper()
		conn, err := pgx.Connect(t.Context(), e.url("app", "x", "sslmode=disable&default_query_exec_mode=simple_protocol"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close(context.Background()) })
		return conn
	}
	notify := "NOTIFY a, '" + strings.Repeat("x", 999) + "'"
	run := func(conn *pgx.Conn, sql, want string) {
		t.Helper()
		_, err := conn.Exec(t.Context(), sql)
		var told *pgconn.PgError
		if errors.As(err, &told); (err == nil) != (want == "") || told != nil && told.Code != want {
			t.Errorf("%.30s: %v, want %q", sql, err, want)
		}
	}
	one, two, three := open(), open(), open()
	run(one, "BEGIN; SAVEPOINT s; "+notify, "")
	run(two, "BEGIN; "+notify, "")
	run(three, notify, "53200")
	run(one, "ROLLBACK TO s", "")
	run(three, notify, "")
	run(one, notify, "")
	run(three, notify, "53200")
	run(two, "COMMIT", "")
	run(three, "BEGIN; "+notify, "")
	run(two, notify, "53200")
	_ = one.Close(t.Context())
	for end := time.Now().Add(patience); ; <-time.After(time.Millisecond) {
		if _, err := two.Exec(t.Context(), notify); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("a connection's end gives nothing back")
		}
	}
}
