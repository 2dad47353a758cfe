package proof

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// TestLooksLeaveNoLockBehind: an open transaction that has queried jobs keeps no segment from being reclaimed.
func TestLooksLeaveNoLockBehind(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, reader := connect(t, url), connect(t, url)
	smallSegments(t, conn)
	worker := startWorker(t, conn, "q", "filler")
	ids := enqueueN(t, conn, "q", 6)
	claimed := mustClaim(t, conn, worker, "q", 2)
	mustComplete(t, conn, worker, claimed)
	exec(t, conn, `SELECT weir.set_limit('o', per_key => true, in_order => true)`)
	ordered := value[int64](t, conn, `SELECT weir.enqueue('o', 'k', key => 'a')`)
	exec(t, reader, `BEGIN`)
	for _, query := range []string{
		fmt.Sprintf(`SELECT * FROM weir.job_info(%d)`, ids[0]),
		`SELECT * FROM weir.queues()`, `SELECT * FROM weir.completed_jobs`,
		`SELECT * FROM weir.jobs('available')`, `SELECT * FROM weir.jobs('running')`, `SELECT * FROM weir.jobs('scheduled')`,
		`SELECT * FROM weir.jobs('failed')`, `SELECT * FROM weir.jobs('cancelled')`, `SELECT * FROM weir.jobs('completed', 'q')`,
		fmt.Sprintf(`SELECT weir.cancel(%d)`, ids[5]), fmt.Sprintf(`SELECT weir.cancel(%d)`, ordered), fmt.Sprintf(`SELECT weir.retry(%d)`, ids[0]),
	} {
		exec(t, reader, query)
		// A retry logs into the active segment, so it may hold that one.
		held := column[string](t, conn, `SELECT relation::regclass || ' ' || mode FROM pg_locks WHERE pid = $1 AND locktype = 'relation' AND granted
			AND relation::regclass::text ~ '^weir\.(job|batch|result|later|failure)_[1-4]$' AND mode <> 'RowExclusiveLock'`, reader.PgConn().PID())
		if len(held) > 0 {
			t.Errorf("after %s, the transaction holds %v", query, held)
		}
	}
	exec(t, reader, `ROLLBACK`)
	exec(t, reader, `BEGIN`)
	exec(t, reader, `SELECT * FROM weir.job_info($1)`, ids[1])
	openNext(t, conn, worker)
	rotateUntil(t, conn, "reclaimed job 1")
	exec(t, reader, `COMMIT`)
}

// settled returns how many blocks a query touches when its plans are cached.
func settled(t *testing.T, conn *pgx.Conn, sql string) int64 {
	t.Helper()
	for range 8 {
		exec(t, conn, sql)
	}
	return buffers(t, conn, sql)
}

