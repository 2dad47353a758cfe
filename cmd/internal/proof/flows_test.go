package proof

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// newFlow creates a flow whose callbacks are jobs of the queue back.
func newFlow(t *testing.T, q querier, name string) int64 {
	t.Helper()
	return value[int64](t, q, `SELECT weir.flow($1, on_done => '{"queue": "back", "kind": "done"}', on_success => '{"queue": "back", "kind": "success"}')`, name)
}

// addTo adds n jobs of the queue q to a flow.
func addTo(t *testing.T, q querier, flow int64, n int) []int64 {
	t.Helper()
	return value[[]int64](t, q, `SELECT weir.enqueue_many(array_agg('q'::text), array_agg('k'::text), flow => array_agg($1::bigint)) FROM generate_series(1, $2::int)`, flow, n)
}

// fold counts what has arrived, and returns how many flows have ended.
func fold(t *testing.T, q querier) int {
	t.Helper()
	return value[int](t, q, `SELECT fired FROM weir._fold_arrivals()`)
}

// flowState is what weir.flow_info says about a flow.
type flowState struct {
	State                                          string
	Generation                                     int
	Jobs, Unfinished, Completed, Failed, Cancelled int64
}

func flowNow(t *testing.T, q querier, flow int64) flowState {
	t.Helper()
	rows, err := q.Query(t.Context(), `SELECT state, generation, jobs, unfinished, completed, failed, cancelled FROM weir.flow_info($1)`, flow)
	if err != nil {
		t.Fatal(err)
	}
	s, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[flowState])
	if err != nil {
		t.Fatalf("flow %d: %v", flow, err)
	}
	return s
}

func wantFlow(t *testing.T, q querier, flow int64, want flowState) {
	t.Helper()
	if got := flowNow(t, q, flow); got != want {
		t.Errorf("flow %d is %+v, want %+v", flow, got, want)
	}
}

// callback is what a callback's meta says about its flow.
type callback struct {
	Kind                               string
	ID                                 int64
	Generation                         int
	Jobs, Completed, Failed, Cancelled int64
}

