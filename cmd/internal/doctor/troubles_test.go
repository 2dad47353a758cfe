package doctor_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/doctor"
	"github.com/weir-pg/weir/internal/pgtest"
)

// version returns the server's version as a number.
func version(t *testing.T, conn *pgx.Conn) (n int) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), "SELECT current_setting('server_version_num')::int").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestWhoIsIdleAndHoldsARowIsNamedWithItsEnd(t *testing.T) {
	t.Parallel()
	url := alone(t)
	idle, prepared := connect(t, url), connect(t, url)
	execute(t, idle, "CREATE TABLE account (id int PRIMARY KEY, n int)", "INSERT INTO account SELECT i, 0 FROM generate_series(1, 10) i",
		"SET application_name = 'shop'", "BEGIN", "UPDATE account SET n = 1 WHERE id = 3")
	for range 2 {
		stand(t, url, "UPDATE account SET n = 2 WHERE id = 3", "wait_event_type = 'Lock'")
	}
	r := examine(t, url, 2*examineFor)
	f := expect(t, r, doctor.IdleBlocker, doctor.Warning)
	pid := idle.PgConn().PID()
	expectFact(t, f, fmt.Sprintf("pid %d (postgres, shop, 127.0.0.1), idle in its transaction for", pid), "for which 100% of them wait")
	expectFact(t, f, "its last statement: UPDATE account SET n = ? WHERE id = ?")
	if want := fmt.Sprintf("SELECT pg_terminate_backend(%d);", pid); f.Now != want {
		t.Errorf("the fix for now is %q, want %q", f.Now, want)
	}
	if hot, found := r.Find(doctor.HotRow); found && hot.DownstreamOf != doctor.IdleBlocker {
		t.Errorf("the queue for the row is a cause of its own: %s", hot.Summary)
	} else if found && hot.ForGood != f.ForGood {
		t.Errorf("what holds the row is idle, and the advice for good is: %s", hot.ForGood)
	}
	execute(t, idle, "COMMIT")

	execute(t, prepared, "BEGIN", "UPDATE account SET n = 1 WHERE id = 4", "PREPARE TRANSACTION 'in doubt'")
	for range 4 { // who wait all the time, and so are critical
		stand(t, url, "UPDATE account SET n = 2 WHERE id = 4", "wait_event_type = 'Lock'")
	}
	r = examine(t, url, 2*examineFor)
	f = expect(t, r, doctor.IdleBlocker, doctor.Critical)
	if hot, found := r.Find(doctor.HotRow); !found || hot.DownstreamOf != doctor.IdleBlocker {
		t.Errorf("the queue behind a prepared transaction is no consequence of it: %s", describe(r))
	} else {
		expectFact(t, hot, "what the holders of the rows do: prepared 100%")
	}
	if !strings.HasPrefix(f.Now, "ROLLBACK PREPARED 'in doubt'") {
		t.Errorf("the fix for now does not end the prepared transaction: %s", f.Now)
	}
	if strings.Contains(f.ForGood, "idle_in_transaction_session_timeout") {
		t.Errorf("of a prepared transaction: %s", f.ForGood)
	}
	execute(t, prepared, "ROLLBACK PREPARED 'in doubt'")
}

// TestALongStatementThatKeepsRowsIsNamed: it is at work, and neither idle nor one of many that take turns.
func TestALongStatementThatKeepsRowsIsNamed(t *testing.T) {
	t.Parallel()
	url := alone(t)
	execute(t, connect(t, url), "CREATE TABLE account (id int PRIMARY KEY, n int)", "INSERT INTO account SELECT i, 0 FROM generate_series(1, 1000) i")
	batch := stand(t, url, "UPDATE account SET n = n + 1 WHERE pg_sleep(0.1) IS NOT NULL", "xact_start < now() - interval '3 seconds'")
	for range 5 {
		stand(t, url, "UPDATE account SET n = 2 WHERE id = 1", "wait_event_type = 'Lock'")
	}
	f := expect(t, examine(t, url, examineFor), doctor.HotRow, doctor.Critical)
	expectFact(t, f, fmt.Sprintf("pid %d holds rows, active", batch), "UPDATE account SET n = n + ?")
	if want := fmt.Sprintf("SELECT pg_cancel_backend(%d)", batch); !strings.Contains(f.Now, want) || strings.Contains(f.Now, "terminate") {
		t.Errorf("the fix for now is %q, want %s", f.Now, want)
	}
}

