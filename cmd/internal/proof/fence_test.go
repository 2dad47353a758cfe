package proof

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

// fence ends a worker; it returns false while the worker is recording.
func fence(t *testing.T, q querier, worker int32) bool {
	t.Helper()
	return value[bool](t, q, `SELECT weir._fence($1, 'the test says so')`, worker)
}

func wantFenced(t *testing.T, q querier, worker int32, lost int) {
	t.Helper()
	if !fence(t, q, worker) {
		t.Error("the worker is not fenced")
	}
	if got := settle(t, q, worker); got != lost {
		t.Errorf("%d attempts have the result lost, want %d", got, lost)
	}
}

// TestFencedWorkerIsRefused: a fenced worker can neither claim nor record, and its unfinished jobs are claimed by others.
func TestFencedWorkerIsRefused(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	ctx := t.Context()
	ids := enqueueN(t, conn, "q", 4)
	zombie, other := startWorker(t, conn, "q"), startWorker(t, conn, "q")
	got := mustClaim(t, conn, zombie, "q", 3)
	mustComplete(t, conn, zombie, got[:1])
	wantFenced(t, conn, zombie, 2)
	wantFenced(t, conn, zombie, 0) // once more

	_, err := claim(ctx, conn, zombie, []string{"q"}, []int32{1})
	wantCode(t, "claim", err, "WR001")
	wantCode(t, "complete", complete(ctx, conn, zombie, got[1:]), "WR001")
	_, err = finish(ctx, conn, zombie, got[1], "failed", time.Time{})
	wantCode(t, "finish", err, "WR001")
	if !value[bool](t, conn, `SELECT fenced FROM weir.heartbeat($1)`, zombie) {
		t.Error("heartbeat does not report that the worker is fenced")
	}
	_, err = claim(ctx, conn, 999_999, []string{"q"}, []int32{1})
	wantCode(t, "claim of an unknown worker", err, "WR001")

	attempts := map[int64]int32{}
	again := claimAll(t, conn, other, "q")
	for _, a := range again {
		attempts[a.ID] = a.Attempt
	}
	if len(again) != 3 || attempts[ids[1]] != 2 || attempts[ids[2]] != 2 || attempts[ids[3]] != 1 {
		t.Errorf("claimed %v, want attempts 2, 2 and 1 of jobs %v", attempts, ids[1:])
	}
	mustComplete(t, conn, other, again)
	for _, id := range ids {
		if state := value[string](t, conn, `SELECT state FROM weir.job_info($1)`, id); state != "completed" {
			t.Errorf("job %d is %s, want completed", id, state)
		}
	}
	if worker := value[int32](t, conn, `SELECT worker FROM weir.job_info($1)`, ids[0]); worker != zombie {
		t.Errorf("the result that worker %d recorded before its fence is now worker %d's", zombie, worker)
	}
}

// TestFenceWaitsForAResultInFlight: a worker is not fenced while one of its results is in flight, and neither waits for the other.
func TestFenceWaitsForAResultInFlight(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, inside := connect(t, url), connect(t, url)
	enqueueN(t, conn, "q", 2)
	worker, other := startWorker(t, conn, "q"), startWorker(t, conn, "q")
	got := mustClaim(t, conn, worker, "q", 2)
	exec(t, inside, `BEGIN`)
	mustComplete(t, inside, worker, got[:1])
	exec(t, conn, `SET statement_timeout = '10s'`)
	if fence(t, conn, worker) {
		t.Error("the worker was fenced while a result is in flight")
	}
	if n := len(mustClaim(t, conn, other, "q", 10)); n > 0 {
		t.Errorf("%d attempts were claimed again", n)
	}
	exec(t, inside, `COMMIT`)
	wantFenced(t, conn, worker, 1)
	again := claimAll(t, conn, other, "q")
	if len(again) != 1 || again[0].ID != got[1].ID || again[0].Attempt != 2 {
		t.Errorf("claimed %v, want only the second attempt of job %d", again, got[1].ID)
	}
}

