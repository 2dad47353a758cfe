package doctor_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

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
	if want := fmt.Sprintf("SELECT pg_terminate_backend(%d).", pid); f.Now != want {
		t.Errorf("the fix for now is %q, want %q", f.Now, want)
	}
	if hot, found := r.Find(doctor.HotRow); found && hot.DownstreamOf != doctor.IdleBlocker {
		t.Errorf("the queue for the row is a cause of its own: %s", hot.Summary)
	}
	execute(t, idle, "COMMIT")

	execute(t, prepared, "BEGIN", "UPDATE account SET n = 1 WHERE id = 4", "PREPARE TRANSACTION 'in doubt'")
	stand(t, url, "UPDATE account SET n = 2 WHERE id = 4", "wait_event_type = 'Lock'")
	f = expect(t, examine(t, url, 2*examineFor), doctor.IdleBlocker, doctor.Warning)
	if !strings.HasPrefix(f.Now, "ROLLBACK PREPARED 'in doubt'") {
		t.Errorf("the fix for now does not end the prepared transaction: %s", f.Now)
	}
	execute(t, prepared, "ROLLBACK PREPARED 'in doubt'")
}

func TestAFullServerIsADiagnosis(t *testing.T) {
	t.Parallel()
	url := pgtest.Server(t, map[string]string{"max_connections": "20"}).URL("postgres")
	admin := connect(t, url)
	execute(t, admin, "CREATE ROLE watcher LOGIN PASSWORD 'w' IN ROLE pg_monitor", "CREATE ROLE app LOGIN PASSWORD 'w'")
	watcher, app := as(t, url, "watcher", "w"), as(t, url, "app", "w")
	expectCalm(t, examine(t, watcher, examineFor))
	for range 13 { // of 17; with the administrator and the doctor's two it is one less than all
		connect(t, app)
	}
	f := expect(t, examine(t, watcher, examineFor), doctor.ConnectionsExhausted, doctor.Warning)
	expectFact(t, f, "app, no application name: 13 connections")
	connect(t, app)
	connect(t, app)
	connect(t, app)
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
	url := pgtest.Server(t, map[string]string{"autovacuum_freeze_max_age": "100000"}).URL("postgres")
	conn := connect(t, url)
	execute(t, conn, "CREATE TABLE old (n int)", "BEGIN", "INSERT INTO old VALUES (1)", "PREPARE TRANSACTION 'forgotten'", "CREATE TABLE burnt (n int)",
		`DO $$ BEGIN FOR i IN 1..210000 LOOP BEGIN INSERT INTO burnt VALUES (1); RAISE EXCEPTION 'x'; EXCEPTION WHEN raise_exception THEN NULL; END; END LOOP; END $$`)
	f := expect(t, examine(t, url, examineFor), doctor.WraparoundNear, doctor.Warning)
	expectFact(t, f, "nothing newer can be frozen while this holds it", `the prepared transaction "forgotten"`)
	if !strings.Contains(f.Now, "ROLLBACK PREPARED 'forgotten'") {
		t.Errorf("the fix for now does not end what holds it: %s", f.Now)
	}
	execute(t, conn, "ROLLBACK PREPARED 'forgotten'")
}

func TestATableWithoutAutovacuumIsNamed(t *testing.T) {
	t.Parallel()
	url := pgtest.Server(t, map[string]string{"fsync": "on"}).URL("postgres")
	conn := connect(t, url)
	execute(t, conn, "CREATE TABLE state (id int, n int, text text) WITH (autovacuum_enabled = false)", "CREATE INDEX ON state (n)",
		"INSERT INTO state SELECT i, 0, repeat('x', 100) FROM generate_series(1, 1000) i", "ANALYZE state")
	runSessions(t, url, 2, repeat("UPDATE state SET n = n + 1 WHERE id % 2 = $1"))
	until(t, conn, "SELECT n_dead_tup > 12000 FROM pg_stat_user_tables WHERE relname = 'state'")
	r := examine(t, url, 2*examineFor)
	f := expect(t, r, doctor.AutovacuumBehind, doctor.Warning)
	expectFact(t, f, "state has", "autovacuum is off for it")
	if c, found := r.Find(doctor.RowCommits); found && c.DownstreamOf == "" {
		t.Errorf("row commits are called the cause: %s", c.Summary)
	}
}