// TestPreparedTransactionsThatHoldTablesAndKeysAreNamed: they have no pid that could be ended.
func TestPreparedTransactionsThatHoldTablesAndKeysAreNamed(t *testing.T) {
	t.Parallel()
	url := alone(t)
	conn := connect(t, url)
	execute(t, conn, "CREATE TABLE account (id int)", "BEGIN", "LOCK TABLE account", "PREPARE TRANSACTION 'a deployment'",
		"BEGIN", "SELECT pg_advisory_xact_lock(42)", "PREPARE TRANSACTION 'a leader'")
	for range 5 {
		stand(t, url, "SELECT FROM account", "wait_event_type = 'Lock'")
		stand(t, url, "SELECT pg_advisory_lock(42)", "wait_event_type = 'Lock'")
	}
	r := examine(t, url, examineFor)
	for code, gid := range map[doctor.Code]string{doctor.TableLock: "a deployment", doctor.AdvisoryLock: "a leader"} {
		f, _ := r.Find(code)
		expectFact(t, f, "a prepared transaction h")
		if want := "ROLLBACK PREPARED '" + gid + "' or COMMIT"; !strings.HasPrefix(f.Now, want) {
			t.Errorf("%s: the fix for now is %q, want %s", code, f.Now, want)
		}
		execute(t, conn, "ROLLBACK PREPARED '"+gid+"'")
	}
}

