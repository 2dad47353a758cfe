package proof

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// fail records that an attempt has failed for good.
func fail(t *testing.T, conn *pgx.Conn, worker int32, a attempt) {
	t.Helper()
	if first, err := finish(t.Context(), conn, worker, a, "failed", time.Time{}); err != nil || !first {
		t.Fatalf("fail job %d: %v %v", a.ID, first, err)
	}
}

// wantState checks the state of a job; "unknown" means that the database knows nothing about it.
func wantState(t *testing.T, conn *pgx.Conn, id int64, want string) {
	t.Helper()
	if got := value[string](t, conn, `SELECT coalesce((SELECT state FROM weir.job_info($1)), 'unknown')`, id); got != want {
		t.Errorf("job %d is %s, want %s", id, got, want)
	}
}

// TestFailedJobsOutliveTheirSegment: completed and cancelled jobs are deleted with their segment, but a job that failed for good, for whatever
// reason, can still be shown, listed and retried.
func TestFailedJobsOutliveTheirSegment(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	smallSegments(t, conn)
	worker := startWorker(t, conn, "q", "filler")
	ended := map[string]int64{}
	for _, outcome := range []string{"completed", "cancelled", "failed", "retried"} {
		id := value[int64](t, conn, `SELECT weir.enqueue('q', 'k', '{"a": [1, 2]}', priority => 1, max_attempts => 1, meta => '{"m": 3}')`)
		a := mustClaim(t, conn, worker, "q", 10)
		if _, err := finish(t.Context(), conn, worker, a[0], outcome, time.Time{}); err != nil { // with outcome retried too, because its attempts are used up
			t.Fatal(err)
		}
		ended[outcome] = id
	}
	lost := value[int64](t, conn, `SELECT weir.enqueue('q', 'k', max_attempts => 1)`)
	dead := startWorker(t, conn, "q")
	mustClaim(t, conn, dead, "q", 1)
	wantFenced(t, conn, dead, 1)
	const shape = `SELECT to_jsonb(i) - 'claimed_at' - 'finished_at' - 'errors' FROM weir.job_info($1) i`
	before := value[map[string]any](t, conn, shape, ended["failed"])

	for range 3 {
		turn(t, conn, worker)
	}
	wantState(t, conn, ended["completed"], "unknown")
	wantState(t, conn, ended["cancelled"], "unknown")
	for _, id := range []int64{ended["failed"], ended["retried"], lost} {
		wantState(t, conn, id, "failed")
	}
	if after := value[map[string]any](t, conn, shape, ended["failed"]); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("the job was\n%v\nand is now\n%v", before, after)
	}
	if ok := value[bool](t, conn, `SELECT finished_at >= claimed_at AND claimed_at >= enqueued_at AND errors->0->>'error' = error FROM weir.job_info($1)`, lost); !ok {
		t.Error("the time of the claim or of the end, or the error, is missing")
	}
	for _, queue := range []any{nil, "q"} {
		if got := column[int64](t, conn, `SELECT id FROM weir.jobs('failed', $1)`, queue); fmt.Sprint(got) != fmt.Sprint([]int64{lost, ended["retried"], ended["failed"]}) {
			t.Errorf("the failed jobs of %v are %v, want %d, %d and %d", queue, got, lost, ended["retried"], ended["failed"])
		}
	}

	exec(t, conn, `SELECT setval('weir.active_failure', 2)`)
	if state := value[string](t, conn, `SELECT weir.retry($1)`, ended["failed"]); state != "available" {
		t.Errorf("retry returned %s", state)
	}
	wantState(t, conn, ended["failed"], "available")
	got := mustClaim(t, conn, worker, "q", 10)
	if len(got) != 1 || got[0].ID != ended["failed"] || got[0].Attempt != 2 {
		t.Fatalf("claimed %v, want the second attempt of job %d", got, ended["failed"])
	}
	mustComplete(t, conn, worker, got)
	wantState(t, conn, ended["failed"], "completed")
	for range 3 {
		turn(t, conn, worker)
	}
	exec(t, conn, `TRUNCATE weir.failure_2, weir.failure_3, weir.failure_4`) // the order must not matter
	wantState(t, conn, ended["failed"], "unknown")                           // not failed, because it has completed since
	if got := column[int64](t, conn, `SELECT id FROM weir.jobs('failed')`); len(got) != 2 {
		t.Errorf("the failed jobs are %v", got)
	}
}