// TestLooksDoNotGrowWithTheLog: a lookup by id, a page of each state and a cancellation touch about as many blocks in a log of two thousand batches
// as in one of two hundred, also for retried jobs.
func TestLooksDoNotGrowWithTheLog(t *testing.T) {
	pgtest.Alone(t, "what a query touches depends on the transactions of the whole server")
	url := pgtest.Database(t)
	conn := connect(t, url)
	worker := startWorker(t, conn, "q")
	fill := func(batches int) (retried, failed int64) {
		for n := range batches {
			exec(t, conn, `SELECT weir.enqueue('q', 'k', '{}', 1 + $1 % 4)`, n)
			a := mustClaim(t, conn, worker, "q", 1)[0]
			if n%20 != 0 {
				mustComplete(t, conn, worker, []attempt{a})
				continue
			}
			outcome := "failed"
			if retried = a.ID; n%40 == 0 {
				outcome, failed = "retried", a.ID
			}
			if _, err := finish(t.Context(), conn, worker, a, outcome, time.Time{}); err != nil {
				t.Fatal(err)
			}
			if outcome == "retried" {
				mustComplete(t, conn, worker, mustClaim(t, conn, worker, "q", 1))
			}
		}
		return retried, failed
	}
	measure := func(retried, failed int64) map[string]int64 {
		for next := int64(0); next >= 0; { // reconciles as workers do now and then; it holds nothing
			next = value[int64](t, conn, `SELECT coalesce(next, -1) FROM weir._reconcile($1, '{}', '{}', '{}', '{}', $2)`, worker, next)
		}
		held := enqueueN(t, conn, "q", 30)
		exec(t, conn, `SELECT weir.enqueue('q', 'k', run_at => now() + interval '1 hour') FROM generate_series(1, 30)`)
		mustClaim(t, conn, worker, "q", 10)
		costs := map[string]int64{
			"job_info":         settled(t, conn, `SELECT * FROM weir.job_info(20)`),
			"job_info retried": settled(t, conn, fmt.Sprintf(`SELECT * FROM weir.job_info(%d)`, retried)),
			"job_info failed":  settled(t, conn, fmt.Sprintf(`SELECT * FROM weir.job_info(%d)`, failed)),
			"cancel":           settled(t, conn, fmt.Sprintf(`SELECT weir.cancel(%d)`, held[29])),
		}
		for _, state := range []string{"available", "running", "scheduled", "completed", "failed"} {
			costs[state] = settled(t, conn, fmt.Sprintf(`SELECT * FROM weir.jobs('%s', max_rows => 5)`, state))
			costs[state+" of a queue"] = settled(t, conn, fmt.Sprintf(`SELECT * FROM weir.jobs('%s', 'q', 5)`, state))
		}
		mustComplete(t, conn, worker, claimAll(t, conn, worker, "q"))
		return costs
	}
	small := measure(fill(100))
	large := measure(fill(900))
	t.Logf("blocks in a small log %v, in a large one %v", small, large)
	for query, n := range large {
		if was := small[query]; n > 4*was+40 {
			t.Errorf("%s touches %d blocks, and %d in a log of a tenth of the size", query, n, was)
		}
	}
}

