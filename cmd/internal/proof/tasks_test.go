package proof

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// foldAll counts what has arrived, and what follows from it, and returns how many flows have ended.
func foldAll(t *testing.T, q querier) (ended int) {
	t.Helper()
	for range 1000 {
		var n int
		var again bool
		if err := q.QueryRow(t.Context(), `SELECT fired, again FROM weir._fold_arrivals()`).Scan(&n, &again); err != nil {
			t.Fatal(err)
		}
		if ended += n; !again {
			return ended
		}
	}
	t.Fatal("counting goes on forever")
	return 0
}

// task is a task as weir.add_tasks takes it, whose job is of the queue q, and of a kind that is its name.
type task struct {
	Task         string   `json:"task"`
	After        []string `json:"after,omitempty"`
	IgnoreFailed bool     `json:"ignore_failed,omitempty"`
	Queue        string   `json:"queue"`
	Kind         string   `json:"kind"`
}

// addTasks adds tasks, each written as its name and those that it comes after: "c<a,b", or "c<~a,b" if it ignores that these fail.
func addTasks(t *testing.T, q querier, flow int64, all ...string) []int64 {
	t.Helper()
	tasks := make([]task, len(all))
	for i, one := range all {
		name, after, _ := strings.Cut(one, "<")
		after, lenient := strings.CutPrefix(after, "~")
		tasks[i] = task{Task: name, IgnoreFailed: lenient, Queue: "q", Kind: name}
		if after != "" {
			tasks[i].After = strings.Split(after, ",")
		}
	}
	text, err := json.Marshal(tasks)
	if err != nil {
		t.Fatal(err)
	}
	return value[[]int64](t, q, `SELECT weir.add_tasks($1, $2::text::jsonb)`, flow, string(text))
}

// claimTasks claims what can run, and returns it by kind.
func claimTasks(t *testing.T, q querier, worker int32) map[string]attempt {
	t.Helper()
	got := map[string]attempt{}
	for _, a := range claimAll(t, q, worker, "q") {
		if _, twice := got[a.Kind]; twice {
			t.Errorf("two jobs of kind %s can run", a.Kind)
		}
		got[a.Kind] = a
	}
	return got
}

// wantKinds checks what was claimed.
func wantKinds(t *testing.T, got map[string]attempt, want ...string) {
	t.Helper()
	var kinds []string
	for kind := range got {
		kinds = append(kinds, kind)
	}
	slices.Sort(kinds)
	slices.Sort(want)
	if !slices.Equal(kinds, want) {
		t.Errorf("tasks %v have started, want %v", kinds, want)
	}
}

// endAs ends attempts.
func endAs(t *testing.T, q querier, worker int32, outcome string, some ...attempt) {
	t.Helper()
	if refused, err := record(t.Context(), q, worker, some, outcome, nil); err != nil || len(refused) > 0 {
		t.Fatal(refused, err)
	}
}

// states returns the states of a flow's tasks, as "a completed, b blocked".
func taskStates(t *testing.T, q querier, flow int64) string {
	t.Helper()
	return strings.Join(column[string](t, q, `SELECT name || ' ' || state FROM weir.tasks($1, max_rows => 1000) ORDER BY name`, flow), ", ")
}

