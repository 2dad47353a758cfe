package proof

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// beginOperation begins an operation.
func beginOperation(t *testing.T, q querier, what, filter, to string) int64 {
	t.Helper()
	return value[int64](t, q, `SELECT weir.begin_operation($1, $2, 'ada', to_queue => nullif($3, ''))`, what, filter, to)
}

// stepOperation does one step; 0: there was nothing to do.
func stepOperation(t *testing.T, q querier, most int) (operation int64, changed int) {
	t.Helper()
	if err := q.QueryRow(t.Context(), `SELECT coalesce(operation, 0), coalesce(changed, 0) FROM weir._step_operations($1)`, most).Scan(&operation, &changed); err != nil {
		t.Fatal(err)
	}
	return operation, changed
}

// stepAll does steps until there is nothing to do, and returns how many jobs they have changed.
func stepAll(t *testing.T, q querier, most int) (changed int) {
	t.Helper()
	for range 10_000 {
		operation, n := stepOperation(t, q, most)
		if changed += n; operation == 0 {
			return changed
		}
	}
	t.Fatal("the operations do not end")
	return 0
}

// wantOperation checks the state of an operation, and how many jobs it has changed.
func wantOperation(t *testing.T, q querier, id int64, want string) {
	t.Helper()
	if got := value[string](t, q, `SELECT state || ' ' || coalesce(changed::text, '-') FROM weir.operations(before => $1 + 1, max_rows => 1)`, id); got != want {
		t.Errorf("operation %d is %s, want %s", id, got, want)
	}
}

// manyDeadLetters fails n jobs of a queue for good.
func manyDeadLetters(t *testing.T, conn *pgx.Conn, worker int32, queue string, n int, reason string) (ids []int64) {
	t.Helper()
	for len(ids) < n {
		ids = append(ids, deadLetters(t, conn, worker, queue, min(n-len(ids), 500), reason)...)
	}
	return ids
}

// TestAnOperationChangesOnceWhatThereWasWhenItBegan: jobs that an operation has retried, and that fail again or complete between its steps, are not
// retried again, whatever states it retries; nor are jobs that fail for the first time after it began.
func TestAnOperationChangesOnceWhatThereWasWhenItBegan(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	old := manyDeadLetters(t, conn, worker, "q", 40, "x")
	id := beginOperation(t, conn, "retry", `{"queue": "q", "states": ["failed", "completed"]}`, "")
	late := deadLetters(t, conn, worker, "q", 5, "x")
	ends := 0
	for {
		operation, _ := stepOperation(t, conn, 10)
		if operation == 0 {
			break
		}
		for _, a := range mustClaim(t, conn, worker, "q", 960) {
			if slices.Contains(late, a.ID) || a.Attempt != 2 {
				t.Errorf("job %d runs in attempt %d", a.ID, a.Attempt)
			}
			if ends++; ends%2 == 0 {
				fail(t, conn, worker, a)
			} else {
				mustComplete(t, conn, worker, []attempt{a})
			}
		}
	}
	wantOperation(t, conn, id, "done 40")
	if ends != 40 {
		t.Errorf("%d attempts followed, want 40", ends)
	}
	if n := value[int](t, conn, `SELECT count(*) FROM weir.jobs('failed', 'q')`); n != 25 {
		t.Errorf("%d jobs are failed, want 20 of the retried ones and 5 that failed later", n)
	}
	for _, job := range old[:2] {
		if n := value[int](t, conn, `SELECT attempt FROM weir.job_info($1)`, job); n != 2 {
			t.Errorf("job %d had %d attempts", job, n)
		}
	}
}

// TestAnOperationMovesWhatWasEnqueuedBefore: jobs enqueued while it runs stay.
func TestAnOperationMovesWhatWasEnqueuedBefore(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	enqueueN(t, conn, "q", 30)
	id := beginOperation(t, conn, "move", `{"queue": "q", "kinds": ["k"]}`, "r")
	stepOperation(t, conn, 10)
	enqueueN(t, conn, "q", 7)
	stepAll(t, conn, 10)
	wantOperation(t, conn, id, "done 30")
	if got := column[string](t, conn, `SELECT name || ' ' || available FROM weir.queues() ORDER BY 1`); fmt.Sprint(got) != "[q 7 r 30]" {
		t.Errorf("the queues are %v", got)
	}
}