// TestAJobThatFailsAgainIsKeptAsItFailedLast: a job retried by hand, before or after its segment is reclaimed, is kept as it failed last.
func TestAJobThatFailsAgainIsKeptAsItFailedLast(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	smallSegments(t, conn)
	worker := startWorker(t, conn, "q", "filler")
	id := value[int64](t, conn, `SELECT weir.enqueue('q', 'k')`)
	for n := range 4 {
		got := mustClaim(t, conn, worker, "q", 10)
		if len(got) != 1 || int(got[0].Attempt) != n+1 {
			t.Fatalf("claimed %v, want attempt %d", got, n+1)
		}
		fail(t, conn, worker, got[0])
		if n%2 == 1 {
			turn(t, conn, worker)
			turn(t, conn, worker)
		}
		wantState(t, conn, id, "failed")
		if got := column[int64](t, conn, `SELECT id FROM weir.jobs('failed')`); len(got) != 1 {
			t.Errorf("the failed jobs are %v, want one", got)
		}
		if n < 3 {
			exec(t, conn, `SELECT weir.retry($1)`, id)
		}
	}
	if n := value[int](t, conn, `SELECT attempt FROM weir.job_info($1)`, id); n != 4 {
		t.Errorf("the job failed in attempt %d, want 4", n)
	}
}

// TestAFailureIsKeptWithItsResultOrNotAtAll: a rollback leaves neither the result nor the failure.
func TestAFailureIsKeptWithItsResultOrNotAtAll(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	enqueueN(t, conn, "q", 1)
	a := mustClaim(t, conn, worker, "q", 1)[0]
	exec(t, conn, `BEGIN`)
	fail(t, conn, worker, a)
	exec(t, conn, `ROLLBACK`)
	wantState(t, conn, a.ID, "running")
	mustComplete(t, conn, worker, []attempt{a})
	wantState(t, conn, a.ID, "completed")
	if n := value[int](t, conn, `SELECT count(*) FROM weir.failure`); n != 0 {
		t.Errorf("%d failures are stored after a rollback", n)
	}
}

// TestAFloodOfFailuresIsBounded: even if every job fails, segments of the log are reclaimed, failures take no more than their share of the space,
// and the newest are kept.
func TestAFloodOfFailuresIsBounded(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	smallSegments(t, conn)
	worker := startWorker(t, conn, "q")
	const share = 1 << 20 / 4
	reclaimed, largest, total := 0, 0, 0
	last := int64(0)
	for reclaimed < 3 {
		ids := enqueueN(t, conn, "q", 50)
		total += len(ids)
		got := claimAll(t, conn, worker, "q")
		if refused, err := record(t.Context(), conn, worker, got, "failed", nil); err != nil || len(refused) > 0 {
			t.Fatal(refused, err)
		}
		last = ids[len(ids)-1]
		for {
			did := value[string](t, conn, `SELECT coalesce(weir._rotate(), weir._rotate_history(), '')`)
			if strings.HasPrefix(did, "reclaimed job") {
				reclaimed++
			}
			if did == "" {
				break
			}
		}
		largest = max(largest, value[int](t, conn, `SELECT sum(pg_total_relation_size('weir.failure_' || s)) FROM generate_series(1, 4) s`))
		if total > 100_000 {
			t.Fatalf("%d jobs have failed and %d segments were reclaimed", total, reclaimed)
		}
	}
	t.Logf("%d jobs failed, and took up to %d kB", total, largest>>10)
	if largest > 2*share { // besides the limit, each segment has up to 50 more failures, and empty pages and indexes
		t.Errorf("failures took %d bytes, want about %d", largest, share)
	}
	wantState(t, conn, last, "failed")
	if n := value[int](t, conn, `SELECT count(*) FROM weir.jobs('failed')`); n < 50 {
		t.Errorf("%d of %d failures can be listed", n, total)
	}
}

// TestFailuresGoAfterTheirRetention: failures are deleted after their retention, the oldest first; a reader delays it.
func TestFailuresGoAfterTheirRetention(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, reader := connect(t, url), connect(t, url)
	smallSegments(t, conn)
	worker := startWorker(t, conn, "q", "filler")
	id := enqueueN(t, conn, "q", 1)[0]
	fail(t, conn, worker, mustClaim(t, conn, worker, "q", 1)[0])
	turn(t, conn, worker)
	turn(t, conn, worker)
	wantState(t, conn, id, "failed")
	exec(t, conn, `SELECT weir.set('failed_retention', '0 s')`)
	rotateUntil(t, conn, "opened failure 2") // after a second
	exec(t, reader, `BEGIN; SELECT * FROM weir.failure_1`)
	exec(t, conn, `SELECT weir._rotate_history()`)
	wantState(t, conn, id, "failed")
	exec(t, reader, `COMMIT`)
	rotateUntil(t, conn, "reclaimed failure 1")
	wantState(t, conn, id, "unknown")
	if state := value[*string](t, conn, `SELECT weir.retry($1)`, id); state != nil {
		t.Errorf("a retry of a job that was deleted returned %s", *state)
	}
}

