//go:build unix

package embedded_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/embedded"
	"github.com/weir-pg/weir/internal/pgtest"
)

func standby(t *testing.T, of *embedded.Server, c embedded.Config) *embedded.Server {
	t.Helper()
	if c.Dir == "" {
		c.Dir = directory(t)
	}
	c.Fast = true
	s, err := of.Standby(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// eventually repeats a query until it returns the wanted value.
func eventually(t *testing.T, s *embedded.Server, sql, want string) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for tick := time.NewTicker(20 * time.Millisecond); ; <-tick.C {
		got := query(t, s, sql)
		if got == want {
			tick.Stop()
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s returned %s for too long, want %s", sql, got, want)
		}
	}
}

// TestStandbyStreamsAlsoFromAStandby: changes of the primary reach a standby, and a standby of that.
func TestStandbyStreamsAlsoFromAStandby(t *testing.T) {
	t.Parallel()
	for _, major := range []int{14, 18} {
		t.Run(strconv.Itoa(major), func(t *testing.T) {
			primary := start(t, embedded.Config{Dir: directory(t), Major: major, Parameters: map[string]string{"max_connections": "150"}})
			execute(t, primary, "CREATE TABLE kept AS SELECT 1 AS n")
			begin := time.Now()
			first := standby(t, primary, embedded.Config{Parameters: map[string]string{
				"cluster_name": "first", "hot_standby_feedback": "on", "primary_slot_name": "for_first",
			}})
			t.Logf("standby after %v", time.Since(begin))
			second := standby(t, first, embedded.Config{Parameters: map[string]string{"cluster_name": "second"}})

			execute(t, primary, "INSERT INTO kept VALUES (2)")
			for _, s := range []*embedded.Server{first, second} {
				eventually(t, s, "SELECT pg_catalog.max(n)::text FROM kept", "2")
				if v := query(t, s, "SELECT pg_catalog.pg_is_in_recovery()::text"); v != "true" {
					t.Errorf("pg_is_in_recovery of a standby returned %s", v)
				}
			}
			const streams = "SELECT COALESCE(pg_catalog.string_agg(application_name, ','), '') FROM pg_catalog.pg_stat_replication WHERE state = 'streaming'"
			eventually(t, primary, streams, "first")
			eventually(t, first, streams, "second")
			const slots = "SELECT COALESCE(pg_catalog.string_agg(slot_name || ' ' || active, ','), '') FROM pg_catalog.pg_replication_slots"
			if v := query(t, primary, slots); v != "for_first true" {
				t.Errorf("the primary has the slots %q, want only that of its own standby", v)
			}
			eventually(t, primary, "SELECT (xmin IS NOT NULL)::text FROM pg_catalog.pg_replication_slots", "true") // hot_standby_feedback
		})
	}
}

// TestStandbyTakesUpWhereItStopped: a stopped standby with a slot finds the WAL it needs when it restarts.
func TestStandbyTakesUpWhereItStopped(t *testing.T) {
	t.Parallel()
	primary := start(t, embedded.Config{Dir: directory(t)})
	execute(t, primary, "CREATE TABLE kept AS SELECT 1 AS n")
	s := standby(t, primary, embedded.Config{Parameters: map[string]string{"primary_slot_name": "for_it"}})
	for n := 2; n <= 3; n++ {
		if n == 2 {
			if err := s.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
		} else if err := s.Kill(); err != nil {
			t.Fatal(err)
		}
		execute(t, primary, "INSERT INTO kept VALUES ("+strconv.Itoa(n)+")")
		execute(t, primary, "SELECT pg_catalog.pg_switch_wal()")
		execute(t, primary, "CHECKPOINT") // removes the WAL that no slot asks for
		if err := s.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, s, "SELECT pg_catalog.max(n)::text FROM kept", strconv.Itoa(n))
	}
}

// TestCommitWaitsForASynchronousStandby: with remote_apply, a synchronous standby shows what was committed.
func TestCommitWaitsForASynchronousStandby(t *testing.T) {
	t.Parallel()
	primary := start(t, embedded.Config{Dir: directory(t)})
	execute(t, primary, "CREATE TABLE kept (n int)")
	s := standby(t, primary, embedded.Config{Parameters: map[string]string{"cluster_name": "second_copy"}})
	execute(t, primary, "ALTER SYSTEM SET synchronous_standby_names = 'second_copy'")
	execute(t, primary, "ALTER SYSTEM SET synchronous_commit = 'remote_apply'")
	execute(t, primary, "SELECT pg_catalog.pg_reload_conf()")
	eventually(t, primary, "SELECT COALESCE(pg_catalog.string_agg(sync_state, ','), '') FROM pg_catalog.pg_stat_replication", "sync")
	execute(t, primary, "CHECKPOINT") // The checkpointer makes commits wait, and reads the new configuration before it checkpoints.
	for n := range 20 {
		execute(t, primary, "INSERT INTO kept VALUES ("+strconv.Itoa(n)+")")
		if v := query(t, s, "SELECT pg_catalog.max(n)::text FROM kept"); v != strconv.Itoa(n) {
			t.Fatalf("the newest row of the standby is %s, but %d is committed", v, n)
		}
	}
	execute(t, primary, "ALTER SYSTEM RESET synchronous_standby_names") // for the end of the test
	execute(t, primary, "SELECT pg_catalog.pg_reload_conf()")
}

// TestStandbyOfABusyPrimaryMissesNothing: rows written while the data directory is copied are in the copy.
func TestStandbyOfABusyPrimaryMissesNothing(t *testing.T) {
	t.Parallel()
	primary := start(t, embedded.Config{Dir: directory(t)})
	execute(t, primary, "CREATE TABLE kept (n int PRIMARY KEY, filler text DEFAULT repeat('x', 500))")
	conn, err := pgx.Connect(t.Context(), primary.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	stop, done := make(chan struct{}), make(chan error, 1)
	n := 0
	go func() { // ends when stop is closed
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			_, err := conn.Exec(context.Background(), fmt.Sprintf(`INSERT INTO kept SELECT n FROM generate_series(%d, %d) n;
				CREATE TABLE passing (); DROP TABLE passing`, n*100, n*100+99))
			if err != nil {
				done <- err
				return
			}
			n++
		}
	}()
	s := standby(t, primary, embedded.Config{})
	close(stop)
	if err := pgtest.Receive(t, done, "the load has ended"); err != nil {
		t.Fatal(err)
	}
	eventually(t, s, "SELECT pg_catalog.count(*)::text FROM kept", strconv.Itoa(n*100))
	t.Logf("%d transactions in the meantime", n)
}

// TestStandbyNeedsADirectoryWithoutData: a standby is refused a directory with data, and a version other than its primary's.
func TestStandbyNeedsADirectoryWithoutData(t *testing.T) {
	t.Parallel()
	dir := directory(t)
	primary := start(t, embedded.Config{Dir: dir})
	_, err := primary.Standby(t.Context(), embedded.Config{Dir: dir})
	if err == nil || !strings.Contains(err.Error(), "holds data already") {
		t.Errorf("error is %v", err)
	}
	_, err = primary.Standby(t.Context(), embedded.Config{Dir: directory(t), Major: 14})
	if err == nil || !strings.Contains(err.Error(), "can't be PostgreSQL 14") {
		t.Errorf("error is %v", err)
	}
}

// TestRemovingWhatIsGoneIsNoError: removing a directory that another process has removed succeeds.
func TestRemovingWhatIsGoneIsNoError(t *testing.T) {
	t.Parallel()
	if err := embedded.Remove(t.Context(), directory(t)+"/gone"); err != nil {
		t.Error(err)
	}
}
