package proof

import (
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestWhatAWorkerDoesNotNameIsHandedOutAgain: attempts that the worker does not hold, because the answer to a claim or a result was lost, are
// released without using up an attempt; the worker keeps those that it holds.
func TestWhatAWorkerDoesNotNameIsHandedOutAgain(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	enqueueN(t, conn, "q", 10)
	worker, other := startWorker(t, conn, "q"), startWorker(t, conn, "q")
	known, unheard := mustClaim(t, conn, worker, "q", 5), mustClaim(t, conn, worker, "q", 3)
	others := mustClaim(t, conn, other, "q", 2)
	mustComplete(t, conn, worker, known[:1])

	// The worker believes that it has recorded known[1] too.
	if n, err := reconcile(t.Context(), conn, worker, known[2:]); err != nil || n != 4 {
		t.Fatalf("%d attempts were released (%v), want the 3 of the lost claim, and the one whose result was lost", n, err)
	}
	if n, err := reconcile(t.Context(), conn, worker, known[2:]); err != nil || n != 0 {
		t.Errorf("%d attempts were released again (%v)", n, err)
	}
	mustComplete(t, conn, worker, known[2:])
	mustComplete(t, conn, other, others)
	mustComplete(t, conn, worker, unheard) // too late, but without an error: these attempts have already ended
	want := map[int64]bool{known[1].ID: true, unheard[0].ID: true, unheard[1].ID: true, unheard[2].ID: true}
	again := claimAll(t, conn, other, "q")
	for _, a := range again {
		if !want[a.ID] || a.Attempt != 1 {
			t.Errorf("%v was claimed again", a)
		}
	}
	if len(again) != len(want) {
		t.Errorf("%d attempts were claimed again, want %d", len(again), len(want))
	}
}

// TestTheServerKnowsWhatAWorkerHolds: a worker that never reports what it runs loses no job when it dies, however long the job has been running.
// it dies.
func TestTheServerKnowsWhatAWorkerHolds(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	enqueueN(t, conn, "q", 3)
	worker := startWorker(t, conn, "q")
	mustClaim(t, conn, worker, "q", 3)
	exec(t, conn, `UPDATE weir.batch SET claimed_at = claimed_at - interval '1 day'`) // long ago, by another clock
	exec(t, conn, `SELECT weir.heartbeat($1)`, worker)
	wantFenced(t, conn, worker, 3)
	if n := len(claimAll(t, conn, startWorker(t, conn, "q"), "q")); n != 3 {
		t.Errorf("%d attempts were claimed again, want 3", n)
	}
}

// TestWhatIsSettledIsNotLookedAtAgain: reconciling examines only what a worker has claimed since the last time, even while one of its oldest jobs is
// still running.
func TestWhatIsSettledIsNotLookedAtAgain(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	const batches = 400
	enqueueN(t, conn, "q", batches)
	worker := startWorker(t, conn, "q")
	long := mustClaim(t, conn, worker, "q", 1)
	for range batches - 2 {
		mustComplete(t, conn, worker, mustClaim(t, conn, worker, "q", 1))
	}
	looked := func() int64 {
		t.Helper()
		exec(t, conn, `SELECT pg_stat_force_next_flush()`)
		return value[int64](t, conn, `SELECT sum(seq_scan + idx_scan)::bigint FROM pg_stat_all_tables WHERE schemaname = 'weir' AND relname LIKE 'result\_%'`)
	}
	reconcileOnce := func() int64 {
		t.Helper()
		before := looked()
		if n, err := reconcile(t.Context(), conn, worker, long); err != nil || n != 0 {
			t.Fatal(n, err)
		}
		return looked() - before
	}
	if value[int](t, conn, `SELECT current_setting('server_version_num')::int`) < 150000 {
		t.Skip("pg_stat_force_next_flush needs PostgreSQL 15")
	}
	first, second := reconcileOnce(), reconcileOnce()
	if first < batches/2 || second > 20 {
		t.Errorf("the first call read the results of %d batches, and the next of %d: it must not start over", first, second)
	}
	mustClaim(t, conn, worker, "q", 1) // the answer is lost
	if n, err := reconcile(t.Context(), conn, worker, long); err != nil || n != 1 {
		t.Errorf("%d attempts were released (%v), want the one just claimed", n, err)
	}
	wantFenced(t, conn, worker, 1)
	if again := claimAll(t, conn, startWorker(t, conn, "q"), "q"); len(again) != 2 {
		t.Errorf("%v were claimed again, want the oldest and the newest", again)
	}
}

// TestRescueTakesBoundedSteps: each step of a rescue logs a bounded number of a dead worker's attempts and commits, and others can claim in between.
func TestRescueTakesBoundedSteps(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	const jobs = 10_000
	enqueueN(t, conn, "q", jobs)
	worker, other := startWorker(t, conn, "q"), startWorker(t, conn, "q")
	held := claimAll(t, conn, worker, "q")
	if !fence(t, conn, worker) {
		t.Fatal("the worker is not fenced")
	}
	steps, relogged, claimed := 0, 0, 0
	until(t, "all attempts are logged again", func() bool {
		var n int
		if err := conn.QueryRow(t.Context(), `SELECT coalesce(sum(relogged), 0) FROM weir._rescue()`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n > 4000 {
			t.Fatalf("one step logged %d attempts", n)
		}
		relogged += n
		steps++
		claimed += len(claimAll(t, conn, other, "q"))
		if claimed != relogged {
			t.Fatalf("%d attempts have been logged again so far, but %d claimed", relogged, claimed)
		}
		return n == 0
	})
	if relogged != len(held) || steps < 4 {
		t.Errorf("%d attempts were logged again in %d steps, want %d in several", relogged, steps, len(held))
	}
}

// TestResultsAreJudgedOneByOne: results that can't be recorded are reported one by one, and the others are recorded.
func TestResultsAreJudgedOneByOne(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	enqueueN(t, conn, "q", 6)
	worker := startWorker(t, conn, "q")
	got := mustClaim(t, conn, worker, "q", 6)
	mustComplete(t, conn, worker, got[:1])
	a := got[0]
	rows, err := conn.Query(t.Context(), `SELECT place, refusal, coalesce(detail, '') FROM weir._record($1, ARRAY[$2::bigint, $2], ARRAY[$3::bigint, 1000], ARRAY[7, 1],
		$4, ARRAY['completed', 'failed', 'lost', 'retried', 'completed', 'snoozed', 'failed', 'completed'], NULL,
		ARRAY[repeat('x', 1048577), NULL, NULL, repeat('x', 1048577), 'said', NULL, NULL, NULL],
		ARRAY[NULL, NULL, NULL, NULL, NULL, 'infinity', NULL, NULL]::timestamptz[])`,
		worker, a.Lane, a.Seq, []int64{got[0].ID, got[1].ID, got[2].ID, got[3].ID, got[4].ID, got[5].ID, got[1].ID, 1})
	if err != nil {
		t.Fatal(err)
	}
	says := map[string]string{"ended": "has already ended", "invalid": "", "lost": "does not hold this attempt"}
	want := map[int]string{1: "ended", 3: "invalid", 4: "invalid", 6: "invalid", 7: "ended", 8: "lost"}
	var r refusal
	for rows.Next() {
		if err := rows.Scan(&r.Place, &r.Refusal, &r.Detail); err != nil {
			t.Fatal(err)
		}
		if want[r.Place] != r.Refusal || r.Detail == "" || !strings.Contains(r.Detail, says[r.Refusal]) {
			t.Errorf("element %d was refused as %s (%s), want %q", r.Place, r.Refusal, r.Detail, want[r.Place])
		}
		delete(want, r.Place)
	}
	if err := rows.Err(); err != nil || len(want) > 0 {
		t.Errorf("the error is %v; these were not refused: %v", err, want)
	}
	for i, state := range []string{"completed", "failed", "running", "running", "completed", "running"} {
		if now := value[string](t, conn, `SELECT state FROM weir.job_info($1)`, got[i].ID); now != state {
			t.Errorf("job %d is %s, want %s", i+1, now, state)
		}
	}
}

// TestOpenCompletionHoldsUpNobody: while a handler's transaction that completes a job is open, its worker records all other results.
func TestOpenCompletionHoldsUpNobody(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, handler := connect(t, url), connect(t, url)
	enqueueN(t, conn, "q", 20)
	worker := startWorker(t, conn, "q")
	got := mustClaim(t, conn, worker, "q", 20)
	exec(t, handler, `BEGIN`)
	if err := completeTx(t.Context(), handler, worker, got[7]); err != nil {
		t.Fatal(err)
	}
	exec(t, conn, `SET statement_timeout = '20s'`)
	for _, outcome := range []string{"completed", "retried"} {
		some := got[:10]
		if outcome == "retried" {
			some = got[7:]
		}
		refused, err := record(t.Context(), conn, worker, some, outcome, nil)
		if err != nil {
			t.Fatal(err)
		}
		busy := 0
		for _, r := range refused {
			if r.Refusal == "busy" && strings.Contains(r.Detail, "open transaction") {
				busy++
			}
		}
		if busy != 1 {
			t.Errorf("%s: %v were refused, want the one job as busy", outcome, refused)
		}
	}
	// The job is not given to another worker in the meantime.
	if n, err := reconcile(t.Context(), conn, worker, nil); err != nil || n != 0 {
		t.Errorf("%d attempts were released (%v)", n, err)
	}
	exec(t, handler, `COMMIT`)
	if n := value[int](t, conn, `SELECT count(*) FROM weir.result, unnest(ids)`); n != len(got) {
		t.Errorf("there are %d results, want one for each of %d attempts", n, len(got))
	}
}

// TestManyResultsTakeFewLocks: workers that record thousands of failures at once do not fill the lock table.
func TestManyResultsTakeFewLocks(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	enqueueN(t, conn, "q", 8640)
	worker := startWorker(t, conn, "q")
	got := claimAll(t, conn, worker, "q")
	at := time.Now().Add(time.Hour)
	exec(t, conn, `BEGIN`)
	if refused, err := record(t.Context(), conn, worker, got, "retried", &at); err != nil || len(refused) > 0 {
		t.Fatalf("%v %d", err, len(refused))
	}
	if n := value[int](t, conn, `SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'`); n > 10 {
		t.Errorf("%d advisory locks are held", n)
	}
	exec(t, conn, `COMMIT`)
	if n := value[int](t, conn, `SELECT count(*) FROM weir.later`); n != len(got) {
		t.Errorf("there are %d next attempts, want %d", n, len(got))
	}
}

// TestAcknowledgedResultsSurvive: results are committed synchronously even for a role with synchronous_commit = off.
func TestAcknowledgedResultsSurvive(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	enqueueN(t, conn, "q", 2)
	exec(t, conn, `SET synchronous_commit = off`)
	worker := startWorker(t, conn, "q")
	got := mustClaim(t, conn, worker, "q", 2)
	for i, sql := range []string{`SELECT weir._complete($1, $2, $3, $4)`, `SELECT weir._record($1, ARRAY[$2::bigint], ARRAY[$3::bigint], ARRAY[1], ARRAY[$4::bigint])`} {
		exec(t, conn, `BEGIN`)
		exec(t, conn, sql, worker, got[i].Lane, got[i].Seq, got[i].ID)
		if now := value[string](t, conn, `SHOW synchronous_commit`); now != "on" {
			t.Errorf("%s commits with synchronous_commit %s", sql, now)
		}
		exec(t, conn, `COMMIT`)
	}
}

// TestSettledIsCompacted: the record of how far each worker is settled takes bounded space, and a worker with unsettled attempts is never dropped
// from it.
func TestSettledIsCompacted(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	enqueueN(t, conn, "q", 3)
	worker, dead := startWorker(t, conn, "q"), startWorker(t, conn, "q")
	mustComplete(t, conn, worker, mustClaim(t, conn, worker, "q", 1))
	long := mustClaim(t, conn, dead, "q", 1)
	exec(t, conn, `INSERT INTO weir.settled SELECT $1, n, '{}' FROM generate_series(-100000, -1) n`, worker)
	if n, err := reconcile(t.Context(), conn, worker, nil); err != nil || n != 0 {
		t.Fatal(n, err)
	}
	before := value[string](t, conn, `SELECT s::text FROM weir.settled s WHERE worker = $1 ORDER BY no DESC LIMIT 1`, worker)
	until(t, "tidy compacts the record", func() bool { return value[string](t, conn, `SELECT coalesce(weir._tidy(), '')`) == "compacted settled" })
	if after := column[string](t, conn, `SELECT s::text FROM weir.settled s WHERE worker = $1`, worker); len(after) != 1 || after[0] != before {
		t.Errorf("the record is %v, want %s", after, before)
	}

	if !fence(t, conn, dead) {
		t.Fatal("the worker is not fenced")
	}
	exec(t, conn, `UPDATE weir.worker SET at = at - interval '2 days'`)
	exec(t, conn, `INSERT INTO weir.worker (id, fenced, at, name) SELECT -n, false, now(), repeat('x', 200) FROM generate_series(1, 5000) n`)
	exec(t, conn, `SELECT weir._tidy()`)
	if n := settle(t, conn, dead); n != len(long) {
		t.Errorf("%d attempts were logged again, want %d", n, len(long))
	}
}

// TestRescueGoesPastAWorkerThatIsHeld: a session that settles or locks one worker does not delay the rescue of others.
func TestRescueGoesPastAWorkerThatIsHeld(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, other := connect(t, url), connect(t, url)
	held, free := startWorker(t, conn, "q"), startWorker(t, conn, "q")
	enqueueN(t, conn, "q", 2)
	mustClaim(t, conn, held, "q", 1)
	mustClaim(t, conn, free, "q", 1)
	exec(t, conn, `SELECT weir._fence(w) FROM unnest(ARRAY[$1::integer, $2]) w`, held, free)
	exec(t, other, `BEGIN`)
	exec(t, other, `SELECT weir._settle($1)`, held)
	if got := column[int32](t, conn, `SELECT worker FROM weir._rescue()`); len(got) != 1 || got[0] != free {
		t.Errorf("rescued workers %v while %d is held, want %d", got, held, free)
	}
	exec(t, other, `ROLLBACK`)
	if got := column[int32](t, conn, `SELECT worker FROM weir._rescue()`); len(got) != 1 || got[0] != held {
		t.Errorf("rescued workers %v, want %d", got, held)
	}
}

// TestRebaseOfALogThatIsAtHomeHoldsUpNobody: a rebase with nothing to do takes no lock, in any transaction.
func TestRebaseOfALogThatIsAtHomeHoldsUpNobody(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, other := connect(t, url), connect(t, url)
	enqueueN(t, conn, "q", 1)
	mustClaim(t, conn, startWorker(t, conn, "q"), "q", 1)
	exec(t, other, `BEGIN`)
	exec(t, other, `SELECT weir.rebase(), weir.rebase_messages()`)
	if held := column[string](t, conn, `SELECT concat_ws(' ', locktype, mode, relation::regclass, objid) FROM pg_locks WHERE pid = $1 AND mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock') AND locktype <> 'virtualxid'`, other.PgConn().PID()); len(held) != 0 {
		t.Errorf("the transaction holds %v", held)
	}
}
