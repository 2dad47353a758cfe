package proof

import (
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestNothingArrivesAtFlowsBeforeARebase: in a log that was restored in a cluster with lower transaction ids, what would be missing after the rebase is
// refused, and changes nothing; plain jobs are not.
func TestNothingArrivesAtFlowsBeforeARebase(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q", "back")
	flow := newFlow(t, conn, "f")
	addTo(t, conn, flow, 2)
	got := mustClaim(t, conn, worker, "q", 2)
	fold(t, conn)
	moveElsewhere(t, conn)
	exec(t, conn, `UPDATE weir.flow_cut SET snapshot = '4000000000:4000000000:'`)
	for _, call := range []string{
		`weir.flow('new')`, `weir.enqueue('q', 'k', flow => $1)`, `weir.seal($1)`, `weir.cancel_flow($1)`, `weir.increment($1, 'n')`, `weir.flow_info($1)`,
		`weir.flows()`, `weir.tasks($1)`, `weir.add_tasks($1, '[{"task": "t", "queue": "q", "kind": "t"}]')`, `weir.flow('within', parent => $1)`,
	} {
		_, err := conn.Exec(t.Context(), `SELECT `+call+` FROM (SELECT $1::bigint) f`, flow)
		wantCode(t, call, err, "WR003")
	}
	for _, outcome := range []string{"completed", "failed", "cancelled"} {
		_, err := record(t.Context(), conn, worker, got[:1], outcome, nil)
		wantCode(t, outcome, err, "WR003")
	}
	_, err := conn.Exec(t.Context(), `SELECT weir._complete($1, $2, $3, $4)`, worker, got[0].Lane, got[0].Seq, got[0].ID)
	wantCode(t, "_complete", err, "WR003")
	exec(t, conn, `SELECT weir.enqueue('plain', 'k')`)

	exec(t, conn, `SELECT weir.rebase()`)
	addTo(t, conn, flow, 1)
	exec(t, conn, `SELECT weir.seal($1)`, flow)
	worker = startWorker(t, conn, "q", "back", "plain")
	mustComplete(t, conn, worker, mustClaim(t, conn, worker, "plain", 1))
	mustComplete(t, conn, worker, mustClaim(t, conn, worker, "q", 3))
	fold(t, conn)
	wantFlow(t, conn, flow, flowState{State: "succeeded", Generation: 1, Jobs: 3, Completed: 3})
	wantCallbacks(t, conn, flow, "success 1", "done 1")
}