// TestAKilledStepIsUndoneAndDoneByAnother: a session that is ended after a step and before its commit, or in the midst of a step, leaves the operation where it was before, and
// another session does the rest: each job is changed once.
func TestAKilledStepIsUndoneAndDoneByAnother(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ what, held, changed string }{
		{"retry", `SELECT -1 - (id % 1000000)::integer FROM weir.failure WHERE id = $1`, `SELECT count(*) FILTER (WHERE attempt = 2) * 1000 + count(*) FROM weir.job`},
		{"delete", `SELECT -1 - (id % 1000000)::integer FROM weir.failure WHERE id = $1`, `SELECT count(*) FILTER (WHERE finished_at IS NULL) * 1000 + count(*) FROM weir.failure`},
		{"move", `SELECT ((lane >> 39) * 4 + (lane & 3))::integer FROM weir.job WHERE id = $1`, `SELECT count(*) FILTER (WHERE lane >> 39 = (SELECT id FROM weir.queue WHERE name = 'r')) * 1000 + count(*) FROM weir.job`},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			conn, holder := connect(t, url), connect(t, url)
			worker := startWorker(t, conn, "q", "r")
			var ids []int64
			want, to := 60_000, ""
			switch c.what {
			case "move":
				ids, to = enqueueN(t, conn, "q", 60), "r"
				want += 60
			case "retry":
				ids = deadLetters(t, conn, worker, "q", 60, "x")
				want += 120
			case "delete":
				ids = deadLetters(t, conn, worker, "q", 60, "x")
				want += 120
			}
			id := beginOperation(t, conn, c.what, `{"queue": "q"}`, to)
			stepOperation(t, conn, 20)
			wantOperation(t, conn, id, "running 20")

			killed := connect(t, url)
			exec(t, killed, `BEGIN`)
			if operation, n := stepOperation(t, killed, 20); operation != id || n != 20 {
				t.Errorf("a step of operation %d changed %d jobs", operation, n)
			}
			if operation, _ := stepOperation(t, conn, 20); operation != 0 {
				t.Error("two sessions do a step of the same operation")
			}
			exec(t, conn, `SELECT pg_terminate_backend($1)`, killed.PgConn().PID())
			until(t, "the session has ended", func() bool {
				return !value[bool](t, conn, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)`, killed.PgConn().PID())
			})
			wantOperation(t, conn, id, "running 20")

			// In the midst of a step, which waits for a lock of the jobs, or of their lane.
			keys := []int32{}
			for _, job := range ids {
				keys = append(keys, column[int32](t, conn, c.held, job)...)
			}
			exec(t, holder, `SELECT pg_advisory_lock(1464158546, k) FROM unnest($1::integer[]) k`, keys)
			killed = connect(t, url)
			pid := killed.PgConn().PID()
			ended := make(chan error, 1)
			go func() {
				_, err := killed.Exec(t.Context(), `SELECT weir._step_operations(20)`)
				ended <- err
			}()
			until(t, "the step waits", func() bool {
				return value[bool](t, conn, `SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND locktype = 'advisory' AND NOT granted)`, pid)
			})
			exec(t, conn, `SELECT pg_terminate_backend($1)`, pid)
			if err := pgtest.Receive(t, ended, "the step has ended"); err == nil {
				t.Error("a killed step succeeded")
			}
			exec(t, holder, `SELECT pg_advisory_unlock_all()`)
			until(t, "the session has ended", func() bool {
				return !value[bool](t, conn, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)`, pid)
			})
			if n := stepAll(t, conn, 20); n != 40 {
				t.Errorf("the rest was %d jobs, want 40", n)
			}
			wantOperation(t, conn, id, "done 60")
			if got := value[int](t, conn, c.changed); got != want {
				t.Errorf("changed jobs and rows are %d, want %d", got, want)
			}
		})
	}
}