func TestATableThatAutovacuumDoesNotReachIsNamed(t *testing.T) {
	t.Parallel()
	url := pgtest.Server(t, map[string]string{"autovacuum_naptime": "1s"}).URL("postgres")
	conn, locker := connect(t, url), connect(t, url)
	execute(t, conn, "CREATE TABLE state (id int, n int)", "CREATE INDEX ON state (n)", "INSERT INTO state SELECT i, 0 FROM generate_series(1, 2000) i", "ANALYZE state")
	execute(t, locker, "BEGIN", "LOCK TABLE state IN SHARE UPDATE EXCLUSIVE MODE") // autovacuum gives way
	runSessions(t, url, 1, repeat("UPDATE state SET n = n + 1 WHERE $1::int >= 0", "SELECT pg_sleep(0.02)"))
	until(t, conn, "SELECT n_dead_tup > 30000 AND pg_postmaster_start_time() < now() - interval '11 seconds' FROM pg_stat_user_tables WHERE relname = 'state'")
	f := expect(t, examine(t, url, 2*examineFor), doctor.AutovacuumBehind, doctor.Warning)
	expectFact(t, f, "state has", "autovacuum does not get to it")
}

func TestClientsThatConnectForEachTransactionAreNamed(t *testing.T) {
	pgtest.Alone(t, "where the machine is busy, its load does not do what it is for")
	url := pgtest.Empty(t)
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	runSessions(t, url, 4, func(ctx context.Context, _ *pgx.Conn, _ int) error {
		conn, err := pgx.ConnectConfig(ctx, config)
		if err != nil {
			return err
		}
		defer conn.Close(context.Background())
		_, err = conn.Exec(ctx, "SELECT 1")
		return err
	})
	r := examine(t, url, 2*examineFor)
	if f, saturated := r.Find(doctor.PostmasterSaturated); saturated {
		t.Logf("it saturates the postmaster: %s", f.Summary) // which says the same, and more
		return
	}
	f := expect(t, r, doctor.ConnectionChurn, doctor.Info)
	expectFact(t, f, "sessions/s, all databases", "transactions each")
}

func TestAMissingIndexIsNamedByItsTable(t *testing.T) {
	pgtest.Alone(t, "where the machine is busy, its load does not do what it is for")
	url := pgtest.Empty(t)
	execute(t, connect(t, url), "CREATE TABLE orders (id int, customer int, text text)", "INSERT INTO orders SELECT i, i, 'some text' FROM generate_series(1, 100000) i", "VACUUM ANALYZE orders")
	runSessions(t, url, 4, repeat("SELECT text FROM orders WHERE customer = $1"))
	f := expect(t, examine(t, url, 2*examineFor), doctor.TableScanned, doctor.Warning)
	expectFact(t, f, "orders is read from beginning to end", "100,000 rows each time")
	expectFact(t, f, "SELECT text FROM orders WHERE customer = $1")
}

// TestAReportIsNoMissingIndex: a report reads all rows because it needs them, and sorts in files because it is large.
func TestAReportIsNoMissingIndex(t *testing.T) {
	t.Parallel()
	url := alone(t)
	execute(t, connect(t, url), "CREATE TABLE sale (id int, customer int, n int)", "INSERT INTO sale SELECT i, i % 1000, i FROM generate_series(1, 400000) i", "VACUUM ANALYZE sale")
	runSessions(t, url, 1, repeat("SELECT customer, sum(n) FROM sale WHERE n > $1 GROUP BY 1 ORDER BY 2", "SELECT count(*) FROM (SELECT * FROM sale ORDER BY n, id) s"))
	expectCalm(t, examine(t, url, 2*examineFor))
}

func TestDeadlocksAreCounted(t *testing.T) {
	t.Parallel()
	url := pgtest.Server(t, map[string]string{"deadlock_timeout": "50ms"}).URL("postgres")
	execute(t, connect(t, url), "CREATE TABLE account (id int PRIMARY KEY, n int)", "INSERT INTO account SELECT i, 0 FROM generate_series(1, 2) i")
	runSessions(t, url, 4, func(ctx context.Context, conn *pgx.Conn, i int) error {
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			for _, id := range []int{1 + i%2, 2 - i%2} {
				if _, err := tx.Exec(ctx, "UPDATE account SET n = n + 1 WHERE id = $1", id); err != nil {
					return err
				}
				if _, err := tx.Exec(ctx, "SELECT pg_sleep(0.02)"); err != nil {
					return err
				}
			}
			return nil
		})
		var refused *pgconn.PgError
		if errors.As(err, &refused) && refused.Code == "40P01" {
			return nil
		}
		return err
	})
	r := examine(t, url, 2*examineFor)
	f, found := r.Find(doctor.Deadlocks)
	if !found || f.Severity != doctor.Warning {
		t.Fatalf("want %s as a warning; got:\n%s", doctor.Deadlocks, describe(r))
	}
	expectFact(t, f, "in each, a transaction was rolled back after it had waited for 50 ms")
}