// TestCancelledJobsHideNobody: cancelled jobs that are still in the log do not hide the jobs behind them from lists.
func TestCancelledJobsHideNobody(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	worker := startWorker(t, conn, "q")
	ids := enqueueN(t, conn, "q", 150)
	exec(t, conn, `SELECT weir.cancel(id) FROM unnest($1::bigint[]) id`, ids[:100])
	if got := column[int64](t, conn, `SELECT id FROM weir.jobs('available', 'q')`); !slices.Equal(got, ids[100:]) {
		t.Errorf("the available jobs are %v, want the last 50", got)
	}
	if got := value[int](t, conn, `SELECT count(*) FROM weir.jobs('cancelled', 'q')`); got != 100 {
		t.Errorf("%d jobs are listed as cancelled, want 100", got)
	}
	// Jobs that were retried by hand, and are in another state now, do not hide others either.
	for _, a := range claimAll(t, conn, worker, "q") {
		if _, err := finish(t.Context(), conn, worker, a, "failed", time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	exec(t, conn, `SELECT weir.retry(id) FROM unnest($1::bigint[]) id`, ids[50:])
	if got := value[int](t, conn, `SELECT count(*) FROM weir.jobs('failed', 'q', 20)`); got != 20 {
		t.Errorf("%d failed jobs are listed, want 20", got)
	}
}

// TestLateJobsAreFoundInTheirBatch: a lookup finds the batch of a job even if its transaction committed long after others had been claimed, and was
// claimed in parts.
func TestLateJobsAreFoundInTheirBatch(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, late, later := connect(t, url), connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q")
	exec(t, late, `BEGIN`)
	lateIDs := enqueueN(t, late, "q", 5)
	exec(t, later, `BEGIN`)
	laterIDs := enqueueN(t, later, "q", 3)
	batchOf := map[int64]int64{}
	work := func(n int32) {
		t.Helper()
		for _, a := range mustClaim(t, conn, worker, "q", n) {
			batchOf[a.ID] = a.Seq
		}
	}
	enqueueN(t, conn, "q", 20)
	for range 10 {
		work(2)
	}
	exec(t, late, `COMMIT`)
	work(2) // two of five
	exec(t, later, `COMMIT`)
	enqueueN(t, conn, "q", 4)
	check := func() {
		t.Helper()
		for id := range int64(40) {
			var state string
			var seq int64
			err := conn.QueryRow(t.Context(), `SELECT i.state, coalesce((SELECT b.seq FROM weir.job j, weir._batch_of(j.lane, j.segment, j.xid, j.id) b WHERE j.id = i.id), 0)
				FROM weir.job_info($1) i`, id).Scan(&state, &seq)
			if err != nil {
				continue // a gap in the ids
			}
			want := "running"
			if batchOf[id] == 0 {
				want = "available"
			}
			if state != want || seq != batchOf[id] {
				t.Errorf("job %d is %[4]s in batch %[5]d, want %[6]s in %[7]d (late jobs: %[2]v and %[3]v)", id, lateIDs, laterIDs, state, seq, want, batchOf[id])
			}
		}
	}
	for range 8 {
		check()
		work(2)
	}
	check()
	if len(batchOf) != 32 {
		t.Errorf("%d jobs were claimed, want 32", len(batchOf))
	}
}

// TestWorkersAreListedByIndex: listing a thousand workers touches a few blocks for each, however many heartbeats they have left.
func TestWorkersAreListedByIndex(t *testing.T) {
	pgtest.Alone(t, "what a query touches depends on the transactions of the whole server")
	url := pgtest.Database(t)
	conn := connect(t, url)
	exec(t, conn, `SELECT weir._start('w' || n, '{q}') FROM generate_series(1, 1000) n`)
	exec(t, conn, `SELECT weir.heartbeat(w.id) FROM weir.worker w`)
	few := settled(t, conn, `SELECT * FROM weir.workers()`)
	exec(t, conn, `INSERT INTO weir.last_word SELECT h.* FROM weir.last_word h, generate_series(1, 20)`)
	many := settled(t, conn, `SELECT * FROM weir.workers()`)
	t.Logf("the list touches %d blocks with one heartbeat for each worker, and %d with twenty-one", few, many)
	if many > 2*few+100 || many > 40_000 {
		t.Errorf("a list of a thousand workers touches %d blocks, and %d with one heartbeat each", many, few)
	}
	if n := value[int](t, conn, `SELECT count(*) FROM weir.workers() WHERE state = 'alive'`); n != 1000 {
		t.Errorf("%d workers are alive, want 1000", n)
	}
}

// TestLooksWorkOnAStandby: inspections work on a hot standby, where nothing can be written.
func TestLooksWorkOnAStandby(t *testing.T) {
	t.Parallel()
	primary := pgtest.Server(t, nil)
	standby := pgtest.Standby(t, primary, nil)
	conn := connect(t, primary.URL("postgres"))
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	worker := startWorker(t, conn, "q")
	ids := enqueueN(t, conn, "q", 3)
	mustComplete(t, conn, worker, mustClaim(t, conn, worker, "q", 1))
	other := startWorker(t, conn, "other")
	failed := enqueueN(t, conn, "other", 1)[0]
	fail(t, conn, other, mustClaim(t, conn, other, "other", 1)[0])
	pgtest.Replayed(t, primary, standby)
	observer := connect(t, standby.URL("postgres"))
	if state := value[string](t, observer, `SELECT state FROM weir.job_info($1)`, ids[0]); state != "completed" {
		t.Errorf("job %d is %s on the standby, want completed", ids[0], state)
	}
	for _, state := range []string{"available", "running", "scheduled", "completed", "failed", "cancelled"} {
		exec(t, observer, `SELECT * FROM weir.jobs($1)`, state)
	}
	if n := value[int](t, observer, `SELECT available FROM weir.queues() WHERE name = 'q'`); n != 2 {
		t.Errorf("%d jobs are available on the standby, want 2", n)
	}
	wantState(t, observer, failed, "failed")
	if got := column[int64](t, observer, `SELECT id FROM weir.jobs('failed')`); len(got) != 1 || got[0] != failed {
		t.Errorf("the failed jobs on the standby are %v, want %d", got, failed)
	}
	exec(t, observer, `SELECT * FROM weir.workers()`)
	// A standby sees no session of a worker, which writes no heartbeats.
	attend(t, connect(t, primary.URL("postgres")), worker)
	exec(t, conn, `UPDATE weir.last_word SET at = at - interval '1 hour' WHERE worker = $1`, worker)
	exec(t, conn, `UPDATE weir.worker SET at = at - interval '1 hour' WHERE id = $1`, worker)
	pgtest.Replayed(t, primary, standby)
	if n := value[int](t, observer, `SELECT workers FROM weir.queues() WHERE name = 'q'`); n != 1 {
		t.Errorf("%d workers work the queue on the standby, want 1", n)
	}
}

// TestAnothersScheduleIsNotWalkedThrough: a page of a queue's scheduled jobs costs the same however many jobs of other queues are due before them,
// or are cancelled.
func TestAnothersScheduleIsNotWalkedThrough(t *testing.T) {
	pgtest.Alone(t, "what a query touches depends on the transactions of the whole server")
	conn := connect(t, pgtest.Database(t))
	schedule := func(queue, in string, n int) []int64 {
		return value[[]int64](t, conn, `SELECT weir.enqueue_many(array_fill($1::text, ARRAY[$3::int]), array_fill('k'::text, ARRAY[$3::int]),
			array_fill('{}'::jsonb, ARRAY[$3::int]), run_at => array_fill(now() + $2::text::interval, ARRAY[$3::int]))`, queue, in, n)
	}
	ids := schedule("q", "2 hours", 20)
	query := `SELECT * FROM weir.jobs('scheduled', 'q', 10)`
	alone := settled(t, conn, query)
	schedule("other", "1 hour", 10_000)
	among := settled(t, conn, query)
	t.Logf("a page of a queue's scheduled jobs touches %d blocks, and with 10,000 of another queue before them %d", alone, among)
	if among > 2*alone+20 {
		t.Errorf("a page of a queue's scheduled jobs touches %d blocks, and with 10,000 of another queue before them %d", alone, among)
	}
	exec(t, conn, `SELECT weir.cancel(id) FROM unnest($1::bigint[]) id`, ids[:12])
	if got := column[int64](t, conn, `SELECT id FROM weir.jobs('scheduled', 'q', 5)`); !slices.Equal(got, ids[12:17]) {
		t.Errorf("the scheduled jobs are %v, want the five after the cancelled ones of %v", got, ids)
	}
}

// TestPromotedJobsAreNotShownAsLater: a job that was promoted before the clock stepped back is shown in its current state.
func TestPromotedJobsAreNotShownAsLater(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	enqueueAt := func(at string) int64 {
		return value[int64](t, conn, `SELECT weir.enqueue('q', 'k', run_at => clock_timestamp() + $1::text::interval)`, at)
	}
	id := enqueueAt("10 ms")
	until(t, "the job is promoted", func() bool { n, _ := promote(t, conn, 10); return n == 1 })
	stepClock(t, conn, time.Hour)
	waits := enqueueAt("2 hours")
	enqueueAt("1 ms")
	until(t, "another job is promoted by the current clock", func() bool { n, _ := promote(t, conn, 10); return n == 1 })
	state := func(want string) {
		t.Helper()
		if got := value[string](t, conn, `SELECT state FROM weir.job_info($1)`, id); got != want {
			t.Errorf("the job is shown as %s, want %s", got, want)
		}
		if got := column[int64](t, conn, `SELECT id FROM weir.jobs('scheduled')`); !slices.Equal(got, []int64{waits}) {
			t.Errorf("%v are shown as scheduled, want %d", got, waits)
		}
	}
	state("available")
	got := claimAll(t, conn, worker, "q")
	state("running")
	mustComplete(t, conn, worker, got)
	state("completed")
	if got := value[string](t, conn, `SELECT weir.retry($1)`, id); got != "available" {
		t.Errorf("after a retry, the job is %s", got)
	}
	state("available")
}