// TestATaskStartsWhenThoseItComesAfterHaveEnded: not before, and once; tasks may be added while others run, and after some have ended.
func TestATaskStartsWhenThoseItComesAfterHaveEnded(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q", "back")
	flow := newFlow(t, conn, "f")
	ids := addTasks(t, conn, flow, "d<b,c", "a", "b<a", "c<a")
	exec(t, conn, `SELECT weir.seal($1)`, flow)
	foldAll(t, conn)
	wantFlow(t, conn, flow, flowState{State: "running", Generation: 1, Jobs: 4, Unfinished: 4})
	if got := taskStates(t, conn, flow); got != "a running, b blocked, c blocked, d blocked" {
		t.Errorf("the tasks are: %s", got)
	}
	if got := value[[]string](t, conn, `SELECT waits_for FROM weir.tasks($1) WHERE name = 'd'`, flow); !slices.Equal(got, []string{"b", "c"}) {
		t.Errorf("d waits for %v", got)
	}
	got := claimTasks(t, conn, worker)
	wantKinds(t, got, "a")
	var about struct{ Flow int64 }
	if text := value[string](t, conn, `SELECT meta->>'weir.task' FROM weir.job_info($1)`, got["a"].ID); json.Unmarshal([]byte(text), &about) != nil || about.Flow != flow {
		t.Errorf("the task is told %s", text)
	}
	if job := value[int64](t, conn, `SELECT job FROM weir.flow_info($1)`, ids[1]); job != got["a"].ID {
		t.Errorf("the job of a is %d, want %d", job, got["a"].ID)
	}
	if again := addTasks(t, conn, flow, "a", "e<a,d"); again[0] != ids[1] {
		t.Errorf("a was added again, as %d", again[0])
	}
	endAs(t, conn, worker, "retried", got["a"])
	foldAll(t, conn)
	got = claimTasks(t, conn, worker)
	wantKinds(t, got, "a")
	mustComplete(t, conn, worker, []attempt{got["a"]})
	foldAll(t, conn)
	got = claimTasks(t, conn, worker)
	wantKinds(t, got, "b", "c")
	mustComplete(t, conn, worker, []attempt{got["c"]})
	addTasks(t, conn, flow, "f<c", "g<c,b") // one of those that it comes after has ended, and is not counted yet
	foldAll(t, conn)
	mustComplete(t, conn, worker, []attempt{got["b"]})
	got = claimTasks(t, conn, worker)
	wantKinds(t, got, "f")
	foldAll(t, conn)
	later := claimTasks(t, conn, worker)
	wantKinds(t, later, "d", "g")
	mustComplete(t, conn, worker, []attempt{got["f"], later["d"], later["g"]})
	foldAll(t, conn)
	wantCallbacks(t, conn, flow)
	got = claimTasks(t, conn, worker)
	wantKinds(t, got, "e")
	mustComplete(t, conn, worker, []attempt{got["e"]})
	foldAll(t, conn)
	wantFlow(t, conn, flow, flowState{State: "succeeded", Generation: 1, Jobs: 7, Completed: 7})
	wantCallbacks(t, conn, flow, "success 1", "done 1")
}

// TestATaskDoesNotStartIfOneThatItNeedsHasFailed: nor do those that need it, unless they ignore that; when the failed one is retried and succeeds, they run
// after all, and the flow calls back once more.
func TestATaskDoesNotStartIfOneThatItNeedsHasFailed(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q", "back")
	flow := newFlow(t, conn, "f")
	addTasks(t, conn, flow, "a", "slow", "b<a,slow", "c<b", "d<~b", "e<~a")
	exec(t, conn, `SELECT weir.seal($1)`, flow)
	foldAll(t, conn)
	first := claimTasks(t, conn, worker)
	wantKinds(t, first, "a", "slow")
	endAs(t, conn, worker, "failed", first["a"])
	foldAll(t, conn)
	// At once: they do not wait for the others.
	if got := taskStates(t, conn, flow); got != "a failed, b cancelled, c cancelled, d running, e running, slow running" {
		t.Errorf("the tasks are: %s", got)
	}
	got := claimTasks(t, conn, worker)
	wantKinds(t, got, "d", "e")
	mustComplete(t, conn, worker, []attempt{got["d"], got["e"], first["slow"]})
	foldAll(t, conn)
	wantFlow(t, conn, flow, flowState{State: "failed", Generation: 1, Jobs: 6, Completed: 3, Failed: 1, Cancelled: 2})
	wantCallbacks(t, conn, flow, "done 1")

	// One that is added now is not started, either.
	if n := value[int](t, conn, `SELECT retried FROM weir.retry_flow($1)`, flow); n != 1 {
		t.Errorf("%d jobs were retried, want 1", n)
	}
	foldAll(t, conn)
	if got := taskStates(t, conn, flow); got != "a running, b blocked, c blocked, d succeeded, e succeeded, slow succeeded" {
		t.Errorf("after the retry, the tasks are: %s", got)
	}
	for _, kind := range []string{"a", "b", "c"} {
		got := claimTasks(t, conn, worker)
		wantKinds(t, got, kind)
		mustComplete(t, conn, worker, []attempt{got[kind]})
		foldAll(t, conn)
	}
	wantFlow(t, conn, flow, flowState{State: "succeeded", Generation: 2, Jobs: 6, Completed: 6})
	wantCallbacks(t, conn, flow, "done 1", "success 2", "done 2")
}

