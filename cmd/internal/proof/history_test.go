package proof

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// minutes makes minutes pass for the history: what has ended since the last one ended in the present one.
type minutes struct {
	t     *testing.T
	conn  *pgx.Conn
	begin time.Time
	n     int // the present minute, from begin on
}

func newMinutes(t *testing.T, conn *pgx.Conn) *minutes {
	return &minutes{t, conn, time.Now().Truncate(time.Minute).Add(-50 * time.Minute), 0}
}

// at is the beginning of the present minute.
func (m *minutes) at() time.Time { return m.begin.Add(time.Duration(m.n) * time.Minute) }

// pass lets the present minute be over, without counting it.
func (m *minutes) pass() {
	m.t.Helper()
	exec(m.t, m.conn, `UPDATE weir.result SET finished_at = $1::timestamptz + random() * interval '59 seconds' WHERE finished_at > $2::timestamptz + interval '45 minutes'`, m.at(), m.begin)
	m.n++
}

// count counts the minutes that are over.
func (m *minutes) count() string {
	m.t.Helper()
	return value[string](m.t, m.conn, `SELECT coalesce(weir._count_minutes($1), '')`, m.at().Add(time.Minute))
}

// point is a row of weir.history.
type point struct {
	At                                           time.Time
	Completed, Failed, Cancelled, Retried, Other int64
	Waiting                                      int64
	Oldest                                       time.Duration
	WaitP50, WaitP95, RunP50, RunP95             *time.Duration
}

func (p point) ended() int64 { return p.Completed + p.Failed + p.Cancelled + p.Retried + p.Other }

// history returns the points of a queue, or of all (""), since the first minute.
func (m *minutes) history(queue, step string) []point {
	m.t.Helper()
	rows, err := m.conn.Query(m.t.Context(), `SELECT * FROM weir.history(nullif($1, ''), since => $2, step => $3::text::interval)`, queue, m.begin, step)
	if err != nil {
		m.t.Fatal(err)
	}
	points, err := pgx.CollectRows(rows, pgx.RowToStructByPos[point])
	if err != nil {
		m.t.Fatal(err)
	}
	return points
}

// TestAHistoryCountsWhatEnded: in each minute, each queue, and all together, as many attempts are counted as have ended in each way, also of jobs with keys,
// and whatever segments are emptied in between.
func TestAHistoryCountsWhatEnded(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	rng := rand.New(rand.NewPCG(newSeed(t), 1))
	exec(t, conn, `SELECT weir.set('completed_retention', '0 s')`)
	exec(t, conn, `SELECT weir.set_limit('keys', running => 5, per_key => true)`)
	queues := []string{"a", "b", "keys"}
	worker := startWorker(t, conn, queues...)
	m := newMinutes(t, conn)
	type place struct {
		minute         int
		queue, outcome string
	}
	want := map[place]int64{}
	for round := range 24 {
		for _, queue := range queues {
			exec(t, conn, `SELECT weir.enqueue($1::text, 'k', key => CASE WHEN $1 = 'keys' THEN 'key ' || n % 3 END) FROM generate_series(1, $2::int) n`, queue, rng.IntN(30))
			got := mustClaim(t, conn, worker, queue, int32(1+rng.IntN(40)))
			outcome := someEndings[rng.IntN(len(someEndings))]
			if rng.IntN(3) == 0 { // all of them together
				refused, err := record(t.Context(), conn, worker, got, outcome, nil)
				if err != nil || len(refused) > 0 {
					t.Fatalf("record: %v, %v", refused, err)
				}
				want[place{m.n, queue, outcome}] += int64(len(got))
				continue
			}
			for _, a := range got {
				outcome := someEndings[rng.IntN(len(someEndings))]
				if ok, err := finish(t.Context(), conn, worker, a, outcome, time.Time{}); !ok || err != nil {
					t.Fatalf("finish: %v, %v", ok, err)
				}
				want[place{m.n, queue, outcome}]++
			}
		}
		m.pass()
		if rotates := round%8 == 7; rotates || rng.IntN(4) > 0 {
			if m.count(); rotates {
				rotateUntil(t, conn, "reclaimed")
			}
		}
	}
	m.count()
	if n := value[int](t, conn, `SELECT count(*) FROM weir.segment WHERE log = 'job' AND event = 'reclaimed'`); n == 0 {
		t.Error("no segment was emptied")
	}
	for _, queue := range append(queues, "") {
		points := m.history(queue, "1 minute")
		if len(points) != m.n {
			t.Fatalf("%q has %d points, want %d", queue, len(points), m.n)
		}
		for minute, p := range points {
			of := func(outcomes ...string) (n int64) {
				for _, name := range queues {
					for _, outcome := range outcomes {
						if queue == "" || queue == name {
							n += want[place{minute, name, outcome}]
						}
					}
				}
				return n
			}
			got := []int64{p.Completed, p.Failed, p.Cancelled, p.Retried, p.Other}
			expected := []int64{of("completed"), of("failed"), of("cancelled"), of("retried"), of("snoozed", "released")}
			if fmt.Sprint(got) != fmt.Sprint(expected) || !p.At.Equal(m.begin.Add(time.Duration(minute)*time.Minute)) {
				t.Errorf("minute %d of %q, at %v, has %v, want %v", minute, queue, p.At, got, expected)
			}
		}
		var total, inSteps int64
		for _, p := range points {
			total += p.ended()
		}
		for _, p := range m.history(queue, "5 minutes") {
			if inSteps += p.ended(); p.At.Minute()%5 != 0 {
				t.Errorf("a step of 5 minutes begins at %v", p.At)
			}
		}
		if inSteps > total || inSteps == 0 {
			t.Errorf("in steps of 5 minutes, %d attempts have ended, of %d", inSteps, total)
		}
	}
}

