//go:build unix

package store

import (
	"errors"
	"net/url"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestACallSurvivesASessionThatEndsForBeingIdle: a pooler may pass a call to a session that the server is just ending (idle_session_timeout). Nothing was
// executed, so the call is made again, whether the pooler passes the server's error on or its own.
func TestACallSurvivesASessionThatEndsForBeingIdle(t *testing.T) {
	t.Parallel()
	at := pgtest.Database(t)
	admin := pgtest.Pool(t, at)
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	database := pgx.Identifier{strings.TrimPrefix(u.Path, "/")}.Sanitize()
	if _, err := admin.Exec(t.Context(), `ALTER DATABASE `+database+` SET idle_session_timeout = '300ms'`); err != nil {
		t.Fatal(err)
	}
	through := pgtest.Bouncer(t, at)
	open := func(zone string) *pgxpool.Pool {
		t.Helper()
		config, err := pgxpool.ParseConfig(through + "&default_query_exec_mode=exec&timezone=" + zone)
		if err != nil {
			t.Fatal(err)
		}
		config.AfterConnect = Settle
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		return pool
	}
	same, other := open("UTC"), open("Asia/Kathmandu") // the pooler sets another time zone before it passes a call on
	for name, run := range map[string]func(pool *pgxpool.Pool) error{
		"a call": func(pool *pgxpool.Pool) error { return New(pool, 0).Ping(t.Context()) },
		"connecting": func(pool *pgxpool.Pool) error {
			pool.Reset()
			return New(pool, 0).Ping(t.Context())
		},
	} {
		for range 2 {
			for _, pool := range []*pgxpool.Pool{same, other} {
				// The session stands still while its time passes and the call reaches it.
				var pid int
				const others = ` FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'idle'`
				pgtest.Eventually(t, func() error { // its time may be over before it stands still
					err := New(same, 0).Ping(t.Context())
					if err == nil {
						err = admin.QueryRow(t.Context(), `SELECT coalesce(max(pid), 0)`+others).Scan(&pid)
					}
					if err == nil && pid == 0 {
						err = errors.New("the pooler has no session")
					}
					if err == nil {
						err = syscall.Kill(pid, syscall.SIGSTOP)
					}
					return err
				})
				answered := make(chan error, 1)
				go func() { answered <- run(pool) }() // ends when the session goes on, or the pooler uses another
				pgtest.Until(t, "the session's time is over", func() bool {
					var over bool
					err := admin.QueryRow(t.Context(), `SELECT coalesce(max(state_change) < clock_timestamp() - interval '500 ms', true)`+others).Scan(&over)
					return err == nil && over
				})
				_ = syscall.Kill(pid, syscall.SIGCONT) // it may have ended
				if err := pgtest.Receive(t, answered, "the call returns"); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
	}
}