// TestTasksThatCannotStartAreRefused: circles, unknown names and other mistakes are named, and leave nothing behind.
func TestTasksThatCannotStartAreRefused(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	flow := newFlow(t, conn, "f")
	addTasks(t, conn, flow, "there")
	ended := value[int64](t, conn, `SELECT weir.flow('ended')`)
	exec(t, conn, `SELECT weir.seal($1)`, ended)
	foldAll(t, conn)
	rows := func() int {
		return value[int](t, conn, `SELECT (SELECT count(*) FROM weir.flow) + (SELECT count(*) FROM weir.edge) + (SELECT count(*) FROM weir.arrival) + (SELECT count(*) FROM weir.job)`)
	}
	before := rows()
	for _, c := range []struct{ tasks, code, message string }{
		{`[{"task": "a", "after": ["a"], "queue": "q", "kind": "k"}]`, "22023", `"a", then "a"`},
		{`[{"task": "a", "after": ["c", "there"], "queue": "q", "kind": "k"}, {"task": "b", "after": ["a"], "queue": "q", "kind": "k"}, {"task": "c", "after": ["b"], "queue": "q", "kind": "k"}, {"task": "d", "queue": "q", "kind": "k"}]`, "22023", `"c", then "a", then "b", then "c"`},
		{`[{"task": "a", "after": ["nobody"], "queue": "q", "kind": "k"}]`, "22023", `comes after "nobody"`},
		{`[{"task": "a", "queue": "q", "kind": "k"}, {"task": "a", "queue": "q", "kind": "k"}]`, "22023", `called "a"`},
		{`[{"task": "a", "queue": "q"}]`, "22023", `task "a"`}, {`[{"task": "", "queue": "q", "kind": "k"}]`, "22023", "task 1 of 1"}, {`[{"queue": "q", "kind": "k"}]`, "22023", "needs the name"},
		{`[{"task": "a", "after": "there", "queue": "q", "kind": "k"}]`, "22023", "array of names"}, {`[{"task": "a", "after": [1], "queue": "q", "kind": "k"}]`, "22023", "array of names"}, {`[{"task": "a", "after": [["there"]], "queue": "q", "kind": "k"}]`, "22023", "array of names"},
		{`[{"task": "a", "ignore_failed": 1, "queue": "q", "kind": "k"}]`, "22023", "true or false"}, {`[{"task": "a", "run_at": "now", "queue": "q", "kind": "k"}]`, "22023", "unknown key"},
		{`[{"task": "a", "priority": 7, "queue": "q", "kind": "k"}]`, "22023", "priority"}, {`{}`, "22023", "array"}, {`[7]`, "22023", "JSON number"}, {`[null]`, "22023", "JSON null"},
	} {
		_, err := conn.Exec(t.Context(), `SELECT weir.add_tasks($1, $2::text::jsonb)`, flow, c.tasks)
		wantCode(t, c.tasks, err, c.code)
		if err != nil && !strings.Contains(err.Error(), c.message) {
			t.Errorf("%s: the error is %q, which does not say %q", c.tasks, err, c.message)
		}
	}
	for sql, code := range map[string]string{`SELECT weir.add_tasks(77, '[{"task": "a", "queue": "q", "kind": "k"}]')`: "22023", `SELECT weir.add_tasks(NULL, '[]')`: "22023", `SELECT weir.add_tasks(1, NULL)`: "22023",
		fmt.Sprintf(`SELECT weir.add_tasks(%d, '[{"task": "a", "queue": "q", "kind": "k"}]')`, ended): "55000", `SELECT weir.tasks(1, max_rows => 0)`: "22023",
		`SELECT weir.flow('f', parent => 77)`: "22023", fmt.Sprintf(`SELECT weir.flow('f', parent => %d)`, ended): "55000",
		`SELECT weir.increment(77, 'n')`: "22023", `SELECT weir.increment(1, '')`: "22023", `SELECT weir.increment(NULL, 'n')`: "22023", fmt.Sprintf(`SELECT weir.increment(%d, 'n')`, ended): "55000"} {
		_, err := conn.Exec(t.Context(), sql)
		wantCode(t, sql, err, code)
	}
	_, err := conn.Exec(t.Context(), `SELECT weir.add_tasks($1, (SELECT jsonb_agg(jsonb_build_object('task', n::text, 'queue', 'q', 'kind', 'k', 'after', CASE WHEN n > 20 THEN before END) ORDER BY n)
		FROM generate_series(1, 5025) n, (SELECT jsonb_agg(n::text) AS before FROM generate_series(1, 20) n) b))`, flow)
	wantCode(t, "more than 100,000 names in after", err, "22023")
	if err != nil && !strings.Contains(err.Error(), "100000 are allowed") {
		t.Errorf("more than 100,000 names in after: the error is %q", err)
	}
	if after := rows(); after != before {
		t.Errorf("%d rows were left behind", after-before)
	}
}

