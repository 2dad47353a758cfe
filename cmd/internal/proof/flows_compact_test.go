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
