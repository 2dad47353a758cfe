package proof

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

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

// TestWhatIsCancelledBeforeItsDeadlineIsNotAbandoned: a flow that is added beside the cancellation of one around it, at any depth, and whose deadline has
// passed when both are counted, succeeds once it is retried.
func TestWhatIsCancelledBeforeItsDeadlineIsNotAbandoned(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, adder := connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q", "back")
	flow := newFlow(t, conn, "f")
	addTo(t, conn, flow, 1)
	foldAll(t, conn)
	exec(t, adder, `BEGIN`)
	within := []int64{flow}
	for range 3 {
		id := value[int64](t, adder, `SELECT weir.flow('within', deadline => now(), parent => $1)`, within[0])
		addTo(t, adder, id, 1)
		within = append([]int64{id}, within...)
	}
	exec(t, conn, `SELECT weir.cancel_flow($1)`, flow)
	foldAll(t, conn)
	exec(t, adder, `COMMIT`)
	foldAll(t, conn)
	exec(t, conn, `SELECT weir.retry_flow($1)`, flow)
	foldAll(t, conn)
	mustComplete(t, conn, worker, claimAll(t, conn, worker, "q"))
	foldAll(t, conn)
	for depth, id := range within {
		if state := flowNow(t, conn, id); state.State != "succeeded" {
			t.Errorf("after the retry, flow %d, %d from the innermost one, is %+v", id, depth, state)
		}
	}
}

// TestWhatIsRetriedBeforeItIsCountedRuns: a flow and a task that are added beside the cancellation of the flow around them, and retried before they are counted.
func TestWhatIsRetriedBeforeItIsCountedRuns(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, adder := connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q", "back")
	flow := newFlow(t, conn, "f")
	addTo(t, conn, flow, 1)
	foldAll(t, conn)
	exec(t, adder, `BEGIN`)
	within := value[int64](t, adder, `SELECT weir.flow('within', parent => $1)`, flow)
	want := addTo(t, adder, within, 2)
	added := addTasks(t, adder, flow, "a")[0]
	exec(t, conn, `SELECT weir.cancel_flow($1)`, flow)
	foldAll(t, conn)
	exec(t, adder, `COMMIT`)
	for _, id := range []int64{within, added} {
		exec(t, conn, `SELECT weir.retry_flow($1)`, id)
	}
	foldAll(t, conn)
	got := claimAll(t, conn, worker, "q")
	if len(got) != len(want)+1 {
		t.Errorf("after the retry, %d jobs start, want %d and that of the task", len(got), len(want))
	}
	mustComplete(t, conn, worker, got)
	foldAll(t, conn)
	for _, id := range []int64{within, added} {
		if state := flowNow(t, conn, id); state.State != "succeeded" {
			t.Errorf("after the retry, flow %d is %+v", id, state)
		}
	}
}

// TestARetryOfAJobUndoesNoLaterCancellation: a flow within another, which was retried after that was cancelled, and cancelled on its own since, stays cancelled
// when a job of the other is retried; and is cancelled no more when the other is retried as a whole.
func TestARetryOfAJobUndoesNoLaterCancellation(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	flow := newFlow(t, conn, "f")
	jobs := addTo(t, conn, flow, 1)
	within := value[int64](t, conn, `SELECT weir.flow('within', parent => $1)`, flow)
	addTo(t, conn, within, 1)
	foldAll(t, conn)
	for _, step := range []struct {
		sql          string
		id           int64
		flow, within string // the states afterwards
	}{
		{`SELECT weir.cancel_flow($1)`, flow, "cancelling", "cancelling"},
		{`SELECT weir.retry_flow($1)`, within, "cancelling", "running"},
		{`SELECT weir.cancel_flow($1)`, within, "cancelling", "cancelling"},
		{`SELECT weir.retry($1)`, jobs[0], "running", "cancelling"},
		{`SELECT weir.retry_flow($1)`, flow, "running", "running"},
	} {
		exec(t, conn, step.sql, step.id)
		foldAll(t, conn)
		if f, w := flowNow(t, conn, flow).State, flowNow(t, conn, within).State; f != step.flow || w != step.within {
			t.Errorf("after %s of %d, the flow is %s and that within %s, want %s and %s", step.sql, step.id, f, w, step.flow, step.within)
		}
	}
}

