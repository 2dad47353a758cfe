package doctor_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/cmd/internal/doctor"
	"github.com/weir-pg/weir/internal/embedded"
	"github.com/weir-pg/weir/internal/pgtest"
)

// churn is an ordinary queue: its rows are updated and deleted, at least a thousand a second. It returns when there are enough dead ones for a warning,
// which takes longer on a busy machine.
func churn(t *testing.T, at string) {
	t.Helper()
	conn := connect(t, at)
	execute(t, conn, "CREATE TABLE queue (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, state text)")
	runSessions(t, at, 2, repeat("INSERT INTO queue (state) SELECT 'ready' FROM generate_series(1, 20)",
		"DELETE FROM queue WHERE id IN (SELECT id FROM queue ORDER BY id LIMIT 20 FOR UPDATE SKIP LOCKED)", "SELECT pg_sleep(0.002)"))
	until(t, conn, "SELECT n_dead_tup > 5000 FROM pg_stat_user_tables WHERE relname = 'queue'")
}

// another creates a second database on a server.
func another(t *testing.T, at string) string {
	t.Helper()
	execute(t, connect(t, at), "CREATE DATABASE elsewhere")
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/elsewhere"
	return u.String()
}

// pinnedLong is slightly longer than a transaction must be open to count as a pin.
const pinnedLong = 5500 * time.Millisecond

func TestEveryHolderOfTheHorizonIsNamed(t *testing.T) {
	t.Parallel()
	at := alone(t)
	elsewhere := another(t, at)
	reader, writer, prepared, away := connect(t, at), connect(t, at), connect(t, at), connect(t, elsewhere)
	execute(t, reader, "SET application_name = 'report'", "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1")
	execute(t, writer, "SET application_name = 'forgotten'", "BEGIN", "SELECT pg_current_xact_id()")
	execute(t, away, "SET application_name = 'another team'", "BEGIN", "SELECT pg_current_xact_id()")
	execute(t, prepared, "BEGIN", "SELECT pg_current_xact_id()", "PREPARE TRANSACTION 'in doubt'")
	churn(t, at)
	f := expect(t, examine(t, at, pinnedLong), doctor.HorizonPinned, doctor.Warning)
	expectFact(t, f, "(report, database", "holds an old snapshot")
	expectFact(t, f, "(forgotten, database", "has written")
	expectFact(t, f, "(another team, database", "it is in another database, but has written")
	expectFact(t, f, `prepared transaction "in doubt"`)
	expectFact(t, f, "queue: ", "dead rows and", "more dead rows a second")
	if !strings.Contains(f.Now, "pg_terminate_backend") && !strings.Contains(f.Now, "ROLLBACK PREPARED") {
		t.Errorf("the fix for now does not end the oldest holder: %s", f.Now)
	}
	execute(t, prepared, "ROLLBACK PREPARED 'in doubt'")
}

// TestABackupThatOthersWaitForIsLeftAlone: by vacuum, and by an index that is built concurrently.
func TestABackupThatOthersWaitForIsLeftAlone(t *testing.T) {
	t.Parallel()
	at := alone(t)
	backup := connect(t, at)
	execute(t, backup, "CREATE TABLE account (id int)", "SET application_name = 'pg_dump'", "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1")
	stand(t, at, "CREATE INDEX CONCURRENTLY ON account (id)", "wait_event = 'virtualxid'")
	churn(t, at)
	r := examine(t, at, pinnedLong)
	for _, code := range []doctor.Code{doctor.HorizonPinned, doctor.WaitsUnexplained} {
		if f, _ := r.Find(code); !strings.HasPrefix(f.Now, "Let the backup of pid ") || strings.Contains(f.Now, "terminate") {
			t.Errorf("%s: the fix for now is %q, want to let the backup end", code, f.Now)
		}
	}
}

// TestAHolderThatWaitsInALineIsLeftAlone: it goes on once whoever holds the line up has ended.
func TestAHolderThatWaitsInALineIsLeftAlone(t *testing.T) {
	t.Parallel()
	at := alone(t)
	locker := connect(t, at)
	execute(t, locker, "CREATE TABLE stock (n int)", "BEGIN", "LOCK stock IN SHARE MODE") // it has neither an id nor a snapshot
	report := waiting(t, at, "UPDATE stock SET n = 2", 5)
	churn(t, at)
	r := examine(t, at, pinnedLong)
	f := expectDownstream(t, r, doctor.HorizonPinned)
	if f.DownstreamOf != doctor.TableLock {
		t.Errorf("it is a consequence of %s", f.DownstreamOf)
	}
	expectNow(t, f, "alone: it has waited in a line", fmt.Sprintf("SELECT pg_terminate_backend(%d);", locker.PgConn().PID()), fmt.Sprintf("not (%d)", report))
	execute(t, locker, "ROLLBACK")
}

