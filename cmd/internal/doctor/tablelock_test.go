package doctor_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"unicode"

	"github.com/weir-pg/weir/cmd/internal/doctor"
	"github.com/weir-pg/weir/internal/pgtest"
)

// expectNow fails unless the fix for now says all of the texts, and none of those that begin with "not ".
func expectNow(t *testing.T, f doctor.Finding, texts ...string) {
	t.Helper()
	for _, text := range texts {
		unwanted, not := strings.CutPrefix(text, "not ")
		if strings.Contains(f.Now, unwanted) == not {
			t.Errorf("%s: the fix for now is to say %q: %s", f.Code, text, f.Now)
		}
	}
}

// waiting starts sessions that wait for a lock with a statement, and returns the pid of the last.
func waiting(t *testing.T, url, statement string, n int) (pid uint32) {
	t.Helper()
	for range n {
		pid = stand(t, url, statement, "wait_event_type = 'Lock'")
	}
	return pid
}

// TestWhoHoldsATableAndIsInNobodysWayIsLeftAlone, however old its transaction is.
func TestWhoHoldsATableAndIsInNobodysWayIsLeftAlone(t *testing.T) {
	t.Parallel()
	url := alone(t)
	reader, locker := connect(t, url), connect(t, url)
	execute(t, reader, "CREATE TABLE stock (n int)", "INSERT INTO stock VALUES (1)", "BEGIN", "SELECT count(*) FROM stock")
	execute(t, locker, "BEGIN", "LOCK stock IN EXCLUSIVE MODE")
	waiting(t, url, "UPDATE stock SET n = 2", 5)
	f := expect(t, examine(t, url, examineFor), doctor.TableLock, doctor.Critical)
	expectNow(t, f, fmt.Sprintf("SELECT pg_terminate_backend(%d);", locker.PgConn().PID()), fmt.Sprintf("not (%d)", reader.PgConn().PID()), "not pg_cancel_backend")
	for _, e := range f.Evidence {
		if strings.Contains(e.Fact, fmt.Sprintf("pid %d ", reader.PgConn().PID())) {
			t.Errorf("the reader is in nobody's way: %s", e.Fact)
		}
	}
	execute(t, locker, "ROLLBACK")
	execute(t, reader, "COMMIT")
}

// TestAPreparedTransactionInTheWayOfATableIsNamedBeforeAReader, who holds the table as well and is in nobody's way.
func TestAPreparedTransactionInTheWayOfATableIsNamedBeforeAReader(t *testing.T) {
	t.Parallel()
	url := alone(t)
	reader := connect(t, url)
	execute(t, reader, "CREATE TABLE stock (n int)", "BEGIN", "INSERT INTO stock VALUES (1)", "PREPARE TRANSACTION 'a sale'",
		"BEGIN", "SELECT count(*) FROM stock", "PREPARE TRANSACTION 'a count'", "BEGIN", "SELECT count(*) FROM stock")
	index := waiting(t, url, "CREATE INDEX ON stock (n)", 1)
	waiting(t, url, "UPDATE stock SET n = 2", 5)
	f := expect(t, examine(t, url, examineFor), doctor.TableLock, doctor.Critical)
	expectFact(t, f, fmt.Sprintf("pid %d (", index), ") wants ShareLock: CREATE INDEX")
	expectFact(t, f, "a prepared transaction holds RowExclusiveLock")
	expectNow(t, f, "ROLLBACK PREPARED 'a sale'", "not a count", "not terminate")
	execute(t, reader, "COMMIT", "ROLLBACK PREPARED 'a sale'", "ROLLBACK PREPARED 'a count'")
}