// TestMinutesAreCountedOnceByMany: however many count at the same time, each end is counted once, and what waits is noted once.
func TestMinutesAreCountedOnceByMany(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	worker := startWorker(t, conn, "q")
	m := newMinutes(t, conn)
	counters := make([]*pgx.Conn, 6)
	for i := range counters {
		counters[i] = connect(t, url)
	}
	const each, rounds = 20, 6
	for range rounds {
		enqueueN(t, conn, "q", each+1)
		for _, a := range mustClaim(t, conn, worker, "q", each) {
			mustComplete(t, conn, worker, []attempt{a})
		}
		m.pass()
		done := make(chan error, len(counters))
		for _, c := range counters {
			go func() { // ends with its call
				_, err := c.Exec(context.Background(), `SELECT weir._count_minutes($1)`, m.at().Add(time.Minute))
				done <- err
			}()
		}
		for range counters {
			if err := pgtest.Receive(t, done, "a call has ended"); err != nil {
				t.Fatal(err)
			}
		}
	}
	m.count() // in case that none could, because a lock was held
	for i, p := range m.history("q", "1 minute") {
		if p.Completed != each || p.Waiting != int64(i) { // what waits when a minute is counted, which the next one shows
			t.Errorf("in minute %d, %d were completed and %d waited, want %d and %d", i, p.Completed, p.Waiting, each, i)
		}
	}
	if n := value[int](t, conn, `SELECT count(*) FROM weir.minute WHERE waiting IS NOT NULL AND queue = 'q'`); n != rounds {
		t.Errorf("what waits was noted %d times in %d minutes", n, rounds)
	}
}

