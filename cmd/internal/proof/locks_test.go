package proof

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestEnqueuesNeverWaitForEachOther: transactions that enqueue and stay open let others enqueue, commit and roll back, into the same queue, into a
// queue that all of them create, or with the same kind.
func TestEnqueuesNeverWaitForEachOther(t *testing.T) {
	pgtest.Alone(t, "it sees all locks of the server")
	for _, n := range []int{2, 16} {
		for _, queue := range []string{"old", "new"} {
			t.Run(fmt.Sprintf("%d transactions, %s queue", n, queue), func(t *testing.T) {
				url := pgtest.Database(t)
				watch := connect(t, url)
				exec(t, watch, `SELECT weir.enqueue('old', 'k')`)
				var open []*pgx.Conn
				for range n {
					conn := connect(t, url)
					exec(t, conn, `SET statement_timeout = '20s'`)
					exec(t, conn, `BEGIN`)
					open = append(open, conn)
				}
				check := func() {
					t.Helper()
					if waiting := column[string](t, watch, `SELECT format('%s waits for %s', pid, pg_blocking_pids(pid)) FROM pg_stat_activity
						WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0
						UNION ALL SELECT format('%s waits for a %s lock', pid, locktype) FROM pg_locks WHERE NOT granted`); len(waiting) > 0 {
						t.Errorf("%s", strings.Join(waiting, "; "))
					}
				}
				// All run one after the other in one goroutine: if any waited for another, it would wait forever.
				for round := range 3 {
					for i, conn := range open {
						switch round {
						case 0:
							exec(t, conn, `SELECT weir.enqueue($1, 'k')`, queue)
						case 1:
							enqueueN(t, conn, queue, 40)
							exec(t, conn, `SELECT weir.enqueue_many(array_agg($1::text), array_agg('k'::text), key => array_agg('key ' || i)) FROM generate_series(1, 10) i`, queue)
						case 2:
							exec(t, conn, []string{`COMMIT`, `ROLLBACK`}[i%2])
						}
						check()
					}
				}
				worker := startWorker(t, watch, queue)
				want := (n + 1) / 2 * 51
				if queue == "old" {
					want++
				}
				if got := len(claimAll(t, watch, worker, queue)); got != want {
					t.Errorf("claimed %d jobs, want %d", got, want)
				}
			})
		}
	}
}

// TestEnqueueTakesNoStrongLock: an open transaction that has enqueued holds no lock for which another enqueue could wait.
func TestEnqueueTakesNoStrongLock(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	for name, queue := range map[string]string{"old queue": "old", "new queue": "new"} {
		for _, sql := range []string{
			`SELECT weir.enqueue($1, 'k')`,
			`SELECT weir.enqueue($1, 'k', run_at => now() + interval '1 hour')`,
			`SELECT weir.enqueue_many(ARRAY[$1::text, $1], ARRAY['k', 'k'], ARRAY['{}', '{}']::jsonb[], run_at => ARRAY[NULL, now() + interval '1 hour'])`,
			`SELECT weir.enqueue_many(jsonb_build_array(jsonb_build_object('queue', $1::text, 'kind', 'k')))`,
			`SELECT weir.enqueue($1, 'k', key => 'key')`,
		} {
			conn := connect(t, url)
			exec(t, conn, `SELECT weir.enqueue('old', 'k')`)
			exec(t, conn, `BEGIN`)
			exec(t, conn, sql, queue)
			for _, lock := range locksOf(t, conn) {
				if strings.HasPrefix(lock, "advisory") || !strings.HasSuffix(lock, "AccessShareLock") && !strings.HasSuffix(lock, "RowExclusiveLock") && !strings.HasPrefix(lock, "own xid") {
					t.Errorf("%s, %s: the transaction holds %s", sql, name, lock)
				}
			}
			exec(t, conn, `ROLLBACK`)
		}
	}
}

// locksOf returns the locks held by a connection's transaction.
func locksOf(t *testing.T, conn *pgx.Conn) []string {
	t.Helper()
	return column[string](t, conn, locksSQL)
}

