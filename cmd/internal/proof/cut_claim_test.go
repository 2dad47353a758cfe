package proof

import (
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// queuesWithJobs starts a worker of n queues, each with some jobs.
func queuesWithJobs(t *testing.T, conn *pgx.Conn, n, jobs int) (worker int32, names []string) {
	t.Helper()
	for i := range n {
		names = append(names, fmt.Sprintf("q%05d", i))
	}
	worker = startWorker(t, conn, names...)
	exec(t, conn, `SELECT weir.enqueue_many($1::text[], array_fill('k'::text, ARRAY[$2::int]), array_fill('{}'::jsonb, ARRAY[$2::int])) FROM generate_series(1, $3::int)`, names, n, jobs)
	return worker, names
}

// TestAClaimLocksABoundedNumberOfLanes: a worker of a thousand queues that all have jobs gets every job once, in claims that each fit into a
// small lock table, and all but the last of which say that there may be more.
func TestAClaimLocksABoundedNumberOfLanes(t *testing.T) {
	t.Parallel()
	const n, lanes = 1000, 200
	conn := connect(t, pgtest.Database(t))
	worker, names := queuesWithJobs(t, conn, n, 1)
	exec(t, conn, `CREATE TEMP TABLE queues AS SELECT $1::text[] AS names, array_fill(10, ARRAY[$2::int]) AS limits`, names, n)
	exec(t, conn, `CREATE TEMP TABLE got (id bigint)`)
	claimSQL := fmt.Sprintf(`SELECT c.id FROM queues q, weir._claim(%d, q.names, q.limits) c`, worker)
	locked, claims := 0, 0
	for more := true; more; claims++ {
		results, err := conn.PgConn().Exec(t.Context(), `BEGIN; `+claimSQL+`; SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'; COMMIT`).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		var count int
		if _, err := fmt.Sscan(string(results[2].Rows[0][0]), &count); err != nil {
			t.Fatal(err)
		}
		locked = max(locked, count)
		more = false
		for i, row := range results[1].Rows {
			if row[0] != nil {
				exec(t, conn, `INSERT INTO got VALUES ($1::text::bigint)`, string(row[0]))
				continue
			}
			if more = true; i != len(results[1].Rows)-1 {
				t.Errorf("row %d of %d says that there may be more", i, len(results[1].Rows))
			}
		}
	}
	t.Logf("%d claims, with up to %d advisory locks", claims, locked)
	if locked > lanes+2 {
		t.Errorf("a claim held %d advisory locks, want at most one for each of %d lanes, and 2", locked, lanes)
	}
	if got, different := value[int](t, conn, `SELECT count(*) FROM got`), value[int](t, conn, `SELECT count(DISTINCT id) FROM got`); got != n || different != n {
		t.Errorf("%d claims returned %d jobs, %d different ones, want %d", claims, got, different, n)
	}
	if claims != n/lanes+1 {
		t.Errorf("it took %d claims, want %d", claims, n/lanes+1)
	}
}

// TestNoQueueWaitsBehindTheOthers: if more queues always have jobs than one claim visits, each gets its turn, with a hint and without.
func TestNoQueueWaitsBehindTheOthers(t *testing.T) {
	t.Parallel()
	const n, claims = 300, 40 // a claim visits two thirds of them: that one is left out of 40 by chance happens once in 10^16 runs
	conn := connect(t, pgtest.Database(t))
	worker, names := queuesWithJobs(t, conn, n, 2*claims)
	since := value[string](t, conn, `SELECT pg_current_snapshot()::text`)
	for what, args := range map[string][]any{"without a hint": {nil, nil}, "with a hint": {since, names}} {
		turns := map[string]int{}
		for range claims {
			for _, queue := range column[string](t, conn, `SELECT queue FROM weir._claim($1, $2, $3, $4::text::pg_snapshot, $5) WHERE id IS NOT NULL`,
				append([]any{worker, names, slices.Repeat([]int32{1}, n)}, args...)...) {
				turns[queue]++
			}
		}
		if len(turns) != n {
			t.Errorf("%s: %d of %d queues had a turn in %d claims", what, len(turns), n, claims)
		}
	}
}

// TestTakeLooksFurtherThanOneClaim: take returns the jobs of any number of queues, in calls of which none waits as if there were no work.
func TestTakeLooksFurtherThanOneClaim(t *testing.T) {
	t.Parallel()
	const n = 500
	conn := connect(t, pgtest.Database(t))
	worker, _ := queuesWithJobs(t, conn, n, 1)
	got := map[int64]bool{}
	for calls := 0; len(got) < n; calls++ {
		ids := column[int64](t, conn, `SELECT id FROM weir.take($1, wait => '0')`, worker)
		for _, id := range ids {
			got[id] = true
		}
		if calls == n {
			t.Fatalf("%d calls returned %d of %d jobs", calls, len(got), n)
		}
	}
}