// TestDurationsOfAHistoryAreWithinTwentyPercent: half and 95 % of the attempts have waited and run about as long as the history says, in a minute and over several.
func TestDurationsOfAHistoryAreWithinTwentyPercent(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	m := newMinutes(t, conn)
	within := func(what string, got *time.Duration, want time.Duration) {
		t.Helper()
		if got == nil || float64(*got) < 0.8*float64(want) || float64(*got) > 1.2*float64(want) {
			t.Errorf("%s is %v, want about %v", what, got, want)
		}
	}
	for m.n < 5 {
		enqueueN(t, conn, "q", 100)
		for i := range 100 {
			a := mustClaim(t, conn, worker, "q", 1)
			mustComplete(t, conn, worker, a)
			wait, run := 2*time.Second, 30*time.Millisecond
			if i%10 == 9 {
				wait, run = 3*time.Minute, 4*time.Second
			}
			// In one statement, so that now() is the same.
			exec(t, conn, `WITH b AS (UPDATE weir.batch SET claimed_at = now() - $3::interval WHERE lane = $1 AND seq = $2), j AS (UPDATE weir.job SET enqueued_at = now() - $3::interval - $4::interval WHERE id = $5)
				UPDATE weir.result SET finished_at = now() WHERE lane = $1 AND seq = $2`, a[0].Lane, a[0].Seq, run, wait, a[0].ID)
		}
		// As pass does, but the durations stay as they are.
		exec(t, conn, `WITH j AS (UPDATE weir.job SET enqueued_at = enqueued_at - (now() - $1::timestamptz) + interval '20 seconds' WHERE enqueued_at > now() - interval '5 minutes'),
			b AS (UPDATE weir.batch SET claimed_at = claimed_at - (now() - $1::timestamptz) + interval '20 seconds' WHERE claimed_at > now() - interval '5 minutes')
			UPDATE weir.result SET finished_at = finished_at - (now() - $1::timestamptz) + interval '20 seconds' WHERE finished_at > now() - interval '5 minutes'`, m.at())
		m.n++
		m.count()
	}
	points := append(m.history("q", "1 minute"), m.history("", "1 minute")...)
	if len(points) != 10 {
		t.Fatalf("%d points", len(points))
	}
	for _, p := range points {
		if p.Completed != 100 {
			t.Errorf("%d were completed in the minute of %v", p.Completed, p.At)
		}
	}
	t.Logf("%+v", points[0])
	for _, p := range points {
		within("p50 of running", p.RunP50, 30*time.Millisecond)
		within("p95 of running", p.RunP95, 4*time.Second)
		within("p50 of waiting", p.WaitP50, 2*time.Second)
		within("p95 of waiting", p.WaitP95, 3*time.Minute)
	}
}

// TestRowsOfAHistoryAddUp: the quantiles of a step are those of the sums of its rows' buckets, whatever these are: next to each other or far apart, the first and the last, with few and with billions.
func TestRowsOfAHistoryAddUp(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	rng := rand.New(rand.NewPCG(newSeed(t), 2))
	m := newMinutes(t, conn)
	const step, steps = 5, 8
	for m.begin.Minute()%step != 0 {
		m.begin = m.begin.Add(-time.Minute)
	}
	const last = 64
	var sums [steps][2][last + 1]float64
	for minute := range step * steps {
		for range 1 + rng.IntN(2) {
			var texts [2]string
			for i := range texts {
				texts[i] = "0"
				for range 1 + rng.IntN(6) {
					bucket, n := []int{0, rng.IntN(last + 1), 20 + rng.IntN(4), last}[rng.IntN(4)], 1+rng.Int64N([]int64{1, 1000, 2e9}[rng.IntN(3)])
					texts[i] += fmt.Sprintf(" + %de%d", n, 12*bucket)
					sums[minute/step][i][bucket] += float64(n)
				}
			}
			at := m.begin.Add(time.Duration(minute) * time.Minute)
			exec(t, conn, fmt.Sprintf(`INSERT INTO weir.minute (at, ring, queue, upto, completed, waits, runs) VALUES ($1, weir._minute_ring($1), 'q', $2, 1, %s, %s)`, texts[0], texts[1]), at, at.Add(time.Minute))
		}
	}
	m.n = step * steps
	m.count()
	for i, p := range m.history("q", "5 minutes")[:steps] {
		for _, k := range []struct {
			what int
			part float64
			got  *time.Duration
		}{{0, 0.5, p.WaitP50}, {0, 0.95, p.WaitP95}, {1, 0.5, p.RunP50}, {1, 0.95, p.RunP95}} {
			var total, heap float64
			for _, n := range sums[i][k.what] {
				total += n
			}
			bucket := 0
			for ; heap+sums[i][k.what][bucket] < k.part*total; bucket++ {
				heap += sums[i][k.what][bucket]
			}
			f := (k.part*total - heap) / sums[i][k.what][bucket]
			want := f
			if bucket > 0 {
				want = math.Pow(2, (float64(bucket)-1+f)/2)
			}
			if k.got == nil || math.Abs(k.got.Seconds()*1000-want) > 0.001*want+0.001 {
				t.Errorf("step %d, quantile %v of %d: %v, want %.3f ms", i, k.part, k.what, k.got, want)
			}
		}
	}
}