// TestMaintainersDoDifferentOperationsAtTheSameTime: several sessions do steps of several operations at the same time, each step once.
func TestMaintainersDoDifferentOperationsAtTheSameTime(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	worker := startWorker(t, conn, "a", "b")
	manyDeadLetters(t, conn, worker, "a", 100, "x")
	manyDeadLetters(t, conn, worker, "b", 100, "x")
	enqueueN(t, conn, "c", 100)
	ids := []int64{
		beginOperation(t, conn, "retry", `{"queue": "a"}`, ""), beginOperation(t, conn, "delete", `{"queue": "b"}`, ""), beginOperation(t, conn, "move", `{"queue": "c"}`, "d"),
		beginOperation(t, conn, "retry", `{"queue": "a", "kinds": ["k"]}`, ""), // of which the first leaves nothing, or it leaves the first nothing
	}
	var all sync.WaitGroup
	for range 3 {
		c := connect(t, url)
		all.Go(func() {
			for {
				var operation *int64
				var open bool
				if err := c.QueryRow(t.Context(), `SELECT operation, is_open FROM weir._step_operations(7)`).Scan(&operation, &open); err != nil {
					t.Error(err)
					return
				}
				if operation == nil && !open {
					return
				}
			}
		})
	}
	all.Wait()
	wantOperation(t, conn, ids[1], "done 100")
	wantOperation(t, conn, ids[2], "done 100")
	if n := value[int](t, conn, `SELECT sum(changed) FROM weir.operations() WHERE what = 'retry' AND state = 'done'`); n != 100 {
		t.Errorf("%d jobs were retried, want 100", n)
	}
	if n := value[int](t, conn, `SELECT count(*) FROM weir.job WHERE attempt = 2`); n != 100 {
		t.Errorf("%d second attempts were logged, want 100", n)
	}
	if gaps := column[int64](t, conn, `SELECT operation FROM weir.operation_step GROUP BY 1 HAVING max(no) + 1 <> count(*)`); len(gaps) > 0 {
		t.Errorf("the steps of operations %v are not numbered one after another", gaps)
	}
}

// TestAStoppedOperationChangesNoMore: once it is stopped, whoever has done what is kept, and nothing more is changed.
func TestAStoppedOperationChangesNoMore(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, other := connect(t, url), connect(t, url)
	manyDeadLetters(t, conn, startWorker(t, conn, "q"), "q", 30, "x")
	id := beginOperation(t, conn, "retry", `{"queue": "q"}`, "")
	exec(t, other, `BEGIN`)
	stepOperation(t, other, 10)
	stopped := make(chan string, 1)
	stopper := connect(t, url)
	go func() {
		var state string
		if err := stopper.QueryRow(t.Context(), `SELECT weir.stop_operation($1, 'grace')`, id).Scan(&state); err != nil {
			state = err.Error()
		}
		stopped <- state
	}()
	until(t, "it waits for the step", func() bool {
		return value[bool](t, conn, `SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND locktype = 'advisory' AND NOT granted)`, stopper.PgConn().PID())
	})
	exec(t, other, `COMMIT`)
	if state := pgtest.Receive(t, stopped, "it is stopped"); state != "stopped" {
		t.Errorf("stopping returned %s", state)
	}
	if operation, _ := stepOperation(t, conn, 10); operation != 0 {
		t.Error("a stopped operation goes on")
	}
	wantOperation(t, conn, id, "stopped 10")
	if got := value[string](t, conn, `SELECT began_by || ' ' || stopped_by FROM weir.operations()`); got != "ada grace" {
		t.Errorf("began and stopped by %s", got)
	}
	if state := value[string](t, conn, `SELECT weir.stop_operation($1)`, id); state != "stopped" {
		t.Errorf("stopping it again returned %s", state)
	}
	if !value[bool](t, conn, `SELECT weir.stop_operation(999) IS NULL`) {
		t.Error("an unknown operation was stopped")
	}
	done := beginOperation(t, conn, "retry", `{"queue": "q"}`, "")
	stepAll(t, conn, 10)
	if state := value[string](t, conn, `SELECT weir.stop_operation($1)`, done); state != "done" {
		t.Errorf("stopping one that has ended returned %s", state)
	}
}

