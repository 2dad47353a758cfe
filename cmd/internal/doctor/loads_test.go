package doctor_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-pg/weir/cmd/internal/lab"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// The loads of this file are troubles, and healthy loads, each on a server of its own, until the end of the test. Tests examine what the doctor says of one; the
// score examines all.

// slowDisk are settings by which each flush takes 2 ms, as on network storage: on a fast disk transactions would be over before others meet them.
func slowDisk() map[string]string {
	return map[string]string{"fsync": "on", "commit_delay": "2000", "commit_siblings": "0"}
}

// serverFor starts a server, and returns the URL of its database and a session of the test.
func serverFor(t *testing.T, parameters map[string]string) (url string, conn *pgx.Conn) {
	t.Helper()
	url = pgtest.Server(t, parameters).URL("postgres")
	return url, connect(t, url)
}

// ofTheLab returns a load of the lab.
func ofTheLab(c lab.LoadConfig, parameters map[string]string) func(t *testing.T) string {
	return func(t *testing.T) string {
		url, conn := serverFor(t, parameters)
		c.Database = url
		load(t, c)
		if c.Pin != "" { // what has held the horizon for a moment is no finding
			until(t, conn, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL) AND xact_start < clock_timestamp() - interval '6 seconds')")
		}
		return url
	}
}

func hotRowLoad(t *testing.T) string {
	url, conn := serverFor(t, nil)
	execute(t, conn, "CREATE TABLE counter (tenant int, name text, n int, PRIMARY KEY (tenant, name))", "INSERT INTO counter SELECT i, 'visits', 0 FROM generate_series(1, 20) i")
	runSessions(t, url, 8, repeat("BEGIN", "UPDATE counter SET n = n + 1 WHERE tenant = 7 AND name = 'visits'", "SELECT pg_sleep(0.01)", "COMMIT"))
	return url
}

func tableLockLoad(t *testing.T) string {
	url, reader := serverFor(t, nil)
	execute(t, reader, "CREATE TABLE stock (id int)", "BEGIN", "SELECT * FROM stock")
	stand(t, url, "ALTER TABLE stock ADD n int", "wait_event_type = 'Lock'")
	for range 5 {
		stand(t, url, "SELECT id FROM stock", "wait_event_type = 'Lock'")
	}
	return url
}

func advisoryLoad(t *testing.T) string {
	url, _ := serverFor(t, nil)
	runSessions(t, url, 8, repeat("BEGIN", "SELECT pg_advisory_xact_lock(42)", "SELECT pg_sleep(0.02)", "COMMIT"))
	return url
}

func partitionsLoad(t *testing.T) string {
	url, conn := serverFor(t, nil)
	execute(t, conn, "CREATE TABLE orders (id int, at int, customer int) PARTITION BY RANGE (at)",
		`DO $$ BEGIN FOR i IN 0..63 LOOP EXECUTE format('CREATE TABLE orders_%s PARTITION OF orders FOR VALUES FROM (%s) TO (%s)', i, i, i + 1); END LOOP; END $$`,
		// So many rows that each partition's index is used, and locked as well.
		"CREATE INDEX ON orders (customer)", "INSERT INTO orders SELECT i, i % 64, i FROM generate_series(1, 64000) i", "ANALYZE orders")
	t.Cleanup(preferClients())
	runSessions(t, url, 24, repeat("SELECT count(*) FROM orders WHERE customer BETWEEN 100 * $1 AND 100 * $1 + 10000"))
	return url
}