// TestAHistoryIsKeptFor72Hours: rows of the last 72 hours are there, older ones are truncated, table by table.
func TestAHistoryIsKeptFor72Hours(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	enqueueN(t, conn, "q", 1)
	begin := time.Now().Truncate(time.Minute)
	const every = 6 * time.Hour
	for n := range 60 {
		now := begin.Add(time.Duration(n) * every)
		exec(t, conn, `SELECT weir._count_minutes($1)`, now)
		if n := value[int](t, conn, `SELECT count(*) FROM weir.history('q', since => '-infinity', step => '1 hour') WHERE waiting = 1`); n < min(n, 72/6) {
			t.Errorf("%v after the beginning, %d points have a waiting job", now.Sub(begin), n)
		}
		if oldest := value[time.Time](t, conn, `SELECT min(at) FROM weir.minute`); now.Sub(oldest) > 4*36*time.Hour {
			t.Errorf("after %v, there are rows of %v", now, oldest)
		}
	}
	if n := value[int](t, conn, `SELECT count(*) FROM weir.minute`); n > 2*4*36/6 {
		t.Errorf("there are %d rows", n)
	}
}

// TestManyQueuesAreBoundedInAMinute: of more than a hundred queues, those with most have rows of their own, and the others count in the row for all.
func TestManyQueuesAreBoundedInAMinute(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	const queues = 130
	worker, names := manyQueues(t, conn, queues)
	m := newMinutes(t, conn)
	m.pass() // with the jobs that made the queues
	exec(t, conn, `SELECT weir.enqueue(name, 'k') FROM unnest($1::text[]) name`, names)
	exec(t, conn, `SELECT weir.enqueue($1, 'k') FROM generate_series(1, 9)`, names[queues-1])
	for left := queues + 9; left > 0; { // a claim visits a limited number of lanes
		all, err := claim(t.Context(), conn, worker, names, slices.Repeat([]int32{10}, queues))
		if err != nil || len(all) == 0 {
			t.Fatalf("%d jobs are left, %v", left, err)
		}
		mustComplete(t, conn, worker, all)
		left -= len(all)
	}
	exec(t, conn, `SELECT weir.enqueue(name, 'k') FROM unnest($1::text[]) name`, names)
	m.pass()
	m.count()
	for _, kind := range []string{"completed", "waiting"} {
		if n := value[int](t, conn, `SELECT count(*) FROM weir.minute WHERE at >= $1 AND `+kind+` IS NOT NULL`, m.at().Add(-time.Minute)); n != 101 {
			t.Errorf("%d rows have %s, want 101", n, kind)
		}
	}
	m.pass()
	m.count()
	if points := m.history("", "1 minute"); points[1].Completed != queues+9 || points[2].Waiting != queues {
		t.Errorf("of all queues, %d were completed, and %d waited, want %d and %d", points[1].Completed, points[2].Waiting, queues+9, queues)
	}
	if p := m.history(names[queues-1], "1 minute")[1]; p.Completed != 10 {
		t.Errorf("the queue with most has %d", p.Completed)
	}
}

// TestAnIdleDatabaseHasNoMinutes: a minute in which nothing ended and nothing waits leaves no row.
func TestAnIdleDatabaseHasNoMinutes(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	m := newMinutes(t, conn)
	enqueueN(t, conn, "q", 1)
	mustComplete(t, conn, worker, claimAll(t, conn, worker, "q"))
	m.pass()
	m.count()
	before := value[int](t, conn, `SELECT count(*) FROM weir.minute`)
	for range 20 {
		m.pass()
		if did := m.count(); did != "" {
			t.Errorf("it %s", did)
		}
	}
	if n := value[int](t, conn, `SELECT count(*) FROM weir.minute`); n != before || n != 2 {
		t.Errorf("there are %d rows, before there were %d, want 2", n, before)
	}
	if points := m.history("", "1 minute"); len(points) != 21 || points[0].Completed != 1 || points[20].ended() != 0 {
		t.Errorf("the points are %v", points)
	}
}