// TestAnOperationFailsBecauseOfItselfAlone: what can't be done fails with its error, and others go on; a lock that is not available, or a cursor of another
// version, is no failure.
func TestAnOperationFailsBecauseOfItselfAlone(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, holder := connect(t, url), connect(t, url)
	ids := deadLetters(t, conn, startWorker(t, conn, "q"), "q", 10, "x")
	failing := beginOperation(t, conn, "retry", `{"queue": "q"}`, "")
	exec(t, conn, `UPDATE weir.operation SET filter = '{"priority": 9}'`) // as no function writes it
	next := beginOperation(t, conn, "retry", `{"queue": "q"}`, "")
	exec(t, conn, `INSERT INTO weir.operation_step (operation, no, at, state, changed, after) VALUES ($1, 1, now(), 'running', 0, 'bnVsbA')`, next)
	stepOperation(t, conn, 10)
	if got := value[string](t, conn, `SELECT state || ': ' || error FROM weir.operations() WHERE id = $1`, failing); got != "failed: weir: priority must be 1 to 4, got 9" {
		t.Errorf("the operation is %s", got)
	}
	exec(t, holder, `SELECT pg_advisory_lock(1464158546, -1 - (i % 1000000)::integer) FROM unnest($1::bigint[]) i`, ids)
	stepOperation(t, conn, 10) // begins again
	wantOperation(t, conn, next, "running 0")
	if operation, n := stepOperation(t, conn, 10); operation != 0 || n != 0 {
		t.Errorf("a step without a lock has changed %d jobs of operation %d", n, operation)
	}
	wantOperation(t, conn, next, "running 0")
	exec(t, holder, `SELECT pg_advisory_unlock_all()`)
	stepAll(t, conn, 10)
	wantOperation(t, conn, next, "done 10")
}

// TestOperationsRefuseWhatTheyCanNotDo: an invalid operation is refused when it is begun, with the value and what to do.
func TestOperationsRefuseWhatTheyCanNotDo(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	exec(t, conn, `SELECT weir.enqueue('q', 'k')`)
	for _, c := range []struct{ args, says string }{
		{`'drop', '{"queue": "q"}'`, "got 'drop'"},
		{`NULL, '{"queue": "q"}'`, "got null"},
		{`'retry', NULL`, "must be a JSON object, got null"},
		{`'retry', '[1]'`, "must be a JSON object, got [1]"},
		{`'retry', '{}'`, "needs a filter"},
		{`'retry', '{"queue": null}'`, "needs a filter"},
		{`'retry', '{"states": ["failed"]}'`, "needs a filter"},
		{`'retry', '{"queue": "q", "states": ["running"]}'`, "got states {running}"},
		{`'retry', '{"queue": "q", "states": []}'`, "empty list of states"},
		{`'retry', '{"queue": ""}'`, "whose value is empty: queue"},
		{`'retry', '{"shape": ""}'`, "whose value is empty: shape"},
		{`'retry', '{"colour": "red"}'`, `no condition "colour"`},
		{`'delete', '{"queue": "q", "states": ["failed"]}'`, `no condition "states"`},
		{`'cancel', '{"error": "x"}'`, `no condition "error"`},
		{`'move', '{"queue": "q", "finished_after": "2026-01-01"}'`, `no condition "finished_after"`},
		{`'retry', '{"priority": 5}'`, "priority must be 1 to 4, got 5"},
		{`'move', '{"queue": "q"}'`, "needs to_queue or to_priority"},
		{`'move', '{"queue": "q"}', to_priority => 7`, "to_priority must be 1 to 4, got 7"},
		{`'retry', '{"queue": "q"}', to_queue => 'r'`, "has no to_queue"},
		{`'retry', '{"queue": "q"}', repeat('x', 201)`, "up to 200 characters, got 201"},
	} {
		_, err := conn.Exec(t.Context(), `SELECT weir.begin_operation(`+c.args+`)`)
		if wantCode(t, c.args, err, "22023"); err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", c.args, err, c.says)
		}
	}
	for args, code := range map[string]string{`{"priority": "high"}`: "22P02", `{"enqueued_after": "soon"}`: "22007"} {
		_, err := conn.Exec(t.Context(), `SELECT weir.begin_operation('retry', $1)`, args)
		wantCode(t, args, err, code)
	}
	if !value[bool](t, conn, `SELECT weir.begin_operation('retry', '{"queue": "none"}') IS NULL`) {
		t.Error("an operation on a queue that does not exist began")
	}
	_, err := conn.Exec(t.Context(), `SELECT weir.operations(max_rows => 0)`)
	wantCode(t, "no rows", err, "22023")
	if n := value[int](t, conn, `SELECT count(*) FROM weir.operations()`); n != 0 {
		t.Errorf("%d operations were begun", n)
	}
	exec(t, conn, `SELECT weir.begin_operation('retry', '{"queue": "q"}') FROM generate_series(1, 100)`)
	_, err = conn.Exec(t.Context(), `SELECT weir.begin_operation('retry', '{"queue": "q"}')`)
	wantCode(t, "the 101st", err, "54000")
	beginOperation(t, conn, "cancel", `{"queue": "q"}`, "") // which is done at once
	stepAll(t, conn, 10)
	beginOperation(t, conn, "retry", `{"queue": "q"}`, "")
}