// TestNobodyIsToldToEndTransactionsThatAreBetweenTwoStatements: every client is, for a moment, in each of its transactions.
func TestNobodyIsToldToEndTransactionsThatAreBetweenTwoStatements(t *testing.T) {
	t.Parallel()
	url := alone(t)
	execute(t, connect(t, url), "CREATE TABLE account (id int PRIMARY KEY, n int)", "INSERT INTO account VALUES (1, 0)")
	runSessions(t, url, 8, func(ctx context.Context, conn *pgx.Conn, _ int) error {
		if _, err := conn.Exec(ctx, "BEGIN; UPDATE account SET n = n + 1 WHERE id = 1"); err != nil {
			return err
		}
		select { // the client's own work
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
		_, err := conn.Exec(ctx, "COMMIT")
		return err
	})
	f := expect(t, examine(t, url, 2*examineFor), doctor.HotRow, doctor.Critical)
	expectFact(t, f, "what the holders of the rows do:", "between two statements")
	if strings.Contains(f.Now, "terminate") {
		t.Errorf("the fix for now ends transactions that go on by themselves: %s", f.Now)
	}
}

// TestNobodyIsToldToEndABackup that holds a table which somebody wants to alter: the ALTER TABLE can be repeated at no cost.
func TestNobodyIsToldToEndABackup(t *testing.T) {
	t.Parallel()
	url := alone(t)
	backup := connect(t, url)
	execute(t, backup, "CREATE TABLE account (id int)", "SET application_name = 'pg_dump'", "BEGIN", "LOCK TABLE account IN ACCESS SHARE MODE")
	altering := stand(t, url, "ALTER TABLE account ADD n int", "wait_event_type = 'Lock'")
	for range 5 {
		stand(t, url, "SELECT FROM account", "wait_event_type = 'Lock'")
	}
	f := expect(t, examine(t, url, examineFor), doctor.TableLock, doctor.Critical)
	if want := fmt.Sprintf("SELECT pg_cancel_backend(%d)", altering); !strings.Contains(f.Now, want) || strings.Contains(f.Now, "terminate") {
		t.Errorf("the fix for now is %q, want %s and nothing that ends the backup", f.Now, want)
	}
	execute(t, backup, "SET application_name = 'report'")
	f = expect(t, examine(t, url, examineFor), doctor.TableLock, doctor.Critical)
	if want := fmt.Sprintf("SELECT pg_terminate_backend(%d)", backup.PgConn().PID()); !strings.Contains(f.Now, want) {
		t.Errorf("the fix for now is %q, want %s", f.Now, want)
	}
	execute(t, backup, "COMMIT")
}

// TestSerializableTransactionsAreNotTakenForSubtransactions although they look up the parent of each transaction whose rows they meet.
func TestSerializableTransactionsAreNotTakenForSubtransactions(t *testing.T) {
	t.Parallel()
	url := alone(t)
	writer, conn := connect(t, url), connect(t, url)
	execute(t, writer, "CREATE TABLE ledger (n int)", "BEGIN ISOLATION LEVEL SERIALIZABLE", "INSERT INTO ledger SELECT generate_series(1, 20000)")
	const lookUps = "SELECT blks_hit FROM pg_stat_slru WHERE name ILIKE 'subtrans%'"
	var before int64
	if err := conn.QueryRow(t.Context(), lookUps).Scan(&before); err != nil {
		t.Fatal(err)
	}
	runSessions(t, url, 2, repeat("BEGIN ISOLATION LEVEL SERIALIZABLE", "SELECT count(*) FROM ledger WHERE $1::int >= 0", "COMMIT"))
	until(t, conn, fmt.Sprintf("SELECT (%s) > %d", lookUps, before+10_000))
	r := examine(t, url, examineFor)
	if f, found := r.Find(doctor.SubtransactionOverflow); found {
		t.Errorf("no transaction has a subtransaction: %s", f.Summary)
	}
	execute(t, writer, "ROLLBACK")
}

func TestAFullServerIsADiagnosis(t *testing.T) {
	t.Parallel()
	url := pgtest.Server(t, map[string]string{"max_connections": "20"}).URL("postgres")
	admin := connect(t, url)
	execute(t, admin, "CREATE ROLE watcher LOGIN PASSWORD 'w' IN ROLE pg_monitor", "CREATE ROLE app LOGIN PASSWORD 'w'")
	watcher, app := as(t, url, "watcher", "w"), as(t, url, "app", "w")
	expectCalm(t, examine(t, watcher, examineFor))
	until(t, admin, "SELECT count(*) = 0 FROM pg_stat_activity WHERE usename = 'watcher'") // or there is no room for the doctor's next ones
	for range 13 {                                                                         // of 17; with the administrator and the doctor's two it is one less than all
		connect(t, app)
	}
	f := expect(t, examine(t, watcher, examineFor), doctor.ConnectionsExhausted, doctor.Warning)
	expectFact(t, f, "app, no application name: 13 connections")
	if strings.Contains(f.Now, "pg_terminate_backend") || !strings.Contains(f.Now, "none for long") {
		t.Errorf("no connection has been idle for long, and the fix for now is: %s", f.Now)
	}
	for range 3 {
		pgtest.Until(t, "the doctor's sessions have ended, and the server has room", func() bool {
			conn, err := pgx.Connect(t.Context(), app)
			if err == nil {
				t.Cleanup(func() { conn.Close(context.Background()) })
			}
			return err == nil
		})
	}
	_, err := doctor.Open(t.Context(), doctor.Config{URL: watcher})
	r, full := doctor.Full(t.Context(), watcher, err)
	if !full {
		t.Fatalf("the server is not full: %v", err)
	}
	f = expect(t, r, doctor.ConnectionsExhausted, doctor.Critical)
	expectFact(t, f, "refuses new connections because there are too many")
	if _, full := doctor.Full(t.Context(), watcher, errors.New("another error")); full {
		t.Error("any error is called a full server")
	}
}

// TestALimitOfItsOwnIsNoFullServer: a role, or a database, that lets the doctor in only once says nothing of the server.
func TestALimitOfItsOwnIsNoFullServer(t *testing.T) {
	t.Parallel()
	url := alone(t)
	admin := connect(t, url)
	execute(t, admin, "CREATE ROLE watcher LOGIN PASSWORD 'w' IN ROLE pg_monitor")
	watcher := as(t, url, "watcher", "w")
	for _, limit := range []string{"ALTER ROLE watcher CONNECTION LIMIT 1", "ALTER ROLE watcher CONNECTION LIMIT 0", "ALTER ROLE watcher CONNECTION LIMIT -1", "ALTER DATABASE postgres CONNECTION LIMIT 1"} {
		execute(t, admin, limit)
		until(t, admin, "SELECT count(*) = 0 FROM pg_stat_activity WHERE usename = 'watcher'")
		d, err := doctor.Open(t.Context(), doctor.Config{URL: watcher})
		if strings.HasSuffix(limit, "-1") {
			if err != nil {
				t.Fatal(err)
			}
			d.Close()
			continue
		}
		if err == nil {
			t.Fatalf("%s: it needs a single session", limit)
		}
		if r, full := doctor.Full(t.Context(), watcher, err); full {
			t.Errorf("%s: %s", limit, describe(r))
		}
	}
}

// TestTheAdviceOnAFullServerFitsWhatFillsIt: sessions that do nothing in a transaction are not those that are idle, nor those at work.
func TestTheAdviceOnAFullServerFitsWhatFillsIt(t *testing.T) {
	t.Parallel()
	url := pgtest.Server(t, map[string]string{"max_connections": "20"}).URL("postgres")
	admin := connect(t, url)
	execute(t, admin, "CREATE ROLE watcher LOGIN PASSWORD 'w' IN ROLE pg_monitor", "CREATE ROLE app LOGIN PASSWORD 'w'", "CREATE ROLE stranger LOGIN PASSWORD 'w'")
	watcher, app := as(t, url, "watcher", "w"), as(t, url, "app", "w")
	for range 13 {
		execute(t, connect(t, app), "BEGIN", "SELECT 1")
	}
	f := expect(t, examine(t, watcher, examineFor), doctor.ConnectionsExhausted, doctor.Warning)
	expectFact(t, f, "13 are idle in a transaction")
	if !strings.Contains(f.Now, "state LIKE 'idle in transaction%' AND") {
		t.Errorf("the fix for now does not end them: %s", f.Now)
	}
	until(t, admin, "SELECT count(*) = 0 FROM pg_stat_activity WHERE usename = 'watcher'") // or there is no room for the doctor's next ones
	f = expect(t, examine(t, as(t, url, "stranger", "w"), examineFor), doctor.ConnectionsExhausted, doctor.Warning)
	expectFact(t, f, "do is hidden from this role: it needs pg_monitor")
	if strings.Contains(f.Now, "pg_terminate_backend") {
		t.Errorf("it can't see what they do, and the fix for now is: %s", f.Now)
	}
}

func TestASlotThatHoldsWALIsNamed(t *testing.T) {
	t.Parallel()
	url := pgtest.Server(t, map[string]string{"max_wal_size": "32MB", "wal_level": "logical", "max_slot_wal_keep_size": "4GB"}).URL("postgres")
	conn := connect(t, url)
	execute(t, conn, "SELECT pg_create_physical_replication_slot('forgotten', true)", "SELECT pg_create_logical_replication_slot('changes', 'test_decoding')",
		"CREATE TABLE entry (text text)", "INSERT INTO entry SELECT repeat(md5(i::text), 30) FROM generate_series(1, 110000) i", "CHECKPOINT")
	r := examine(t, url, examineFor)
	f := expect(t, r, doctor.SlotHoldsWAL, doctor.Warning)
	expectFact(t, f, "wal_status", "of WAL held, max_wal_size is 32 MB")
	for _, f := range r.Findings {
		if f.Code == doctor.SlotHoldsWAL && !strings.HasPrefix(f.Now, "Start the consumer of the slot") {
			t.Errorf("the fix for now of %s: %s", f.Summary, f.Now)
		}
	}
	all := describe(r)
	for _, want := range []string{"slot forgotten (not in use)", "slot changes (not in use)", "its catalog_xmin is"} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is missing:\n%s", want, all)
		}
	}
}

