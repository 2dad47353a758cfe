package proof

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestSegmentsDoNotTrustTheClock: if the clock was ahead when segments were opened, closed and reclaimed, and is set back, their states stay the
// same, and neither rotating nor reclaiming waits for the clock to catch up.
func TestSegmentsDoNotTrustTheClock(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	smallSegments(t, conn)
	worker := startWorker(t, conn, "filler")
	for range 4 { // after this, every segment has been reclaimed once
		turn(t, conn, worker)
	}
	state := func() []string {
		return column[string](t, conn, `SELECT weir._segment_state('job', s) FROM generate_series(1, 4) s ORDER BY s`)
	}
	before := state()
	exec(t, conn, `UPDATE weir.segment SET at = at + interval '1 year' WHERE event = 'reclaimed'`)
	active := value[int](t, conn, `SELECT last_value FROM weir.active_job`)
	openNext(t, conn, worker)
	if got := value[string](t, conn, `SELECT weir._segment_state('job', $1)`, active); got != "closed" {
		t.Errorf("the segment that was filled and closed is %s; before that all were %v", got, before)
	}
	exec(t, conn, `UPDATE weir.segment SET at = at + interval '1 year'`)
	exec(t, conn, `SELECT weir.set('completed_retention', '1 s')`)
	exec(t, conn, `SELECT weir.enqueue('filler', 'k')`)
	rotateUntil(t, conn, "opened")    // by age, since it is almost empty
	rotateUntil(t, conn, "reclaimed") // a second after the clock was found to have been set back
}

// TestSizesCountLargeJobs: the size of a segment includes TOAST and indexes.
func TestSizesCountLargeJobs(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	exec(t, conn, `SELECT weir.set('retention_bytes', '4194304')`)
	exec(t, conn, `SELECT weir.enqueue_many(array_fill('q'::text, ARRAY[100]), array_fill('k'::text, ARRAY[100]), array_agg(
		jsonb_build_object('pad', (SELECT string_agg(md5(n::text || m::text), '') FROM generate_series(1, 400) m)))) FROM generate_series(1, 100) n`)
	if main := value[int](t, conn, `SELECT pg_relation_size('weir.job_1')`); main > 1<<20/4 {
		t.Fatalf("the jobs are stored in the table itself: %d bytes", main)
	}
	if did := value[string](t, conn, `SELECT coalesce(weir._rotate(), '')`); did != "opened job 2" {
		t.Errorf("with 1.3 MB in a segment of 1 MB rotate did %q", did)
	}
}

// TestReclaimGoesInBoundedSteps: a backlog is carried in bounded parts while jobs are worked; each job exists exactly once all the time, and keeps
// its place.
func TestReclaimGoesInBoundedSteps(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, late := connect(t, url), connect(t, url)
	smallSegments(t, conn)
	worker := startWorker(t, conn, "q", "filler")
	exec(t, late, `BEGIN`)
	lateIDs := enqueueN(t, late, "q", 3)
	ids := append(enqueueN(t, conn, "q", 10_000), enqueueN(t, conn, "q", 10_000)...)
	first := mustClaim(t, conn, worker, "q", 10)
	if !slices.Equal(idsOf(first), ids[:10]) {
		t.Fatalf("the first claim returned %v", idsOf(first))
	}
	ids = ids[10:]
	exec(t, late, `COMMIT`)
	openNext(t, conn, worker)
	was := value[int](t, conn, `SELECT count(*) FROM weir.job_1`)
	steps := 0
	until(t, "the segment with the backlog is reclaimed", func() bool {
		exec(t, conn, `SELECT weir.enqueue_many(array_fill('filler'::text, ARRAY[500]), array_fill('k'::text, ARRAY[500]),
			array_fill(jsonb_build_object('pad', repeat('x', 500)), ARRAY[500]))`)
		mustComplete(t, conn, worker, claimAll(t, conn, worker, "filler"))
		did := value[string](t, conn, `SELECT coalesce(weir._rotate(), '')`)
		is := value[int](t, conn, `SELECT count(*) FROM weir.job_1`)
		if strings.HasPrefix(did, "carried from job 1") {
			steps++
			if n := was - is; n < 1 || n > 10_000 {
				t.Fatalf("carried %d jobs in one step", n)
			}
		}
		was = is
		waiting := value[int](t, conn, `SELECT available FROM weir.queues() WHERE name = 'q'`)
		if waiting < 19_000 || waiting > 21_000 { // an estimate
			t.Fatalf("about %d jobs are shown as waiting, want 20,000", waiting)
		}
		return did == "reclaimed job 1"
	})
	if steps == 0 {
		t.Error("19,993 jobs were carried in one step")
	}
	mustComplete(t, conn, worker, first)
	if got, want := idsOf(claimAll(t, conn, worker, "q")), append(lateIDs, ids...); !slices.Equal(got, want) {
		t.Errorf("claimed %d jobs, want %d in their order", len(got), len(want))
	}
}

