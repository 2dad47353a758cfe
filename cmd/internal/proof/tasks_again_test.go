package proof

import (
	"context"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAFlowIsRetriedAsAWhole: its next generation ends once, when all that was retried has ended, at whatever depth, also if all of that is counted at once.
func TestAFlowIsRetriedAsAWhole(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q", "back")
	flow := newFlow(t, conn, "f")
	middle := value[int64](t, conn, `SELECT weir.flow('middle', parent => $1)`, flow)
	inner := value[int64](t, conn, `SELECT weir.flow('inner', parent => $1)`, middle)
	exec(t, conn, `SELECT weir.enqueue('q', 'k', flow => f), weir.seal(f) FROM unnest($1::bigint[]) f`, []int64{flow, middle, inner})
	endAs(t, conn, worker, "failed", claimAll(t, conn, worker, "q")...)
	foldAll(t, conn)
	wantFlow(t, conn, flow, flowState{State: "failed", Generation: 1, Jobs: 2, Failed: 2})
	exec(t, conn, `SELECT weir.retry_flow($1)`, flow)
	mustComplete(t, conn, worker, claimAll(t, conn, worker, "q"))
	foldAll(t, conn)
	wantFlow(t, conn, flow, flowState{State: "succeeded", Generation: 2, Jobs: 2, Completed: 2})
	wantCallbacks(t, conn, flow, "done 1", "success 2", "done 2")
}

// TestAFlowDoesNotEndBeforeWhatRunsAgainWithinIt: neither does it if a member that ended long ago, deep within it, is retried just before the last one ends.
func TestAFlowDoesNotEndBeforeWhatRunsAgainWithinIt(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q", "back")
	flow := newFlow(t, conn, "f")
	inner := value[int64](t, conn, `SELECT weir.flow('inner', parent => $1)`, flow)
	exec(t, conn, `SELECT weir.enqueue('q', 'leaf', flow => $2), weir.enqueue('q', 'last', flow => $1), weir.seal($1), weir.seal($2)`, flow, inner)
	got := claimTasks(t, conn, worker)
	endAs(t, conn, worker, "failed", got["leaf"])
	foldAll(t, conn)
	exec(t, conn, `SELECT weir.retry($1)`, got["leaf"].ID)
	mustComplete(t, conn, worker, []attempt{got["last"]})
	foldAll(t, conn)
	wantCallbacks(t, conn, flow)
	mustComplete(t, conn, worker, claimAll(t, conn, worker, "q"))
	foldAll(t, conn)
	wantFlow(t, conn, flow, flowState{State: "succeeded", Generation: 1, Jobs: 2, Completed: 2})
	wantCallbacks(t, conn, flow, "success 1", "done 1")
}

// TestATaskDoesNotStartWhileOneThatItComesAfterRunsAgain: although that had ended before.
func TestATaskDoesNotStartWhileOneThatItComesAfterRunsAgain(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q", "back")
	flow := newFlow(t, conn, "f")
	ids := addTasks(t, conn, flow, "a", "z", "c<a,z")
	foldAll(t, conn)
	first := claimTasks(t, conn, worker)
	inner := value[int64](t, conn, `SELECT weir.flow('inner', parent => $1)`, ids[0])
	exec(t, conn, `SELECT weir.enqueue('q', 'leaf', flow => $1), weir.seal($1)`, inner)
	leaf := claimTasks(t, conn, worker)["leaf"]
	mustComplete(t, conn, worker, []attempt{first["a"], leaf})
	foldAll(t, conn)
	exec(t, conn, `SELECT weir.retry($1)`, leaf.ID)
	addTasks(t, conn, flow, "b<a", "d<~a")
	mustComplete(t, conn, worker, []attempt{first["z"]}) // which is known sooner than what has happened deep within a
	foldAll(t, conn)
	got := claimTasks(t, conn, worker)
	wantKinds(t, got, "leaf")
	mustComplete(t, conn, worker, []attempt{got["leaf"]})
	foldAll(t, conn)
	wantKinds(t, claimTasks(t, conn, worker), "b", "c", "d")
}

// TestNoTaskStartsInACancelledFlow: neither one that was added just before, nor one that comes after a task that has just ended, at any depth.
func TestNoTaskStartsInACancelledFlow(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q", "back")
	flow := newFlow(t, conn, "f")
	inner := value[int64](t, conn, `SELECT weir.flow('inner', parent => $1)`, flow)
	addTasks(t, conn, inner, "a", "b<a", "c<~a")
	foldAll(t, conn)
	mustComplete(t, conn, worker, claimAll(t, conn, worker, "q"))
	deep := value[int64](t, conn, `SELECT weir.flow('deep', parent => $1)`, inner)
	addTasks(t, conn, deep, "new")
	exec(t, conn, `SELECT weir.cancel_flow($1)`, flow)
	foldAll(t, conn)
	wantKinds(t, claimTasks(t, conn, worker))
	if got := taskStates(t, conn, inner) + ", " + taskStates(t, conn, deep); got != "a succeeded, b cancelled, c cancelled, new cancelled" {
		t.Errorf("the tasks are: %s", got)
	}
	wantFlow(t, conn, flow, flowState{State: "cancelled", Generation: 1, Jobs: 1, Cancelled: 1})
	wantCallbacks(t, conn, flow, "done 1")
}

// TestAFlowFailsFastAgainAfterARetry: also if its member fails again before the retry is counted.
func TestAFlowFailsFastAgainAfterARetry(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q", "back")
	flow := value[int64](t, conn, `SELECT weir.flow('f', fail_fast => true)`)
	exec(t, conn, `SELECT weir.enqueue('q', 'bad', flow => $1), weir.enqueue('q', 'slow', flow => $1, run_at => now() + interval '1 hour'), weir.seal($1)`, flow)
	for range 2 {
		endAs(t, conn, worker, "failed", claimTasks(t, conn, worker)["bad"])
		foldAll(t, conn)
		wantFlow(t, conn, flow, flowState{State: "cancelling", Generation: 1, Jobs: 2, Unfinished: 1, Failed: 1})
		exec(t, conn, `SELECT weir.retry_flow($1)`, flow)
	}
	mustComplete(t, conn, worker, claimAll(t, conn, worker, "q"))
	exec(t, conn, `SELECT weir._promote(upto => now() + interval '1 day')`)
	mustComplete(t, conn, worker, claimAll(t, conn, worker, "q"))
	foldAll(t, conn)
	wantFlow(t, conn, flow, flowState{State: "succeeded", Generation: 1, Jobs: 2, Completed: 2})
}

// TestRetryingAFlowRetriesWhatWasCancelledWithinIt: a task and a flow that were cancelled on their own, whether their members have ended or not, and one that
// had none, which calls back anew.
func TestRetryingAFlowRetriesWhatWasCancelledWithinIt(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q", "back")
	flow := newFlow(t, conn, "f")
	tasks := addTasks(t, conn, flow, "a", "b<a")
	foldAll(t, conn)
	within := func(name string) int64 {
		return value[int64](t, conn, `SELECT weir.flow($2, on_success => '{"queue": "back", "kind": "success"}', parent => $1)`, flow, name)
	}
	inner, empty := within("inner"), within("empty")
	exec(t, conn, `SELECT weir.enqueue('q', 'leaf', flow => $1)`, inner)
	foldAll(t, conn)
	exec(t, conn, `SELECT weir.cancel_flow(f) FROM unnest($1::bigint[]) f`, []int64{tasks[1], inner, empty})
	foldAll(t, conn)
	if got := taskStates(t, conn, flow); got != "a running, b cancelled" {
		t.Errorf("the tasks are: %s", got)
	}
	exec(t, conn, `SELECT weir.retry_flow($1), weir.seal($1)`, flow)
	foldAll(t, conn)
	if got := taskStates(t, conn, flow); got != "a running, b blocked" {
		t.Errorf("after the retry, the tasks are: %s", got)
	}
	exec(t, conn, `SELECT weir.enqueue('q', 'more', flow => $1)`, inner) // it takes jobs again
	got := claimTasks(t, conn, worker)
	wantKinds(t, got, "a", "leaf", "more")
	mustComplete(t, conn, worker, []attempt{got["a"], got["leaf"], got["more"]})
	foldAll(t, conn)
	mustComplete(t, conn, worker, append(claimAll(t, conn, worker, "q"), claimAll(t, conn, worker, "back")...))
	foldAll(t, conn)
	wantCallbacks(t, conn, inner, "success 1")
	wantCallbacks(t, conn, empty, "success 2")
	wantFlow(t, conn, flow, flowState{State: "succeeded", Generation: 1, Jobs: 6, Completed: 6})
}

// TestWhatACutLogsIsCountedWhoeverCommitsMeanwhile: a snapshot that PostgreSQL takes does not list the transaction that takes it, so if a younger one has ended
// meanwhile, it looks as if what the cut itself logs, for the flows around those that have ended, had been counted.
func TestWhatACutLogsIsCountedWhoeverCommitsMeanwhile(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for range 3 {
		all.Go(func() {
			other, err := pgx.Connect(ctx, url)
			if err != nil {
				return
			}
			defer func() { _ = other.Close(context.Background()) }()
			for err == nil {
				_, err = other.Exec(ctx, `SELECT pg_current_xact_id()`)
			}
		})
	}
	for range 300 {
		flow := value[int64](t, conn, `SELECT weir.flow('f')`)
		exec(t, conn, `SELECT weir.seal(f) FROM unnest(ARRAY[weir.flow('inner', parent => $1), $1]) f`, flow)
		foldAll(t, conn)
		wantFlow(t, conn, flow, flowState{State: "succeeded", Generation: 1, Jobs: 1, Completed: 1})
		if t.Failed() {
			return
		}
	}
}
