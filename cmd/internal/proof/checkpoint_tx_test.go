package proof

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// setCheckpoint sets an attempt's checkpoint in the connection's transaction.
func setCheckpoint(t *testing.T, conn *pgx.Conn, worker int32, a attempt, checkpoint string) error {
	t.Helper()
	_, err := conn.Exec(t.Context(), `SELECT weir.set_checkpoint($1, $2, $3::text::jsonb)`, worker, a.token(), checkpoint)
	return err
}

// TestACheckpointCommitsWithItsEffects: a checkpoint that is set in a transaction counts if, and only if, the transaction is committed; percent and message stay.
func TestACheckpointCommitsWithItsEffects(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, handler := connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q")
	id := enqueueN(t, conn, "q", 1)[0]
	a := mustClaim(t, conn, worker, "q", 1)[0]
	if refused := report(t, conn, worker, a, `"percent": 40, "message": "m", "checkpoint": 1`); len(refused) > 0 {
		t.Fatal(refused)
	}
	for n, end := range []string{`ROLLBACK`, `COMMIT`} {
		exec(t, handler, `BEGIN`)
		if err := setCheckpoint(t, handler, worker, a, fmt.Sprintf(`{"n": %d}`, n)); err != nil {
			t.Fatal(err)
		}
		wantReported(t, conn, "before the end of the transaction", id, "40", "1")
		exec(t, handler, end)
	}
	wantReported(t, conn, "after the commit", id, "40", `{"n": 1}`)
	if err := setCheckpoint(t, conn, worker, a, `null`); err != nil {
		t.Fatal(err)
	}
	wantReported(t, conn, "after null", id, "40", "none")

	other := startWorker(t, conn, "q")
	wantCode(t, "another worker", setCheckpoint(t, conn, other, a, `2`), "WR002")
	wantCode(t, "too large", setCheckpoint(t, conn, worker, a, `"`+strings.Repeat("x", 140_000)+`"`), "22023")
	exec(t, conn, `BEGIN ISOLATION LEVEL REPEATABLE READ`)
	wantCode(t, "in REPEATABLE READ", setCheckpoint(t, conn, worker, a, `2`), "WR004")
	exec(t, conn, `ROLLBACK`)
	mustComplete(t, conn, worker, []attempt{a})
	wantCode(t, "an ended attempt", setCheckpoint(t, conn, worker, a, `2`), "WR002")
	wantReported(t, conn, "in the end", id, "40", "none")
}

// TestACarriedReportHidesNoCheckpointThatCommitsLater: while a transaction that has set a checkpoint is open, the attempt reports again, and what it had
// reported before is carried into another segment.
func TestACarriedReportHidesNoCheckpointThatCommitsLater(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, handler := connect(t, url), connect(t, url)
	exec(t, conn, `SELECT weir.set('completed_retention', '0 s'), weir.set('failed_retention', '0 s')`)
	worker := startWorker(t, conn, "q")
	id := enqueueN(t, conn, "q", 1)[0]
	a := mustClaim(t, conn, worker, "q", 1)[0]
	reports := func(fields string) {
		t.Helper()
		if refused := report(t, conn, worker, a, fields); len(refused) > 0 {
			t.Fatal(refused)
		}
	}
	reports(`"percent": 10, "checkpoint": 1`)
	rotateUntil(t, conn, "opened report 2")
	exec(t, handler, `BEGIN`)
	if err := setCheckpoint(t, handler, worker, a, `2`); err != nil {
		t.Fatal(err)
	}
	reports(`"percent": 50`)
	rotateUntil(t, conn, "reclaimed report 1")
	wantReported(t, conn, "before the commit", id, "50", "1")
	exec(t, handler, `COMMIT`)
	wantReported(t, conn, "after the commit", id, "50", "2")
}

// TestNoAttemptStartsBetweenACheckpointAndItsCommit: while a transaction that has set a checkpoint is open, its attempt does not end, and no other one starts, even if its
// worker is lost; so the next attempt goes on from that checkpoint after a commit, and from the one before it after a rollback.
func TestNoAttemptStartsBetweenACheckpointAndItsCommit(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, handler := connect(t, url), connect(t, url)
	for end, want := range map[string]string{`COMMIT`: "2", `ROLLBACK`: "1"} {
		worker, next := startWorker(t, conn, "q"), startWorker(t, conn, "q")
		id := enqueueN(t, conn, "q", 1)[0]
		a := mustClaim(t, conn, worker, "q", 1)[0]
		if err := setCheckpoint(t, conn, worker, a, `1`); err != nil {
			t.Fatal(err)
		}
		exec(t, handler, `BEGIN`)
		if err := setCheckpoint(t, handler, worker, a, `2`); err != nil {
			t.Fatal(err)
		}
		for _, lock := range locksOf(t, handler) {
			if strings.HasSuffix(lock, "AccessShareLock") && (strings.Contains(lock, "weir.job") || strings.Contains(lock, "weir.batch") || strings.Contains(lock, "weir.re")) {
				t.Errorf("the open transaction keeps segments from being emptied: %s", lock)
			}
		}
		if refused, err := record(t.Context(), conn, worker, []attempt{a}, "retried", nil); err != nil || len(refused) != 1 || refused[0].Refusal != "busy" {
			t.Errorf("while the transaction is open, the end of the attempt is %v (%v), want busy", refused, err)
		}
		exec(t, conn, `SELECT weir._fence($1, 'test')`, worker)
		exec(t, conn, `SELECT weir._rescue()`)
		if got := mustClaim(t, conn, next, "q", 1); len(got) > 0 {
			t.Errorf("another attempt starts: %v", got)
		}
		exec(t, handler, end)
		var b []attempt
		pgtest.Until(t, "the job is rescued", func() bool {
			exec(t, conn, `SELECT weir._rescue()`)
			b = mustClaim(t, conn, next, "q", 1)
			return len(b) == 1
		})
		wantReported(t, conn, "when the next attempt starts after "+end, id, "none", want)
		if err := setCheckpoint(t, conn, worker, a, `9`); sqlstate(err) != "WR001" {
			t.Errorf("the lost worker's late checkpoint: %v, want WR001", err)
		}
		mustComplete(t, conn, next, b)
	}
}