// TestARestoredDumpKnowsHowRetriedJobsEnded: after a rebase, a job with several attempts has the state of the last one, and a failed job is listed
// and can be retried.
func TestARestoredDumpKnowsHowRetriedJobsEnded(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	ids := map[string]int64{}
	for _, last := range []string{"failed", "completed", "cancelled"} {
		ids[last] = value[int64](t, conn, `SELECT weir.enqueue('q', 'k', max_attempts => 5)`)
		for _, outcome := range []string{"retried", "snoozed", last} {
			if _, err := finish(t.Context(), conn, worker, mustClaim(t, conn, worker, "q", 1)[0], outcome, time.Time{}); err != nil {
				t.Fatal(err)
			}
		}
		wantState(t, conn, ids[last], last)
	}
	moveElsewhere(t, conn)
	exec(t, conn, `SELECT weir.rebase()`)
	for want, id := range ids {
		wantState(t, conn, id, want)
	}
	if got := column[int64](t, conn, `SELECT id FROM weir.jobs('failed')`); len(got) != 1 || got[0] != ids["failed"] {
		t.Errorf("the failed jobs after the rebase are %v, want %d", got, ids["failed"])
	}
	if state := value[string](t, conn, `SELECT weir.retry($1)`, ids["failed"]); state != "available" {
		t.Errorf("the failed job is %s after its retry", state)
	}
}

// claimedInAHeldSegment makes a worker claim a job of queue q in the first segment, which a reader protects from being reclaimed until the test
// ends; the second segment is active.
func claimedInAHeldSegment(t *testing.T) (conn *pgx.Conn, worker int32, first attempt) {
	t.Helper()
	url := pgtest.Database(t)
	conn, reader := connect(t, url), connect(t, url)
	smallSegments(t, conn)
	worker = startWorker(t, conn, "q", "filler")
	enqueueN(t, conn, "q", 1)
	first = mustClaim(t, conn, worker, "q", 1)[0]
	exec(t, reader, `BEGIN`)
	exec(t, reader, `LOCK TABLE weir.job_1 IN ACCESS SHARE MODE`)
	openNext(t, conn, worker)
	return conn, worker, first
}

// TestASnoozedJobThatFailedIsFailed: a job that failed after a snooze is failed, even if its last segment is reclaimed before the one with the
// snooze.
func TestASnoozedJobThatFailedIsFailed(t *testing.T) {
	t.Parallel()
	conn, worker, first := claimedInAHeldSegment(t)
	id := first.ID
	if _, err := finish(t.Context(), conn, worker, first, "snoozed", time.Time{}); err != nil {
		t.Fatal(err)
	}
	fail(t, conn, worker, mustClaim(t, conn, worker, "q", 1)[0])
	openNext(t, conn, worker)
	rotateUntil(t, conn, "reclaimed job 2")
	wantState(t, conn, id, "failed")
	if got := column[int64](t, conn, `SELECT id FROM weir.jobs('failed')`); len(got) != 1 {
		t.Errorf("the failed jobs are %v, want %d", got, id)
	}
}

// TestAFailureThatWasRetriedDoesNotReappear: a failed job whose retry completed is not failed again, even if the segment with the completion is
// reclaimed before the one with the failure; it is unknown then, and can't be retried.
func TestAFailureThatWasRetriedDoesNotReappear(t *testing.T) {
	t.Parallel()
	conn, worker, first := claimedInAHeldSegment(t)
	id := first.ID
	fail(t, conn, worker, first)
	exec(t, conn, `SELECT weir.retry($1)`, id)
	mustComplete(t, conn, worker, mustClaim(t, conn, worker, "q", 1))
	wantState(t, conn, id, "completed")
	openNext(t, conn, worker)
	rotateUntil(t, conn, "reclaimed job 2")
	if n := value[int](t, conn, `SELECT count(*) FROM weir.job_info($1) WHERE state = 'failed'`, id); n != 0 {
		t.Error("a job that has completed is shown as failed")
	}
	if state := value[*string](t, conn, `SELECT weir.retry($1)`, id); state != nil {
		t.Errorf("a retry of a job that has completed returned %s", *state)
	}
	if got := mustClaim(t, conn, worker, "q", 1); len(got) != 0 {
		t.Errorf("the job was claimed again: %v", got)
	}
}

// TestAJobThatFailedAgainIsAsItFailedLast: a job that failed twice is shown with its last failure, even if that one's segment is reclaimed first,
// and its next attempt has a new number.
func TestAJobThatFailedAgainIsAsItFailedLast(t *testing.T) {
	t.Parallel()
	conn, worker, first := claimedInAHeldSegment(t)
	id := first.ID
	fail(t, conn, worker, first)
	exec(t, conn, `SELECT weir.retry($1)`, id)
	fail(t, conn, worker, mustClaim(t, conn, worker, "q", 1)[0])
	openNext(t, conn, worker)
	rotateUntil(t, conn, "reclaimed job 2")
	wantState(t, conn, id, "failed")
	if attempt := value[int](t, conn, `SELECT attempt FROM weir.job_info($1)`, id); attempt != 2 {
		t.Errorf("the job failed in attempt %d, want 2", attempt)
	}
	exec(t, conn, `SELECT weir.retry($1)`, id)
	third := mustClaim(t, conn, worker, "q", 1)
	if len(third) != 1 || third[0].Attempt != 3 {
		t.Fatalf("claimed %v after the second retry, want attempt 3", third)
	}
	mustComplete(t, conn, worker, third)
	wantState(t, conn, id, "completed")
}
