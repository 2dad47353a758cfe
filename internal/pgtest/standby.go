package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/embedded"
)

// Standby returns a streaming standby, for this test alone, of a server that [Server] or Standby returned. For the parameters see
// [embedded.Server.Standby]. It is stopped and removed at the end of the test, before the server that it follows; if the test failed, the
// end of its log is shown. Pool(t, standby.URL(name)) returns a pool of connections to one of its databases.
func Standby(t testing.TB, of *embedded.Server, parameters map[string]string) *embedded.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	dir, err := os.MkdirTemp(Home(), "weir-pgtest-*")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil { // see launch
		t.Fatal(err)
	}
	s, err := of.Standby(ctx, embedded.Config{Dir: dir, Fast: true, Parameters: parameters})
	if err != nil {
		t.Fatal(errors.Join(err, os.RemoveAll(dir)))
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the standby's log:\n%s", tail(filepath.Join(dir, "postgres.log"), 4096))
		}
		ctx, cancel := context.WithTimeout(context.Background(), bound)
		defer cancel()
		if err := errors.Join(s.Stop(ctx), embedded.Remove(ctx, dir)); err != nil {
			t.Error(err)
		}
	})
	return s
}

// EitherOf returns the URL of a database at whichever of two servers is the primary.
func EitherOf(t testing.TB, primary, standby *embedded.Server, database string) string {
	t.Helper()
	both, err := url.Parse(primary.URL(database))
	if err != nil {
		t.Fatal(err)
	}
	both.Host = fmt.Sprintf("127.0.0.1:%d,127.0.0.1:%d", primary.Port(), standby.Port())
	both.RawQuery += "&target_session_attrs=read-write"
	return both.String()
}

// Replayed returns when the standby shows everything that the primary has committed, except asynchronous commits.
func Replayed(t testing.TB, primary, standby *embedded.Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	var written string
	if err := Pool(t, primary.URL("postgres")).QueryRow(ctx, "SELECT pg_catalog.pg_current_wal_flush_lsn()::text").Scan(&written); err != nil {
		t.Fatal(err)
	}
	pool := Pool(t, standby.URL("postgres"))
	for {
		var there bool
		if err := pool.QueryRow(ctx, "SELECT pg_catalog.pg_last_wal_replay_lsn() >= $1::text::pg_lsn", written).Scan(&there); err != nil {
			t.Fatal(err)
		}
		if there {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the standby did not replay up to %s in %v", written, bound)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// CutOff stops a standby from receiving anything, as when the network between the two fails.
func CutOff(t testing.TB, standby *embedded.Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	pool := Pool(t, standby.URL("postgres"))
	for _, sql := range []string{"ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_catalog.pg_reload_conf()"} {
		if _, err := pool.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	for receives := true; receives; {
		if err := pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_catalog.pg_stat_wal_receiver)").Scan(&receives); err != nil {
			t.Fatal(err)
		}
		if receives {
			select {
			case <-ctx.Done():
				t.Fatalf("the standby still receives after %v", bound)
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
}

// Promote makes a standby a primary, with the data that it has.
func Promote(t testing.TB, standby *embedded.Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	var promoted bool
	if err := Pool(t, standby.URL("postgres")).QueryRow(ctx, "SELECT pg_catalog.pg_promote(true, 60)").Scan(&promoted); err != nil || !promoted {
		t.Fatalf("promote: %t, %v", promoted, err)
	}
}