// callbacks returns the callbacks of a flow, in the order in which they were enqueued.
func callbacks(t *testing.T, q querier, flow int64) (all []callback) {
	t.Helper()
	for _, text := range column[string](t, q, `SELECT (meta->'weir.flow' || jsonb_build_object('kind', kind))::text FROM weir.job
		WHERE attempt = 1 AND put_off = 0 AND meta->'weir.flow'->>'id' = $1::text ORDER BY id`, fmt.Sprint(flow)) {
		var c callback
		if err := json.Unmarshal([]byte(text), &c); err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	return all
}

// wantCallbacks checks which callbacks a flow has had: kinds and generations.
func wantCallbacks(t *testing.T, q querier, flow int64, want ...string) {
	t.Helper()
	var got []string
	for _, c := range callbacks(t, q, flow) {
		got = append(got, fmt.Sprint(c.Kind, " ", c.Generation))
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("flow %d has had the callbacks %v, want %v", flow, got, want)
	}
}

// TestAFlowCallsBackOnceAllItsMembersHaveEnded: not earlier and not again, with 0, 1 and many members, which a claim hands out in several batches.
func TestAFlowCallsBackOnceAllItsMembersHaveEnded(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q", "back")
	for _, n := range []int{0, 1, 2500} {
		flow := newFlow(t, conn, fmt.Sprint(n))
		if n > 0 {
			addTo(t, conn, flow, n)
		}
		fold(t, conn)
		wantFlow(t, conn, flow, flowState{State: "open", Generation: 1, Jobs: int64(n), Unfinished: int64(n)})
		if !value[bool](t, conn, `SELECT weir.seal($1)`, flow) || value[bool](t, conn, `SELECT weir.seal($1)`, flow) {
			t.Error("the first call of seal must seal, and no other")
		}
		for left := n; left > 0; {
			wantCallbacks(t, conn, flow)
			got := mustClaim(t, conn, worker, "q", 700)
			mustComplete(t, conn, worker, got)
			left -= len(got)
			if left > 0 && fold(t, conn) != 0 {
				t.Error("it has ended too early")
			}
		}
		if ended := fold(t, conn); ended != 1 {
			t.Errorf("%d flows have ended, want 1", ended)
		}
		fold(t, conn)
		wantFlow(t, conn, flow, flowState{State: "succeeded", Generation: 1, Jobs: int64(n), Completed: int64(n)})
		wantCallbacks(t, conn, flow, "success 1", "done 1")
		if c := callbacks(t, conn, flow)[0]; c.Jobs != int64(n) || c.Completed != int64(n) {
			t.Errorf("the callback was told %+v, want %d jobs", c, n)
		}
	}
	if n := len(mustClaim(t, conn, worker, "back", 100)); n != 6 {
		t.Errorf("%d callbacks can be claimed, want 6", n)
	}
}

// TestEachFinalEndArrivesOnce: however a member ends, it counts as ended once, and not while another attempt follows.
func TestEachFinalEndArrivesOnce(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	worker := startWorker(t, conn, "q", "back")
	flow := newFlow(t, conn, "f")
	enqueue := func(kind string, attempts int) int64 {
		t.Helper()
		return value[int64](t, conn, `SELECT weir.enqueue('q', $1, max_attempts => $2, flow => $3)`, kind, attempts, flow)
	}
	want := flowState{State: "open", Generation: 1}
	check := func(what string, unfinished, completed, failed, cancelled int64) {
		t.Helper()
		want.Jobs, want.Unfinished, want.Completed, want.Failed, want.Cancelled = unfinished+completed+failed+cancelled, unfinished, completed, failed, cancelled
		for range 2 { // before and after it is counted
			if got := flowNow(t, conn, flow); got != want {
				t.Errorf("%s: %+v, want %+v", what, got, want)
			}
			fold(t, conn)
		}
	}
	one := func() attempt {
		t.Helper()
		got := mustClaim(t, conn, worker, "q", 1)
		if len(got) != 1 {
			t.Fatalf("claimed %d jobs, want 1", len(got))
		}
		return got[0]
	}
	end := func(a attempt, outcome string) {
		t.Helper()
		if _, err := finish(t.Context(), conn, worker, a, outcome, time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	enqueue("plain", 5)
	check("added", 1, 0, 0, 0)
	a := one()
	check("claimed", 1, 0, 0, 0)
	end(a, "snoozed")
	check("snoozed", 1, 0, 0, 0)
	end(one(), "retried")
	check("retried", 1, 0, 0, 0)
	a = one()
	end(a, "completed")
	end(a, "completed") // repeated
	check("completed", 0, 1, 0, 0)

	enqueue("exhausted", 2)
	end(one(), "retried")
	end(one(), "retried")
	check("failed after its last attempt", 0, 1, 1, 0)
	enqueue("failed", 5)
	end(one(), "failed")
	check("failed for good", 0, 1, 2, 0)

	enqueue("tx", 5)
	a = one()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := completeTx(t.Context(), tx, worker, a); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("completed in a transaction that is rolled back", 1, 1, 2, 0)
	if err := completeTx(t.Context(), conn, worker, a); err != nil {
		t.Fatal(err)
	}
	end(a, "retried")
	check("completed in a transaction", 0, 2, 2, 0)

	id := enqueue("cancelled", 5)
	exec(t, conn, `SELECT weir.cancel($1)`, id)
	check("cancelled, and not claimed", 1, 2, 2, 0)
	end(one(), "cancelled")
	check("cancelled", 0, 2, 2, 1)

	for range 30 {
		enqueue("filtered", 5)
	}
	exec(t, conn, `SELECT weir.cancel_where('q', kinds => '{filtered}')`)
	for range 4 { // usually one ends all of them; if a transaction has just ended, each ends those that it picks
		mustClaim(t, conn, worker, "q", 10)
	}
	check("cancelled by filter at the head of a lane", 0, 2, 2, 31)
	enqueue("stays", 5)
	for range 3 {
		enqueue("filtered", 5)
	}
	enqueue("stays", 5)
	exec(t, conn, `SELECT weir.cancel_where('q', kinds => '{filtered}')`)
	got := mustClaim(t, conn, worker, "q", 10)
	check("cancelled by filter in a batch", 2, 2, 2, 34)
	mustComplete(t, conn, worker, got[:1])
	check("one of a batch in which others were cancelled", 1, 3, 2, 34)

	// Its worker dies.
	exec(t, conn, `SELECT weir._fence($1)`, worker)
	settle(t, conn, worker)
	check("lost", 1, 3, 2, 34)
	worker = startWorker(t, conn, "q", "back")
	mustComplete(t, conn, worker, mustClaim(t, conn, worker, "q", 10))
	check("completed by another worker", 0, 4, 2, 34)
	enqueue("last", 1)
	one()
	exec(t, conn, `SELECT weir._fence($1)`, worker)
	settle(t, conn, worker)
	check("lost in its last attempt", 0, 4, 3, 34)

	exec(t, conn, `SELECT weir.seal($1)`, flow)
	fold(t, conn)
	wantCallbacks(t, conn, flow, "done 1")
}

// TestMembersOfSeveralFlowsShareABatch: each end arrives at its own flow, also of jobs with keys, and of those next to jobs of no flow.
func TestMembersOfSeveralFlowsShareABatch(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q", "back")
	for _, key := range []string{"", "key"} {
		a, b := newFlow(t, conn, "a"), newFlow(t, conn, "b")
		exec(t, conn, `SELECT weir.enqueue_many(array_agg('q'::text), array_agg('k'::text), key => array_agg(nullif($3, '')), flow => array_agg(CASE n % 4 WHEN 0 THEN $1::bigint WHEN 1 THEN $2::bigint WHEN 2 THEN $2 END))
			FROM generate_series(1, 40) n`, a, b, key)
		got := mustClaim(t, conn, worker, "q", 100)
		if len(got) != 40 {
			t.Fatalf("claimed %d jobs, want 40", len(got))
		}
		mustComplete(t, conn, worker, got[:13])
		for _, one := range got[13:16] {
			if err := completeTx(t.Context(), conn, worker, one); err != nil {
				t.Fatal(err)
			}
		}
		if refused, err := record(t.Context(), conn, worker, got[16:20], "failed", nil); err != nil || len(refused) > 0 {
			t.Fatal(refused, err)
		}
		wantFlow(t, conn, a, flowState{State: "open", Generation: 1, Jobs: 10, Unfinished: 5, Completed: 4, Failed: 1})
		wantFlow(t, conn, b, flowState{State: "open", Generation: 1, Jobs: 20, Unfinished: 10, Completed: 8, Failed: 2})
		mustComplete(t, conn, worker, got[20:])
		fold(t, conn)
		wantFlow(t, conn, a, flowState{State: "open", Generation: 1, Jobs: 10, Completed: 9, Failed: 1})
		wantFlow(t, conn, b, flowState{State: "open", Generation: 1, Jobs: 20, Completed: 18, Failed: 2})
	}
}

// TestAnArrivalIsCountedOnceAmongManyOpenTransactions: cuts take what their snapshots see, in whatever order transactions begin and commit.
func TestAnArrivalIsCountedOnceAmongManyOpenTransactions(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	flow := newFlow(t, conn, "f")
	const n = 70 // more than the transactions in progress that a cut skips
	open := make([]*pgx.Conn, n)
	for i := range open {
		open[i] = connect(t, url)
		exec(t, open[i], `BEGIN`)
		addTo(t, open[i], flow, 1)
	}
	added := 0
	for step, i := 0, 0; step < n; step, i = step+1, (i+37)%n {
		if step%5 == 4 {
			exec(t, open[i], `ROLLBACK`)
		} else {
			exec(t, open[i], `COMMIT`)
			added++
		}
		addTo(t, conn, flow, 2)
		added += 2
		if step%3 == 0 {
			fold(t, conn)
		}
		if got := flowNow(t, conn, flow); got.Jobs != int64(added) {
			t.Fatalf("after %d transactions have ended, the flow has %d jobs, want %d", step+1, got.Jobs, added)
		}
	}
	fold(t, conn)
	if counted := value[int](t, conn, `SELECT jobs FROM weir.fold WHERE flow = $1 ORDER BY cut DESC LIMIT 1`, flow); counted != added {
		t.Errorf("%d jobs are counted, want %d", counted, added)
	}
}

// TestTwoFinishersAtOnceMissNobody: if the last two members end in two transactions that do not see each other, the flow ends, once.
func TestTwoFinishersAtOnceMissNobody(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, first, second := connect(t, url), connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q", "back")
	flow := newFlow(t, conn, "f")
	addTo(t, conn, flow, 2)
	exec(t, conn, `SELECT weir.seal($1)`, flow)
	got := mustClaim(t, conn, worker, "q", 2)
	exec(t, first, `BEGIN`)
	exec(t, second, `BEGIN`)
	if err := completeTx(t.Context(), first, worker, got[0]); err != nil {
		t.Fatal(err)
	}
	if err := completeTx(t.Context(), second, worker, got[1]); err != nil {
		t.Fatal(err)
	}
	exec(t, second, `COMMIT`)
	if ended := fold(t, conn); ended != 0 {
		t.Error("it has ended while a member has not")
	}
	exec(t, first, `COMMIT`)
	fold(t, conn)
	wantCallbacks(t, conn, flow, "success 1", "done 1")
}

// TestMembersMayAddOthers: a flow that is sealed does not end before the children that a member has added, and it takes none once it has ended.
func TestMembersMayAddOthers(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q", "back")
	flow := newFlow(t, conn, "f")
	addTo(t, conn, flow, 1)
	exec(t, conn, `SELECT weir.seal($1)`, flow)
	for depth := range 3 {
		parent := mustClaim(t, conn, worker, "q", 1)
		addTo(t, conn, flow, 1)
		mustComplete(t, conn, worker, parent)
		if fold(t, conn) != 0 {
			t.Errorf("it has ended before a child, at depth %d", depth)
		}
	}
	mustComplete(t, conn, worker, mustClaim(t, conn, worker, "q", 1))
	_, err := conn.Exec(t.Context(), `SELECT weir.enqueue('q', 'k', flow => $1)`, flow)
	if err != nil {
		t.Errorf("until it has called back, members may be added: %v", err)
	}
	mustComplete(t, conn, worker, mustClaim(t, conn, worker, "q", 1))
	if fold(t, conn) != 1 {
		t.Error("it has not ended")
	}
	_, err = conn.Exec(t.Context(), `SELECT weir.enqueue('q', 'k', flow => $1)`, flow)
	wantCode(t, "a job for a flow that has ended", err, "55000")
	wantFlow(t, conn, flow, flowState{State: "succeeded", Generation: 1, Jobs: 5, Completed: 5})
	wantCallbacks(t, conn, flow, "success 1", "done 1")
}

// TestAFlowThatNobodySealsIsClosedByItsDeadline: so that nothing is left of it; on_done comes, on_success does not.
func TestAFlowThatNobodySealsIsClosedByItsDeadline(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, slow := connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q", "back")
	// Its transaction commits after the deadline.
	exec(t, slow, `BEGIN`)
	late := value[int64](t, slow, `SELECT weir.flow('late', on_done => '{"queue": "back", "kind": "done"}', deadline => now() + interval '1 millisecond')`)
	flow := value[int64](t, conn, `SELECT weir.flow('f', on_done => '{"queue": "back", "kind": "done"}', on_success => '{"queue": "back", "kind": "success"}', deadline => clock_timestamp() + interval '2 seconds')`)
	addTo(t, conn, flow, 1)
	kept := newFlow(t, conn, "kept")
	wantFlow(t, conn, flow, flowState{State: "open", Generation: 1, Jobs: 1, Unfinished: 1})
	until(t, "the deadline has sealed it", func() bool {
		fold(t, conn)
		return flowNow(t, conn, flow).State == "running"
	})
	wantCallbacks(t, conn, flow)
	mustComplete(t, conn, worker, mustClaim(t, conn, worker, "q", 1))
	exec(t, slow, `COMMIT`)
	if ended := fold(t, conn); ended != 2 {
		t.Errorf("%d flows have ended, want 2", ended)
	}
	wantCallbacks(t, conn, flow, "done 1")
	wantCallbacks(t, conn, late, "done 1")
	wantFlow(t, conn, flow, flowState{State: "abandoned", Generation: 1, Jobs: 1, Completed: 1})
	wantFlow(t, conn, kept, flowState{State: "open", Generation: 1})
}

// TestAMemberThatIsRetriedMakesTheNextGeneration: after a flow has called back, a retry of failed or cancelled members makes it call back once more, and
// says so. Members that are retried before it has ended make no difference.
func TestAMemberThatIsRetriedMakesTheNextGeneration(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q", "back")
	flow := newFlow(t, conn, "f")
	other := newFlow(t, conn, "other")
	addTo(t, conn, other, 1)
	ids := addTo(t, conn, flow, 5)
	exec(t, conn, `SELECT weir.seal($1)`, flow)
	exec(t, conn, `SELECT weir.cancel($1)`, ids[4])
	var members []attempt
	for _, a := range mustClaim(t, conn, worker, "q", 10) {
		outcome := "failed" // also that of the other flow
		switch a.ID {
		case ids[4]:
			outcome = "cancelled"
		case ids[0], ids[1]:
			members = append(members, a)
			continue
		}
		if _, err := finish(t.Context(), conn, worker, a, outcome, time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	exec(t, conn, `SELECT weir.retry($1)`, ids[2])
	fold(t, conn)
	wantFlow(t, conn, flow, flowState{State: "running", Generation: 1, Jobs: 5, Unfinished: 3, Failed: 1, Cancelled: 1})
	mustComplete(t, conn, worker, append(members, mustClaim(t, conn, worker, "q", 10)...))
	fold(t, conn)
	wantCallbacks(t, conn, flow, "done 1")

	if n := value[int](t, conn, `SELECT retried FROM weir.retry_flow($1)`, flow); n != 2 {
		t.Errorf("%d members were retried, want 2", n)
	}
	wantFlow(t, conn, flow, flowState{State: "running", Generation: 2, Jobs: 5, Unfinished: 2, Completed: 3})
	mustComplete(t, conn, worker, mustClaim(t, conn, worker, "q", 10))
	fold(t, conn) // the retry and the end in one cut
	wantFlow(t, conn, flow, flowState{State: "succeeded", Generation: 2, Jobs: 5, Completed: 5})
	wantCallbacks(t, conn, flow, "done 1", "success 2", "done 2")
	if n := value[int](t, conn, `SELECT retried FROM weir.retry_flow($1)`, flow); n != 0 {
		t.Errorf("%d members were retried, want 0", n)
	}
	exec(t, conn, `SELECT weir.retry($1)`, ids[0]) // one that had completed
	fold(t, conn)
	wantFlow(t, conn, flow, flowState{State: "running", Generation: 3, Jobs: 5, Unfinished: 1, Completed: 4})
	wantFlow(t, conn, other, flowState{State: "open", Generation: 1, Jobs: 1, Failed: 1})
}

// TestCancellingAFlowIsOneRow: however many members it has; none of them starts, running ones hear of it, others are not concerned, nobody can add any
// more, on_done comes when all have ended, and retrying the flow undoes it.
func TestCancellingAFlowIsOneRow(t *testing.T) {
	t.Parallel()
	conn := connect(t, ownServer(t))
	worker := startWorker(t, conn, "q", "back")
	flow, other := newFlow(t, conn, "f"), newFlow(t, conn, "other")
	addTo(t, conn, flow, 2)
	running := mustClaim(t, conn, worker, "q", 2)
	addTo(t, conn, flow, 2500)
	exec(t, conn, `SELECT weir.enqueue('q', 'k', run_at => now() + interval '1 hour', flow => $1)`, flow)
	addTo(t, conn, other, 3)
	exec(t, conn, `SELECT weir.enqueue('q', 'k')`)
	exec(t, conn, `SELECT weir.enqueue('q', 'k', key => 'key', flow => f) FROM unnest(ARRAY[$1, $1, $2]::bigint[]) f`, flow, other)
	before := value[int64](t, conn, `SELECT count(*) FROM weir.job`)
	if got := value[string](t, conn, `SELECT weir.cancel_flow($1)`, flow); got != "cancelling" {
		t.Errorf("cancel_flow says %s", got)
	}
	if after := value[int64](t, conn, `SELECT count(*) FROM weir.job`); after != before || value[int](t, conn, `SELECT count(*) FROM weir.cancellation_where`) != 1 {
		t.Errorf("it has written more than one row")
	}
	if got := value[[]int64](t, conn, `SELECT weir._cancelled_among($1)`, idsOf(running)); len(got) != 2 {
		t.Errorf("of the running members, %v hear of it", got)
	}
	for range 2 {
		_, err := conn.Exec(t.Context(), `SELECT weir.enqueue('q', 'k', flow => $1)`, flow)
		wantCode(t, "a job for a cancelled flow", err, "55000")
		fold(t, conn)
	}
	if live := takeAll(t, conn, worker, "q"); len(live) != 5 {
		t.Errorf("claimed %d jobs of others, want 5", len(live))
	}
	exec(t, conn, `SELECT weir._promote(upto => now() + interval '2 hours')`)
	if live := takeAll(t, conn, worker, "q"); len(live) != 0 {
		t.Errorf("claimed %d scheduled members", len(live))
	}
	fold(t, conn)
	wantFlow(t, conn, flow, flowState{State: "cancelling", Generation: 1, Jobs: 2505, Unfinished: 2, Cancelled: 2503})
	for _, a := range running {
		if _, err := finish(t.Context(), conn, worker, a, "cancelled", time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	fold(t, conn)
	wantFlow(t, conn, flow, flowState{State: "cancelled", Generation: 1, Jobs: 2505, Cancelled: 2505})
	wantCallbacks(t, conn, flow, "done 1")
	if got := value[string](t, conn, `SELECT weir.cancel_flow($1)`, flow); got != "cancelled" {
		t.Errorf("cancel_flow of a cancelled flow says %s", got)
	}
	tidyUntil(t, conn, "retired a cancellation")
	retried := 0
	for after := new(string); after != nil; {
		var n int
		if *after == "" {
			after = nil
		}
		if err := conn.QueryRow(t.Context(), `SELECT retried, next FROM weir.retry_flow($1, $2)`, flow, after).Scan(&n, &after); err != nil {
			t.Fatal(err)
		}
		retried += n
	}
	if retried != 2505 {
		t.Errorf("%d members were retried, want 2505", retried)
	}
	mustComplete(t, conn, worker, takeAll(t, conn, worker, "q"))
	fold(t, conn)
	wantFlow(t, conn, flow, flowState{State: "succeeded", Generation: 2, Jobs: 2505, Completed: 2505})
	wantFlow(t, conn, other, flowState{State: "open", Generation: 1, Jobs: 4, Unfinished: 4})
	wantCallbacks(t, conn, flow, "done 1", "success 2", "done 2")
}

// TestACancelledFlowCanBeRetriedBeforeItsMembersEnd: members that wait run after all, and the flow succeeds.
func TestACancelledFlowCanBeRetriedBeforeItsMembersEnd(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q", "back")
	flow := newFlow(t, conn, "f")
	addTo(t, conn, flow, 4)
	exec(t, conn, `SELECT weir.cancel_flow($1)`, flow)
	fold(t, conn)
	if n := value[int](t, conn, `SELECT retried FROM weir.retry_flow($1)`, flow); n != 4 {
		t.Errorf("%d members were retried, want 4", n)
	}
	wantFlow(t, conn, flow, flowState{State: "running", Generation: 1, Jobs: 4, Unfinished: 4})
	mustComplete(t, conn, worker, takeAll(t, conn, worker, "q"))
	fold(t, conn)
	wantCallbacks(t, conn, flow, "success 1", "done 1")
}

// TestAMovedMemberStaysInItsFlow: also if it is put off, promoted, retried, or carried into another segment while it waits or runs.
func TestAMovedMemberStaysInItsFlow(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	smallSegments(t, conn)
	worker := startWorker(t, conn, "q", "elsewhere", "back", "filler")
	flow, other := newFlow(t, conn, "f"), newFlow(t, conn, "other")
	exec(t, conn, `SELECT weir.enqueue('q', 'k', run_at => now() + interval '1 hour', flow => $1)`, flow) // it has nothing but its flow to go by
	addTo(t, conn, flow, 1)
	addTo(t, conn, other, 2)
	exec(t, conn, `SELECT weir.enqueue('q', 'k')`)
	exec(t, conn, `SELECT weir.move_where('q', to_queue => 'elsewhere')`)
	exec(t, conn, `SELECT weir._promote(upto => now() + interval '2 hours')`)
	got := mustClaim(t, conn, worker, "elsewhere", 10)
	if len(got) != 5 {
		t.Fatalf("claimed %d jobs, want 5", len(got))
	}
	mustComplete(t, conn, worker, got[:1])
	addTo(t, conn, flow, 1)
	turn(t, conn, worker)
	turn(t, conn, worker)
	if refused, err := record(t.Context(), conn, worker, got[1:3], "retried", nil); err != nil || len(refused) > 0 {
		t.Fatal(refused, err)
	}
	mustComplete(t, conn, worker, got[3:])
	mustComplete(t, conn, worker, append(mustClaim(t, conn, worker, "elsewhere", 10), mustClaim(t, conn, worker, "q", 10)...))
	fold(t, conn)
	wantFlow(t, conn, flow, flowState{State: "open", Generation: 1, Jobs: 3, Completed: 3})
	wantFlow(t, conn, other, flowState{State: "open", Generation: 1, Jobs: 2, Completed: 2})
}

// TestFlowsRefuseWhatTheyDoNotUnderstand: and leave nothing behind.
func TestFlowsRefuseWhatTheyDoNotUnderstand(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	for _, c := range []struct{ sql, code string }{
		{`SELECT weir.flow(NULL)`, "22023"}, {`SELECT weir.flow('')`, "22023"}, {`SELECT weir.flow(repeat('x', 201))`, "22023"},
		{`SELECT weir.flow('f', on_done => '[]')`, "22023"}, {`SELECT weir.flow('f', on_done => '{"queue": "q"}')`, "22023"},
		{`SELECT weir.flow('f', on_done => '{"queue": "q", "kind": "k", "run_at": "now"}')`, "22023"}, {`SELECT weir.flow('f', on_success => '{"queue": "q", "kind": "k", "priority": 9}')`, "22023"},
		{`SELECT weir.flow('f', on_success => jsonb_build_object('queue', 'q', 'kind', 'k', 'meta', jsonb_build_object('x', repeat('x', 65000))))`, "22023"},
		{`SELECT weir.flow('f', on_success => '{"queue": "q", "kind": "k", "priority": "first"}')`, "22P02"},
		{`SELECT weir.flow('f', deadline => '-infinity')`, "22023"}, {`SELECT weir.flow('f', deadline => now() - interval '1 day')`, "22023"}, {`SELECT weir.flow('f', deadline => 'infinity')`, "22023"},
		{`SELECT weir.seal(NULL)`, "22023"}, {`SELECT weir.seal(7)`, "22023"}, {`SELECT weir.retry_flow(7)`, "22023"}, {`SELECT weir.retry_flow(NULL)`, "22023"}, {`SELECT weir.flows(max_rows => 0)`, "22023"},
		{`SELECT weir.enqueue('q', 'k', flow => 7)`, "22023"}, {`SELECT weir.enqueue_many(ARRAY['q'], ARRAY['k'], flow => ARRAY[7])`, "22023"},
		{`SELECT weir.enqueue_many(ARRAY['q'], ARRAY['k'], flow => '{NULL,NULL}')`, "22023"}, {`SELECT weir.enqueue_many('[{"queue": "q", "kind": "k", "flow": 7}]')`, "22023"},
		{`SELECT weir.enqueue_many('[{"queue": "q", "kind": "k", "flow": 7, "unique": true}]')`, "22023"},
	} {
		_, err := conn.Exec(t.Context(), c.sql)
		wantCode(t, c.sql, err, c.code)
	}
	if got := value[*string](t, conn, `SELECT weir.cancel_flow(7)`); got != nil {
		t.Errorf("cancelling an unknown flow says %s", *got)
	}
	if n := value[int](t, conn, `SELECT (SELECT count(*) FROM weir.flow) + (SELECT count(*) FROM weir.arrival) + (SELECT count(*) FROM weir.job) + (SELECT count(*) FROM weir.flow_info(7))`); n != 0 {
		t.Errorf("%d rows were left behind", n)
	}
	flow := value[int64](t, conn, `SELECT weir.flow('f', on_done => 'null')`)
	ids := value[[]int64](t, conn, `SELECT weir.enqueue_many(jsonb_build_array(jsonb_build_object('queue', 'q', 'kind', 'k', 'flow', $1::bigint), '{"queue": "q", "kind": "k", "flow": null}'::jsonb))`, flow)
	if got := column[int64](t, conn, `SELECT (j->>'id')::bigint FROM weir.jobs_page(flow => $1) p, jsonb_array_elements(p.jobs) j`, flow); len(got) != 1 || got[0] != ids[0] {
		t.Errorf("the list of its members has %v, want %v", got, ids[:1])
	}
	exec(t, conn, `BEGIN`)
	exec(t, conn, `SELECT weir.seal(weir.flow('gone'))`)
	exec(t, conn, `ROLLBACK`)
	if got := column[int64](t, conn, `SELECT id FROM weir.flows()`); len(got) != 1 || got[0] != flow {
		t.Errorf("the flows are %v, want %d", got, flow)
	}
}

// TestFlowsOutliveRebase: what was counted stays so, and what was not is counted once, also of transactions that are older than the rebase and go on.
func TestFlowsOutliveRebase(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, older := connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q", "back")
	flow := newFlow(t, conn, "f")
	addTo(t, conn, flow, 6)
	got := mustClaim(t, conn, worker, "q", 3)
	mustComplete(t, conn, worker, got[:1])
	fold(t, conn)
	mustComplete(t, conn, worker, got[1:2])
	exec(t, conn, `SELECT weir.cancel_flow($1)`, newFlow(t, conn, "cancelled"))
	exec(t, older, `BEGIN`)
	exec(t, older, `SELECT pg_current_xact_id()`)
	for range 2 {
		moveElsewhere(t, conn)
		exec(t, conn, `SELECT weir.rebase()`)
		wantFlow(t, conn, flow, flowState{State: "open", Generation: 1, Jobs: 6, Unfinished: 4, Completed: 2})
	}
	addTo(t, older, flow, 1)
	fold(t, conn)
	exec(t, older, `COMMIT`)
	wantFlow(t, conn, flow, flowState{State: "open", Generation: 1, Jobs: 7, Unfinished: 5, Completed: 2})
	fold(t, conn)
	exec(t, conn, `SELECT weir.seal($1)`, flow)
	worker = startWorker(t, conn, "q", "back")
	got = mustClaim(t, conn, worker, "q", 10)
	mustComplete(t, conn, worker, got)
	fold(t, conn)
	wantFlow(t, conn, flow, flowState{State: "succeeded", Generation: 1, Jobs: 7, Completed: 7})
	wantCallbacks(t, conn, flow, "success 1", "done 1")
}

// TestTheTablesOfFlowsAreEmptied: what is counted leaves the disk, of flows that have ended long ago nothing is left, and those that have not are as they
// were, whatever transactions are open.
func TestTheTablesOfFlowsAreEmptied(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, open := connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q", "back")
	smallSegments(t, conn)
	exec(t, conn, `SELECT weir.set('failed_retention', '0 s')`)
	exec(t, conn, `SET work_mem = '64kB'`) // as if there were many more flows: nothing is looked up in a list of all of them
	flow := newFlow(t, conn, "kept")
	addTo(t, conn, flow, 3)
	mustComplete(t, conn, worker, mustClaim(t, conn, worker, "q", 1))
	fold(t, conn)
	exec(t, open, `BEGIN ISOLATION LEVEL REPEATABLE READ`)
	exec(t, open, `SELECT 1`)
	sizes := func() int64 {
		return value[int64](t, conn, `SELECT sum(pg_relation_size(t)) FROM unnest(ARRAY['weir.flow', 'weir.fold', 'weir.arrival_1', 'weir.arrival_2', 'weir.arrival_3']::regclass[]) t`)
	}
	var most int64
	for round := range 5 {
		exec(t, conn, `SELECT weir.seal(weir.flow(repeat('x', 200))) FROM generate_series(1, 8000)`)
		exec(t, conn, `SELECT weir.enqueue('q', 'k', flow => $1)`, flow) // not counted when the tables turn
		for range 12 {
			exec(t, conn, `SELECT weir._compact_flows()`)
		}
		fold(t, conn)
		for range 12 {
			exec(t, conn, `SELECT weir._compact_flows()`)
		}
		most = max(most, sizes())
		wantFlow(t, conn, flow, flowState{State: "open", Generation: 1, Jobs: int64(4 + round), Unfinished: int64(3 + round), Completed: 1})
	}
	if most > 16<<20 {
		t.Errorf("the tables of flows had %d bytes", most)
	}
	if n := value[int](t, conn, `SELECT count(*) FROM weir.flow`); n > 30000 {
		t.Errorf("%d flows are left", n)
	}
	if n := value[int](t, conn, `SELECT n_dead_tup FROM pg_stat_all_tables WHERE relid = 'weir.fold'::regclass`); n > 0 {
		t.Errorf("%d rows of weir.fold are dead", n)
	}
	exec(t, conn, `SELECT weir.seal($1)`, flow)
	mustComplete(t, conn, worker, claimAll(t, conn, worker, "q"))
	fold(t, conn)
	wantCallbacks(t, conn, flow, "success 1", "done 1")
}
