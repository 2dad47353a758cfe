package proof

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestFlowsAreReadWhileTheyAreCompacted: who comes while the tables of flows are being compacted waits for it, and then finds every flow; a transaction
// whose snapshot is older is told to try again, and not that there is no such flow.
func TestFlowsAreReadWhileTheyAreCompacted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ call, says string }{
		{`SELECT name FROM weir.flow_info(1)`, "first"},
		{`SELECT name FROM weir.flows() ORDER BY id DESC LIMIT 1`, "last"},
		{`SELECT weir.seal(1)::text`, "true"},
		{`SELECT weir.cancel_flow(1)`, "cancelling"},
		{`SELECT (weir.enqueue('q', 'k', flow => 1) > 0)::text`, "true"},
	} {
		t.Run(c.call, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			conn, reader, old := connect(t, url), connect(t, url), connect(t, url)
			exec(t, conn, `SELECT weir.flow(n) FROM unnest(ARRAY['first'] || array_fill(repeat('x', 150), ARRAY[15000]) || ARRAY['last']) n`)
			until(t, "nothing is left to count", func() bool {
				return value[int](t, conn, `SELECT folded FROM weir._fold_arrivals()`) == 0
			})
			exec(t, old, `BEGIN ISOLATION LEVEL REPEATABLE READ`)
			exec(t, old, `SELECT 1`)
			tx, err := conn.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			until(t, "the flows are compacted", func() bool {
				return value[string](t, tx, `SELECT coalesce(weir._compact_flows(), '')`) == "compacted flows"
			})
			says := make(chan string, 1)
			go func() {
				var got string
				if err := reader.QueryRow(t.Context(), c.call).Scan(&got); err != nil {
					got = err.Error()
				}
				says <- got
			}()
			watch := connect(t, url)
			until(t, "the call waits", func() bool {
				return value[bool](t, watch, `SELECT cardinality(pg_blocking_pids($1)) > 0`, reader.PgConn().PID())
			})
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := pgtest.Receive(t, says, "the call has returned"); got != c.says {
				t.Errorf("it says %s, want %s", got, c.says)
			}
			var got string
			if err := old.QueryRow(t.Context(), c.call, pgx.QueryExecModeSimpleProtocol).Scan(&got); sqlstate(err) != "40001" {
				t.Errorf("with an older snapshot it says %q (%v), want 40001", got, err)
			}
		})
	}
}

// TestOutputsThatAreKeptAreNotCopiedAgainAndAgain: chores for the tables of outputs end, also if open flows need few outputs, but large ones.
func TestOutputsThatAreKeptAreNotCopiedAgainAndAgain(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	setConstant(t, conn, "weir._turn_ring", "max_bytes", "16777216", "262144")
	worker := startWorker(t, conn, "q")
	flow := newFlow(t, conn, "f")
	exec(t, conn, `SELECT weir.enqueue_many(array_agg('q'::text), array_agg('k'::text), flow => array_agg($1::bigint)) FROM generate_series(1, 100) n`, flow)
	for _, a := range claimAll(t, conn, worker, "q") {
		exec(t, conn, `SELECT weir._complete($1, $2, $3, $4, (SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 200) n))`, worker, a.Lane, a.Seq, a.ID)
		exec(t, conn, `SELECT weir._compact_flows()`)
	}
	var did []string
	for range 20 {
		one := value[*string](t, conn, `SELECT weir._compact_flows()`)
		if one == nil {
			break
		}
		did = append(did, *one)
	}
	if len(did) > 10 {
		t.Errorf("chores do not end: %q", did)
	}
	if n := value[int](t, conn, `SELECT count(*) FROM weir.flow_outputs($1, max_rows => 1000)`, flow); n != 100 {
		t.Errorf("%d outputs are kept, want 100", n)
	}
	exec(t, conn, `SELECT weir.seal($1)`, flow)
	foldAll(t, conn)
	exec(t, conn, `SELECT weir.set('completed_retention', '0'), weir.set('failed_retention', '0')`)
	until(t, "outputs of a flow that is forgotten leave, but for those in the active table", func() bool {
		return value[*string](t, conn, `SELECT weir._compact_flows()`) == nil
	})
	if n := value[int](t, conn, `SELECT count(DISTINCT ring) FROM weir.output`); n > 1 {
		t.Errorf("outputs are left in %d tables", n)
	}
}