// TestManyResultsAreCountedInParts: a call reads a bounded number of results, and the next one goes on where it was, even within a minute, and if many have the same time.
func TestManyResultsAreCountedInParts(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	setConstant(t, conn, "weir._count_minutes", "most", "20000", "7")
	m := newMinutes(t, conn)
	const each = 30
	for range 3 {
		enqueueN(t, conn, "q", each)
		for _, a := range mustClaim(t, conn, worker, "q", each) {
			mustComplete(t, conn, worker, []attempt{a})
		}
		m.pass()
	}
	calls := 0
	until(t, "all are counted", func() bool {
		calls++
		return m.count() == "" && calls > 1
	})
	if calls < 3*each/7 {
		t.Errorf("it took %d calls", calls)
	}
	for i, p := range m.history("q", "1 minute") {
		if p.Completed != each || p.RunP50 == nil {
			t.Errorf("in minute %d, %d were completed, want %d", i, p.Completed, each)
		}
	}
	// Those of the same microsecond may not all be counted, but it goes on.
	enqueueN(t, conn, "q", each)
	for _, a := range mustClaim(t, conn, worker, "q", each) {
		mustComplete(t, conn, worker, []attempt{a})
	}
	m.pass()
	exec(t, conn, `UPDATE weir.result SET finished_at = $1 WHERE finished_at >= $1`, m.at().Add(-time.Minute))
	for i := 0; m.count() != ""; i++ {
		if i > 2*each {
			t.Fatal("it does not go on")
		}
	}
	if points := m.history("q", "1 minute"); points[3].Completed < 7 {
		t.Errorf("of many ends at the same time, %d are counted", points[3].Completed)
	}
}

// TestAHistoryGoesOnAfterARebaseAndASetClock: after a move to another cluster, and after the clock was set back and forth, minutes are counted on, and none twice.
func TestAHistoryGoesOnAfterARebaseAndASetClock(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	m := newMinutes(t, conn)
	work := func() {
		t.Helper()
		worker := startWorker(t, conn, "q")
		enqueueN(t, conn, "q", 10)
		mustComplete(t, conn, worker, mustClaim(t, conn, worker, "q", 10))
		m.pass()
	}
	work()
	m.count()
	work() // not counted before the move
	moveElsewhere(t, conn)
	_, err := conn.Exec(t.Context(), `SELECT weir._count_minutes($1)`, m.at().Add(time.Minute))
	wantCode(t, "counting in another cluster", err, "WR003")
	exec(t, conn, `SELECT weir.rebase()`)
	m.count()
	work()
	m.count()
	for i, p := range m.history("q", "1 minute") {
		if p.Completed != 10 {
			t.Errorf("around the move, minute %d has %d", i, p.Completed)
		}
	}
	// The clock goes five hours ahead, and back: what it wrote then is of the future.
	for range 3 {
		exec(t, conn, `SELECT weir._count_minutes($1)`, m.at().Add(5*time.Hour))
	}
	work()
	m.count()
	points := m.history("q", "1 minute")
	if last := points[len(points)-1]; last.Completed != 10 {
		t.Errorf("after the clock was set back, the last minute has %d", last.Completed)
	}
}

// TestAHistoryIsInsertOnly: under a pinned horizon, counting minutes updates and deletes nothing, and its tables are emptied.
func TestAHistoryIsInsertOnly(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, holder := connect(t, url), connect(t, url)
	exec(t, holder, `BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT count(*) FROM pg_class`)
	worker := startWorker(t, conn, "q")
	const rounds = 60
	for n := range rounds {
		enqueueN(t, conn, "q", 11)
		mustComplete(t, conn, worker, mustClaim(t, conn, worker, "q", 10))
		exec(t, conn, `SELECT weir._count_minutes(clock_timestamp() + $1 * interval '6 hours')`, n)
	}
	if n := value[int](t, conn, `SELECT count(*) FROM pg_class WHERE relname ~ '^minute_[0-3]$' AND relnamespace = 'weir'::regnamespace AND relfilenode <> oid`); n != 4 {
		t.Errorf("%d of 4 tables were emptied", n)
	}
	_ = conn.Close(context.Background()) // a session reports its statistics when it ends
	noneDead(t, url, rounds*11)
	watch := connect(t, url)
	if n := value[int64](t, watch, `SELECT sum(n_tup_upd + n_tup_del)::bigint FROM pg_stat_all_tables WHERE schemaname = 'weir' AND relname LIKE 'minute%'`); n != 0 {
		t.Errorf("%d rows were updated or deleted", n)
	}
	exec(t, holder, `COMMIT`)
}