func TestADatabaseThatIsNotFrozenIsNamedWithWhatHoldsIt(t *testing.T) {
	t.Parallel()
	f := expect(t, examine(t, wraparoundLoad(t), examineFor), doctor.WraparoundNear, doctor.Warning)
	expectFact(t, f, "nothing newer can be frozen while this holds it", `the prepared transaction "forgotten"`)
	if !strings.Contains(f.Now, "ROLLBACK PREPARED 'forgotten'") {
		t.Errorf("the fix for now does not end what holds it: %s", f.Now)
	}
}

// TestTheAgeNearestToItsLimitCounts: not the greatest one, because the limits of transactions and of multixacts differ.
func TestTheAgeNearestToItsLimitCounts(t *testing.T) {
	t.Parallel()
	for name, far := range map[string]string{"template1": "of another database", "postgres": "of the same database"} {
		t.Run(far, func(t *testing.T) {
			t.Parallel()
			// Nobody vacuums there, so what the catalog says of ages stays.
			url, conn := serverFor(t, map[string]string{"autovacuum": "off", "autovacuum_freeze_max_age": "1500000000"})
			execute(t, conn, fmt.Sprintf("UPDATE pg_database SET datminmxid = '%d' WHERE datname = '%s'", uint32(1<<32-398e6), name),
				fmt.Sprintf("UPDATE pg_database SET datfrozenxid = '%d' WHERE datname = 'postgres'", uint32(1<<32-1010e6)))
			f := expect(t, examine(t, url, examineFor), doctor.WraparoundNear, doctor.Warning)
			if !strings.Contains(f.Summary, "Database postgres has not been frozen for 1,010,") || !strings.Contains(f.Summary, "transaction ids") {
				t.Errorf("the summary is %s", f.Summary)
			}
		})
	}
	t.Run("fewer", func(t *testing.T) {
		t.Parallel()
		url, conn := serverFor(t, map[string]string{"autovacuum": "off"})
		execute(t, conn, fmt.Sprintf("UPDATE pg_database SET datminmxid = '%d' WHERE datname = 'template1'", uint32(1<<32-700e6)),
			fmt.Sprintf("UPDATE pg_database SET datfrozenxid = '%d' WHERE datname = 'postgres'", uint32(1<<32-450e6)))
		f := expect(t, examine(t, url, examineFor), doctor.WraparoundNear, doctor.Warning)
		if !strings.Contains(f.Summary, "Database postgres has not been frozen for 450,") {
			t.Errorf("the summary is %s", f.Summary)
		}
	})
}

