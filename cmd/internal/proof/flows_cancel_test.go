package proof

import (
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestMembersAddedBesideACancellationAreCancelled: what a transaction adds that can't see the cancellation yet, whichever of both commits first, is
// cancelled once it is counted, in flows within as well; what the retry of the flow has brought back, or is added after it, is not.
func TestMembersAddedBesideACancellationAreCancelled(t *testing.T) {
	t.Parallel()
	for name, cancelFirst := range map[string]bool{"the cancellation commits first": true, "the members commit first": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			conn, canceller := connect(t, url), connect(t, url)
			worker := startWorker(t, conn, "q", "back")
			flow := newFlow(t, conn, "f")
			within := value[int64](t, conn, `SELECT weir.flow('within', parent => $1)`, flow)
			addTo(t, conn, flow, 1)
			foldAll(t, conn)
			adder := connect(t, url)
			exec(t, canceller, `BEGIN`)
			exec(t, canceller, `SELECT weir.cancel_flow($1)`, flow)
			exec(t, adder, `BEGIN`)
			late := append(addTo(t, adder, flow, 3), addTo(t, adder, within, 2)...)
			if cancelFirst {
				exec(t, canceller, `COMMIT`)
				foldAll(t, conn)
			}
			exec(t, adder, `COMMIT`)
			if !cancelFirst {
				foldAll(t, conn)
				exec(t, canceller, `COMMIT`)
			}
			foldAll(t, conn)
			if live := claimAll(t, conn, worker, "q"); len(live) != 0 {
				t.Errorf("%d members start, of which %d were added beside the cancellation", len(live), len(late))
			}
			foldAll(t, conn)
			if state := flowNow(t, conn, flow); state.State != "cancelled" || state.Unfinished != 0 || state.Cancelled != state.Jobs {
				t.Errorf("the flow is %+v", state)
			}
			exec(t, conn, `SELECT weir.retry_flow($1)`, flow)
			addTo(t, conn, flow, 4)
			foldAll(t, conn)
			if live := claimAll(t, conn, worker, "q"); len(live) != 10 {
				t.Errorf("after the retry, %d members start, want 10", len(live))
			}
		})
	}
}

// TestCallbacksOfFlowsWithinACancelledOneCome: a flow that has ended calls back, whatever becomes of the flow around it: also if that fails because this one did.
func TestCallbacksOfFlowsWithinACancelledOneCome(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q", "back")
	flow := value[int64](t, conn, `SELECT weir.flow('around', on_done => '{"queue": "back", "kind": "done"}', fail_fast => true)`)
	within := value[int64](t, conn, `SELECT weir.flow('within', on_done => '{"queue": "back", "kind": "done within"}', parent => $1)`, flow)
	addTo(t, conn, within, 1)
	addTo(t, conn, flow, 1)
	exec(t, conn, `SELECT weir.seal(f) FROM unnest(ARRAY[$1, $2]::bigint[]) f`, flow, within)
	endAs(t, conn, worker, "failed", mustClaim(t, conn, worker, "q", 1)...)
	foldAll(t, conn) // it has ended, so the flow around it fails, and is cancelled
	if state := flowNow(t, conn, flow).State; state != "cancelling" {
		t.Fatalf("the flow around is %s", state)
	}
	if live := claimAll(t, conn, worker, "q"); len(live) != 0 {
		t.Errorf("%d members start after one has failed", len(live))
	}
	foldAll(t, conn)
	called := claimAll(t, conn, worker, "back")
	if len(called) != 1 || called[0].Kind != "done within" {
		t.Fatalf("%v was called, want the flow within alone", called)
	}
	if gone := value[[]int64](t, conn, `SELECT weir._cancelled_among($1)`, idsOf(called)); len(gone) != 0 {
		t.Errorf("it is told to stop")
	}
	mustComplete(t, conn, worker, called)
	foldAll(t, conn)
	if called = claimAll(t, conn, worker, "back"); len(called) != 1 || called[0].Kind != "done" {
		t.Errorf("then %v was called, want the flow around", called)
	}
	if state := flowNow(t, conn, flow).State; state != "cancelled" {
		t.Errorf("in the end, the flow around is %s", state)
	}
}

// TestCountersStayWithinTheirType: so a client can always read them.
func TestCountersStayWithinTheirType(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	flow := newFlow(t, conn, "f")
	const most, least = "9223372036854775807", "-9223372036854775808"
	for range 2 {
		exec(t, conn, `SELECT weir.increment($1, 'up', `+most+`), weir.increment($1, 'down', '`+least+`')`, flow)
		for range 2 { // before and after it is counted
			if got, want := value[string](t, conn, `SELECT counters::text FROM weir.flow_info($1)`, flow), `{"up": `+most+`, "down": `+least+`}`; got != want {
				t.Errorf("the counters are %s, want %s", got, want)
			}
			foldAll(t, conn)
		}
	}
}
