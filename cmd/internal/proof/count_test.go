package proof

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// backlog enqueues n jobs in transactions of 10,000, spread over queues.
func backlog(t *testing.T, conn *pgx.Conn, n, queues int) {
	t.Helper()
	for range n / 10_000 {
		exec(t, conn, `SELECT cardinality(weir.enqueue_many(array_agg('q' || n % $1), array_agg('k'::text), array_agg('{}'::jsonb))) FROM generate_series(1, 10000) n`, queues)
	}
}

// queueDepth is a row of weir.queues.
type queueDepth struct {
	Available, Running, Later int64
	Approximate               bool
	ReadySince                *time.Time
}

func depthOf(t *testing.T, q querier, queue string) (d queueDepth) {
	t.Helper()
	if err := q.QueryRow(t.Context(), `SELECT available, running, scheduled, approximate, ready_since FROM weir.queues() WHERE name = $1`, queue).
		Scan(&d.Available, &d.Running, &d.Later, &d.Approximate, &d.ReadySince); err != nil {
		t.Fatal(err)
	}
	return d
}

// TestABacklogIsCountedWithinABound: the cost of counting waiting jobs does not grow with the backlog; a short backlog is counted exactly, and for
// a long one the result is an estimate that is marked as such.
func TestABacklogIsCountedWithinABound(t *testing.T) {
	pgtest.Alone(t, "what a count touches depends on the transactions of the whole server")
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q0", "q1", "q2")
	mustComplete(t, conn, worker, func() []attempt {
		backlog(t, conn, 30_000, 3) // history
		return append(append(claimAll(t, conn, worker, "q0"), claimAll(t, conn, worker, "q1")...), claimAll(t, conn, worker, "q2")...)
	}()[:10_000])
	exec(t, conn, `SELECT weir.enqueue('few', 'k') FROM generate_series(1, 90)`)
	if d := depthOf(t, conn, "few"); d.Available != 90 || d.Approximate {
		t.Errorf("%d of 90 jobs are counted, approximate: %t", d.Available, d.Approximate)
	}
	check := func(want int64) {
		t.Helper()
		for _, queue := range []string{"q0", "q1", "q2"} {
			d := depthOf(t, conn, queue)
			if off := float64(d.Available-want) / float64(want); !d.Approximate || off < -0.1 || off > 0.1 {
				t.Errorf("of %d waiting jobs of %s, %d are counted, approximate: %t", want, queue, d.Available, d.Approximate)
			}
		}
		if d := depthOf(t, conn, "few"); d.Available != 90 || d.Approximate {
			t.Errorf("next to a long backlog, %d of 90 jobs are counted, approximate: %t", d.Available, d.Approximate)
		}
	}
	backlog(t, conn, 60_000, 3)
	check(20_000)
	short := settled(t, conn, `SELECT * FROM weir.queues()`)
	backlog(t, conn, 180_000, 3)
	check(80_000)
	long := settled(t, conn, `SELECT * FROM weir.queues()`)
	t.Logf("weir.queues touches %d blocks with 60,000 waiting jobs, and %d with 240,000", short, long)
	if long > short*5/4 {
		t.Errorf("weir.queues touches %d blocks with 60,000 waiting jobs, and %d with 240,000", short, long)
	}
}

// TestAScheduleIsCountedWithinABound: the cost of counting scheduled jobs does not grow with their number either.
func TestAScheduleIsCountedWithinABound(t *testing.T) {
	pgtest.Alone(t, "what a count touches depends on the transactions of the whole server")
	conn := connect(t, pgtest.Database(t))
	schedule := func(queue string, n int) {
		exec(t, conn, `SELECT cardinality(weir.enqueue_many(array_agg($1::text), array_agg('k'::text), array_agg('{}'::jsonb), run_at => array_agg(now() + interval '1 hour' + n * interval '1 ms')))
			FROM generate_series(1, $2::int) n`, queue, n)
	}
	schedule("few", 90)
	for range 3 {
		schedule("many", 10_000)
	}
	measure := func(want int64) int64 {
		t.Helper()
		if d := depthOf(t, conn, "few"); d.Later != 90 || d.Approximate {
			t.Errorf("%d of 90 scheduled jobs are counted, approximate: %t", d.Later, d.Approximate)
		}
		d := depthOf(t, conn, "many")
		if off := float64(d.Later-want) / float64(want); !d.Approximate || off < -0.1 || off > 0.1 {
			t.Errorf("of %d scheduled jobs, %d are counted, approximate: %t", want, d.Later, d.Approximate)
		}
		return settled(t, conn, `SELECT * FROM weir.queues()`)
	}
	short := measure(30_000)
	for range 6 {
		schedule("many", 10_000)
	}
	long := measure(90_000)
	t.Logf("weir.queues touches %d blocks with 30,000 scheduled jobs, and %d with 90,000", short, long)
	if long > short*5/4 {
		t.Errorf("weir.queues touches %d blocks with 30,000 scheduled jobs, and %d with 90,000", short, long)
	}
}