// TestATaskIsDoneWhenWhatItHasAddedIs: jobs, flows and what their callbacks add, at any depth; the flow of which it is a task counts it as one.
func TestATaskIsDoneWhenWhatItHasAddedIs(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q", "back")
	flow := newFlow(t, conn, "f")
	ids := addTasks(t, conn, flow, "a", "b<a")
	exec(t, conn, `SELECT weir.seal($1)`, flow)
	foldAll(t, conn)
	got := claimTasks(t, conn, worker)
	wantKinds(t, got, "a")
	// It adds a job, and a flow with a flow, whose callbacks are jobs of q.
	exec(t, conn, `SELECT weir.enqueue('q', 'child', flow => $1)`, ids[0])
	outer := value[int64](t, conn, `SELECT weir.flow('outer', on_success => '{"queue": "q", "kind": "outer"}', parent => $1)`, ids[0])
	inner := value[int64](t, conn, `SELECT weir.flow('inner', on_done => '{"queue": "q", "kind": "inner"}', parent => $1)`, outer)
	exec(t, conn, `SELECT weir.enqueue('q', 'leaf', flow => $1), weir.seal($1), weir.seal($2)`, inner, outer)
	mustComplete(t, conn, worker, []attempt{got["a"]})
	foldAll(t, conn)
	got = claimTasks(t, conn, worker)
	wantKinds(t, got, "child", "leaf")
	mustComplete(t, conn, worker, []attempt{got["child"], got["leaf"]})
	foldAll(t, conn)
	got = claimTasks(t, conn, worker)
	wantKinds(t, got, "inner")
	exec(t, conn, `SELECT weir.enqueue('q', 'more', flow => $1)`, outer) // the callback is a member of the outer flow, and may add to it
	mustComplete(t, conn, worker, []attempt{got["inner"]})
	foldAll(t, conn)
	got = claimTasks(t, conn, worker)
	wantKinds(t, got, "more")
	mustComplete(t, conn, worker, []attempt{got["more"]})
	foldAll(t, conn)
	wantFlow(t, conn, outer, flowState{State: "succeeded", Generation: 1, Jobs: 3, Completed: 3})
	got = claimTasks(t, conn, worker)
	wantKinds(t, got, "outer")
	if s := flowNow(t, conn, ids[0]); s.State != "running" || s.Unfinished != 1 {
		t.Errorf("before the last callback has ended, the task is %+v", s)
	}
	mustComplete(t, conn, worker, []attempt{got["outer"]})
	foldAll(t, conn)
	got = claimTasks(t, conn, worker)
	wantKinds(t, got, "b")
	mustComplete(t, conn, worker, []attempt{got["b"]})
	foldAll(t, conn)
	wantFlow(t, conn, ids[0], flowState{State: "succeeded", Generation: 1, Jobs: 4, Completed: 4})
	wantFlow(t, conn, flow, flowState{State: "succeeded", Generation: 1, Jobs: 2, Completed: 2})
	wantCallbacks(t, conn, flow, "success 1", "done 1")
	if all := column[int64](t, conn, `SELECT id FROM weir.flows()`); len(all) != 1 || all[0] != flow {
		t.Errorf("the list of flows has %v, want the outermost one alone", all)
	}
	if n := value[int](t, conn, `SELECT jsonb_array_length(jobs) FROM weir.jobs_page(flow => $1)`, flow); n != 7 {
		t.Errorf("%d jobs are listed, want 7", n)
	}
}

