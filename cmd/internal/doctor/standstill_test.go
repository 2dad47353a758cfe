package doctor_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/doctor"
	"github.com/weir-pg/weir/internal/pgtest"
)

// stand starts a statement that does not end by itself, and returns once it waits as the condition says. The test's end ends it.
func stand(t *testing.T, url, statement, waits string) (pid uint32) {
	t.Helper()
	return standIn(t, connect(t, url), url, statement, waits)
}

// standIn does so in a session that is there.
func standIn(t *testing.T, conn *pgx.Conn, url, statement, waits string) (pid uint32) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { // the test's end waits for it
		defer close(done)
		_, _ = conn.Exec(ctx, statement) // it is cancelled
	}()
	t.Cleanup(func() { cancel(); <-done })
	pid = conn.PgConn().PID()
	until(t, connect(t, url), fmt.Sprintf("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %d AND %s)", pid, waits))
	return pid
}

// withoutItsStandby has the server's commits wait for a standby that is not there, and leaves one session in such a commit.
// Commits wait from when the checkpointer has read the setting, which shows nowhere else: so this session commits until it stands.
func withoutItsStandby(t *testing.T, url string, admin *pgx.Conn) {
	t.Helper()
	execute(t, admin, "CREATE TABLE entry (n int)", "ALTER SYSTEM SET synchronous_standby_names = 'gone'", "SELECT pg_reload_conf()")
	until(t, admin, "SELECT current_setting('synchronous_standby_names') <> ''")
	runSessions(t, url, 1, repeat("INSERT INTO entry VALUES ($1)"))
	until(t, admin, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')")
}

func TestCommitsThatHangForAStandbyAreCritical(t *testing.T) {
	t.Parallel()
	f := expect(t, examine(t, standbyGoneLoad(t), 2*examineFor), doctor.SyncReplicationStalled, doctor.Critical)
	expectFact(t, f, "no standby is connected")
	expectFact(t, f, "has waited for", "INSERT INTO entry VALUES")
	if !strings.Contains(f.Now, "synchronous_standby_names = ''") {
		t.Errorf("the fix for now does not let the commits go on: %s", f.Now)
	}
}

func TestAStandbyThatConfirmsCommitsIsWell(t *testing.T) {
	t.Parallel()
	primary := pgtest.Server(t, nil)
	standby := pgtest.Standby(t, primary, nil)
	pgtest.Replayed(t, primary, standby)
	url := primary.URL("postgres")
	admin := connect(t, url)
	execute(t, admin, "CREATE TABLE entry (n int)", "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
	until(t, admin, "SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'")
	runSessions(t, url, 2, repeat("INSERT INTO entry VALUES ($1)", "SELECT pg_sleep(0.1)"))
	r := examine(t, url, examineFor)
	if f, found := r.Find(doctor.SyncReplicationStalled); found {
		t.Errorf("a standby that confirms is a finding: %s", f.Summary)
	}
	expectCalm(t, r)
	execute(t, admin, "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
}

func TestSessionsThatQueueUpForAnAdvisoryLockAreNamed(t *testing.T) {
	t.Parallel()
	f := expect(t, examine(t, advisoryLoad(t), examineFor), doctor.AdvisoryLock, doctor.Critical)
	expectFact(t, f, "key 42: ", "seen waiting", "seen holding it")
	expectFact(t, f, "waiting statements: SELECT pg_advisory_xact_lock(?)")
}

// TestAVacuumThatHoldsAnAlterUpIsNamed: an ALTER TABLE waits for a VACUUM that somebody has started, and everybody waits behind the ALTER.
func TestAVacuumThatHoldsAnAlterUpIsNamed(t *testing.T) {
	t.Parallel()
	url, conn := serverFor(t, nil)
	execute(t, conn, "CREATE TABLE stock (id int, text text) WITH (autovacuum_enabled = false)", "INSERT INTO stock SELECT i, repeat('x', 500) FROM generate_series(1, 20000) i", "DELETE FROM stock WHERE id % 2 = 0",
		"ALTER SYSTEM SET vacuum_cost_delay = 100", "ALTER SYSTEM SET vacuum_cost_limit = 1", "SELECT pg_reload_conf()")
	vacuum := stand(t, url, "VACUUM stock", "wait_event = 'VacuumDelay'")
	alter := stand(t, url, "ALTER TABLE stock ADD n int", "wait_event_type = 'Lock'")
	for range 2 {
		stand(t, url, "SELECT id FROM stock LIMIT 1", "wait_event_type = 'Lock'")
	}
	f := expect(t, examine(t, url, 2*examineFor), doctor.TableLock, doctor.Warning)
	expectFact(t, f, fmt.Sprintf("pid %d (", alter), ") wants AccessExclusiveLock: ALTER TABLE stock ADD n int")
	expectFact(t, f, fmt.Sprintf("pid %d (", vacuum), ") holds ShareUpdateExclusiveLock", "last statement: VACUUM stock")
	for _, want := range []string{fmt.Sprintf("once the VACUUM of pid %d has ended", vacuum), fmt.Sprintf("SELECT pg_cancel_backend(%d)", alter)} {
		if !strings.Contains(f.Now, want) {
			t.Errorf("the fix for now does not say %q: %s", want, f.Now)
		}
	}
	if strings.Contains(f.Now, "terminate") {
		t.Errorf("the fix for now ends the VACUUM's session: %s", f.Now)
	}
}

// TestWhoWaitsToLeadIsNoAlarm: a process that waits for an advisory lock in order to take over loses no time.
func TestWhoWaitsToLeadIsNoAlarm(t *testing.T) {
	t.Parallel()
	url := alone(t)
	execute(t, connect(t, url), "SELECT pg_advisory_lock(1, 2)")
	stand(t, url, "SELECT pg_advisory_lock(1, 2)", "wait_event = 'advisory'")
	r := examine(t, url, 2*examineFor)
	expectCalm(t, r)
	expectFact(t, expect(t, r, doctor.AdvisoryLock, doctor.Info), "key (1, 2): 1 session seen waiting, 1 session seen holding it")
}

// TestManyMayWaitToLead: however many, as long as nobody waits for them.
func TestManyMayWaitToLead(t *testing.T) {
	t.Parallel()
	url := alone(t)
	leader := connect(t, url)
	execute(t, leader, "CREATE TABLE account (id int)", "SELECT pg_advisory_lock(1, 2)")
	for range 6 {
		stand(t, url, "SELECT pg_advisory_lock(1, 2)", "wait_event = 'advisory'")
	}
	until(t, leader, "SELECT bool_and(query_start < clock_timestamp() - interval '10 seconds') FROM pg_stat_activity WHERE wait_event = 'advisory'")
	r := examine(t, url, examineFor)
	expectCalm(t, r)
	f := expect(t, r, doctor.AdvisoryLock, doctor.Info)
	if f.Severity != doctor.Info || !strings.Contains(f.Summary, "wait to take over the advisory lock (1, 2)") {
		t.Errorf("%s: %s", f.Severity, f.Summary)
	}
	expectNow(t, f, "Nothing, if they elect a leader.", fmt.Sprintf("pid %d has kept the lock by mistake", leader.PgConn().PID()))

	// One comes that others wait for.
	stand(t, url, "BEGIN; LOCK TABLE account; SELECT pg_advisory_lock(1, 2)", "wait_event = 'advisory'")
	stand(t, url, "SELECT FROM account", "wait_event = 'relation'")
	f = expect(t, examine(t, url, examineFor), doctor.AdvisoryLock, doctor.Critical)
	if !strings.Contains(f.Summary, "queue up for advisory locks") {
		t.Errorf("while others wait for one of them: %s", f.Summary)
	}
}

// TestWhoHasJustComeOrHasATransactionDoesNotWaitToLead: as requests that wait for what somebody has forgotten to unlock.
func TestWhoHasJustComeOrHasATransactionDoesNotWaitToLead(t *testing.T) {
	t.Parallel()
	url := alone(t)
	holder := connect(t, url)
	execute(t, holder, "SELECT pg_advisory_lock(1, 2)")
	for range 4 {
		conn := connect(t, url)
		execute(t, conn, "BEGIN", "SELECT 1")
		until(t, holder, fmt.Sprintf("SELECT xact_start < clock_timestamp() - interval '1.5 seconds' FROM pg_stat_activity WHERE pid = %d", conn.PgConn().PID()))
		standIn(t, conn, url, "SELECT pg_advisory_lock(1, 2)", "wait_event = 'advisory'")
	}
	until(t, holder, "SELECT bool_and(query_start < clock_timestamp() - interval '10 seconds') FROM pg_stat_activity WHERE wait_event = 'advisory'")
	expect(t, examine(t, url, examineFor), doctor.AdvisoryLock, doctor.Warning)
}

// TestManyLinesForAdvisoryLocksAreNoLeaders: who waits to lead waits for one key, and its leader does something.
func TestManyLinesForAdvisoryLocksAreNoLeaders(t *testing.T) {
	t.Parallel()
	url := alone(t)
	holder := connect(t, url)
	for key := range 5 {
		execute(t, holder, fmt.Sprintf("SELECT pg_advisory_lock(%d)", key))
	}
	for i := range 15 {
		stand(t, url, fmt.Sprintf("SELECT pg_advisory_lock(%d)", i%5), "wait_event = 'advisory'")
	}
	f := expect(t, examine(t, url, examineFor), doctor.AdvisoryLock, doctor.Critical)
	expectFact(t, f, "80% of the waiting sessions wait for other keys, of which 4 were seen")
}

// TestATransactionThatDoesNothingLeadsNobody, and so whoever waits for its advisory lock loses time.
func TestATransactionThatDoesNothingLeadsNobody(t *testing.T) {
	t.Parallel()
	url := alone(t)
	holder := connect(t, url)
	execute(t, holder, "BEGIN", "SELECT pg_advisory_xact_lock(99)")
	for range 3 {
		stand(t, url, "SELECT pg_advisory_lock(99)", "wait_event = 'advisory'")
	}
	f := expect(t, examine(t, url, examineFor), doctor.AdvisoryLock, doctor.Warning)
	expectFact(t, f, "has held it, idle in transaction")
	execute(t, holder, "ROLLBACK")
}

func TestPartitionsThatAreNotPrunedAreNamed(t *testing.T) {
	pgtest.Alone(t, "where the machine is busy, its load does not do what it is for")
	f := expect(t, examine(t, partitionsLoad(t), 2*examineFor), doctor.LockManager, doctor.Warning)
	expectFact(t, f, "orders: one session has locked 64 of its 64 partitions, so none is pruned")
	if !strings.Contains(f.Now, "RANGE (at)") {
		t.Errorf("the fix for now does not name the partition key: %s", f.Now)
	}
}

// TestASessionThatStandsStillIsAFinding: no wait goes without a finding, even if there is no check for it.
func TestASessionThatStandsStillIsAFinding(t *testing.T) {
	t.Parallel()
	url := alone(t)
	reader := connect(t, url)
	execute(t, reader, "CREATE TABLE stock (id int)", "SET application_name = 'report'", "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM stock")
	pid := stand(t, url, "CREATE INDEX CONCURRENTLY stock_id ON stock (id)", "wait_event = 'virtualxid'")
	f := expect(t, examine(t, url, 2*examineFor), doctor.WaitsUnexplained, doctor.Warning)
	expectFact(t, f, "Lock:virtualxid")
	expectFact(t, f, fmt.Sprintf("pid %d has stood still for", pid), "CREATE INDEX CONCURRENTLY stock_id ON stock (id)")
	expectFact(t, f, fmt.Sprintf("pid %d (report), idle in transaction", reader.PgConn().PID()), "blocks 1 session; last statement: SELECT count(*) FROM stock")
	if want := fmt.Sprintf("SELECT pg_terminate_backend(%d)", reader.PgConn().PID()); !strings.Contains(f.Now, want) {
		t.Errorf("the fix for now is %q, want %s", f.Now, want)
	}
}