// TestRescueTakesOverFromTheSilent: a worker without heartbeats loses its attempts after its lease, and a worker with heartbeats keeps them.
func TestRescueTakesOverFromTheSilent(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	enqueueN(t, conn, "q", 10)
	silent := value[int32](t, conn, `SELECT weir._start('silent', ARRAY['q'], '1 second')`)
	beating := value[int32](t, conn, `SELECT weir._start('beating', ARRAY['q'], '1 second')`)
	lost, kept := mustClaim(t, conn, silent, "q", 5), mustClaim(t, conn, beating, "q", 5)
	rescued := 0
	until(t, "the silent worker's attempts are rescued", func() bool {
		if value[bool](t, conn, `SELECT fenced FROM weir.heartbeat($1, 5)`, beating) {
			t.Fatal("a worker with heartbeats was fenced")
		}
		rescued += value[int](t, conn, `SELECT coalesce(sum(relogged), 0) FROM weir._rescue()`)
		return rescued > 0
	})
	if rescued != len(lost) {
		t.Errorf("%d attempts were rescued, want %d", rescued, len(lost))
	}
	mustComplete(t, conn, beating, kept)
	for _, a := range claimAll(t, conn, startWorker(t, conn, "q"), "q") {
		if a.Attempt != 2 {
			t.Errorf("%v was claimed again, want only second attempts", a)
		}
	}
}

// TestAPreparedTransactionThatKeepsAWorkerIsSaid: if a prepared transaction of a worker keeps it from being fenced, the rescuer reports which
// transaction it is, and still fences other workers.
func TestAPreparedTransactionThatKeepsAWorkerIsSaid(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	for name, call := range map[string]string{
		"record":    `weir._record($1, '{}', '{}', '{}', '{}')`,
		"heartbeat": `weir.heartbeat($1)`,
		"claim":     `weir._claim($1, '{q}', '{1}')`,
	} {
		gid := fmt.Sprintf("%s of %s", name, conn.Config().Database)
		kept := value[int32](t, conn, `SELECT weir._start('kept', ARRAY['q'], '1 second')`)
		lost := value[int32](t, conn, `SELECT weir._start('lost', ARRAY['q'], '1 second')`)
		exec(t, conn, `BEGIN`)
		exec(t, conn, `SELECT `+call, kept)
		exec(t, conn, fmt.Sprintf(`PREPARE TRANSACTION '%s'`, gid))
		said := ""
		until(t, name+": the rescuer reports what keeps the worker, and fences the other one", func() bool {
			for _, why := range column[string](t, conn, `SELECT error FROM weir._rescue() WHERE worker = $1 AND error IS NOT NULL`, kept) {
				said = why
			}
			return said != "" && isFenced(t, conn, lost)
		})
		if !strings.Contains(said, "'"+gid+"'") || isFenced(t, conn, kept) {
			t.Errorf("%s: the rescuer reports %q, want the transaction %s, and the worker not fenced", name, said, gid)
		}
		exec(t, conn, fmt.Sprintf(`ROLLBACK PREPARED '%s'`, gid))
		until(t, name+": the worker is fenced", func() bool {
			exec(t, conn, `SELECT weir._rescue()`)
			return isFenced(t, conn, kept)
		})
	}
}

// TestResultNamesItsBatch: a result is refused if its batch belongs to another worker or does not exist.
func TestResultNamesItsBatch(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	ctx := t.Context()
	enqueueN(t, conn, "q", 2)
	one, two := startWorker(t, conn, "q"), startWorker(t, conn, "q")
	a, b := mustClaim(t, conn, one, "q", 1), mustClaim(t, conn, two, "q", 1)
	wantCode(t, "complete of another's batch", complete(ctx, conn, one, b), "WR002")
	_, err := finish(ctx, conn, one, b[0], "failed", time.Time{})
	wantCode(t, "finish of another's batch", err, "WR002")
	nowhere := a[0]
	nowhere.Seq = 1000
	wantCode(t, "complete of no batch", complete(ctx, conn, one, []attempt{nowhere}), "WR002")
	_, err = finish(ctx, conn, one, nowhere, "retried", time.Time{})
	wantCode(t, "finish of no batch", err, "WR002")
	stranger := a[0]
	stranger.ID = b[0].ID
	_, err = finish(ctx, conn, one, stranger, "retried", time.Time{})
	wantCode(t, "finish of a job that is not in its batch", err, "WR002")
	wantCode(t, "complete of a job that is not in its batch", complete(ctx, conn, one, []attempt{stranger}), "WR002")
	wantCode(t, "complete in a transaction of a job that is not in its batch", completeTx(ctx, conn, one, stranger), "WR002")
	wantCode(t, "complete in a transaction of another's batch", completeTx(ctx, conn, one, b[0]), "WR002")
	if n := value[int](t, conn, `SELECT count(*) FROM weir.result`); n != 0 {
		t.Errorf("%d results were recorded, want none", n)
	}
	mustComplete(t, conn, one, a)
	mustComplete(t, conn, two, b)
}