func TestSortsThatDoNotFitAreNamed(t *testing.T) {
	t.Parallel()
	url := pgtest.Server(t, map[string]string{"work_mem": "64kB"}).URL("postgres")
	execute(t, connect(t, url), "CREATE TABLE sale (id int, text text)", "INSERT INTO sale SELECT i, repeat('x', 400) FROM generate_series(1, 10000) i", "VACUUM ANALYZE sale")
	runSessions(t, url, 2, repeat("SELECT id FROM (SELECT id, text FROM sale ORDER BY text, id DESC OFFSET 0) s LIMIT 1", "SELECT count(*) FROM (SELECT id, text FROM sale ORDER BY text DESC, id OFFSET 1) s"))
	f := expect(t, examine(t, url, 2*examineFor), doctor.TempFiles, doctor.Warning)
	expectFact(t, f, "files and", "MB a second, all databases")
}

func TestCheckpointsThatTheWALForcesAreNamed(t *testing.T) {
	t.Parallel()
	url := pgtest.Server(t, map[string]string{"max_wal_size": "32MB", "min_wal_size": "32MB", "checkpoint_timeout": "1h"}).URL("postgres")
	conn := connect(t, url)
	execute(t, conn, "CREATE TABLE entry (text text)")
	sql := "SELECT checkpoints_req FROM pg_stat_bgwriter"
	if version(t, conn) >= 170000 {
		sql = "SELECT num_requested FROM pg_stat_checkpointer"
	}
	runSessions(t, url, 2, repeat("INSERT INTO entry SELECT repeat(md5(i::text), 30) FROM generate_series(1, 4000) i WHERE $1::int >= 0", "TRUNCATE entry"))
	until(t, conn, "SELECT ("+sql+") > 0")
	f := expect(t, examine(t, url, 4*examineFor), doctor.CheckpointsForced, doctor.Info)
	expectFact(t, f, "of WAL a second, with max_wal_size 32 MB")
	if !strings.Contains(f.Now, "Raise max_wal_size") {
		t.Error(f.Now)
	}
}

func TestATransactionWithTooManySubtransactionsIsNamed(t *testing.T) {
	t.Parallel()
	url := alone(t)
	many := connect(t, url)
	execute(t, many, "CREATE TABLE account (id int PRIMARY KEY, n int) WITH (fillfactor = 50)", "INSERT INTO account SELECT i, 0 FROM generate_series(1, 100) i", "BEGIN")
	for i := range 90 {
		execute(t, many, "SAVEPOINT s", fmt.Sprintf("UPDATE account SET n = n + 1 WHERE id = %d", 1+i))
	}
	stop := runSessions(t, url, 3, repeat("SELECT sum(n) FROM account WHERE id > $1"))
	advance := runSessions(t, url, 1, func(ctx context.Context, conn *pgx.Conn, _ int) error {
		_, err := conn.Exec(ctx, "UPDATE account SET n = n + 1 WHERE id = $1", 91+rand.IntN(10))
		return err
	})
	f := expect(t, examine(t, url, 2*examineFor), doctor.SubtransactionOverflow, doctor.Info)
	stop()
	advance()
	if version(t, many) >= 160000 {
		expectFact(t, f, fmt.Sprintf("pid %d has", many.PgConn().PID()), "more than a snapshot has room for")
	} else {
		expectFact(t, f, fmt.Sprintf("that of pid %d", many.PgConn().PID()))
	}
	execute(t, many, "ROLLBACK")
}

// TestManyIdleConnectionsAreWell: five hundred connections that do nothing cost next to nothing while there is room for more.
func TestManyIdleConnectionsAreWell(t *testing.T) {
	pgtest.Alone(t, "it opens hundreds of connections")
	url := pgtest.Server(t, map[string]string{"max_connections": "600"}).URL("postgres")
	for range 500 {
		execute(t, connect(t, url), "SELECT 1")
	}
	r := examine(t, url, examineFor)
	if len(r.Findings) > 0 {
		t.Errorf("findings on an idle server:\n%s", describe(r))
	}
}

// TestALoadOfManyRowsIsWell: a batch load writes as fast as it can.
func TestALoadOfManyRowsIsWell(t *testing.T) {
	pgtest.Alone(t, "where the machine is busy, its load does not do what it is for")
	url := pgtest.Server(t, map[string]string{"fsync": "on", "max_wal_size": "2GB"}).URL("postgres")
	execute(t, connect(t, url), "CREATE TABLE entry (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, text text)")
	runSessions(t, url, 2, repeat("INSERT INTO entry (text) SELECT md5(i::text) FROM generate_series(1, 2000) i WHERE $1::int >= 0"))
	expectCalm(t, examine(t, url, 2*examineFor))
}