func standbyGoneLoad(t *testing.T) string {
	url, admin := serverFor(t, nil)
	execute(t, admin, "CREATE TABLE entry (n int)", "ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (gone)'", "SELECT pg_reload_conf()")
	until(t, admin, "SELECT current_setting('synchronous_standby_names') <> ''")
	// Commits wait from when the checkpointer has read the setting, which shows nowhere: so each session tries until it stands.
	runSessions(t, url, 6, repeat("INSERT INTO entry VALUES ($1)"))
	until(t, admin, "SELECT count(*) = 6 FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
	return url
}

// replayLoad is a standby that waits for its queries without end, and a query there that needs rows which the primary has removed.
func replayLoad(t *testing.T) string {
	primary := pgtest.Server(t, nil)
	standby := pgtest.Standby(t, primary, map[string]string{"max_standby_streaming_delay": "-1"})
	conn := connect(t, primary.URL("postgres"))
	execute(t, conn, "CREATE TABLE stock (n int)", "INSERT INTO stock SELECT generate_series(1, 1000)")
	pgtest.Replayed(t, primary, standby)
	execute(t, connect(t, standby.URL("postgres")), "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM stock")
	execute(t, conn, "DELETE FROM stock", "VACUUM stock")
	until(t, connect(t, standby.URL("postgres")), "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'startup' AND wait_event = 'RecoveryConflictSnapshot')")
	return standby.URL("postgres")
}

func conflictsLoad(t *testing.T) string {
	url, conn := serverFor(t, nil)
	execute(t, conn, "CREATE TABLE seen (id int PRIMARY KEY)", "INSERT INTO seen SELECT generate_series(1, 1000)")
	runSessions(t, url, 4, repeat("INSERT INTO seen SELECT i FROM generate_series(1, 20) i WHERE $1::int >= 0 ON CONFLICT DO NOTHING"))
	return url
}

func rowCommitsLoad(t *testing.T) string {
	url, conn := serverFor(t, slowDisk())
	execute(t, conn, "CREATE TABLE entry (n int)")
	runSessions(t, url, 8, repeat("INSERT INTO entry VALUES ($1)"))
	return url
}

func idleBlockerLoad(t *testing.T) string {
	url, idle := serverFor(t, nil)
	execute(t, idle, "CREATE TABLE account (id int PRIMARY KEY, n int)", "INSERT INTO account SELECT i, 0 FROM generate_series(1, 10) i",
		"SET application_name = 'shop'", "BEGIN", "UPDATE account SET n = 1 WHERE id = 3")
	for range 2 {
		stand(t, url, "UPDATE account SET n = 2 WHERE id = 3", "wait_event_type = 'Lock'")
	}
	// Until then it may be between two statements.
	until(t, connect(t, url), "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'shop' AND state_change < clock_timestamp() - interval '1 second')")
	return url
}

func fullLoad(t *testing.T) string {
	url, admin := serverFor(t, map[string]string{"max_connections": "20"})
	execute(t, admin, "CREATE ROLE watcher LOGIN PASSWORD 'w' IN ROLE pg_monitor", "CREATE ROLE app LOGIN PASSWORD 'w'")
	app := as(t, url, "app", "w")
	for range 13 { // of 17; with the administrator and the doctor's two it is one less than all
		connect(t, app)
	}
	return as(t, url, "watcher", "w")
}

func slotLoad(t *testing.T) string {
	url, conn := serverFor(t, map[string]string{"max_wal_size": "32MB", "max_slot_wal_keep_size": "4GB"})
	execute(t, conn, "SELECT pg_create_physical_replication_slot('forgotten', true)", "CREATE TABLE entry (text text)",
		"INSERT INTO entry SELECT repeat(md5(i::text), 30) FROM generate_series(1, 110000) i", "CHECKPOINT")
	return url
}

func wraparoundLoad(t *testing.T) string {
	url, conn := serverFor(t, map[string]string{"autovacuum_freeze_max_age": "100000"})
	execute(t, conn, "CREATE TABLE old (n int)", "BEGIN", "INSERT INTO old VALUES (1)", "PREPARE TRANSACTION 'forgotten'", "CREATE TABLE burnt (n int)",
		`DO $$ BEGIN FOR i IN 1..210000 LOOP BEGIN INSERT INTO burnt VALUES (1); RAISE EXCEPTION 'x'; EXCEPTION WHEN raise_exception THEN NULL; END; END LOOP; END $$`)
	t.Cleanup(func() { _, _ = conn.Exec(context.Background(), "ROLLBACK PREPARED 'forgotten'") })
	return url
}

func autovacuumOffLoad(t *testing.T) string {
	url, conn := serverFor(t, map[string]string{"fsync": "on"})
	execute(t, conn, "CREATE TABLE state (id int, n int, text text) WITH (autovacuum_enabled = false)", "CREATE INDEX ON state (n)",
		"INSERT INTO state SELECT i, 0, repeat('x', 100) FROM generate_series(1, 1000) i", "ANALYZE state")
	runSessions(t, url, 2, repeat("UPDATE state SET n = n + 1 WHERE id % 2 = $1"))
	until(t, conn, "SELECT n_dead_tup > 12000 FROM pg_stat_user_tables WHERE relname = 'state'")
	return url
}

func connectingLoad(t *testing.T) string {
	url, _ := serverFor(t, nil)
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
	return url
}

// parallelLoad runs short queries in parallel, by the settings of somebody who wanted that for all queries.
func parallelLoad(t *testing.T) string {
	url, conn := serverFor(t, map[string]string{
		"max_parallel_workers": "16", "max_worker_processes": "24", "max_parallel_workers_per_gather": "4", "parallel_setup_cost": "0", "parallel_tuple_cost": "0",
		"min_parallel_table_scan_size": "0",
	})
	execute(t, conn, "CREATE TABLE sale (id int, n int)", "INSERT INTO sale SELECT i, i FROM generate_series(1, 5000) i", "ALTER TABLE sale SET (parallel_workers = 4)", "VACUUM ANALYZE sale")
	runSessions(t, url, 8, repeat("SELECT sum(n) FROM sale WHERE id > $1"))
	return url
}

func missingIndexLoad(t *testing.T) string {
	url, conn := serverFor(t, map[string]string{"max_parallel_workers_per_gather": "0"})
	execute(t, conn, "CREATE TABLE orders (id int, customer int, text text)", "INSERT INTO orders SELECT i, i, 'some text' FROM generate_series(1, 100000) i", "VACUUM ANALYZE orders")
	runSessions(t, url, 4, repeat("SELECT text FROM orders WHERE customer = $1"))
	return url
}

// unindexedKeyLoad deletes rows to which nothing refers, as a search of the whole referring table finds each time.
func unindexedKeyLoad(t *testing.T) string {
	url, conn := serverFor(t, nil)
	execute(t, conn, `CREATE TABLE "customer" (id int PRIMARY KEY)`, `CREATE TABLE "Order" (id int, customer int REFERENCES customer, text text)`,
		"INSERT INTO customer SELECT generate_series(1, 100000)", `INSERT INTO "Order" SELECT i, 100000, 'some text' FROM generate_series(1, 100000) i`, `VACUUM ANALYZE "Order", customer`)
	runSessions(t, url, 4, func(ctx context.Context, conn *pgx.Conn, i int) error {
		_, err := conn.Exec(ctx, "DELETE FROM customer WHERE id = (SELECT min(id) FROM customer WHERE id % 4 = $1 AND id < 100000)", i%4)
		return err
	})
	return url
}

func deadlocksLoad(t *testing.T) string { return deadlocking(t, 4, "50ms") }

// deadlocking is a server whose sessions change two rows, half of them in the opposite order.
func deadlocking(t *testing.T, sessions int, timeout string) string {
	url, conn := serverFor(t, map[string]string{"deadlock_timeout": timeout})
	execute(t, conn, "CREATE TABLE account (id int PRIMARY KEY, n int)", "INSERT INTO account SELECT i, 0 FROM generate_series(1, 2) i")
	runSessions(t, url, sessions, func(ctx context.Context, conn *pgx.Conn, i int) error {
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
	return url
}

func tempFilesLoad(t *testing.T) string {
	url, conn := serverFor(t, map[string]string{"work_mem": "64kB"})
	execute(t, conn, "CREATE TABLE sale (id int, text text)", "INSERT INTO sale SELECT i, repeat('x', 400) FROM generate_series(1, 10000) i", "VACUUM ANALYZE sale",
		"CREATE ROLE reports", "ALTER ROLE reports SET work_mem = '256MB'")
	runSessions(t, url, 2, repeat("SELECT id FROM (SELECT id, text FROM sale ORDER BY text, id DESC OFFSET 0) s LIMIT 1", "SELECT count(*) FROM (SELECT id, text FROM sale ORDER BY text DESC, id OFFSET 1) s"))
	return url
}

func checkpointsLoad(t *testing.T) string {
	url, conn := serverFor(t, map[string]string{"max_wal_size": "32MB", "min_wal_size": "32MB", "checkpoint_timeout": "1h"})
	execute(t, conn, "CREATE TABLE entry (text text)")
	sql := "SELECT checkpoints_req FROM pg_stat_bgwriter"
	if version(t, conn) >= 170000 {
		sql = "SELECT num_requested FROM pg_stat_checkpointer"
	}
	runSessions(t, url, 2, repeat("INSERT INTO entry SELECT repeat(md5(i::text), 30) FROM generate_series(1, 4000) i WHERE $1::int >= 0", "TRUNCATE entry"))
	until(t, conn, "SELECT ("+sql+") > 0")
	return url
}

func subtransactionsLoad(t *testing.T) string {
	url, many := serverFor(t, nil)
	execute(t, many, "CREATE TABLE account (id int PRIMARY KEY, n int) WITH (fillfactor = 50)", "INSERT INTO account SELECT i, 0 FROM generate_series(1, 100) i", "BEGIN")
	for i := range 90 {
		execute(t, many, "SAVEPOINT s", fmt.Sprintf("UPDATE account SET n = n + 1 WHERE id = %d", 1+i))
	}
	runSessions(t, url, 3, repeat("SELECT sum(n) FROM account WHERE id > $1"))
	runSessions(t, url, 1, func(ctx context.Context, conn *pgx.Conn, _ int) error {
		_, err := conn.Exec(ctx, "UPDATE account SET n = n + 1 WHERE id = $1", 91+rand.IntN(10))
		return err
	})
	return url
}

func unexplainedLoad(t *testing.T) string {
	url, reader := serverFor(t, nil)
	execute(t, reader, "CREATE TABLE stock (id int)", "SET application_name = 'report'", "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM stock")
	stand(t, url, "CREATE INDEX CONCURRENTLY stock_id ON stock (id)", "wait_event = 'virtualxid'")
	return url
}

func sequenceLoad(t *testing.T) string {
	url, conn := serverFor(t, nil)
	execute(t, conn, "CREATE TABLE ticket (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n int)", "SELECT setval('ticket_id_seq', 1800000000)",
		"CREATE TABLE visit (id bigserial PRIMARY KEY)", "SELECT setval('visit_id_seq', 4000000000)",
		"CREATE SEQUENCE number", "CREATE TABLE note (id smallint DEFAULT nextval('number'))", "SELECT setval('number', 26000)") // by the type of its column
	return url
}

// weirServer is a server with Weir's schema.
func weirServer(t *testing.T) (url string, conn *pgx.Conn) {
	t.Helper()
	url, conn = serverFor(t, nil)
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	return url, conn
}

func deadWorkerLoad(t *testing.T) string {
	url, conn := weirServer(t)
	execute(t, conn, "SELECT weir._start('killed', ARRAY['mail'], interval '1 second')", "SELECT weir._rescue()")
	until(t, conn, "SELECT state = 'silent' FROM weir.workers()")
	return url
}

func backlogLoad(t *testing.T) string {
	url, conn := weirServer(t)
	execute(t, conn, "SELECT weir.enqueue('bulk', 'k') FROM generate_series(1, 1500)")
	return url
}

// The healthy loads.

func idleLoad(t *testing.T) string {
	url, _ := serverFor(t, nil)
	for range 30 {
		execute(t, connect(t, url), "SELECT 1")
	}
	return url
}

func bankLoad(t *testing.T) string {
	url, _ := serverFor(t, map[string]string{"fsync": "on"})
	bank(t, url, 8)
	return url
}

func selectLoad(t *testing.T) string {
	url, conn := serverFor(t, nil)
	execute(t, conn, "CREATE TABLE account (id int PRIMARY KEY, balance int)", "INSERT INTO account SELECT i, i FROM generate_series(1, 100000) i", "VACUUM ANALYZE account")
	runSessions(t, url, 8, func(ctx context.Context, conn *pgx.Conn, _ int) error {
		_, err := conn.Exec(ctx, "SELECT balance FROM account WHERE id = $1", 1+rand.IntN(100000))
		return err
	})
	return url
}

func batchLoad(t *testing.T) string {
	url, conn := serverFor(t, map[string]string{"fsync": "on", "max_wal_size": "2GB"})
	execute(t, conn, "CREATE TABLE entry (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, text text)")
	runSessions(t, url, 2, repeat("INSERT INTO entry (text) SELECT md5(i::text) FROM generate_series(1, 2000) i WHERE $1::int >= 0"))
	return url
}

func reportLoad(t *testing.T) string {
	url, conn := serverFor(t, nil)
	execute(t, conn, "CREATE TABLE sale (id int, customer int, n int)", "INSERT INTO sale SELECT i, i % 1000, i FROM generate_series(1, 400000) i", "VACUUM ANALYZE sale")
	runSessions(t, url, 1, repeat("SELECT customer, sum(n) FROM sale WHERE n > $1 GROUP BY 1 ORDER BY 2", "SELECT count(*) FROM (SELECT * FROM sale ORDER BY n, id) s"))
	return url
}

func manyIdleLoad(t *testing.T) string {
	url, _ := serverFor(t, map[string]string{"max_connections": "600"})
	for range 500 {
		execute(t, connect(t, url), "SELECT 1")
	}
	return url
}

func singleRowsLoad(t *testing.T) string {
	url, conn := serverFor(t, map[string]string{"fsync": "on"})
	execute(t, conn, "CREATE TABLE account (id int PRIMARY KEY, n int) WITH (fillfactor = 50)", "INSERT INTO account SELECT i, 0 FROM generate_series(1, 20000) i", "VACUUM ANALYZE account",
		"CREATE TABLE visit (account int, at timestamptz)")
	runSessions(t, url, 8, func(ctx context.Context, conn *pgx.Conn, _ int) error {
		if _, err := conn.Exec(ctx, "UPDATE account SET n = n + 1 WHERE id = $1", 1+rand.IntN(20000)); err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, "SELECT n FROM account WHERE id = $1", 1+rand.IntN(20000)); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, "INSERT INTO visit VALUES ($1, now())", 1+rand.IntN(20000))
		return err
	})
	return url
}

// busyCoresLoad is Weir at work while other processes of the machine take all of its cores.
func busyCoresLoad(t *testing.T) string {
	url, conn := weirServer(t)
	execute(t, conn, "SELECT weir._start('w', ARRAY['q'], interval '1 minute')")
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	t.Cleanup(func() { stop(); all.Wait() })
	for range runtime.NumCPU() {
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				_ = strings.Repeat("busy", n%1000)
			}
		})
	}
	runSessions(t, url, 2, repeat("SELECT weir.enqueue('q', 'k', '{}')"))
	runSessions(t, url, 1, repeat("SELECT * FROM weir._claim((SELECT id FROM weir.worker), ARRAY['q'], ARRAY[1000])", "SELECT pg_sleep(0.02)")) // a worker makes one claim at a time
	runSessions(t, url, 1, repeat("SELECT weir._rotate()", "SELECT weir._promote()", "SELECT weir.heartbeat((SELECT id FROM weir.worker), 0)", "SELECT pg_sleep(0.2)"))
	return url
}