// TestNobodyIsToldToEndACommitThatWaitsForAStandby: the client would be told that it is done, and the standby may not have it.
func TestNobodyIsToldToEndACommitThatWaitsForAStandby(t *testing.T) {
	t.Parallel()
	url, conn := serverFor(t, nil)
	execute(t, conn, "CREATE TABLE money (n int)")
	withoutItsStandby(t, url, conn)
	committed := stand(t, url, "ALTER TABLE money ADD text text", "wait_event = 'SyncRep'")
	leader := stand(t, url, "INSERT INTO entry SELECT 1 FROM pg_advisory_xact_lock(7)", "wait_event = 'SyncRep'")
	waiting(t, url, "SELECT FROM money", 5)
	waiting(t, url, "SELECT pg_advisory_lock(7)", 5)
	r := examine(t, url, 2*examineFor)
	if r.Findings[0].Code != doctor.SyncReplicationStalled {
		t.Errorf("the first finding is %s", r.Findings[0].Code)
	}
	f := expectDownstream(t, r, doctor.TableLock)
	for _, f := range r.Findings[1:] {
		if f.DownstreamOf != doctor.SyncReplicationStalled && f.Severity != doctor.Info {
			t.Errorf("%s is a consequence of %q", f.Code, f.DownstreamOf)
		}
	}
	expectFact(t, f, fmt.Sprintf("pid %d (", committed), ") holds AccessExclusiveLock, active, waiting for IPC:SyncRep")
	for _, f := range r.Findings {
		expectNow(t, f, "not terminate", "not pg_cancel")
	}
	expectNow(t, expectDownstream(t, r, doctor.AdvisoryLock), fmt.Sprintf("Leave pid %d alone", leader))
	expectNow(t, f, fmt.Sprintf("Leave pid %d alone", committed), "see sync-replication-stalled")
	execute(t, conn, "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
}

// TestACommitThatWaitsForAStandbyIsLeftAloneWhateverWaitsForIt, and by whoever does not see that it has committed.
func TestACommitThatWaitsForAStandbyIsLeftAloneWhateverWaitsForIt(t *testing.T) {
	t.Parallel()
	url, conn := serverFor(t, nil)
	execute(t, conn, "CREATE ROLE nobody LOGIN PASSWORD 'n'", "CREATE TABLE money (n int)", "CREATE SCHEMA bank")
	withoutItsStandby(t, url, conn)
	committed := stand(t, url, "ALTER TABLE money SET SCHEMA bank", "wait_event = 'SyncRep'")
	waiting(t, url, "DROP SCHEMA bank", 1)
	waiting(t, url, "SELECT FROM money", 4)
	r := examine(t, url, 2*examineFor)
	for _, f := range r.Findings {
		expectNow(t, f, fmt.Sprintf("not (%d)", committed))
	}
	f := expectDownstream(t, r, doctor.WaitsUnexplained)
	expectFact(t, f, fmt.Sprintf("pid %d", committed), "active, waiting for IPC:SyncRep", "blocks 1 session")
	expectNow(t, f, fmt.Sprintf("Leave pid %d alone", committed), "see sync-replication-stalled")
	if f.DownstreamOf != doctor.SyncReplicationStalled {
		t.Errorf("waits for a commit that waits for a standby are a consequence of %q", f.DownstreamOf)
	}

	r = examine(t, as(t, url, "nobody", "n"), 2*examineFor)
	for _, code := range []doctor.Code{doctor.WaitsUnexplained, doctor.TableLock} {
		f, _ := r.Find(code)
		expectNow(t, f, fmt.Sprintf("look at pid %d", committed), "If it waits in IPC:SyncRep, leave it alone")
	}
	f, _ = r.Find(doctor.TableLock)
	expectFact(t, f, fmt.Sprintf("pid %d (postgres, no application name) holds", committed)) // it does not see the client
	execute(t, conn, "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
}

// TestAVacuumFullIsNotTakenForAVacuum: it lets nobody pass, and keeps nothing of what it has done when it is cancelled.
func TestAVacuumFullIsNotTakenForAVacuum(t *testing.T) {
	t.Parallel()
	url, conn := serverFor(t, nil)
	execute(t, conn, "CREATE TABLE stock (n int) WITH (autovacuum_enabled = false)",
		`CREATE FUNCTION slow(n int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN
		   IF current_setting('stock.slow', true) = 'on' THEN PERFORM pg_sleep(60); END IF; RETURN n; END $$`,
		"CREATE INDEX ON stock (slow(n))", "INSERT INTO stock VALUES (1)", "ALTER DATABASE postgres SET stock.slow = 'on'")
	full := stand(t, url, "VACUUM FULL stock", "wait_event = 'PgSleep'")
	reader := waiting(t, url, "SELECT FROM stock", 5)
	f := expect(t, examine(t, url, examineFor), doctor.TableLock, doctor.Critical)
	expectNow(t, f, "pg_stat_progress_cluster", "loses all", fmt.Sprintf("SELECT pg_cancel_backend(%d)", full),
		"not pg_stat_progress_vacuum", "not most of what it has done stays", fmt.Sprintf("not (%d)", reader), "not wants the table for itself")
}

// TestOnAStandbyReplayIsLeftAlone: it waits for readers there, and holds what a transaction on the primary has locked.
func TestOnAStandbyReplayIsLeftAlone(t *testing.T) {
	t.Parallel()
	primary := pgtest.Server(t, nil)
	standby := pgtest.Standby(t, primary, map[string]string{"max_standby_streaming_delay": "-1"})
	conn := connect(t, primary.URL("postgres"))
	execute(t, conn, "CREATE TABLE stock (n int)")
	pgtest.Replayed(t, primary, standby)
	url := standby.URL("postgres")
	reader, asker := connect(t, url), connect(t, url)
	execute(t, reader, "BEGIN", "SELECT FROM stock")
	execute(t, conn, "BEGIN", "LOCK stock")
	until(t, asker, "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'stock'::regclass AND NOT granted)")
	waiting(t, url, "SELECT FROM stock", 5)
	var startup uint32
	if err := asker.QueryRow(t.Context(), "SELECT pid FROM pg_stat_activity WHERE backend_type = 'startup'").Scan(&startup); err != nil {
		t.Fatal(err)
	}
	f := expect(t, examine(t, url, examineFor), doctor.TableLock, doctor.Critical)
	expectNow(t, f, fmt.Sprintf("SELECT pg_terminate_backend(%d);", reader.PgConn().PID()), "stands still", "max_standby_streaming_delay is -1",
		fmt.Sprintf("not (%d)", startup), "not pg_cancel_backend")

	execute(t, reader, "COMMIT")
	until(t, asker, fmt.Sprintf("SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'stock'::regclass AND granted AND pid = %d)", startup))
	waiting(t, url, "SELECT FROM stock WHERE n = 1", 5)
	f = expect(t, examine(t, url, examineFor), doctor.TableLock, doctor.Critical)
	expectNow(t, f, "on the primary", "pg_locks", "not pg_terminate_backend", "not pg_cancel_backend")
	execute(t, conn, "ROLLBACK")
}

// TestALineAtARowOfASessionThatWaitsForATableIsItsConsequence, however many more wait for the row.
func TestALineAtARowOfASessionThatWaitsForATableIsItsConsequence(t *testing.T) {
	t.Parallel()
	url := alone(t)
	reader, alter := connect(t, url), connect(t, url)
	execute(t, reader, "CREATE TABLE stock (n int)", "CREATE TABLE account (id int PRIMARY KEY, n int)", "INSERT INTO account VALUES (1, 0)", "BEGIN", "SELECT count(*) FROM stock")
	execute(t, alter, "BEGIN", "UPDATE account SET n = 1")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { // the test's end waits for it
		defer close(done)
		_, _ = alter.Exec(ctx, "ALTER TABLE stock ADD text text") // it is cancelled
	}()
	t.Cleanup(func() { cancel(); <-done })
	until(t, reader, fmt.Sprintf("SELECT EXISTS (SELECT FROM pg_locks WHERE pid = %d AND NOT granted)", alter.PgConn().PID()))
	waiting(t, url, "UPDATE account SET n = 2", 5)
	r := examine(t, url, 2*examineFor)
	f := expect(t, r, doctor.TableLock, doctor.Critical)
	expectNow(t, f, fmt.Sprintf("SELECT pg_terminate_backend(%d);", reader.PgConn().PID()))
	if hot, found := r.Find(doctor.HotRow); !found || hot.DownstreamOf != doctor.TableLock || hot.Capped != doctor.Critical {
		t.Errorf("the line at the row is no consequence:\n%s", describe(r))
	}
	execute(t, reader, "COMMIT")
}

// TestTheNameOfAPreparedTransactionReachesNoTerminalRaw, and the statement that ends it can be pasted all the same.
func TestTheNameOfAPreparedTransactionReachesNoTerminalRaw(t *testing.T) {
	t.Parallel()
	url := alone(t)
	conn := connect(t, url)
	execute(t, conn, "CREATE TABLE account (id int)", "BEGIN", "LOCK TABLE account", `PREPARE TRANSACTION E'it''s \\ \x1b[31m\nred'`)
	waiting(t, url, "SELECT FROM account", 5)
	f := expect(t, examine(t, url, examineFor), doctor.TableLock, doctor.Critical)
	if strings.ContainsFunc(f.Now, unicode.IsControl) {
		t.Errorf("the fix for now has control characters: %q", f.Now)
	}
	statement, _, _ := strings.Cut(f.Now, " or ")
	execute(t, conn, statement)
}