// TestACancellationIsAnOperationThatIsDoneAtOnce: with the commit that begins it.
func TestACancellationIsAnOperationThatIsDoneAtOnce(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	job := value[int64](t, conn, `SELECT weir.enqueue('q', 'k')`)
	id := beginOperation(t, conn, "cancel", `{"queue": "q"}`, "")
	wantOperation(t, conn, id, "done -")
	wantState(t, conn, job, "cancelled")
	if operation, _ := stepOperation(t, conn, 10); operation != 0 {
		t.Error("a cancellation has steps")
	}
}

// TestTimesOfAnOperationMeanTheSameInEverySession: a time without an offset is that of the session that begins it.
func TestTimesOfAnOperationMeanTheSameInEverySession(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	exec(t, conn, `SET timezone = 'Asia/Tokyo'`)
	beginOperation(t, conn, "retry", `{"enqueued_before": "2026-01-01 09:00", "finished_before": "infinity"}`, "")
	exec(t, conn, `SET timezone = 'America/New_York'`)
	if !value[bool](t, conn, `SELECT c.enqueued_before = '2026-01-01 00:00+00' AND c.finished_before = 'infinity' FROM weir.operations() o, weir._conditions(o.filter) c`) {
		t.Errorf("the filter is %s", value[string](t, conn, `SELECT filter::text FROM weir.operations()`))
	}
}

// TestChoresDoOperations: without a Go worker, weir.chores does their steps.
func TestChoresDoOperations(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	deadLetters(t, conn, startWorker(t, conn, "q"), "q", 20, "x")
	id := beginOperation(t, conn, "retry", `{"queue": "q"}`, "")
	exec(t, conn, `CALL weir.chores()`)
	wantOperation(t, conn, id, "done 20")
}

// TestOperationsAreInsertOnlyAndKeptForAWhile: no row is updated or deleted, and tidying leaves those that have not ended, and of the others the newest
// 1,000 of 30 days, each with its newest step.
func TestOperationsAreInsertOnlyAndKeptForAWhile(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, watch := connect(t, url), connect(t, url)
	manyDeadLetters(t, conn, startWorker(t, conn, "q"), "q", 60, "x")
	first := beginOperation(t, conn, "retry", `{"queue": "q", "kinds": ["k"]}`, "")
	stepOperation(t, conn, 10)
	// As begun and done, in a way that takes less time: 300 of them long ago.
	exec(t, conn, `INSERT INTO weir.operation (id, at, by, what, filter) SELECT nextval('weir.operation_id'), now() - CASE WHEN n <= 300 THEN interval '31 days' ELSE interval '1 day' END, 'ada', 'retry', jsonb_build_object('error', repeat('x', 300))
		FROM generate_series(1, 1500) n`)
	exec(t, conn, `INSERT INTO weir.operation_step (operation, no, at, state, changed, after) SELECT id, no, at, CASE no WHEN 2 THEN 'done' ELSE 'running' END, no, CASE no WHEN 1 THEN repeat('x', 200) END
		FROM weir.operation, generate_series(0, 2) no WHERE id <> $1`, first)
	if n := value[int](t, conn, `SELECT count(*) FROM weir.operations(max_rows => 1000) o WHERE o.began_at < now() - interval '30 days'`); n != 0 {
		t.Errorf("%d operations of more than 30 days ago are listed", n)
	}
	if did := value[string](t, conn, `SELECT coalesce(weir._tidy(), '')`); did != "compacted operations" {
		t.Errorf("tidying did %q", did)
	}
	if did := value[string](t, conn, `SELECT coalesce(weir._compact_operations(), '')`); did != "" {
		t.Errorf("tidying did %q again", did)
	}
	if got := value[string](t, conn, `SELECT count(*) || ' ' || min(id) || ' ' || (SELECT count(*) FROM weir.operation_step) FROM weir.operation`); got != fmt.Sprintf("1001 %d 1001", first) {
		t.Errorf("operations, the first of them, and steps are %s", got)
	}
	stepAll(t, conn, 10)
	wantOperation(t, conn, first, "done 60")
	steps := value[int](t, conn, `SELECT max(no) FROM weir.operation_step WHERE operation = $1`, first)
	if err := conn.Close(t.Context()); err != nil { // a session's statistics are known once it has ended
		t.Fatal(err)
	}
	until(t, "what was inserted is counted", func() bool {
		return value[int](t, watch, `SELECT n_tup_ins FROM pg_stat_all_tables WHERE relid = 'weir.operation_step'::regclass`) >= 3*1500+steps
	})
	for _, dead := range column[string](t, watch, `SELECT format('%s has %s dead rows, %s updates, %s deletes', relname, n_dead_tup, n_tup_upd, n_tup_del) FROM pg_stat_all_tables
		WHERE relid IN ('weir.operation'::regclass, 'weir.operation_step'::regclass) AND n_dead_tup + n_tup_upd + n_tup_del > 0`) {
		t.Error(dead)
	}
}