// TestOfADatabaseThatAllowsNoConnectionsTheAdviceWorks: such as template0, in which nobody can run VACUUM as it is.
func TestOfADatabaseThatAllowsNoConnectionsTheAdviceWorks(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, map[string]string{"autovacuum": "off"})
	url := server.URL("postgres")
	conn := connect(t, url)
	execute(t, conn, fmt.Sprintf("UPDATE pg_database SET datfrozenxid = '%d' WHERE datname = 'template0'", uint32(1<<32-1010e6)))
	f := expect(t, examine(t, url, examineFor), doctor.WraparoundNear, doctor.Warning)
	_, advice, found := strings.Cut(f.Now, "As a superuser: ")
	parts := regexp.MustCompile(`^(ALTER[^;]*;) then (VACUUM[^;]*;) there, in a new connection; then (ALTER[^;]*;)$`).FindStringSubmatch(advice)
	if !found || parts == nil {
		t.Fatalf("the fix for now: %s", f.Now)
	}
	execute(t, conn, parts[1])
	there := connect(t, server.URL("template0"))
	execute(t, there, parts[2])
	if err := there.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	execute(t, conn, parts[3])
	r := examine(t, url, time.Second)
	if f, found := r.Find(doctor.WraparoundNear); found {
		t.Errorf("as advised, and then: %s", f.Summary)
	}
	until(t, conn, "SELECT NOT datallowconn FROM pg_database WHERE datname = 'template0'")
}

func TestATableWithoutAutovacuumIsNamed(t *testing.T) {
	t.Parallel()
	r := examine(t, autovacuumOffLoad(t), 2*examineFor)
	f := expect(t, r, doctor.AutovacuumBehind, doctor.Warning)
	expectFact(t, f, "state has", "autovacuum is off for it")
	if f.Now != "ALTER TABLE state RESET (autovacuum_enabled); VACUUM (ANALYZE) state;" {
		t.Errorf("that can't be run as it is: %s", f.Now)
	}
	if c, found := r.Find(doctor.RowCommits); found && c.DownstreamOf == "" {
		t.Errorf("row commits are called the cause: %s", c.Summary)
	}
}