// TestCarryingHandsOutNothingTwice: a job claimed while it is being carried is claimed once.
func TestCarryingHandsOutNothingTwice(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, claimer := connect(t, url), connect(t, url)
	smallSegments(t, conn)
	worker := startWorker(t, conn, "q", "filler")
	ids := append(enqueueN(t, conn, "q", 10_000), enqueueN(t, conn, "q", 10_000)...)
	openNext(t, conn, worker)
	other := startWorker(t, claimer, "q")
	got := make(chan []int64, 1)
	go func() { // ends when all jobs are claimed, or with the connection
		var all []int64
		for range 100_000 {
			some, err := claim(context.Background(), claimer, other, []string{"q"}, []int32{100})
			if err == nil && len(some) > 0 {
				err = complete(context.Background(), claimer, other, some)
			}
			if all = append(all, idsOf(some)...); err != nil || len(all) >= len(ids) {
				break
			}
		}
		got <- all
	}()
	carried := 0
	var all []int64
	until(t, "all jobs are claimed", func() bool {
		exec(t, conn, `SELECT weir.enqueue_many(array_fill('filler'::text, ARRAY[100]), array_fill('k'::text, ARRAY[100]),
			array_fill(jsonb_build_object('pad', repeat('x', 500)), ARRAY[100]))`)
		mustComplete(t, conn, worker, claimAll(t, conn, worker, "filler"))
		if strings.HasPrefix(value[string](t, conn, `SELECT coalesce(weir._rotate(), '')`), "carried") {
			carried++
		}
		select {
		case all = <-got:
			return true
		default:
			return false
		}
	})
	slices.Sort(all)
	if !slices.Equal(all, ids) {
		t.Errorf("claimed %d jobs, %d of them different, want %d", len(all), len(slices.Compact(all)), len(ids))
	}
	t.Logf("carried %d times", carried)
}

// TestIdleLanesAreCarried: thousands of idle lanes keep no segment from being reclaimed, and keep their positions.
func TestIdleLanesAreCarried(t *testing.T) {
	t.Parallel()
	const n = 2500
	url := pgtest.Database(t)
	conn := connect(t, url)
	smallSegments(t, conn)
	names := column[string](t, conn, `SELECT 'q' || n FROM generate_series(1, $1::int) n`, n)
	worker := startWorker(t, conn, append(names, "filler")...)
	limits := make([]int32, n)
	for i := range limits {
		limits[i] = 5
	}
	work := func() (done int) {
		for { // a claim visits a limited number of lanes
			got, err := claim(t.Context(), conn, worker, names, limits)
			if err != nil {
				t.Fatal(err)
			}
			if len(got) == 0 {
				return done
			}
			mustComplete(t, conn, worker, got)
			done += len(got)
		}
	}
	exec(t, conn, `SELECT weir.enqueue_many($1, array_fill('k'::text, ARRAY[$2::int]), array_fill('{}'::jsonb, ARRAY[$2::int]))`, names, n)
	if got := work(); got != n {
		t.Fatalf("claimed %d jobs, want %d", got, n)
	}
	openNext(t, conn, worker)
	rotateUntil(t, conn, "reclaimed job 1")
	if got := work(); got != 0 {
		t.Errorf("%d jobs were claimed again", got)
	}
	exec(t, conn, `SELECT weir.enqueue_many($1, array_fill('k'::text, ARRAY[$2::int]), array_fill('{}'::jsonb, ARRAY[$2::int]))`, names, n)
	if got := work(); got != n {
		t.Errorf("claimed %d of the next %d jobs", got, n)
	}
	if seq := value[int](t, conn, `SELECT max(seq) FROM weir.batch WHERE lane = (SELECT (id::bigint << 39) + 1 FROM weir.queue WHERE name = 'q1')`); seq != 2 {
		t.Errorf("the second batch of a lane has the number %d", seq)
	}
}