// TestARetryOfWhatIsNotCountedReachesAllWithin: a retry of a flow that was added beside the cancellation of the one around it undoes that for all within it, at any
// depth, whatever was counted before it: the cancellation, what was added, both or nothing. If it is cancelled again at once, nothing within it starts.
func TestARetryOfWhatIsNotCountedReachesAllWithin(t *testing.T) {
	t.Parallel()
	for _, counted := range []string{"the cancellation", "what is added", "both", "nothing"} {
		for _, again := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, again %t", counted, again), func(t *testing.T) {
				t.Parallel()
				url := pgtest.Database(t)
				conn, adder := connect(t, url), connect(t, url)
				worker := startWorker(t, conn, "q", "back")
				flow := newFlow(t, conn, "f")
				addTo(t, conn, flow, 1)
				foldAll(t, conn)
				exec(t, adder, `BEGIN`)
				within := value[int64](t, adder, `SELECT weir.flow('within', parent => $1)`, flow)
				want := addTo(t, adder, within, 2)
				added := []int64{within, addTasks(t, adder, within, "a")[0]}
				around := within
				for range 2 {
					around = value[int64](t, adder, `SELECT weir.flow('deep', parent => $1)`, around)
					want = append(want, addTo(t, adder, around, 2)...)
					added = append(added, around)
				}
				if counted == "what is added" {
					exec(t, adder, `COMMIT`)
					foldAll(t, conn)
				}
				exec(t, conn, `SELECT weir.cancel_flow($1)`, flow)
				if counted == "the cancellation" || counted == "both" {
					foldAll(t, conn)
				}
				if counted != "what is added" {
					exec(t, adder, `COMMIT`)
				}
				if counted == "both" {
					foldAll(t, conn)
				}
				exec(t, conn, `SELECT weir.retry_flow($1)`, within)
				if again {
					exec(t, conn, `SELECT weir.cancel_flow($1)`, within)
					want = nil
				}
				foldAll(t, conn)
				exec(t, conn, `SELECT weir.seal(f) FROM unnest($1::bigint[]) f`, added)
				got := claimAll(t, conn, worker, "q")
				tasks := 1
				if again {
					tasks = 0
				}
				if len(got) != len(want)+tasks {
					t.Errorf("after the retry, %d jobs start, want %d and %d of the task", len(got), len(want), tasks)
				}
				mustComplete(t, conn, worker, got)
				foldAll(t, conn)
				for _, id := range added {
					if state := flowNow(t, conn, id); (state.State == "succeeded") == again {
						t.Errorf("in the end, flow %d is %+v", id, state)
					}
				}
			})
		}
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

// TestACancellationIsKeptUntilLateMembersAreCounted: with one who adds to the flow, and to one within it, in a transaction that ends after all others have.
func TestACancellationIsKeptUntilLateMembersAreCounted(t *testing.T) {
	t.Parallel()
	url := ownServer(t)
	conn, adder := connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q", "back")
	flow := newFlow(t, conn, "f")
	within := value[int64](t, conn, `SELECT weir.flow('within', parent => $1)`, flow)
	exec(t, adder, `BEGIN`)
	addTo(t, adder, flow, 1)
	addTo(t, adder, within, 1)
	exec(t, conn, `SELECT weir.cancel_flow($1)`, flow)
	retire := func() {
		t.Helper()
		for range 10 {
			retireCancellations(t, conn)
		}
	}
	foldAll(t, conn)
	retire()
	exec(t, adder, `COMMIT`)
	retire()
	if live := claimAll(t, conn, worker, "q"); len(live) != 0 {
		t.Errorf("%d members of a cancelled flow start", len(live))
	}
	foldAll(t, conn)
	retire()
	if left := value[int](t, conn, `SELECT count(*) FROM weir.cancellation_where`); left != 0 {
		t.Errorf("%d cancellations are kept in the end", left)
	}
	if state := flowNow(t, conn, flow); state.State != "cancelled" || state.Cancelled != state.Jobs {
		t.Errorf("the flow is %+v", state)
	}
}

