package proof

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// TestAMemberCostsFewBytesOfWAL: enqueued in bulk, claimed and recorded a hundred at a time, a member writes at most 20 bytes more than a plain job.
func TestAMemberCostsFewBytesOfWAL(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, map[string]string{"full_page_writes": "off", "autovacuum": "off"})
	conn := connect(t, server.URL("postgres"))
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	worker := startWorker(t, conn, "q")
	const jobs = 10_000
	drain := func(flow *int64) float64 {
		t.Helper()
		before := value[int64](t, conn, `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`)
		exec(t, conn, `SELECT weir.enqueue_many(array_fill('q'::text, ARRAY[$1::int]), array_fill('k'::text, ARRAY[$1]), flow => CASE WHEN $2::bigint IS NOT NULL THEN array_fill($2::bigint, ARRAY[$1]) END)`, jobs, flow)
		for range jobs / 100 {
			mustComplete(t, conn, worker, mustClaim(t, conn, worker, "q", 100))
			if flow != nil {
				fold(t, conn)
			}
		}
		return float64(value[int64](t, conn, `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`)-before) / jobs
	}
	drain(nil) // pages are extended, and what is read for the first time is cached
	flow := newFlow(t, conn, "f")
	var plain, member float64
	for range 2 {
		plain, member = drain(nil), drain(&flow)
	}
	t.Logf("a plain job writes %.0f bytes of WAL, a member %.0f", plain, member)
	if member > plain+20 {
		t.Errorf("a member writes %.0f bytes of WAL, a plain job %.0f", member, plain)
	}
	exec(t, conn, `SELECT weir.seal($1)`, flow)
	fold(t, conn)
	if n := value[int](t, conn, `SELECT count(*) FROM weir.arrival WHERE flow = $1`, flow); n > 2*jobs/100+10 {
		t.Errorf("%d members have left %d arrivals", 2*jobs, n)
	}
	wantFlow(t, conn, flow, flowState{State: "succeeded", Generation: 1, Jobs: 2 * jobs, Completed: 2 * jobs})
}

// TestFlowsWaitForNobody: while open transactions have added members, sealed flows and ended members, others add, end, count and tidy without waiting.
func TestFlowsWaitForNobody(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, writer, other := connect(t, url), connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q", "back")
	flow := newFlow(t, conn, "f")
	exec(t, writer, `BEGIN`)
	exec(t, writer, `SELECT weir.enqueue('q', 'k', flow => $1), weir.seal(weir.flow('other')), weir.increment($1, 'n'), weir.enqueue('q', 'once', flow => $1, once => 'a'), weir.flow('inner', parent => $1)`, flow)
	addTasks(t, writer, flow, "a", "b<a")
	for _, c := range []*pgx.Conn{conn, other} {
		exec(t, c, `SET lock_timeout = '5s'`)
	}
	for range 20 {
		addTo(t, conn, flow, 50)
		got := mustClaim(t, conn, worker, "q", 50)
		exec(t, other, `BEGIN`)
		if err := completeTx(t.Context(), other, worker, got[0]); err != nil {
			t.Fatal(err)
		}
		mustComplete(t, conn, worker, got[1:25])
		if refused, err := record(t.Context(), conn, worker, got[25:], "failed", nil); err != nil || len(refused) > 0 {
			t.Fatal(refused, err)
		}
		// The same, once more, which they do not see.
		exec(t, other, `SELECT weir.increment($1, 'n'), weir.enqueue('q', 'once', flow => $1, once => 'a')`, flow)
		addTasks(t, other, flow, "a", "b<a", "c<b")
		exec(t, other, `SAVEPOINT s`)
		fold(t, conn)
		exec(t, other, `ROLLBACK TO s`)
		exec(t, other, `COMMIT`)
		exec(t, conn, `SELECT weir._compact_flows()`)
	}
	exec(t, writer, `ROLLBACK`)
	exec(t, conn, `SELECT weir.seal($1)`, flow)
	for range 4 {
		foldAll(t, conn)
		mustComplete(t, conn, worker, claimAll(t, conn, worker, "q"))
	}
	foldAll(t, conn)
	// Of the job that was to be done once, and of the three tasks, one each.
	wantFlow(t, conn, flow, flowState{State: "failed", Generation: 1, Jobs: 1004, Completed: 504, Failed: 500})
}
