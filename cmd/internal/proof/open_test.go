package proof

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// blocks returns how many blocks a query touches.
func blocks(t *testing.T, conn *pgx.Conn, sql string) int {
	t.Helper()
	var plans []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	text := value[[]byte](t, conn, `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) `+sql)
	if err := json.Unmarshal(text, &plans); err != nil {
		t.Fatal(err)
	}
	return plans[0].Plan.Hit + plans[0].Plan.Read
}

// TestOpenTransactionsSlowNobody: an open bulk enqueue, with or without subtransactions, costs claims and promotions nothing, whether it is past the
// position, below it, or the newest. The cost is counted in blocks.
func TestOpenTransactionsSlowNobody(t *testing.T) {
	pgtest.Alone(t, "what a claim touches depends on the transactions of the whole server")
	url := pgtest.Database(t)
	conn, bulk := connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q")
	claimSQL := fmt.Sprintf(`SELECT * FROM weir._claim(%d, ARRAY['q'], ARRAY[1])`, worker)
	const promoteSQL = `SELECT * FROM weir._promote()`
	enqueueN(t, conn, "q", 100)
	exec(t, conn, `SELECT weir.enqueue('q', 'later', run_at => now() + interval '1 hour')`)
	for range 3 {
		promote(t, conn, 10)
		mustClaim(t, conn, worker, "q", 1)
	}
	claimBefore, promoteBefore := blocks(t, conn, claimSQL), blocks(t, conn, promoteSQL)

	exec(t, bulk, `BEGIN`)
	for _, runAt := range []string{"NULL::timestamptz", "now() + interval '1 hour'", "now() + interval '50 ms'"} {
		exec(t, bulk, `SELECT weir.enqueue_many(array_fill('q'::text, ARRAY[10000]), array_fill('bulk'::text, ARRAY[10000]), array_fill('{}'::jsonb, ARRAY[10000]),
			run_at => array_fill(`+runAt+`, ARRAY[10000])) FROM generate_series(1, 2)`)
	}
	exec(t, bulk, `DO $$ BEGIN FOR n IN 1..100 LOOP BEGIN -- a subtransaction each
		PERFORM weir.enqueue_many(array_fill('q'::text, ARRAY[100]), array_fill('bulk'::text, ARRAY[100]), array_fill('{}'::jsonb, ARRAY[100]));
		EXCEPTION WHEN division_by_zero THEN NULL; END; END LOOP; END $$`)
	check := func(when string) {
		t.Helper()
		// The first call finds new transactions and records them; the next finds nothing new.
		mustClaim(t, conn, worker, "q", 1)
		promote(t, conn, 10)
		claimed, promoted := blocks(t, conn, claimSQL), blocks(t, conn, promoteSQL)
		t.Logf("%s: a claim touches %d blocks, a promotion %d; without the bulk enqueue, %d and %d", when, claimed, promoted, claimBefore, promoteBefore)
		if claimed > 2*claimBefore {
			t.Errorf("%s: a claim touches %d blocks; without the bulk enqueue, %d", when, claimed, claimBefore)
		}
		if promoted > 2*promoteBefore+50 {
			t.Errorf("%s: a promotion touches %d blocks; without the bulk enqueue, %d", when, promoted, promoteBefore)
		}
	}
	promoterIsPast := func() {
		t.Helper()
		until(t, "the promoter is past the due jobs of the bulk enqueue", func() bool { return blocks(t, conn, promoteSQL) <= 2*promoteBefore+50 })
	}
	promoterIsPast()
	check("newest of all")
	enqueueN(t, conn, "q", 10)
	promoterIsPast()
	check("in progress past the position")
	claimAll(t, conn, worker, "q")
	enqueueN(t, conn, "q", 10)
	check("pending")
	exec(t, bulk, `COMMIT`)
	until(t, "the jobs of the bulk enqueue are promoted", func() bool {
		promote(t, conn, 10000)
		return len(claimAll(t, conn, worker, "q")) == 0 && value[int](t, conn, `SELECT count(*) FROM weir.job WHERE kind = 'bulk'`) == 50_000
	})
}

// TestPreparedTransactionsSlowNobody: two thousand prepared transactions hardly slow a claim.
func TestPreparedTransactionsSlowNobody(t *testing.T) {
	pgtest.Alone(t, "it compares the times of claims")
	server := pgtest.Server(t, map[string]string{"max_prepared_transactions": "2100"})
	conn := connect(t, server.URL("postgres"))
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	worker := startWorker(t, conn, "q")
	measure := func() (least time.Duration, touched int) {
		enqueueN(t, conn, "q", 100)
		mustClaim(t, conn, worker, "q", 1)
		touched = blocks(t, conn, fmt.Sprintf(`SELECT * FROM weir._claim(%d, ARRAY['q'], ARRAY[1])`, worker))
		var all []time.Duration
		for range 80 {
			start := time.Now()
			mustClaim(t, conn, worker, "q", 1)
			all = append(all, time.Since(start))
		}
		claimAll(t, conn, worker, "q")
		return slices.Min(all), touched
	}
	measure()
	before, touchedBefore := measure()
	for n := range 2000 {
		exec(t, conn, `BEGIN`)
		exec(t, conn, `SELECT weir.enqueue('q', 'prepared')`)
		exec(t, conn, fmt.Sprintf(`PREPARE TRANSACTION 'weir %d'`, n))
	}
	during, touched := measure()
	t.Logf("a claim of one takes %v and touches %d blocks; with 2000 prepared transactions, %v and %d", before, touchedBefore, during, touched)
	if during > 10*before {
		t.Errorf("a claim of one takes %v; with 2000 prepared transactions, %v", before, during)
	}
	if touched > 3*touchedBefore { // the list of these transactions, 32 kB, is read and written
		t.Errorf("a claim of one touches %d blocks; with 2000 prepared transactions, %d", touchedBefore, touched)
	}
	for n := range 2000 {
		exec(t, conn, fmt.Sprintf(`COMMIT PREPARED 'weir %d'`, n))
	}
	if got := claimAll(t, conn, worker, "q"); len(got) != 2000 {
		t.Errorf("claimed %d jobs of the prepared transactions, want 2000", len(got))
	}
}