// TestManyFlowsFailFastAtOnce: more than may be cancelled by calls.
func TestManyFlowsFailFastAtOnce(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q", "back")
	exec(t, conn, `SELECT weir.enqueue_many(ARRAY['q', 'q'], ARRAY['k', 'k'], run_at => ARRAY[NULL, now() + interval '1 day'], flow => ARRAY[f.id, f.id])
		FROM (SELECT weir.flow('f', fail_fast => true) AS id FROM generate_series(1, 2100) OFFSET 0) f`)
	for got := claimAll(t, conn, worker, "q"); len(got) > 0; got = claimAll(t, conn, worker, "q") {
		endAs(t, conn, worker, "failed", got...)
	}
	foldAll(t, conn)
	if states := column[string](t, conn, `SELECT DISTINCT i.state FROM weir.flow f CROSS JOIN LATERAL weir.flow_info(f.id) i`); len(states) != 1 || states[0] != "cancelling" {
		t.Errorf("the flows are %v", states)
	}
	one := newFlow(t, conn, "one more")
	_, err := conn.Exec(t.Context(), `SELECT weir.cancel_flow($1)`, one)
	wantCode(t, "one more", err, "54000")
}

// TestAFailureThatIsRetriedAtOnceFailsNothing: nor is what was cancelled with the flow around it lost to a retry that is counted together with that.
func TestAFailureThatIsRetriedAtOnceFailsNothing(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q", "back")
	flow := value[int64](t, conn, `SELECT weir.flow('f', fail_fast => true)`)
	addTo(t, conn, flow, 2)
	endAs(t, conn, worker, "failed", mustClaim(t, conn, worker, "q", 1)...)
	exec(t, conn, `SELECT weir.retry_flow($1)`, flow)
	foldAll(t, conn)
	wantFlow(t, conn, flow, flowState{State: "open", Generation: 1, Jobs: 2, Unfinished: 2})
	claimAll(t, conn, worker, "q")

	around := newFlow(t, conn, "around")
	within := value[int64](t, conn, `SELECT weir.flow('within', parent => $1)`, around)
	job := addTo(t, conn, within, 1)[0]
	foldAll(t, conn)
	exec(t, conn, `SELECT weir.cancel_flow($1)`, around)
	exec(t, conn, `SELECT weir.retry($1)`, job)
	foldAll(t, conn)
	if state := flowNow(t, conn, within).State; state != "running" && state != "open" {
		t.Errorf("the flow within, whose member was retried, is %s", state)
	}
	addTo(t, conn, within, 1)
	if live := claimAll(t, conn, worker, "q"); len(live) != 2 {
		t.Errorf("%d members run, want 2", len(live))
	}
}

// TestNoFlowStopsOthers: a callback, a task or a schedule that could not be enqueued is refused, and counters that are none don't stop counting.
func TestNoFlowStopsOthers(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	for _, sql := range []string{
		`SELECT weir.flow('f', on_done => '{"queue": " lead", "kind": "k"}')`,
		`SELECT weir.add_tasks(weir.flow('f'), '[{"task": "a", "queue": "q\t", "kind": "k"}]')`,
		`SELECT weir.set_schedule('bad', '* * * * * *', ' q', 'k')`,
	} {
		_, err := conn.Exec(t.Context(), sql)
		wantCode(t, sql, err, "22023")
	}
	worker := startWorker(t, conn, "q")
	flow := newFlow(t, conn, "f")
	addTo(t, conn, flow, 1)
	a := mustClaim(t, conn, worker, "q", 1)[0]
	exec(t, conn, `SELECT weir._complete($1, $2, $3, $4, NULL, '{"n": "x", "m": 2}')`, worker, a.Lane, a.Seq, a.ID)
	exec(t, conn, `SELECT weir.seal($1)`, flow)
	if ended := foldAll(t, conn); ended != 1 {
		t.Errorf("%d flows have ended, want 1", ended)
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

// retireCancellations takes the next step to retire cancellations and returns what it did, as maintainers do: while another session has a lock, autovacuum for
// example, it tries again.
func retireCancellations(t *testing.T, conn *pgx.Conn) (did *string) {
	t.Helper()
	until(t, "a step to retire cancellations", func() bool {
		err := conn.QueryRow(t.Context(), `SELECT weir._retire_cancellations()`).Scan(&did)
		if err != nil && sqlstate(err) != "55P03" {
			t.Fatal(err)
		}
		return err == nil
	})
	return did
}