const locksSQL = `SELECT CASE locktype WHEN 'relation' THEN 'relation ' || relation::regclass WHEN 'advisory' THEN 'advisory ' || classid || ' ' || objid
	WHEN 'transactionid' THEN 'own xid' ELSE locktype END || ' ' || mode AS lock
	FROM pg_locks WHERE pid = pg_backend_pid() AND locktype <> 'virtualxid' AND relation IS DISTINCT FROM 'pg_locks'::regclass ORDER BY 1`

// TestClaimLocks: a claim, a flush of results and an empty poll take a bounded number of locks. Below PostgreSQL 18, a session
// has 16 fast-path locks, and all further relation locks use the shared lock table, so a new partition or index shows here. That other queues have
// keys costs a claim two locks.
func TestClaimLocks(t *testing.T) {
	pgtest.Alone(t, "strong locks of other sessions turn fast-path locks into slow ones")
	url := pgtest.Database(t)
	conn := connect(t, url)
	worker := startWorker(t, conn, "q", "keys")
	ids := enqueueN(t, conn, "q", 4)
	exec(t, conn, `SELECT weir.set_limit('keys', running => 2, per_key => true)`)
	enqueueForEach(t, conn, "keys", 4)
	mustClaim(t, conn, worker, "keys", 1)
	warm := mustClaim(t, conn, worker, "q", 1) // fills the catalog caches
	mustComplete(t, conn, worker, warm)
	a := mustClaim(t, conn, worker, "q", 1)[0]

	claimSQL := fmt.Sprintf(`SELECT count(*) FROM weir._claim(%d, ARRAY['q'], ARRAY[1])`, worker)
	completeSQL := fmt.Sprintf(`SELECT weir._record(%d, ARRAY[%d], ARRAY[%d]::bigint[], ARRAY[1], ARRAY[%d]::bigint[])`, worker, a.Lane, a.Seq, a.ID)
	keysSQL := fmt.Sprintf(`SELECT count(*) FROM weir._claim(%d, ARRAY['keys'], ARRAY[2])`, worker)
	empty := fmt.Sprintf(`SELECT count(*) FROM weir._claim(%d, ARRAY['q'], ARRAY[0])`, worker)
	for _, c := range []struct {
		name, sql           string
		relations, advisory int
	}{
		{"claim", claimSQL, 38, 3},
		{"claim of nothing", empty, 31, 2},
		{"claim from keys with a limit", keysSQL, 86, 6},
		{"record", completeSQL, 22, 4},
	} {
		results, err := conn.PgConn().Exec(t.Context(), `BEGIN; `+c.sql+`; `+locksSQL+`; SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation' AND NOT fastpath; COMMIT`).ReadAll()
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		var relations, advisory []string
		for _, row := range results[2].Rows {
			switch lock := string(row[0]); {
			case strings.HasPrefix(lock, "relation"):
				relations = append(relations, strings.TrimPrefix(lock, "relation "))
				if !strings.HasSuffix(lock, "AccessShareLock") && !strings.HasSuffix(lock, "RowExclusiveLock") {
					t.Errorf("%s takes a strong lock: %s", c.name, lock)
				}
			case strings.HasPrefix(lock, "advisory"):
				advisory = append(advisory, lock)
			}
		}
		t.Logf("%s: %d relation locks, %s of them without the fast path, %d advisory %v\n\t%s", c.name, len(relations), results[3].Rows[0][0], len(advisory), advisory, strings.Join(relations, ", "))
		if len(relations) > c.relations || len(advisory) > c.advisory {
			t.Errorf("%s takes %d relation and %d advisory locks, want at most %d and %d", c.name, len(relations), len(advisory), c.relations, c.advisory)
		}
	}
	if got := value[int64](t, conn, `SELECT max(i) FROM weir.batch b, unnest(b.ids) i WHERE b.lanes IS NULL`); !slices.Contains(ids, got) {
		t.Errorf("claimed job %d, enqueued %v", got, ids)
	}
	_ = conn.Close(context.Background())
}