// TestAnOperationGoesOnAfterAMoveToAnotherCluster: until the log is rebased it waits; and with cursors that the new database does not know, it begins again and
// changes each job once.
func TestAnOperationGoesOnAfterAMoveToAnotherCluster(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	manyDeadLetters(t, conn, startWorker(t, conn, "q"), "q", 50, "x")
	id := beginOperation(t, conn, "retry", `{"queue": "q"}`, "")
	stepOperation(t, conn, 20)
	moveElsewhere(t, conn)
	_, err := conn.Exec(t.Context(), `SELECT weir._step_operations()`)
	wantCode(t, "a step before the rebase", err, "WR003")
	wantOperation(t, conn, id, "running 20")
	exec(t, conn, `SELECT weir.rebase()`)
	exec(t, conn, `UPDATE weir.setting SET value = 'another' WHERE name = 'cursor_secret'`)
	if n := stepAll(t, conn, 20); n != 30 {
		t.Errorf("after the move, %d jobs were retried, want 30", n)
	}
	wantOperation(t, conn, id, "done 50")
	if n := value[int](t, conn, `SELECT count(*) FROM weir.job WHERE attempt = 2`); n != 50 {
		t.Errorf("%d second attempts were logged, want 50", n)
	}
}

// TestAnOperationTakesBackNoCancellationFromAfterItBegan: neither one of a job, nor one by filter.
func TestAnOperationTakesBackNoCancellationFromAfterItBegan(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	ids := enqueueN(t, conn, "q", 4)
	exec(t, conn, `SELECT weir.cancel($1)`, ids[0])
	beginOperation(t, conn, "retry", `{"queue": "q", "states": ["cancelled"]}`, "")
	exec(t, conn, `SELECT weir.cancel($1)`, ids[1])
	exec(t, conn, `SELECT weir.cancel_where(queue => 'q')`)
	if n := stepAll(t, conn, 500); n > 1 {
		t.Errorf("%d jobs were retried, of which one had been cancelled before", n)
	}
	wantState(t, conn, ids[1], "cancelled")
	wantState(t, conn, ids[2], "cancelled")
}

// TestAnOperationThatIsHeldUpHoldsUpNoOther: a transaction that stays open has retried one of its jobs.
func TestAnOperationThatIsHeldUpHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, holder := connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "a", "b")
	held, other := deadLetters(t, conn, worker, "a", 1, "no")[0], deadLetters(t, conn, worker, "b", 1, "no")[0]
	first, second := beginOperation(t, conn, "retry", `{"queue": "a"}`, ""), beginOperation(t, conn, "retry", `{"queue": "b"}`, "")
	exec(t, holder, `BEGIN`)
	exec(t, holder, `SELECT weir.retry($1)`, held)
	if operation, n := stepOperation(t, conn, 500); operation != second || n != 1 {
		t.Errorf("a step of operation %d has changed %d jobs, want one of operation %d", operation, n, second)
	}
	wantState(t, conn, other, "available")
	if got := value[string](t, conn, `SELECT weir.stop_operation($1, 'ada')`, first); got != "stopped" {
		t.Errorf("stopping the one that is held up says %q", got)
	}
	exec(t, holder, `ROLLBACK`)
}