// TestARetryDeepWithinAFlowMakesAllNextGenerations: of the flow that the member belongs to, and of all that this one is a member of.
func TestARetryDeepWithinAFlowMakesAllNextGenerations(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q", "back")
	flow := newFlow(t, conn, "f")
	inner := value[int64](t, conn, `SELECT weir.flow('inner', on_done => '{"queue": "back", "kind": "done"}', parent => $1)`, flow)
	exec(t, conn, `SELECT weir.enqueue('q', 'leaf', flow => $1), weir.seal($1), weir.seal($2)`, inner, flow)
	endAs(t, conn, worker, "failed", claimTasks(t, conn, worker)["leaf"])
	foldAll(t, conn)
	back := claimAll(t, conn, worker, "back")
	mustComplete(t, conn, worker, back)
	foldAll(t, conn)
	wantFlow(t, conn, flow, flowState{State: "failed", Generation: 1, Jobs: 2, Completed: 1, Failed: 1})
	if n := value[int](t, conn, `SELECT retried FROM weir.retry_flow($1)`, flow); n != 1 {
		t.Fatalf("%d jobs were retried, want 1", n)
	}
	mustComplete(t, conn, worker, claimAll(t, conn, worker, "q"))
	foldAll(t, conn) // the retry and the end in one cut
	wantFlow(t, conn, inner, flowState{State: "succeeded", Generation: 2, Jobs: 1, Completed: 1})
	wantFlow(t, conn, flow, flowState{State: "running", Generation: 2, Jobs: 3, Unfinished: 1, Completed: 2})
	mustComplete(t, conn, worker, claimAll(t, conn, worker, "back"))
	foldAll(t, conn)
	wantFlow(t, conn, flow, flowState{State: "succeeded", Generation: 2, Jobs: 3, Completed: 3})
	wantCallbacks(t, conn, inner, "done 1", "done 2")
	wantCallbacks(t, conn, flow, "done 1", "success 2", "done 2")
}

// TestATaskThatTwoTransactionsAddIsOne: neither waits for the other; one of the two counts, and what comes after either waits for it.
func TestATaskThatTwoTransactionsAddIsOne(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	for _, inOneCut := range []bool{false, true} {
		conn, first, second := connect(t, url), connect(t, url), connect(t, url)
		worker := startWorker(t, conn, "q", "back")
		flow := newFlow(t, conn, "f")
		exec(t, first, `BEGIN`)
		exec(t, second, `BEGIN`)
		ids := slices.Concat(addTasks(t, first, flow, "a", "b<a", "x<b"), addTasks(t, second, flow, "a", "b<a", "y<b"))
		exec(t, second, `COMMIT`)
		if !inOneCut {
			foldAll(t, conn)
		}
		exec(t, first, `COMMIT`)
		exec(t, conn, `SELECT weir.seal($1)`, flow)
		for _, kinds := range [][]string{{"a"}, {"b"}, {"x", "y"}} {
			foldAll(t, conn)
			got := claimTasks(t, conn, worker)
			wantKinds(t, got, kinds...)
			for _, a := range got {
				mustComplete(t, conn, worker, []attempt{a})
			}
		}
		foldAll(t, conn)
		for _, id := range value[[]int64](t, conn, `SELECT array_agg(id) FROM unnest($1::bigint[]) id WHERE (SELECT jobs = 0 FROM weir.flow_info(id))`, ids) {
			wantFlow(t, conn, id, flowState{State: "cancelled", Generation: 1})
			if state := value[string](t, conn, `SELECT weir.cancel_flow($1)`, id); state != "cancelled" {
				t.Errorf("cancelling a task that does not count returned %s", state)
			}
		}
		if n := value[int](t, conn, `SELECT count(*) FROM weir.cancellation_where`); n > 0 {
			t.Errorf("%d cancellations were written", n)
		}
		wantFlow(t, conn, flow, flowState{State: "succeeded", Generation: 1, Jobs: 4, Completed: 4})
		wantCallbacks(t, conn, flow, "success 1", "done 1")
		if got := taskStates(t, conn, flow); got != "a succeeded, b succeeded, x succeeded, y succeeded" {
			t.Errorf("the tasks are: %s", got)
		}
	}
}

// TestTasksThatTwoCallsAddNeverWaitForEachOther: though each of the two transactions has the tasks in the opposite order, and their ids alternate.
func TestTasksThatTwoCallsAddNeverWaitForEachOther(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, first, second := connect(t, url), connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q", "back")
	flow := newFlow(t, conn, "f")
	exec(t, first, `BEGIN`)
	exec(t, second, `BEGIN`)
	one, two := addTasks(t, first, flow, "a", "b<a"), addTasks(t, second, flow, "b", "a<b")
	exec(t, first, `COMMIT`)
	exec(t, second, `COMMIT`)
	// As if the sequence had served both at once: by their ids, a of the second call and b of the first would be the tasks, and wait for each other.
	exec(t, conn, `UPDATE weir.flow SET id = - id WHERE id = ANY ($1)`, append(one, two...))
	for _, set := range []string{`weir.flow SET id = %s WHERE id < 0`, `weir.edge SET successor = %s WHERE true`, `weir.arrival SET flow = %s WHERE flow <> $3`} {
		column := strings.Fields(set)[2]
		exec(t, conn, fmt.Sprintf(`UPDATE `+set+` AND $3::bigint IS NOT NULL`, fmt.Sprintf(`CASE WHEN abs(%s) = $1::bigint THEN $2::bigint ELSE abs(%s) + 1 END`, column, column)), two[1], one[0], flow)
	}
	exec(t, conn, `SELECT weir.seal($1)`, flow)
	for _, kind := range []string{"a", "b"} {
		foldAll(t, conn)
		got := claimTasks(t, conn, worker)
		wantKinds(t, got, kind)
		mustComplete(t, conn, worker, []attempt{got[kind]})
	}
	foldAll(t, conn)
	wantFlow(t, conn, flow, flowState{State: "succeeded", Generation: 1, Jobs: 2, Completed: 2})
}