func TestATableThatAutovacuumDoesNotReachIsNamed(t *testing.T) {
	t.Parallel()
	url := pgtest.Server(t, map[string]string{"autovacuum_naptime": "1s"}).URL("postgres")
	conn, locker := connect(t, url), connect(t, url)
	execute(t, conn, `CREATE TABLE "My state" (id int, n int)`, `CREATE INDEX ON "My state" (n)`, `INSERT INTO "My state" SELECT i, 0 FROM generate_series(1, 2000) i`, `ANALYZE "My state"`)
	execute(t, locker, "BEGIN", `LOCK TABLE "My state" IN SHARE UPDATE EXCLUSIVE MODE`) // autovacuum gives way
	runSessions(t, url, 1, repeat(`UPDATE "My state" SET n = n + 1 WHERE $1::int >= 0`, "SELECT pg_sleep(0.02)"))
	until(t, conn, "SELECT n_dead_tup > 30000 AND pg_postmaster_start_time() < now() - interval '11 seconds' FROM pg_stat_user_tables WHERE relname = 'My state'")
	f := expect(t, examine(t, url, 2*examineFor), doctor.AutovacuumBehind, doctor.Warning)
	expectFact(t, f, "My state has", "autovacuum does not get to it")
	if !strings.HasPrefix(f.Now, `VACUUM (ANALYZE) "My state";`) {
		t.Errorf("what is advised can't be run: %s", f.Now)
	}
}

// TestWhoConnectsAllTheTimeIsNamed: by role, application and client; or that they are too short-lived for that.
func TestWhoConnectsAllTheTimeIsNamed(t *testing.T) {
	pgtest.Alone(t, "where the machine is busy, its load does not do what it is for")
	url, admin := serverFor(t, nil)
	execute(t, admin, "CREATE ROLE batch LOGIN PASSWORD 'b'")
	clients := func(url string, n int, application, statement string) {
		config, err := pgx.ParseConfig(url)
		if err != nil {
			t.Fatal(err)
		}
		config.RuntimeParams["application_name"] = application
		runSessions(t, url, n, func(ctx context.Context, _ *pgx.Conn, _ int) error {
			conn, err := pgx.ConnectConfig(ctx, config)
			if err != nil {
				return err
			}
			defer conn.Close(context.Background())
			_, err = conn.Exec(ctx, statement)
			return err
		})
	}
	clients(as(t, url, "batch", "b"), 3, "nightly", "SELECT pg_sleep(0.05)")
	clients(url, 1, "", "SELECT pg_sleep(0.05)")
	live, file := recorded(t, doctor.Config{URL: url}, 2*examineFor)
	expectFact(t, expect(t, live, doctor.ConnectionChurn, doctor.Info), "who connects, of ", " new sessions met: batch, nightly, 127.0.0.1 ", "%; postgres, no application name, 127.0.0.1 ")
	expectSame(t, live, file)
}

func TestClientsThatConnectForEachTransactionAreNamed(t *testing.T) {
	pgtest.Alone(t, "where the machine is busy, its load does not do what it is for")
	r := examine(t, connectingLoad(t), 2*examineFor)
	if f, saturated := r.Find(doctor.PostmasterSaturated); saturated {
		t.Logf("it saturates the postmaster: %s", f.Summary) // which says the same, and more
		return
	}
	f := expect(t, r, doctor.ConnectionChurn, doctor.Info)
	expectFact(t, f, "sessions/s, all databases", "transactions each on average, without their logins")
	if !regexp.MustCompile(` log in per second, for [01]\.\d transactions each on average\.$`).MatchString(f.Summary) {
		t.Errorf("each runs one: %s", f.Summary)
	}
}

