package proof

import (
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// ownServer returns the database of a server of the test's own: nothing is retired before the transactions of others, in any database of a server, have ended.
func ownServer(t *testing.T) string {
	t.Helper()
	url := pgtest.Server(t, nil).URL("postgres")
	if err := schema.Up(t.Context(), connect(t, url)); err != nil {
		t.Fatal(err)
	}
	return url
}

// TestACancellationThatARetryHasNotSeenCounts: whichever of their transactions commits first, and in one transaction: so a cancelled flow does not go on because somebody
// had retried it before.
func TestACancellationThatARetryHasNotSeenCounts(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, canceller := connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q", "back")
	for _, inOne := range []bool{false, true} {
		flow := newFlow(t, conn, "f")
		addTo(t, conn, flow, 2)
		exec(t, conn, `SELECT weir.seal($1)`, flow)
		got := mustClaim(t, conn, worker, "q", 2)
		endAs(t, conn, worker, "failed", got[0])
		foldAll(t, conn)
		exec(t, canceller, `BEGIN`)
		if inOne {
			exec(t, canceller, `SELECT weir.retry_flow($1)`, flow)
			exec(t, canceller, `SELECT weir.cancel_flow($1)`, flow)
		} else {
			exec(t, canceller, `SELECT weir.cancel_flow($1)`, flow)
			exec(t, conn, `SELECT weir.retry_flow($1)`, flow)
		}
		exec(t, canceller, `COMMIT`)
		for range 2 {
			if s := flowNow(t, conn, flow); s.State != "cancelling" {
				t.Errorf("the flow is %s, want cancelling (in one transaction: %v)", s.State, inOne)
			}
			_, err := conn.Exec(t.Context(), `SELECT weir.enqueue('q', 'k', flow => $1)`, flow)
			wantCode(t, "a job for a cancelled flow", err, "55000")
			foldAll(t, conn)
		}
		mustComplete(t, conn, worker, got[1:])
		for _, a := range claimAll(t, conn, worker, "q") {
			mustComplete(t, conn, worker, []attempt{a})
		}
		foldAll(t, conn)
		if s := flowNow(t, conn, flow); s.State != "cancelled" {
			t.Errorf("in the end the flow is %+v", s)
		}
		for _, c := range callbacks(t, conn, flow) {
			if c.Kind == "success" {
				t.Error("a cancelled flow has succeeded")
			}
		}
		// A retry that has seen it undoes it.
		exec(t, conn, `SELECT weir.retry_flow($1)`, flow)
		foldAll(t, conn)
		if s := flowNow(t, conn, flow); s.State == "cancelling" || s.State == "cancelled" {
			t.Errorf("after a retry the flow is %s", s.State)
		}
		mustComplete(t, conn, worker, claimAll(t, conn, worker, "q"))
	}
}

// TestDeadlinesGoByTheClockAsItIs: if it was ahead once, flows that are created after it was set back have their time.
func TestDeadlinesGoByTheClockAsItIs(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	startWorker(t, conn, "q", "back")
	exec(t, conn, `INSERT INTO weir.flow_cut (no, due, snapshot) SELECT no + 1, now() + interval '2 days', snapshot FROM weir.flow_cut ORDER BY no DESC LIMIT 1`) // as a cut leaves behind then
	flow := newFlow(t, conn, "f")
	addTo(t, conn, flow, 1)
	foldAll(t, conn)
	wantFlow(t, conn, flow, flowState{State: "open", Generation: 1, Jobs: 1, Unfinished: 1})
	short := value[int64](t, conn, `SELECT weir.flow('f', on_done => '{"queue": "back", "kind": "done"}', deadline => clock_timestamp() + interval '1 second')`)
	until(t, "its deadline has come", func() bool {
		foldAll(t, conn)
		return flowNow(t, conn, short).State == "abandoned"
	})
	wantCallbacks(t, conn, short, "done 1")
}

// TestAFlowIsNotForgottenWhileAMemberIsRetried: even if it ended longer ago than flows are kept, and the retry is not counted or not committed yet.
func TestAFlowIsNotForgottenWhileAMemberIsRetried(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, open := connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q", "back")
	exec(t, conn, `SELECT weir.set('failed_retention', '0 s'), weir.set('completed_retention', '0 s')`)
	var flows, members []int64
	for range 2 {
		flow := newFlow(t, conn, "f")
		members = append(members, addTo(t, conn, flow, 1)...)
		exec(t, conn, `SELECT weir.seal($1)`, flow)
		flows = append(flows, flow)
	}
	endAs(t, conn, worker, "failed", mustClaim(t, conn, worker, "q", 2)...)
	foldAll(t, conn)
	exec(t, conn, `SELECT weir.retry($1)`, members[0])
	exec(t, open, `BEGIN`)
	exec(t, open, `SELECT weir.retry($1)`, members[1])
	compact := func() {
		t.Helper()
		// As if so many flows had ended.
		exec(t, conn, `WITH f AS (INSERT INTO weir.flow (id, created_at, deadline, name, root) SELECT n, now(), '-infinity', repeat('x', 200), n FROM (SELECT nextval('weir.flow_id') AS n FROM generate_series(1, 20000)) n RETURNING id)
			INSERT INTO weir.fold (flow, cut, jobs, completed, failed, cancelled, generation, is_sealed, is_cancelled, is_abandoned, fired_at, is_skipped) SELECT f.id, 0, 0, 0, 0, 0, 1, true, false, false, '-infinity', false FROM f`)
		exec(t, conn, `SELECT setval('weir.flow_bytes', 0)`)
		for range 12 {
			exec(t, conn, `SELECT weir._compact_flows()`)
		}
	}
	compact()
	exec(t, open, `COMMIT`)
	for range 12 { // before it is counted
		exec(t, conn, `SELECT weir._compact_flows()`)
	}
	mustComplete(t, conn, worker, claimAll(t, conn, worker, "q"))
	foldAll(t, conn)
	for _, flow := range flows {
		wantCallbacks(t, conn, flow, "done 1", "success 2", "done 2")
	}
	compact()
	if n := value[int](t, conn, `SELECT count(*) FROM weir.flow WHERE id = ANY($1)`, flows); n != 0 {
		t.Errorf("%d of the flows are kept, though they have ended", n)
	}
}

// TestAddingToAFlowCostsTheSameHoweverMuchIsNotCounted: in the transaction that has created it as well, and while nobody counts.
func TestAddingToAFlowCostsTheSameHoweverMuchIsNotCounted(t *testing.T) {
	pgtest.Alone(t, "it counts which blocks a call touches, which depends on the transactions of the whole server")
	conn := connect(t, pgtest.Database(t))
	exec(t, conn, `SELECT weir.cancel_where('q') FROM (SELECT weir.enqueue('q', 'k')) k`) // a cancellation, which has been retired, makes no difference
	exec(t, conn, `DELETE FROM weir.cancellation_where`)
	exec(t, conn, `BEGIN`)
	flow := newFlow(t, conn, "f")
	touched := func() int {
		t.Helper()
		return blocks(t, conn, `SELECT weir.enqueue('q', 'k', flow => `+value[string](t, conn, `SELECT $1::bigint::text`, flow)+`)`)
	}
	touched()
	before := touched()
	exec(t, conn, `SELECT weir.enqueue('q', 'k', flow => $1) FROM generate_series(1, 2000)`, flow)
	if after := touched(); after > before+20 {
		t.Errorf("adding a job touches %d blocks, and after 2000 others %d", before, after)
	}
}

// TestReadingAFlowCostsTheSameHoweverManyItsTransactionHasCreated: also when transactions that are younger have ended meanwhile.
func TestReadingAFlowCostsTheSameHoweverManyItsTransactionHasCreated(t *testing.T) {
	pgtest.Alone(t, "it counts which blocks a call touches, which depends on the transactions of the whole server")
	url := pgtest.Database(t)
	conn, other := connect(t, url), connect(t, url)
	exec(t, conn, `BEGIN`)
	flow := newFlow(t, conn, "f")
	touched := func() int {
		t.Helper()
		enqueueN(t, other, "q", 1)
		return blocks(t, conn, `SELECT * FROM weir.flow_info(`+value[string](t, conn, `SELECT $1::bigint::text`, flow)+`)`)
	}
	touched()
	before := touched()
	exec(t, conn, `SELECT weir.flow('another') FROM generate_series(1, 2000)`)
	if after := touched(); after > before+20 {
		t.Errorf("reading a flow touches %d blocks, and after 2000 others were created %d", before, after)
	}
	exec(t, conn, `SELECT weir.seal($1)`, flow)
	exec(t, conn, `COMMIT`)
	wantFlow(t, conn, flow, flowState{State: "running", Generation: 1})
}

// TestCancellationsOfFlowsAreRetiredTogether: however many flows were cancelled, and they leave the limit of cancellations by filter alone.
func TestCancellationsOfFlowsAreRetiredTogether(t *testing.T) {
	t.Parallel()
	conn := connect(t, ownServer(t))
	worker := startWorker(t, conn, "q", "back")
	exec(t, conn, `SELECT weir.cancel_flow(f.id), weir.cancel_flow(f.id) FROM (SELECT weir.flow('f') AS id, n FROM generate_series(1, 1500) n OFFSET 0) f`)
	if n := value[int](t, conn, `SELECT count(*) FROM weir.cancellation_where`); n != 1500 {
		t.Errorf("%d cancellations of 1500 flows, each of which was cancelled twice", n)
	}
	exec(t, conn, `SELECT weir.enqueue('q', 'k')`)
	exec(t, conn, `SELECT weir.cancel_where('q')`)
	claimAll(t, conn, worker, "q")
	foldAll(t, conn)
	tidyUntil(t, conn, "retired a cancellation")
	if n := value[int](t, conn, `SELECT count(*) FROM weir.cancellation_where WHERE flow IS NOT NULL`); n != 0 {
		t.Errorf("%d cancellations of flows are left", n)
	}
}

// TestRunningMembersAreCounted: those of this flow, whoever runs them, with jobs of others in the same batches, until they end.
func TestRunningMembersAreCounted(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	workers := []int32{startWorker(t, conn, "q"), startWorker(t, conn, "q")}
	flow, other := newFlow(t, conn, "f"), newFlow(t, conn, "other")
	exec(t, conn, `SELECT weir.enqueue('q', 'k', flow => CASE n % 3 WHEN 0 THEN $1::bigint WHEN 1 THEN $2 END) FROM generate_series(1, 30) n`, flow, other)
	running := func() int { t.Helper(); return value[int](t, conn, `SELECT weir.flow_running($1)`, flow) }
	if n := running(); n != 0 {
		t.Errorf("%d members run before any was claimed", n)
	}
	mixed := mustClaim(t, conn, workers[0], "q", 15)
	if n := running(); n != 5 {
		t.Errorf("%d members run, want 5", n)
	}
	rest := mustClaim(t, conn, workers[1], "q", 15)
	addTo(t, conn, flow, 4)
	alone := mustClaim(t, conn, workers[1], "q", 3)
	if n := running(); n != 13 {
		t.Errorf("%d members run, want 13", n)
	}
	mustComplete(t, conn, workers[0], mixed)
	mustComplete(t, conn, workers[1], alone[:2])
	if n := running(); n != 6 {
		t.Errorf("%d members run, want 6", n)
	}
	mustComplete(t, conn, workers[1], append(rest, alone[2]))
	if n := running(); n != 0 {
		t.Errorf("%d members run in the end", n)
	}
}