// TestCancellingAFlowTakesAlongWhatIsWithinIt: jobs of tasks and of flows within it, at any depth, and tasks that have not started; retrying it undoes that.
func TestCancellingAFlowTakesAlongWhatIsWithinIt(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q", "back")
	flow, other := newFlow(t, conn, "f"), newFlow(t, conn, "other")
	ids := addTasks(t, conn, flow, "a", "b<a", "c<b")
	addTasks(t, conn, other, "z")
	_, err := conn.Exec(t.Context(), `SELECT weir.add_tasks($1, '[]'), weir.flow('x', parent => $2)`, flow, ids[1])
	wantCode(t, "a flow within a task that has not started", err, "55000")
	foldAll(t, conn)
	got := claimTasks(t, conn, worker)
	wantKinds(t, got, "a", "z")
	inner := value[int64](t, conn, `SELECT weir.flow('inner', on_success => '{"queue": "back", "kind": "success"}', parent => $1)`, ids[0])
	exec(t, conn, `SELECT weir.enqueue('q', 'leaf', flow => $1)`, inner)
	foldAll(t, conn)
	if state := value[string](t, conn, `SELECT weir.cancel_flow($1)`, flow); state != "cancelling" {
		t.Errorf("cancel_flow says %s", state)
	}
	foldAll(t, conn)
	if got := taskStates(t, conn, flow); got != "a cancelling, b cancelled, c cancelled" {
		t.Errorf("the tasks are: %s", got)
	}
	wantKinds(t, claimTasks(t, conn, worker))
	if heard := value[[]int64](t, conn, `SELECT weir._cancelled_among($1)`, []int64{got["a"].ID, got["z"].ID}); len(heard) != 1 || heard[0] != got["a"].ID {
		t.Errorf("%v hear of it, want %d", heard, got["a"].ID)
	}
	_, err = conn.Exec(t.Context(), `SELECT weir.enqueue('q', 'leaf', flow => $1)`, inner)
	wantCode(t, "a job within a cancelled flow", err, "55000")
	endAs(t, conn, worker, "cancelled", got["a"])
	foldAll(t, conn)
	wantFlow(t, conn, flow, flowState{State: "cancelled", Generation: 1, Jobs: 3, Cancelled: 3})
	wantCallbacks(t, conn, flow, "done 1")
	wantCallbacks(t, conn, inner)

	retried := value[int](t, conn, `SELECT retried FROM weir.retry_flow($1)`, flow)
	foldAll(t, conn)
	if got := taskStates(t, conn, flow); got != "a running, b blocked, c blocked" || retried != 2 {
		t.Errorf("after the retry of %d jobs, the tasks are: %s", retried, got)
	}
	first := claimTasks(t, conn, worker)
	wantKinds(t, first, "a", "leaf")
	mustComplete(t, conn, worker, []attempt{first["a"], first["leaf"]})
	foldAll(t, conn)
	mustComplete(t, conn, worker, claimAll(t, conn, worker, "back"))
	for _, kind := range []string{"b", "c"} {
		foldAll(t, conn)
		got := claimTasks(t, conn, worker)
		wantKinds(t, got, kind)
		mustComplete(t, conn, worker, []attempt{got[kind]})
	}
	foldAll(t, conn)
	exec(t, conn, `SELECT weir.seal($1)`, flow)
	foldAll(t, conn)
	wantFlow(t, conn, flow, flowState{State: "succeeded", Generation: 2, Jobs: 3, Completed: 3})
}