// TestCountingMinutesReadsOnlyWhatIsNew: what it costs to count a minute does not grow with the results that are kept.
func TestCountingMinutesReadsOnlyWhatIsNew(t *testing.T) {
	pgtest.Alone(t, "what a query touches depends on the transactions of the whole server")
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	m := newMinutes(t, conn)
	minute := func() int {
		t.Helper()
		enqueueN(t, conn, "q", 100)
		mustComplete(t, conn, worker, mustClaim(t, conn, worker, "q", 100))
		m.pass()
		return blocks(t, conn, `SELECT weir._count_minutes('`+m.at().Add(time.Minute).Format(time.RFC3339)+`')`)
	}
	for range 8 {
		minute()
	}
	few := minute()
	endedBatches(t, conn, worker, 30_000)
	exec(t, conn, `UPDATE weir.result SET finished_at = now() - interval '10 hours' WHERE finished_at > now() - interval '10 minutes'`)
	minute()
	many := minute()
	t.Logf("counting a minute touches %d blocks with few results, and %d with 30,000", few, many)
	if many > 2*few {
		t.Errorf("counting a minute touches %d blocks with few results, and %d with 30,000", few, many)
	}
}

// TestAHistoryRefusesWhatItCanNotShow: a step that is none, or too many points, are errors that say so; a queue that does not exist has had nothing.
func TestAHistoryRefusesWhatItCanNotShow(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	if n := value[int](t, conn, `SELECT count(*) FROM weir.history()`); n != 0 {
		t.Errorf("before anything was counted, there are %d points", n)
	}
	exec(t, conn, `SELECT weir._count_minutes()`)
	for args, want := range map[string]string{
		`step => '0'`: "number of minutes", `step => '-1 minute'`: "number of minutes", `step => '90 seconds'`: "number of minutes", `step => '1 month'`: "number of minutes",
		`since => '-infinity', step => '1 minute'`: "more than 500 points",
	} {
		_, err := conn.Exec(t.Context(), `SELECT weir.history(`+args+`)`)
		if wantCode(t, args, err, "22023"); err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, without %q", args, err, want)
		}
	}
	for args, want := range map[string]int{``: 60, `'none'`: 60, `since => '-infinity'`: 432, `since => 'infinity'`: 0, `since => now() - interval '24 hours'`: 287, `NULL, NULL, NULL`: 60, `step => '1 day'`: 0} {
		if n := value[int](t, conn, `SELECT count(*) FROM weir.history(`+args+`)`); n < want-1 || n > want+1 {
			t.Errorf("history(%s) has %d points, want about %d", args, n, want)
		}
	}
}

// TestCountingMinutesWaitsForNobody: while a segment is being emptied, nothing is counted, and what follows counts it.
func TestCountingMinutesWaitsForNobody(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, holder := connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q")
	m := newMinutes(t, conn)
	enqueueN(t, conn, "q", 10)
	mustComplete(t, conn, worker, mustClaim(t, conn, worker, "q", 10))
	m.pass()
	for _, table := range []string{"result_1", "batch_2", "job_1", "minute"} {
		exec(t, holder, `BEGIN`)
		exec(t, holder, `LOCK TABLE weir.`+table+` IN ACCESS EXCLUSIVE MODE`)
		if did := m.count(); did != "" {
			t.Errorf("while weir.%s is locked, it %s", table, did)
		}
		exec(t, holder, `ROLLBACK`)
	}
	m.count()
	if points := m.history("q", "1 minute"); len(points) != 1 || points[0].Completed != 10 {
		t.Errorf("the points are %+v", points)
	}
}