// TestOverdueJobsAreReadWithinABoundInAll: of many transactions that were committed after the time of their jobs, with others in progress between them, no
// more rows are read than was asked for.
func TestOverdueJobsAreReadWithinABoundInAll(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	const transactions, each, most = 6, 40, 50
	var late []pgx.Tx
	for range transactions {
		tx := begin(t, connect(t, url))
		exec(t, tx, `SELECT weir.enqueue('q', 'k', run_at => now() + interval '1 ms') FROM generate_series(1, $1)`, each)
		late = append(late, tx)
		between := begin(t, connect(t, url)) // so that each is found on its own
		exec(t, between, `SELECT pg_current_xact_id()`)
	}
	until(t, "their time is over", func() bool {
		exec(t, conn, `SELECT weir.enqueue('q', 'k', run_at => now() + interval '1 ms')`)
		return value[bool](t, conn, `SELECT clock_timestamp() > max(enqueued_at) + interval '2 ms' FROM weir.later`) && value[int](t, conn, `SELECT promoted FROM weir._promote()`) > 0
	})
	for _, tx := range late {
		commit(t, tx)
	}
	overdue := func(most int) int {
		return value[int](t, conn, `SELECT count(*) FROM (SELECT p FROM weir.promotion p ORDER BY p.seq DESC LIMIT 1) c, weir._overdue(c.p, $1)`, most)
	}
	if n := overdue(10_000); n < transactions*each {
		t.Errorf("%d jobs are overdue, want all %d", n, transactions*each)
	}
	if n := overdue(most); n != most {
		t.Errorf("%d rows are read, want %d", n, most)
	}
}

// TestDueTimesOfSchedulesAreNotCounted: they are no jobs, and with thousands of them the scheduled jobs of queues are counted exactly, as without any.
func TestDueTimesOfSchedulesAreNotCounted(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	exec(t, conn, `SELECT count(weir._mark_due('s' || n, 1, now() + interval '30 minutes', now() + interval '30 minutes')) FROM generate_series(1, 10100) n`)
	exec(t, conn, `SELECT count(weir.enqueue('q', 'k', run_at => now() + interval '1 hour')) FROM generate_series(1, 300)`)
	if d := depthOf(t, conn, "q"); d.Later != 300 || d.Approximate {
		t.Errorf("beside due times of schedules, of 300 scheduled jobs %d are counted, approximate: %t", d.Later, d.Approximate)
	}
}

// TestAnOpenTransactionIsNotWalkedThroughToCount: the jobs of an open transaction cost a count nothing, and only the transaction itself counts
// them.
func TestAnOpenTransactionIsNotWalkedThroughToCount(t *testing.T) {
	pgtest.Alone(t, "what a count touches depends on the transactions of the whole server")
	url := pgtest.Database(t)
	conn, open := connect(t, url), connect(t, url)
	enqueueN(t, conn, "q", 10)
	worker := startWorker(t, conn, "q")
	mustClaim(t, conn, worker, "q", 3)
	alone := settled(t, conn, `SELECT * FROM weir.queues()`)
	exec(t, open, `BEGIN`)
	enqueueN(t, open, "q", 10_000)
	enqueueN(t, conn, "q", 10)
	among := settled(t, conn, `SELECT * FROM weir.queues()`)
	t.Logf("weir.queues touches %d blocks, and %d with 10,000 jobs of an open transaction", alone, among)
	if among > alone+100 {
		t.Errorf("weir.queues touches %d blocks, and %d with 10,000 jobs of an open transaction", alone, among)
	}
	if d := depthOf(t, conn, "q"); d.Available != 17 || d.Running != 3 || d.Approximate {
		t.Errorf("the queue has %+v, want 17 available and 3 running", d)
	}
	if d := depthOf(t, open, "q"); d.Available != 10_017 && !d.Approximate {
		t.Errorf("in the open transaction, the queue has %+v, want 10,017 available", d)
	}
	exec(t, open, `COMMIT`)
}