// TestClientsThatConnectForEachTransactionAreNamedBesideAPool, whose sessions run far more transactions than they do.
func TestClientsThatConnectForEachTransactionAreNamedBesideAPool(t *testing.T) {
	pgtest.Alone(t, "where the machine is busy, its load does not do what it is for")
	url := connectingLoad(t)
	runSessions(t, url, 1, repeat("SELECT FROM generate_series(1, 10) WHERE $1 = 0"))
	r := examine(t, url, 2*examineFor)
	if f, saturated := r.Find(doctor.PostmasterSaturated); saturated {
		t.Logf("it saturates the postmaster: %s", f.Summary)
		return
	}
	expectFact(t, expect(t, r, doctor.ConnectionChurn, doctor.Info), "began in", "are still there")
}

// TestParallelWorkersThatStartAllTheTimeAreNamed: by the sessions that wait for their start and end.
func TestParallelWorkersThatStartAllTheTimeAreNamed(t *testing.T) {
	pgtest.Alone(t, "where the machine is busy, its load does not do what it is for")
	r := examine(t, parallelLoad(t), 2*examineFor)
	f, found := r.Find(doctor.ParallelChurn)
	if _, saturated := r.Find(doctor.PostmasterSaturated); saturated && !found {
		t.Logf("they saturate the postmaster, which is why fewer start")
		return
	}
	if !found {
		t.Fatalf("want %s; got:\n%s", doctor.ParallelChurn, describe(r))
	}
	expectFact(t, f, "waits: IPC:")
	expectFact(t, f, "their statements: SELECT sum(n) FROM sale WHERE id > $1")
	expectFact(t, f, "parallel workers launched")
}

func TestAMissingIndexIsNamedByItsTable(t *testing.T) {
	pgtest.Alone(t, "where the machine is busy, its load does not do what it is for")
	f := expect(t, examine(t, missingIndexLoad(t), 2*examineFor), doctor.TableScanned, doctor.Warning)
	expectFact(t, f, "orders is read from beginning to end", "100,000 rows each time")
	expectFact(t, f, "SELECT text FROM orders WHERE customer = $1")
}

// TestAForeignKeyWithoutAnIndexIsNamed: the statement that deletes does not name the table that is searched for each row.
func TestAForeignKeyWithoutAnIndexIsNamed(t *testing.T) {
	pgtest.Alone(t, "where the machine is busy, its load does not do what it is for")
	f := expect(t, examine(t, unindexedKeyLoad(t), 2*examineFor), doctor.TableScanned, doctor.Warning)
	expectFact(t, f, "Order is read from beginning to end", "100,000 rows each time, to find what refers to rows of customer")
	expectFact(t, f, "Order_customer_fkey (customer) refers to customer, and no index begins with it")
	expectFact(t, f, "DELETE FROM customer")
	if want := `CREATE INDEX CONCURRENTLY ON public."Order" (customer), for Order_customer_fkey.`; f.Now != want {
		t.Errorf("the advice is %q, want %q", f.Now, want)
	}
}

// TestAReportIsNoMissingIndex: a report reads all rows because it needs them, and sorts in files because it is large.
func TestAReportIsNoMissingIndex(t *testing.T) {
	t.Parallel()
	expectCalm(t, examine(t, reportLoad(t), 2*examineFor))
}

// TestALineBehindDeadlocksIsTheirConsequence: while a deadlock stands, whoever comes to its rows waits, and no change of how these are updated would help.
func TestALineBehindDeadlocksIsTheirConsequence(t *testing.T) {
	t.Parallel()
	r := examine(t, deadlocking(t, 8, "500ms"), 4*time.Second)
	f := expect(t, r, doctor.Deadlocks, doctor.Warning)
	expectFact(t, f, "there was one for ", " of the time, and whoever came to its rows waited behind it")
	hot, found := r.Find(doctor.HotRow)
	if !found || hot.DownstreamOf != doctor.Deadlocks || r.Findings[0].Code != doctor.Deadlocks {
		t.Errorf("want the line as a consequence of the deadlocks, which come first; got:\n%s", describe(r))
	}
}