// TestDeadRowsThatNobodyRemovesAreNoFaultOfAYoungTransaction: where autovacuum is off, they were there before it.
func TestDeadRowsThatNobodyRemovesAreNoFaultOfAYoungTransaction(t *testing.T) {
	t.Parallel()
	at := alone(t)
	conn, reader := connect(t, at), connect(t, at)
	execute(t, conn, "CREATE TABLE state (id int, n int) WITH (autovacuum_enabled = false)", "CREATE INDEX ON state (n)",
		"INSERT INTO state SELECT i, 0 FROM generate_series(1, 5000) i", "UPDATE state SET n = 1", "UPDATE state SET n = 2")
	runSessions(t, at, 1, repeat("UPDATE state SET n = n + 1 WHERE id = 1 + $1", "SELECT pg_sleep(0.02)"))
	until(t, conn, "SELECT n_dead_tup > 9000 FROM pg_stat_user_tables WHERE relname = 'state'")
	execute(t, reader, "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1")
	r := examine(t, at, pinnedLong)
	f := expect(t, r, doctor.AutovacuumBehind, doctor.Warning)
	if _, found := r.Find(doctor.HorizonPinned); found || f.DownstreamOf != "" {
		t.Errorf("a transaction that has just begun is blamed:\n%s", describe(r))
	}
}

func TestALongTransactionThatHarmsNoTableIsLeftInPeace(t *testing.T) {
	t.Parallel()
	at := alone(t)
	execute(t, connect(t, another(t, at)), "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1") // its snapshot is in another database
	churn(t, at)
	if f, ok := examine(t, at, pinnedLong).Find(doctor.HorizonPinned); ok {
		t.Errorf("the doctor named a snapshot that holds nothing here: %s", f.Summary)
	}
}

func TestAStandbysFeedbackIsNamed(t *testing.T) {
	t.Parallel()
	primary := pgtest.Server(t, nil)
	dir, err := os.MkdirTemp("", "weir-pgtest-*")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	standby, err := primary.Standby(t.Context(), embedded.Config{Dir: filepath.Join(dir, "standby"), Fast: true, Parameters: map[string]string{
		"cluster_name": "reports", "hot_standby_feedback": "on", "wal_receiver_status_interval": "1",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := standby.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		os.RemoveAll(dir)
	})
	at := primary.URL("postgres")
	asker := connect(t, at)
	execute(t, asker, "CREATE TABLE warm ()")
	reader := connect(t, standby.URL("postgres"))
	execute(t, reader, "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1")
	churn(t, at)
	until(t, asker, "SELECT coalesce(max(age(backend_xmin)), 0) > 600 FROM pg_stat_replication")
	f := expect(t, examine(t, at, 3*time.Second), doctor.HorizonPinned, doctor.Warning)
	expectFact(t, f, "the standby reports at", "hot_standby_feedback")

	// On the standby itself the doctor names the session.
	r := examine(t, standby.URL("postgres"), time.Second)
	if !r.Server.Standby || !strings.Contains(describe(r), "this is a standby") {
		t.Errorf("the standby is not recognized:\n%s", describe(r))
	}
	execute(t, reader, "ROLLBACK")
}

func TestWhenAQueueStopsKeepingUpIsTold(t *testing.T) {
	t.Parallel()
	at := alone(t)
	execute(t, connect(t, at), "CREATE TABLE queue (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY)")
	reader := connect(t, at)
	execute(t, reader, "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1")
	runSessions(t, at, 1, repeat("INSERT INTO queue SELECT FROM generate_series(1, 40)",
		"DELETE FROM queue WHERE id IN (SELECT id FROM queue ORDER BY id LIMIT 20)"))
	f := expect(t, examine(t, at, pinnedLong), doctor.HorizonPinned, doctor.Info)
	expectFact(t, f, "queue can't keep up:", "inserted per second")
}

func TestHowMuchSlowerClaimsGetIsTold(t *testing.T) {
	t.Parallel()
	at := pgtest.Server(t, map[string]string{"shared_preload_libraries": "pg_stat_statements"}).URL("postgres")
	conn := connect(t, at)
	if _, err := conn.Exec(t.Context(), "CREATE EXTENSION pg_stat_statements"); err != nil {
		t.Skipf("this PostgreSQL comes without pg_stat_statements: %v", err)
	}
	reader := connect(t, at)
	execute(t, conn, "CREATE TABLE warm ()") // so that the snapshot is older than another transaction
	execute(t, reader, "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1")
	churn(t, at)
	until(t, conn, "SELECT coalesce(sum(calls), 0) > 20 FROM pg_stat_statements WHERE query LIKE 'DELETE FROM queue%'")
	f := expect(t, examine(t, at, pinnedLong), doctor.HorizonPinned, doctor.Info)
	expectFact(t, f, "ms a call in these", "over all the time before", "DELETE FROM queue")
}