// TestAFlowThatFailsFastIsCancelled: as soon as a member has failed for good, and not when one is retried.
func TestAFlowThatFailsFastIsCancelled(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q", "back")
	flow := value[int64](t, conn, `SELECT weir.flow('f', on_done => '{"queue": "back", "kind": "done"}', on_success => '{"queue": "back", "kind": "success"}', fail_fast => true)`)
	addTo(t, conn, flow, 5)
	addTasks(t, conn, flow, "a", "b<a")
	exec(t, conn, `SELECT weir.seal($1)`, flow)
	foldAll(t, conn)
	got := mustClaim(t, conn, worker, "q", 2)
	endAs(t, conn, worker, "retried", got[0])
	foldAll(t, conn)
	wantFlow(t, conn, flow, flowState{State: "running", Generation: 1, Jobs: 7, Unfinished: 7})
	endAs(t, conn, worker, "failed", got[1])
	foldAll(t, conn)
	if rest := claimAll(t, conn, worker, "q"); len(rest) != 0 {
		t.Errorf("%d members start after one has failed", len(rest))
	}
	foldAll(t, conn)
	wantFlow(t, conn, flow, flowState{State: "cancelled", Generation: 1, Jobs: 7, Failed: 1, Cancelled: 6})
	wantCallbacks(t, conn, flow, "done 1")
}

// TestCountersOfAFlowAreExactAtItsEnd: members add to them in the transactions in which they complete, attempts that are repeated count once, and nobody
// waits for anybody. The callback is told the sums.
func TestCountersOfAFlowAreExactAtItsEnd(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, first, second := connect(t, url), connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q", "back")
	flow := newFlow(t, conn, "f")
	addTo(t, conn, flow, 3)
	exec(t, conn, `SELECT weir.seal($1)`, flow)
	got := mustClaim(t, conn, worker, "q", 3)
	counters := func() string {
		t.Helper()
		return value[string](t, conn, `SELECT coalesce(counters::text, 'none') FROM weir.flow_info($1)`, flow)
	}
	count := func(tx *pgx.Conn, a attempt, n int) {
		t.Helper()
		exec(t, tx, `BEGIN`)
		exec(t, tx, `SELECT weir.increment($1, 'bytes', $2), weir.increment($1, 'pages')`, flow, n)
		if err := completeTx(t.Context(), tx, worker, a); err != nil {
			t.Fatal(err)
		}
	}
	count(first, got[0], 5)
	count(second, got[1], 7) // does not wait
	if c := counters(); c != "none" {
		t.Errorf("before a commit, the counters are %s", c)
	}
	exec(t, first, `ROLLBACK`)
	exec(t, second, `COMMIT`)
	for range 2 { // before and after it is counted
		if c := counters(); c != `{"bytes": 7, "pages": 1}` {
			t.Errorf("after one commit, the counters are %s", c)
		}
		foldAll(t, conn)
	}
	count(first, got[0], 5)
	exec(t, first, `COMMIT`)
	exec(t, conn, `SELECT weir.increment($1, 'bytes', -2)`, flow)
	mustComplete(t, conn, worker, got[2:])
	foldAll(t, conn)
	if c := counters(); c != `{"bytes": 10, "pages": 2}` {
		t.Errorf("in the end, the counters are %s", c)
	}
	if c := value[string](t, conn, `SELECT meta->'weir.flow'->>'counters' FROM weir.job WHERE kind = 'done'`); c != `{"bytes": 10, "pages": 2}` {
		t.Errorf("the callback is told %s", c)
	}
}

