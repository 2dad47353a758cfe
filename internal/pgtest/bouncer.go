package pgtest

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/bouncer"
)

// BouncerSessions is the number of sessions that a Bouncer has at the server.
const BouncerSessions = 2

// Bouncer starts a real PgBouncer in transaction mode in front of a database, and returns the URL through it. PgBouncer has fewer server
// connections than a worker has connections, so clients change servers all the time. If PgBouncer is not installed, the test is skipped,
// unless WEIR_TEST_REQUIRE names it.
func Bouncer(t testing.TB, target string) string {
	t.Helper()
	return BouncerOf(t, target, BouncerSessions)
}

// BouncerOf is Bouncer with so many sessions at the server.
func BouncerOf(t testing.TB, target string, sessions int) string {
	t.Helper()
	return BouncerWith(t, bouncer.Config{Target: target, Sessions: sessions})
}

// BouncerWith is Bouncer with any configuration.
func BouncerWith(t testing.TB, c bouncer.Config) string {
	t.Helper()
	b, err := bouncer.Start(t.Context(), c)
	if errors.Is(err, bouncer.ErrNotInstalled) && !strings.Contains(os.Getenv("WEIR_TEST_REQUIRE"), "pgbouncer") {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.Stop()
		if t.Failed() {
			t.Log(b.Log())
		}
	})
	Eventually(t, func() error { // its first session at the server takes a moment
		conn, err := pgx.Connect(t.Context(), b.URL()+"&default_query_exec_mode=exec")
		if err == nil {
			_ = conn.Close(t.Context())
		}
		return err
	})
	return b.URL()
}