// TestFinishMayBeRepeated: a client that lost its connection may record the same results again; there is one result and one next attempt.
func TestFinishMayBeRepeated(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, second := connect(t, url), connect(t, url)
	enqueueN(t, conn, "q", 3)
	worker := startWorker(t, conn, "q")
	got := mustClaim(t, conn, worker, "q", 3)
	for i, want := range []bool{true, false, false} {
		if first, err := finish(t.Context(), conn, worker, got[0], "retried", time.Time{}); err != nil || first != want {
			t.Errorf("call %d returned %v %v, want %v", i+1, first, err, want)
		}
	}
	// If the first call is uncommitted when the second comes, the second waits and then finds the result.
	exec(t, conn, `BEGIN`)
	if first, err := finish(t.Context(), conn, worker, got[1], "released", time.Time{}); err != nil || !first {
		t.Errorf("finish: %v %v", first, err)
	}
	answer := make(chan bool, 1)
	go func() { // ends when conn commits or the connection is closed
		first, err := finish(context.Background(), second, worker, got[1], "released", time.Time{})
		answer <- first || err != nil
	}()
	watch := connect(t, url)
	until(t, "the second call waits", func() bool {
		return value[bool](t, watch, `SELECT cardinality(pg_blocking_pids($1)) > 0`, second.PgConn().PID())
	})
	exec(t, conn, `COMMIT`)
	if <-answer {
		t.Error("the second call did not find the first")
	}
	mustComplete(t, conn, worker, got[2:])
	mustComplete(t, conn, worker, got[2:])
	again := claimAll(t, conn, worker, "q")
	if len(again) != 2 || again[0].step() != (step{2, 0}) || again[1].step() != (step{1, 1}) {
		t.Errorf("claimed %v, want the second attempt of the first job, and the first of the second again", again)
	}
	if n := value[int](t, conn, `SELECT count(*) FROM weir.result, unnest(ids)`); n != 3 {
		t.Errorf("there are %d results, want 3", n)
	}
}

// TestLastAttemptLostIsFailed: if a worker dies during a job's last attempt, the job has failed, with the reason.
func TestLastAttemptLostIsFailed(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	id := value[int64](t, conn, `SELECT weir.enqueue('q', 'k', max_attempts => 2)`)
	for n := range 2 {
		worker := startWorker(t, conn, "q")
		if got := mustClaim(t, conn, worker, "q", 10); len(got) != 1 || int(got[0].Attempt) != n+1 {
			t.Fatalf("claimed %v, want attempt %d", got, n+1)
		}
		wantFenced(t, conn, worker, 1)
	}
	if got := claimAll(t, conn, startWorker(t, conn, "q"), "q"); len(got) > 0 {
		t.Errorf("claimed %v after the last attempt", got)
	}
	if state, reason := value[string](t, conn, `SELECT state FROM weir.job_info($1)`, id), value[string](t, conn, `SELECT error FROM weir.job_info($1)`, id); state != "failed" || reason != "the test says so" {
		t.Errorf("the job is %s (%s), want failed", state, reason)
	}
}

// TestRetryFindsItsOwnAttempt: even if a batch with a late transaction's job spans an earlier attempt of another of its jobs, the next attempt
// follows the right one, and reclaiming carries only that one.
func TestRetryFindsItsOwnAttempt(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, late := connect(t, url), connect(t, url)
	exec(t, conn, `SELECT weir.set('completed_retention', '0 s')`)
	worker := startWorker(t, conn, "q")
	exec(t, late, `BEGIN`)
	exec(t, late, `SELECT weir.enqueue('q', 'late')`)
	id := value[int64](t, conn, `SELECT weir.enqueue('q', 'k')`)
	first := mustClaim(t, conn, worker, "q", 10) // past the late transaction
	if len(first) != 1 || first[0].ID != id {
		t.Fatalf("claimed %v, want job %d", first, id)
	}
	if _, err := finish(t.Context(), conn, worker, first[0], "retried", time.Time{}); err != nil {
		t.Fatal(err)
	}
	exec(t, late, `COMMIT`)
	both := mustClaim(t, conn, worker, "q", 10)
	if len(both) != 2 || both[0].Kind != "late" || both[1].ID != id || both[1].Attempt != 2 {
		t.Fatalf("claimed %v, want the late job and attempt 2 of job %d", both, id)
	}
	second := both[1:]
	rotateUntil(t, conn, "opened job 2")
	rotateUntil(t, conn, "reclaimed job 1")
	if n := value[int](t, conn, `SELECT count(*) FROM weir.job WHERE id = $1`, id); n != 1 {
		t.Errorf("%d rows of the job were carried, want only its running attempt", n)
	}
	if _, err := finish(t.Context(), conn, worker, second[0], "retried", time.Time{}); err != nil {
		t.Fatal(err)
	}
	third := mustClaim(t, conn, worker, "q", 10)
	if len(third) != 1 || third[0].ID != id || third[0].Attempt != 3 {
		t.Errorf("claimed %v, want attempt 3 of job %d", third, id)
	}
}