func TestDeadlocksAreCounted(t *testing.T) {
	t.Parallel()
	r := examine(t, deadlocksLoad(t), 2*examineFor)
	f, found := r.Find(doctor.Deadlocks)
	if !found || f.Severity != doctor.Warning {
		t.Fatalf("want %s as a warning; got:\n%s", doctor.Deadlocks, describe(r))
	}
	expectFact(t, f, "in each, a transaction was rolled back after it had waited for 50 ms")
}

func TestSortsThatDoNotFitAreNamed(t *testing.T) {
	t.Parallel()
	f := expect(t, examine(t, tempFilesLoad(t), 2*examineFor), doctor.TempFiles, doctor.Warning)
	expectFact(t, f, "files and", "MB a second, all databases")
	expectFact(t, f, "work_mem is 64 kB, times hash_mem_multiplier")
	expectFact(t, f, "some have another: role reports: work_mem=256MB")
}

func TestCheckpointsThatTheWALForcesAreNamed(t *testing.T) {
	t.Parallel()
	f := expect(t, examine(t, checkpointsLoad(t), 4*examineFor), doctor.CheckpointsForced, doctor.Info)
	expectFact(t, f, "of WAL a second, with max_wal_size 32 MB")
	if !strings.Contains(f.Now, "Raise max_wal_size") {
		t.Error(f.Now)
	}
}

func TestATransactionWithTooManySubtransactionsIsNamed(t *testing.T) {
	t.Parallel()
	url := subtransactionsLoad(t)
	f := expect(t, examine(t, url, 2*examineFor), doctor.SubtransactionOverflow, doctor.Info)
	if version(t, connect(t, url)) >= 160000 {
		expectFact(t, f, "pid ", " has more than the 64 subtransactions that a snapshot has room for: UPDATE account")
	} else {
		expectFact(t, f, "the longest transaction that writes is that of pid ")
	}
}

// TestATransactionWithTooManySubtransactionsThatHasCommittedIsLeftAlone while it waits for a standby.
func TestATransactionWithTooManySubtransactionsThatHasCommittedIsLeftAlone(t *testing.T) {
	t.Parallel()
	url, many := serverFor(t, nil)
	if version(t, many) < 160000 {
		t.Skip("before PostgreSQL 16 no view shows whose subtransactions they are")
	}
	execute(t, many, "CREATE TABLE account (id int PRIMARY KEY, n int)", "INSERT INTO account SELECT i, 0 FROM generate_series(1, 90) i", "BEGIN")
	for i := range 90 {
		execute(t, many, "SAVEPOINT s", fmt.Sprintf("UPDATE account SET n = n + 1 WHERE id = %d", 1+i))
	}
	admin := connect(t, url)
	withoutItsStandby(t, url, admin)
	go func() { _, _ = many.Exec(context.Background(), "COMMIT") }() // ends with the server
	until(t, admin, fmt.Sprintf("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %d AND wait_event = 'SyncRep')", many.PgConn().PID()))
	execute(t, admin, "SET synchronous_commit = local", "CREATE TABLE later ()") // what is newer than all that has ended is not looked up
	runSessions(t, url, 3, repeat("SELECT sum(n) FROM account WHERE id > $1"))
	r := examine(t, url, 2*examineFor)
	f, found := r.Find(doctor.SubtransactionOverflow)
	if !found {
		t.Fatalf("not found: %s", describe(r))
	}
	expectNow(t, f, fmt.Sprintf("Leave pid %d alone", many.PgConn().PID()), "not pg_terminate_backend")
}

// TestManyIdleConnectionsAreWell: five hundred connections that do nothing cost next to nothing while there is room for more.
func TestManyIdleConnectionsAreWell(t *testing.T) {
	pgtest.Alone(t, "it opens hundreds of connections")
	r := examine(t, manyIdleLoad(t), examineFor)
	if len(r.Findings) > 0 {
		t.Errorf("findings on an idle server:\n%s", describe(r))
	}
}

// TestALoadOfManyRowsIsWell: a batch load writes as fast as it can.
func TestALoadOfManyRowsIsWell(t *testing.T) {
	pgtest.Alone(t, "where the machine is busy, its load does not do what it is for")
	expectCalm(t, examine(t, batchLoad(t), 2*examineFor))
}