// TestADAGOfTenThousandTasksRuns: in layers, each task after two of the layer before; and one that comes after all of the last layer.
func TestADAGOfTenThousandTasksRuns(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q", "back")
	flow := newFlow(t, conn, "f")
	const width, layers = 1111, 9
	exec(t, conn, `SELECT weir.add_tasks($1, (SELECT jsonb_agg(jsonb_build_object('task', l || ':' || n, 'queue', 'q', 'kind', 'k', 'after', CASE WHEN l = 0 THEN '[]' ELSE jsonb_build_array((l - 1) || ':' || n, (l - 1) || ':' || (n + 1) % $2::int) END) ORDER BY n, l DESC)
		FROM generate_series(0, $3::int - 1) l, generate_series(0, $2::int - 1) n))`, flow, width, layers)
	exec(t, conn, `SELECT weir.add_tasks($1, jsonb_build_array(jsonb_build_object('task', 'last', 'queue', 'q', 'kind', 'last', 'after', (SELECT jsonb_agg(($3::int - 1) || ':' || n) FROM generate_series(0, $2::int - 1) n))))`, flow, width, layers)
	exec(t, conn, `SELECT weir.seal($1)`, flow)
	began := time.Now()
	for layer := range layers + 1 {
		foldAll(t, conn)
		got := claimAll(t, conn, worker, "q")
		want := width
		if layer == layers {
			want = 1
		}
		if len(got) != want {
			t.Fatalf("%d tasks of layer %d have started, want %d", len(got), layer, want)
		}
		for some := range slices.Chunk(got, 900) {
			mustComplete(t, conn, worker, some)
		}
	}
	foldAll(t, conn)
	wantFlow(t, conn, flow, flowState{State: "succeeded", Generation: 1, Jobs: width*layers + 1, Completed: width*layers + 1})
	wantCallbacks(t, conn, flow, "success 1", "done 1")
	t.Logf("%d tasks in %s", width*layers+1, time.Since(began).Round(time.Millisecond))

	// A chain of the same length, whose first task fails: none of the others starts.
	chain := newFlow(t, conn, "chain")
	exec(t, conn, `SELECT weir.add_tasks($1, (SELECT jsonb_agg(jsonb_build_object('task', 'c' || n, 'queue', 'q', 'kind', 'k', 'after', CASE WHEN n = 1 THEN '[]' ELSE jsonb_build_array('c' || n - 1) END)) FROM generate_series(1, 500) n))`, chain)
	exec(t, conn, `SELECT weir.seal($1)`, chain)
	foldAll(t, conn)
	endAs(t, conn, worker, "failed", claimAll(t, conn, worker, "q")...)
	foldAll(t, conn)
	wantFlow(t, conn, chain, flowState{State: "failed", Generation: 1, Jobs: 500, Failed: 1, Cancelled: 499})
}

// TestOutputsOutliveTheLog: those of members that have completed, each once, as it completed last; of a task by its name; what a task's own children put out belongs to the task.
func TestOutputsOutliveTheLog(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	smallSegments(t, conn)
	worker := startWorker(t, conn, "q", "back", "filler")
	flow := newFlow(t, conn, "f")
	ids := addTasks(t, conn, flow, "a", "b<a")
	addTo(t, conn, flow, 2)
	exec(t, conn, `SELECT weir.enqueue('q', 'child', flow => NULL)`)
	foldAll(t, conn)
	put := func(a attempt, outcome, output string) {
		t.Helper()
		exec(t, conn, `SELECT weir._record($1, ARRAY[$2::bigint], ARRAY[$3::bigint], ARRAY[1], ARRAY[$4::bigint], ARRAY[$5], NULL, ARRAY[$6])`, worker, a.Lane, a.Seq, a.ID, outcome, output)
	}
	var first int64
	for _, a := range claimAll(t, conn, worker, "q") {
		switch a.Kind {
		case "a":
			exec(t, conn, `SELECT weir.enqueue('q', 'grandchild', flow => $1)`, ids[0])
			put(a, "completed", "of a")
			first = a.ID
		case "child":
			put(a, "completed", "of nobody")
		default:
			put(a, "failed", "not this")
		}
	}
	exec(t, conn, `SELECT weir.retry_flow($1)`, flow)
	for _, a := range claimAll(t, conn, worker, "q") {
		put(a, "completed", "of "+a.Kind)
	}
	exec(t, conn, `SELECT weir.retry($1)`, first)
	put(claimAll(t, conn, worker, "q")[0], "completed", "of a, again")
	for range 6 {
		turn(t, conn, worker)
	}
	if n := value[int](t, conn, `SELECT count(*) FROM weir.job WHERE id = $1`, first); n != 0 {
		t.Fatal("its rows are still in the log")
	}
	list := func(sql string, args ...any) string {
		t.Helper()
		return strings.Join(column[string](t, conn, `SELECT coalesce(task_name, '-') || ': ' || output FROM `+sql, args...), ", ")
	}
	if got := list(`weir.flow_outputs($1)`, flow); got != "-: of k, -: of k, a: of a, again" {
		t.Errorf("the outputs are %s", got)
	}
	if got := list(`weir.flow_outputs($1, task => 'a')`, flow); got != "a: of a, again" {
		t.Errorf("the output of a is %s", got)
	}
	if got := list(`weir.flow_outputs($1)`, ids[0]); got != "-: of grandchild" {
		t.Errorf("the outputs within a are %s", got)
	}
	page := list(`weir.flow_outputs($1, max_rows => 2)`, flow)
	rest := list(`weir.flow_outputs($1, after => (SELECT max(no) FROM weir.flow_outputs($1, max_rows => 2)))`, flow)
	if page != "-: of k, -: of k" || rest != "a: of a, again" {
		t.Errorf("page by page, the outputs are %s and %s", page, rest)
	}
}
