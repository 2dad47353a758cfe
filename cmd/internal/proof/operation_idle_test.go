package proof

import (
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAnIdleLookForOperationsCostsTheSameWhateverHasEnded: and it finds what has not ended, also if it was begun long before and committed late.
func TestAnIdleLookForOperationsCostsTheSameWhateverHasEnded(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, late := connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q")
	manyDeadLetters(t, conn, worker, "q", 30, "x")
	look := func() int {
		t.Helper()
		if operation, _ := stepOperation(t, conn, 100); operation != 0 {
			t.Fatalf("an idle look does a step of operation %d", operation)
		}
		return blocks(t, conn, `SELECT * FROM weir._step_operations()`)
	}
	end := func(n int) { // as begun and done, in a way that takes less time
		t.Helper()
		exec(t, conn, `WITH o AS (INSERT INTO weir.operation (id, at, by, what, filter) SELECT nextval('weir.operation_id'), now(), 'ada', 'retry', '{"queue": "q"}' FROM generate_series(1, $1) RETURNING id)
			INSERT INTO weir.operation_step (operation, no, at, state, changed) SELECT o.id, no, now(), CASE no WHEN 1 THEN 'done' ELSE 'running' END, no FROM o, generate_series(0, 1) no`, n)
	}
	end(10)
	look()
	few := look()

	tx, err := late.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	id := beginOperation(t, tx, "retry", `{"queue": "q"}`, "")
	end(3000)
	look()
	if n := value[int](t, conn, `SELECT count(*) FROM weir.operation_mark`); n != 0 {
		t.Errorf("while an operation is being begun, %d marks pass it", n)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := stepAll(t, conn, 10); n != 30 {
		t.Errorf("%d jobs are retried, want 30", n)
	}
	wantOperation(t, conn, id, "done 30")
	many := look()
	t.Logf("an idle look touches %d blocks after 10 operations, %d after 3,000", few, many)
	if many > few+100 {
		t.Errorf("an idle look touches %d blocks after 10 operations, %d after 3,000", few, many)
	}

	// An operation behind a mark, and one that is open below those that have ended.
	manyDeadLetters(t, conn, worker, "q", 20, "x")
	open := beginOperation(t, conn, "retry", `{"queue": "q"}`, "")
	end(200)
	if _, n := stepOperation(t, conn, 5); n != 5 {
		t.Errorf("a step changes %d jobs, want 5", n)
	}
	exec(t, conn, `SELECT weir._mark_operations()`)
	if n := stepAll(t, conn, 5); n != 15 {
		t.Errorf("%d jobs are retried, want 15", n)
	}
	wantOperation(t, conn, open, "done 20")
	if last := look(); last > few+100 {
		t.Errorf("an idle look touches %d blocks in the end", last)
	}
}