// TestSegmentsComeBackUnderLoadAndReaders: segments are reclaimed while results are recorded without a pause, many of them in handlers'
// transactions, and after a reader has held every table; and no claim waits for that.
func TestSegmentsComeBackUnderLoadAndReaders(t *testing.T) {
	pgtest.Alone(t, "it measures times")
	url := pgtest.Database(t)
	conn, reader := connect(t, url), connect(t, url)
	smallSegments(t, conn)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	var mu sync.Mutex
	var longest time.Duration
	work := func(inTx bool) {
		c, err := pgx.Connect(ctx, url)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = c.Close(context.Background()) }()
		var worker int32
		err = c.QueryRow(ctx, `SELECT weir._start('w', ARRAY['q'])`).Scan(&worker)
		for err == nil && ctx.Err() == nil {
			if _, err = c.Exec(ctx, `SELECT weir.enqueue_many(array_fill('q'::text, ARRAY[50]), array_fill('k'::text, ARRAY[50]),
				array_fill(jsonb_build_object('pad', repeat('x', 500)), ARRAY[50]))`); err != nil {
				break
			}
			began := time.Now()
			var got []attempt
			if got, err = claim(ctx, c, worker, []string{"q"}, []int32{60}); err != nil {
				break
			}
			mu.Lock()
			longest = max(longest, time.Since(began))
			mu.Unlock()
			for len(got) > 0 && err == nil {
				some := got[:min(len(got), 10)]
				got = got[len(some):]
				if !inTx {
					err = complete(ctx, c, worker, some)
					continue
				}
				err = pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error { return complete(ctx, tx, worker, some) })
			}
		}
		if ctx.Err() == nil {
			t.Error(err)
		}
	}
	for n := range 6 {
		all.Go(func() { work(n%2 == 0) })
	}
	reclaimed := func(n int) func() bool {
		return func() bool {
			if strings.HasPrefix(value[string](t, conn, `SELECT coalesce(weir._rotate(), '')`), "reclaimed") {
				n--
			}
			return n <= 0
		}
	}
	until(t, "segments are reclaimed under load", reclaimed(3))
	exec(t, reader, `BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY`)
	exec(t, reader, `LOCK TABLE weir.job, weir.batch, weir.result, weir.later IN ACCESS SHARE MODE`) // like pg_dump
	rotateUntil(t, conn, "opened")
	for range 3 {
		if did := value[string](t, conn, `SELECT coalesce(weir._rotate(), '')`); strings.HasPrefix(did, "reclaimed") {
			t.Errorf("rotate did %q while a reader holds all tables", did)
		}
	}
	exec(t, reader, `COMMIT`)
	until(t, "segments are reclaimed after the reader", reclaimed(4))
	mu.Lock()
	defer mu.Unlock()
	t.Logf("the longest claim took %v", longest)
	if longest > patience/2 { // a busy machine takes several seconds for some
		t.Errorf("a claim took %v, which is too long", longest)
	}
}

// TestReclaimDoesNotQueueBehindAReader: ACCESS EXCLUSIVE is not requested while a transaction uses the segment, because all later sessions would
// wait for it.
func TestReclaimDoesNotQueueBehindAReader(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, reader := connect(t, url), connect(t, url)
	smallSegments(t, conn)
	worker := startWorker(t, conn, "filler")
	openNext(t, conn, worker)
	exec(t, reader, `BEGIN`)
	exec(t, reader, `LOCK TABLE weir.result_1 IN ACCESS SHARE MODE`)
	if held := value[bool](t, conn, `SELECT weir._is_held('{weir.job_1,weir.result_1}')`); !held {
		t.Error("the reader was not noticed")
	}
	if value[bool](t, conn, `SELECT weir._reclaim(1)`) {
		t.Error("the segment was reclaimed under a reader")
	}
	exec(t, reader, `COMMIT`)
	if held := value[bool](t, conn, `SELECT weir._is_held('{weir.job_1,weir.result_1}')`); held {
		t.Error("a reader that has ended was noticed")
	}
	until(t, "the segment is reclaimed", func() bool { return value[bool](t, conn, `SELECT weir._reclaim(1)`) })
}
