package proof

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// endedOperations makes operations that have ended, in a way that takes less time than to begin and do them, and has that noted.
func endedOperations(t *testing.T, q querier, n int) {
	t.Helper()
	exec(t, q, `WITH o AS (INSERT INTO weir.operation (id, at, by, what, filter) SELECT nextval('weir.operation_id'), now(), 'ada', 'retry', '{"queue": "q"}' FROM generate_series(1, $1) RETURNING id)
		INSERT INTO weir.operation_step (operation, no, at, state, changed) SELECT o.id, 1, now(), 'done', 0 FROM o`, n)
	exec(t, q, `SELECT * FROM weir._step_operations()`)
}

// TestAnOperationGoesOnAtAPromotedStandby: steps that were not replayed are done again, on jobs as they are there, and each job is changed once.
func TestAnOperationGoesOnAtAPromotedStandby(t *testing.T) {
	t.Parallel()
	primary := pgtest.Server(t, nil)
	conn := connect(t, primary.URL("postgres"))
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	manyDeadLetters(t, conn, startWorker(t, conn, "q"), "q", 60, "x")
	endedOperations(t, conn, 100)
	id := beginOperation(t, conn, "retry", `{"queue": "q"}`, "")
	stepOperation(t, conn, 20)
	standby := pgtest.Standby(t, primary, nil)
	pgtest.Replayed(t, primary, standby)
	pgtest.CutOff(t, standby)
	// All this is lost: two steps, and an operation that was begun, done and noted.
	stepOperation(t, conn, 20)
	stepOperation(t, conn, 10)
	beginOperation(t, conn, "cancel", `{"queue": "q"}`, "")
	endedOperations(t, conn, 100)
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	pgtest.Promote(t, standby)
	conn = connect(t, standby.URL("postgres"))
	wantOperation(t, conn, id, "running 20")
	second := beginOperation(t, conn, "move", `{"queue": "q"}`, "elsewhere")
	if n := stepAll(t, conn, 10); n != 40+60 {
		t.Errorf("at the new server, %d jobs were changed, want 40 retried and 60 moved", n)
	}
	wantOperation(t, conn, id, "done 60")
	wantOperation(t, conn, second, "done 60")
	if got := value[string](t, conn, `SELECT count(*) || ' ' || count(DISTINCT id) FROM weir.jobs('available', 'elsewhere', 1000)`); got != "60 60" {
		t.Errorf("jobs are %s, want each of 60 once", got)
	}
}

// TestAnOperationGoesOnInARestoredDump: a dump that was taken between two steps, in which sequences are ahead of the tables, as pg_dump reads them later.
func TestAnOperationGoesOnInARestoredDump(t *testing.T) {
	t.Parallel()
	dump := dumpProgram(t)
	url := pgtest.Database(t)
	conn := connect(t, url)
	manyDeadLetters(t, conn, startWorker(t, conn, "q"), "q", 60, "x")
	endedOperations(t, conn, 100)
	id := beginOperation(t, conn, "retry", `{"queue": "q"}`, "")
	stepOperation(t, conn, 20)
	server := pgtest.Server(t, nil)
	target := connect(t, server.URL("postgres"))
	for _, role := range []string{"weir_enqueue", "weir_work", "weir_operate", "weir_publish", "weir_subscribe", "weir_hub"} {
		exec(t, target, `CREATE ROLE `+role)
	}
	snapshot, err := connect(t, url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	exec(t, snapshot, `SET TRANSACTION ISOLATION LEVEL REPEATABLE READ`)
	name := value[string](t, snapshot, `SELECT pg_export_snapshot()`)
	stepOperation(t, conn, 20)
	other := beginOperation(t, conn, "delete", `{"queue": "q"}`, "")
	stepAll(t, conn, 20)
	endedOperations(t, conn, 100)
	sql := run(t, nil, dump, "--schema=weir", "--snapshot="+name, url)
	if err := snapshot.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	run(t, bytes.NewReader(sql), filepath.Join(filepath.Dir(dump), "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", server.URL("postgres"))
	exec(t, target, `SELECT weir.rebase()`)
	wantOperation(t, target, id, "running 20")
	if n := stepAll(t, target, 20); n != 40 {
		t.Errorf("in the restored database, %d jobs were retried, want 40", n)
	}
	wantOperation(t, target, id, "done 60")
	if next := beginOperation(t, target, "retry", `{"queue": "q"}`, ""); next <= other {
		t.Errorf("the next operation is %d, which is a number that was used before", next)
	}
	if got := value[string](t, target, `SELECT count(*) || ' ' || count(DISTINCT id) FROM weir.jobs('available', 'q', 1000)`); got != "60 60" {
		t.Errorf("jobs are %s, want each of 60 once", got)
	}
}