// TestWaitingBeginsWhenAJobCouldRun: a scheduled or retried job has been waiting since it could run, not since it was enqueued.
func TestWaitingBeginsWhenAJobCouldRun(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	smallSegments(t, conn)
	worker := startWorker(t, conn, "q", "filler")
	since := func() time.Time {
		t.Helper()
		d := depthOf(t, conn, "q")
		if d.ReadySince == nil {
			t.Fatal("ready_since is null although a job waits")
		}
		return *d.ReadySince
	}
	if d := depthOf(t, conn, "q"); d.ReadySince != nil {
		t.Errorf("in an empty queue, a job is shown as waiting since %s", d.ReadySince)
	}
	// In one statement: on a busy machine, it would be past by the next one, and the job available at once.
	runAt := value[time.Time](t, conn, `SELECT now() + interval '20 ms' WHERE weir.enqueue('q', 'k', run_at => now() + interval '20 ms') > 0`)
	exec(t, conn, `UPDATE weir.later SET enqueued_at = now() - interval '30 days'`)
	until(t, "the job is promoted", func() bool { n, _ := promote(t, conn, 10); return n == 1 })
	if got := since(); !got.Equal(runAt) {
		t.Errorf("a scheduled job is shown as waiting since %s, want %s", got, runAt)
	}
	// This is also true for a job that was carried into another segment.
	turn(t, conn, worker)
	if got := since(); !got.Equal(runAt) {
		t.Errorf("a scheduled job that was carried is shown as waiting since %s, want %s", got, runAt)
	}
	a := mustClaim(t, conn, worker, "q", 1)[0]
	before := value[time.Time](t, conn, `SELECT now()`)
	if _, err := finish(t.Context(), conn, worker, a, "retried", time.Time{}); err != nil {
		t.Fatal(err)
	}
	if got := since(); got.Before(before) {
		t.Errorf("a retried job is shown as waiting since %s, want %s or later, when it failed", got, before)
	}
}

// TestNoClaimIsNoLastClaim: a queue that jobs were moved out of or into has no last claim before one of its jobs was claimed.
func TestNoClaimIsNoLastClaim(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	exec(t, conn, `SELECT weir.enqueue('a', 'k', key => k) FROM unnest(ARRAY[NULL, NULL, 'x', 'y']) k`)
	exec(t, conn, `SELECT weir.move_where(queue => 'a', to_queue => 'b')`)
	claimed := func(want string) {
		t.Helper()
		if got := value[string](t, conn, `SELECT string_agg(name || ' ' || claimed || ' ' || (last_claim IS NOT NULL), ', ' ORDER BY name) FROM weir.queues()`); got != want {
			t.Errorf("claims: %s, want %s", got, want)
		}
	}
	claimed("a 0 false, b 0 false")
	exec(t, conn, `SELECT weir._start('w', '{b}')`)
	exec(t, conn, `SELECT weir._claim(max(id), '{b}', '{1}') FROM weir.worker`)
	claimed("a 0 false, b 1 true")
}

// TestWhatRunsIsFoundWithinABound: the cost of finding the running jobs does not grow with what has been claimed since a worker last reconciled.
func TestWhatRunsIsFoundWithinABound(t *testing.T) {
	pgtest.Alone(t, "what a query touches depends on the transactions of the whole server")
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	work := func(n int) {
		for range n / 100 {
			enqueueN(t, conn, "q", 100)
			var done []attempt
			for range 100 {
				done = append(done, mustClaim(t, conn, worker, "q", 1)...)
			}
			mustComplete(t, conn, worker, done)
		}
	}
	work(1000)
	enqueueN(t, conn, "q", 3)
	mustClaim(t, conn, worker, "q", 3)
	if d := depthOf(t, conn, "q"); d.Running != 3 || d.Approximate {
		t.Errorf("the queue has %+v, want 3 running", d)
	}
	blocks := settled(t, conn, `SELECT * FROM weir.queues()`)
	t.Logf("weir.queues touches %d blocks after 1000 batches", blocks)
	if blocks > 15_000 {
		t.Errorf("weir.queues touches %d blocks after 1000 batches, want about 10 for each", blocks)
	}
}

// TestACountThatMayMissRunningJobsSaysSo: if only the newest batches of a worker are read, every queue that it works is approximate, also one of which
// no running job is found; other queues are exact.
func TestACountThatMayMissRunningJobsSaysSo(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker, other := startWorker(t, conn, "slow", "idle", "ended"), startWorker(t, conn, "other")
	for _, queue := range []string{"slow", "other"} {
		enqueueN(t, conn, queue, 10)
	}
	mustClaim(t, conn, worker, "slow", 10)
	mustClaim(t, conn, other, "other", 10)
	check := func(queue string, running int64, approximate bool) {
		t.Helper()
		if d := depthOf(t, conn, queue); d.Running != running || d.Approximate != approximate {
			t.Errorf("the queue %s has %+v, want %d running, approximate: %t", queue, d, running, approximate)
		}
	}
	check("slow", 10, false)
	check("idle", 0, false)
	endedBatches(t, conn, worker, 5100) // of all workers together, 5000 are read
	check("slow", 0, true)
	check("idle", 0, true)
	check("ended", 0, true)
	check("other", 10, false)
}