// TestCompletionAndFailureOfOneAttemptExclude: while an open transaction completes an attempt, the attempt can't end in another way, and an attempt
// that has ended can't be completed.
func TestCompletionAndFailureOfOneAttemptExclude(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, handler := connect(t, url), connect(t, url)
	enqueueN(t, conn, "q", 2)
	worker := startWorker(t, conn, "q")
	got := mustClaim(t, conn, worker, "q", 2)

	exec(t, handler, `BEGIN`)
	if err := completeTx(t.Context(), handler, worker, got[0]); err != nil {
		t.Fatal(err)
	}
	_, err := finish(t.Context(), conn, worker, got[0], "retried", time.Time{})
	wantCode(t, "finish while a completion is open", err, "55P03")
	exec(t, handler, `COMMIT`)
	if first, err := finish(t.Context(), conn, worker, got[0], "retried", time.Time{}); err != nil || first {
		t.Errorf("finish after the completion: %v %v, want false", first, err)
	}
	wantCode(t, "a second completion", completeTx(t.Context(), handler, worker, got[0]), "WR002")

	// The other way round: the completion waits for a record in progress, and finds its result.
	exec(t, conn, `BEGIN`)
	if first, err := finish(t.Context(), conn, worker, got[1], "retried", time.Time{}); err != nil || !first {
		t.Fatal(first, err)
	}
	completed := make(chan error, 1)
	go func() { completed <- completeTx(context.Background(), handler, worker, got[1]) }() // ends when conn commits
	watcher := connect(t, url)
	until(t, "the completion waits for the record", func() bool {
		return value[bool](t, watcher, `SELECT cardinality(pg_blocking_pids($1)) > 0`, handler.PgConn().PID())
	})
	exec(t, conn, `COMMIT`)
	wantCode(t, "complete after another end", <-completed, "WR002")
	if n := value[int](t, conn, `SELECT count(*) FROM weir.result`); n != 2 {
		t.Errorf("there are %d results, want one for each attempt", n)
	}
}

// TestChoresNeedReadCommitted: chores are refused with an older snapshot, with which TRUNCATE would delete rows that the snapshot can't see.
func TestChoresNeedReadCommitted(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	for _, call := range []string{"_promote()", "_rotate()", "_rotate_later()", "_reclaim(2)", "_rescue()", "retry(1)", "_resurvey()", "_count_minutes()", "_tidy()", "rebase()", "_fence(1)", "_settle(1)", "_reconcile(1, '{}', '{}', '{}', '{}')"} {
		exec(t, conn, `BEGIN ISOLATION LEVEL REPEATABLE READ`)
		_, err := conn.Exec(t.Context(), `SELECT weir.`+call)
		wantCode(t, call, err, "WR004")
		exec(t, conn, `ROLLBACK`)
	}
}

// TestAPartOfABatchThatEndedDoesNotEndTheOther: if reclaiming moves both parts of a batch into one segment, the end of one part does not count as
// the end of the other, whose job is claimed again when its worker is fenced.
func TestAPartOfABatchThatEndedDoesNotEndTheOther(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	exec(t, conn, `SELECT weir.set('completed_retention', '0 s')`)
	worker := startWorker(t, conn, "q")
	old := enqueueN(t, conn, "q", 1)
	rotateUntil(t, conn, "opened job 2")
	young := enqueueN(t, conn, "q", 1)
	held := mustClaim(t, conn, worker, "q", 2)
	rotateUntil(t, conn, "reclaimed job 1")
	if n := value[int](t, conn, `SELECT count(*) FROM (SELECT FROM weir.batch b WHERE b.worker = $1 GROUP BY b.lane, b.seq, b.segment HAVING count(*) = 2) b`, worker); len(held) != 2 || n != 1 {
		t.Fatalf("claimed %d jobs, and %d segments have two parts of a batch, want 2 and 1", len(held), n)
	}
	mustComplete(t, conn, worker, held[1:])
	if got := column[int64](t, conn, `SELECT id FROM weir.jobs('running')`); !slices.Equal(got, old) || held[1].ID != young[0] {
		t.Errorf("after the younger job's completion, the running jobs are %v, want %v", got, old)
	}
	exec(t, conn, `SELECT weir._fence($1)`, worker)
	if n := settle(t, conn, worker); n != 1 {
		t.Errorf("%d jobs of the fenced worker were logged again, want 1", n)
	}
	if got := idsOf(claimAll(t, conn, startWorker(t, conn, "q"), "q")); !slices.Equal(got, old) {
		t.Errorf("another worker claimed %v, want %v", got, old)
	}
}
