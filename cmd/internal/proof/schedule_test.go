package proof

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// promoteUpto promotes everything that is due up to a time, as if the clock had shown it and then stepped back.
func promoteUpto(t *testing.T, conn *pgx.Conn, upto time.Time) {
	t.Helper()
	for i := 0; value[int](t, conn, `SELECT promoted FROM weir._promote(1000, $1)`, upto.Add(time.Duration(i)*2*time.Millisecond)) > 0; i++ {
		// What doesn't fit into one call is due right after its time.
	}
}

// dues returns for which due times of a schedule there are jobs, one for each job.
func dues(t *testing.T, conn *pgx.Conn, name string) []time.Time {
	t.Helper()
	return column[time.Time](t, conn, `SELECT (meta->>'due')::timestamptz FROM weir.job WHERE meta->>'schedule' = $1 AND kind = 'k' ORDER BY 1`, name)
}

// makeOverdue makes a schedule look as if it had been declared a while ago, and nobody had promoted since.
func makeOverdue(t *testing.T, conn *pgx.Conn, name string, by time.Duration) time.Time {
	t.Helper()
	first := value[time.Time](t, conn, `UPDATE weir.schedule SET generation = nextval('weir.schedule_generation'),
		first_due = weir._due_after(fields, time_zone, clock_timestamp() - $2::interval) WHERE name = $1 RETURNING first_due`, name, by)
	exec(t, conn, `SELECT weir._mark_due(name, generation, first_due, first_due) FROM weir.schedule WHERE name = $1`, name)
	return first
}

// TestAScheduleEnqueuesAJobAtEachDueTime: each due time has one job, which carries what was declared, its schedule and its due time; the list shows the
// next and the last time.
func TestAScheduleEnqueuesAJobAtEachDueTime(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	if got := value[string](t, conn, `SELECT weir.set_schedule('nightly report', '0 3 * * *', 'q', 'k', '{"a": 1}', 'Europe/Berlin', priority => 3, max_attempts => 7, meta => '{"m": 2}')`); got != "created" {
		t.Errorf("set_schedule returned %s, want created", got)
	}
	want := nextTimes(t, conn, "0 3 * * *", "Europe/Berlin", value[time.Time](t, conn, `SELECT now()`), 4)
	if next := value[time.Time](t, conn, `SELECT next_at FROM weir.schedules()`); !next.Equal(want[0]) {
		t.Errorf("the next time is %s, want %s", next, want[0])
	}
	promoteUpto(t, conn, want[0].Add(-time.Millisecond))
	if got := dues(t, conn, "nightly report"); len(got) > 0 {
		t.Errorf("fired %v before its time", got)
	}
	for i, at := range want[:3] {
		promoteUpto(t, conn, at)
		if got := dues(t, conn, "nightly report"); !slices.EqualFunc(got, want[:i+1], time.Time.Equal) {
			t.Errorf("fired %v, want %v", got, want[:i+1])
		}
	}
	if got := value[string](t, conn, `SELECT concat_ws(' ', kind, args, max_attempts, (lane & 3) + 1, meta - 'due') FROM weir.job LIMIT 1`); got != `k {"a": 1} 7 3 {"m": 2, "schedule": "nightly report"}` {
		t.Errorf("the job is %s", got)
	}
	if last := value[int64](t, conn, `SELECT s.last_job FROM weir.schedules('nightly report') s WHERE s.last_at = $1 AND s.next_at = $2`, want[2], want[3]); last != value[int64](t, conn, `SELECT max(id) FROM weir.job`) {
		t.Errorf("the last job is %d", last)
	}
	if n := value[int](t, conn, `SELECT count(*) FROM weir.jobs('scheduled')`) + value[int](t, conn, `SELECT sum(scheduled) FROM weir.queues()`); n != 0 {
		t.Errorf("due times are listed as %d jobs", n)
	}
	row := value[int64](t, conn, `SELECT min(id) FROM weir.later`)
	if n := value[int](t, conn, `SELECT count(*) FROM weir.job_info($1)`, row); n != 0 || !value[bool](t, conn, `SELECT weir.cancel($1) IS NULL AND weir.retry($1) IS NULL`, row) {
		t.Error("a due time is shown as a job")
	}
}

// TestDeclaringAScheduleAgainWritesNothing: each process of a fleet may declare the same schedules when it starts. A changed one goes on with its new
// definition; what its earlier one has fired is not fired again, and what was already due is not lost.
func TestDeclaringAScheduleAgainWritesNothing(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, other := connect(t, url), connect(t, url)
	const set = `SELECT weir.set_schedule('s', $1, 'q', 'k', args => $2::jsonb, missed => 'all')`
	exec(t, conn, set, "* * * * *", `{"v": 1}`)
	for _, c := range []*pgx.Conn{conn, other} {
		tx, err := c.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := value[string](t, tx, set, "* * * * *", `{"v": 1}`); got != "unchanged" {
			t.Errorf("declaring it again: %s, want unchanged", got)
		}
		if wrote := value[bool](t, tx, `SELECT pg_current_xact_id_if_assigned() IS NOT NULL`); wrote {
			t.Error("declaring it again wrote something")
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}

	// Two due times have passed that nobody has fired; a change that commits late finds one of them fired.
	first := makeOverdue(t, conn, "s", 2*time.Minute)
	exec(t, other, `BEGIN`)
	exec(t, other, set, "* * * * *", `{"v": 2}`)
	for value[int](t, conn, `SELECT promoted FROM weir._promote()`) > 0 {
	}
	fired := len(dues(t, conn, "s"))
	if fired < 2 {
		t.Fatalf("fired %d times, want at least 2", fired)
	}
	exec(t, other, `COMMIT`)
	for range 3 {
		exec(t, conn, `SELECT weir._promote()`)
	}
	third := first.Add(time.Duration(fired) * time.Minute)
	promoteUpto(t, conn, third.Add(time.Minute))
	got := dues(t, conn, "s")
	for i, at := range got {
		if want := first.Add(time.Duration(i) * time.Minute); !at.Equal(want) {
			t.Fatalf("fired %v, want each minute from %v on once", got, first)
		}
	}
	if len(got) < fired+2 {
		t.Errorf("fired %d times, want at least %d", len(got), fired+2)
	}
	if v := value[string](t, conn, `SELECT string_agg(args->>'v', '' ORDER BY id) FROM weir.job`); v[:fired+1] != strings.Repeat("1", fired)+"2" {
		t.Errorf("the jobs are of the versions %s, want %d of the first", v, fired)
	}

	// A change that commits before anybody has fired takes them over.
	exec(t, conn, `SELECT weir.set_schedule('u', '* * * * *', 'q', 'k')`)
	due := makeOverdue(t, conn, "u", time.Minute)
	exec(t, conn, `SELECT weir.set_schedule('u', '0 0 1 1 *', 'q', 'k')`)
	changed := value[time.Time](t, conn, `SELECT now()`)
	exec(t, conn, `SELECT weir._promote()`)
	if got := dues(t, conn, "u"); len(got) == 0 || !got[0].Equal(due) || got[len(got)-1].After(changed) { // a minute may have begun meanwhile
		t.Errorf("fired %v, want what was due before the change, %v", got, due)
	}
}

// TestAScheduleThatIsChangedOftenHasOneNextDueTime: rows for due times of its earlier generations end when they are due, rather than each being followed
// by another one forever.
func TestAScheduleThatIsChangedOftenHasOneNextDueTime(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	const changes = 5
	due := value[time.Time](t, conn, `SELECT date_trunc('minute', now()) + interval '1 hour'`)
	marks := func() int {
		return value[int](t, conn, `SELECT count(*) FROM weir.later WHERE lane = 0 AND run_at > $1`, due)
	}
	for i := range changes {
		exec(t, conn, `SELECT weir.set_schedule('s', '* * * * *', 'q', 'k', args => jsonb_build_object('v', $1::int), missed => 'all')`, i)
		exec(t, conn, `SELECT weir.pause_schedule('s')`)
		exec(t, conn, `SELECT weir.resume_schedule('s')`)
	}
	for range 3 {
		promoteUpto(t, conn, due)
		if n := marks(); n != 1 {
			t.Fatalf("after %d changes the schedule has %d rows for due times after %s, want 1", changes, n, due)
		}
		due = due.Add(time.Minute)
	}
	exec(t, conn, `SELECT weir.drop_schedule('s')`)
	promoteUpto(t, conn, due)
	if n := marks(); n != 0 {
		t.Errorf("the dropped schedule has %d rows for due times to come", n)
	}
}

// TestTwoProcessesDeclareAScheduleAtOnce: of two that declare a new schedule at the same time, one creates it.
func TestTwoProcessesDeclareAScheduleAtOnce(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, other := connect(t, url), connect(t, url)
	const set = `SELECT weir.set_schedule('s', '* * * * *', 'q', 'k')`
	exec(t, other, `BEGIN`)
	exec(t, other, set)
	answer := make(chan string, 1)
	go func() { // ends with the other's transaction
		var got string
		if err := conn.QueryRow(t.Context(), set).Scan(&got); err != nil {
			got = err.Error()
		}
		answer <- got
	}()
	third := connect(t, url)
	until(t, "the second waits", func() bool {
		return value[bool](t, third, `SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pid = $1)`, conn.PgConn().PID())
	})
	exec(t, other, `COMMIT`)
	if got := pgtest.Receive(t, answer, "the second call returns"); got != "unchanged" {
		t.Errorf("the second got %s, want unchanged", got)
	}
}

// TestWhatWasMissedIsFiredAsTheScheduleSays: after an hour without anybody who promotes, a schedule fires what was missed once, for each time, or not at all;
// what is less than a minute late was not missed, and is fired each time.
func TestWhatWasMissedIsFiredAsTheScheduleSays(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		missed, schedule string
		down             time.Duration
		low, high        int
	}{
		{"one", "* * * * * *", time.Hour, 61, 71}, {"all", "* * * * * *", 10 * time.Minute, 600, 700}, {"none", "* * * * * *", time.Hour, 60, 70},
		{"one", "* * * * *", time.Hour, 1, 2}, {"all", "* * * * *", time.Hour, 60, 61}, {"none", "* * * * *", time.Hour, 1, 2},
		{"one", "every 10 seconds", 55 * time.Second, 5, 7}, {"none", "every 10 seconds", 55 * time.Second, 5, 7},
		{"one", "every 10 seconds", 85 * time.Second, 7, 8}, {"none", "every 10 seconds", 85 * time.Second, 6, 7}, {"all", "every 10 seconds", 85 * time.Second, 8, 10},
		{"one", "* * * * * *", 9000 * time.Hour, 61, 71},
	} {
		t.Run(fmt.Sprintf("%s %s %s", c.missed, c.schedule, c.down), func(t *testing.T) {
			t.Parallel()
			conn := connect(t, pgtest.Database(t))
			exec(t, conn, `SELECT weir.set_schedule('s', $1, 'q', 'k', missed => $2)`, c.schedule, c.missed)
			first := makeOverdue(t, conn, "s", c.down)
			began := value[time.Time](t, conn, `SELECT now()`)
			until(t, "it has caught up", func() bool {
				exec(t, conn, `SELECT weir._promote()`)
				return value[bool](t, conn, `SELECT next_at > now() - interval '1 second' FROM weir.schedules()`)
			})
			now := value[time.Time](t, conn, `SELECT now()`)
			got := dues(t, conn, "s")
			high := c.high + value[int](t, conn, `SELECT count(*) FROM weir.next_times($1, 'UTC', $2, 600) n WHERE n <= $3`, c.schedule, began, now) // due while it caught up
			if len(got) < c.low || len(got) > high {
				t.Errorf("fired %d times, want %d to %d", len(got), c.low, high)
			}
			if c.missed == "all" && !got[0].Equal(first) {
				t.Errorf("fired from %v on, want from %v", got[0], first)
			} else if c.missed != "all" && c.down > time.Hour/2 && got[0].Before(now.Add(-2*time.Minute)) {
				t.Errorf("fired %v, want only the newest", got[0])
			}
		})
	}
}

// TestAPausedScheduleEnqueuesNothing: a paused schedule fires nothing, not even after it has been declared again; resumed, it goes on with the next
// due time. A run by hand changes none of it. A dropped one is over, and a new one of its name starts over.
func TestAPausedScheduleEnqueuesNothing(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	exec(t, conn, `SELECT weir.set_schedule('s', '0 * * * *', 'q', 'k', missed => 'all')`)
	hours := nextTimes(t, conn, "@hourly", "UTC", value[time.Time](t, conn, `SELECT next_at - interval '1 second' FROM weir.schedules()`), 9)
	check := func(want ...time.Time) {
		t.Helper()
		if got := dues(t, conn, "s"); !slices.EqualFunc(got, want, time.Time.Equal) {
			t.Errorf("fired %v, want %v", got, want)
		}
	}
	promoteUpto(t, conn, hours[0])
	exec(t, conn, `SELECT weir.pause_schedule('s')`)
	exec(t, conn, `SELECT weir.set_schedule('s', '0 */1 * * *', 'q', 'k', missed => 'all')`)
	promoteUpto(t, conn, hours[2])
	check(hours[0])
	if state := value[string](t, conn, `SELECT state FROM weir.schedules() WHERE next_at IS NULL AND last_at = $1`, hours[0]); state != "paused" {
		t.Errorf("it is %s, want paused", state)
	}
	id := value[int64](t, conn, `SELECT weir.run_schedule('s')`)
	if value[string](t, conn, `SELECT meta->>'schedule' FROM weir.job_info($1)`, id) != "s" {
		t.Errorf("job %d is not of the schedule", id)
	}
	exec(t, conn, `DELETE FROM weir.job WHERE id = $1`, id)
	exec(t, conn, `SELECT weir.resume_schedule('s'), weir.resume_schedule('s')`)
	// By the clock, nothing has been due since; the first due time has been fired before.
	promoteUpto(t, conn, hours[4])
	check(hours[0], hours[1], hours[2], hours[3], hours[4])
	if !value[bool](t, conn, `SELECT weir.drop_schedule('s')`) {
		t.Error("not found")
	}
	promoteUpto(t, conn, hours[6])
	check(hours[:5]...)
	exec(t, conn, `SELECT weir.set_schedule('s', '0 * * * *', 'q', 'k', missed => 'all')`)
	promoteUpto(t, conn, hours[7])
	check(hours[:8]...)
	for _, f := range []string{"drop", "pause", "resume"} {
		if value[bool](t, conn, `SELECT weir.`+f+`_schedule('nobody')`) {
			t.Errorf("%s_schedule has found what does not exist", f)
		}
	}
	if id := value[*int64](t, conn, `SELECT weir.run_schedule('nobody')`); id != nil {
		t.Errorf("run_schedule has run what does not exist, as job %d", *id)
	}
}

// TestJitterDelaysEachJob: jitter moves when a job is enqueued, and not its due time.
func TestJitterDelaysEachJob(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	exec(t, conn, `SELECT weir.set_schedule('s' || i, '0 * * * *', 'q', 'k', jitter => '30 minutes') FROM generate_series(1, 100) i`)
	due := nextTimes(t, conn, "@hourly", "UTC", value[time.Time](t, conn, `SELECT now()`), 1)[0]
	fired := func(upto time.Time) int {
		promoteUpto(t, conn, upto)
		return value[int](t, conn, `SELECT count(*) FROM weir.job WHERE (meta->>'due')::timestamptz = $1`, due)
	}
	if n := fired(due.Add(15 * time.Minute)); n < 10 || n > 90 {
		t.Errorf("after half of the jitter, %d of 100 have been fired", n)
	}
	if n := fired(due.Add(30 * time.Minute)); n != 100 {
		t.Errorf("after the jitter, %d of 100 have been fired", n)
	}
}

// TestSchedulesFireNothingTwiceWhenTheClockStepsBack: after the clock has been an hour ahead, nothing is fired until it shows that time again.
func TestSchedulesFireNothingTwiceWhenTheClockStepsBack(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	exec(t, conn, `SELECT weir.set_schedule('s', '* * * * * *', 'q', 'k', missed => 'all')`)
	ahead := value[time.Time](t, conn, `SELECT date_trunc('second', now() + interval '1 hour')`)
	promoteUpto(t, conn, ahead) // and back
	before := dues(t, conn, "s")
	if last := before[len(before)-1]; !last.Equal(ahead) {
		t.Errorf("the last due time is %v, want %v", last, ahead)
	}
	for range 3 {
		if n := value[int](t, conn, `SELECT promoted FROM weir._promote()`); n != 0 {
			t.Errorf("fired %d after the clock had stepped back", n)
		}
	}
	promoteUpto(t, conn, ahead.Add(3*time.Second))
	if got := dues(t, conn, "s"); len(got) != len(before)+3 || len(slices.CompactFunc(slices.Clone(got), time.Time.Equal)) != len(got) {
		t.Errorf("%d due times, want 3 more than %d, and each once", len(got), len(before))
	}
}

// TestAnUnknownTimeZoneStopsOneScheduleAlone: if the server has forgotten a time zone, after an upgrade of its time zone data for example, that schedule
// says so, and others go on; it goes on, too, when the server knows it again.
func TestAnUnknownTimeZoneStopsOneScheduleAlone(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	exec(t, conn, `SELECT weir.set_schedule(z, 'every 10 seconds', 'q', 'k', time_zone => z, missed => 'all') FROM unnest(ARRAY['UTC', 'Europe/Berlin']) z`)
	exec(t, conn, `SELECT weir.set_schedule('bad', '*/10 * * * * *', 'q', 'k', time_zone => 'Europe/Berlin', missed => 'all')`)
	first := value[time.Time](t, conn, `SELECT next_at FROM weir.schedules('bad')`)
	after := func(seconds int) time.Time { return first.Add(time.Duration(seconds) * time.Second) }
	check := func(good, bad int) {
		t.Helper()
		ofGood := slices.DeleteFunc(dues(t, conn, "UTC"), func(due time.Time) bool { return due.Before(first) })
		if g, b := len(ofGood), len(dues(t, conn, "bad")); g != good || b != bad {
			t.Errorf("fired %d and %d times, want %d and %d", g, b, good, bad)
		}
	}
	promoteUpto(t, conn, first)
	check(1, 1)
	exec(t, conn, `UPDATE weir.schedule SET time_zone = 'Nowhere/Nothing' WHERE name = 'bad'`)
	promoteUpto(t, conn, after(30))
	promoteUpto(t, conn, after(120))
	check(13, 1)
	if got := value[string](t, conn, `SELECT coalesce(error, '') FROM weir.schedules('bad')`); !strings.Contains(got, "Nowhere/Nothing") {
		t.Errorf("the list says %q, want the time zone", got)
	}
	exec(t, conn, `UPDATE weir.schedule SET time_zone = 'Europe/Berlin' WHERE name = 'bad'`)
	promoteUpto(t, conn, after(600))
	check(61, 61)
}

// TestIdleSchedulesCostNothing: with 10,000 schedules that are not due, promotion reads as much as without any.
func TestIdleSchedulesCostNothing(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	exec(t, conn, `SELECT weir._promote()`)
	before := blocks(t, conn, `SELECT * FROM weir._promote()`)
	exec(t, conn, `SELECT count(weir.set_schedule('s' || i, '0 0 1 1 *', 'q', 'k')) FROM generate_series(1, 10000) i`)
	exec(t, conn, `SELECT weir._promote()`)
	if after := blocks(t, conn, `SELECT weir._promote()`); after > before+20 {
		t.Errorf("promotion reads %d blocks, and %d without schedules", after, before)
	}
}

// TestSchedulesLeaveNothingDeadUnderAPinnedHorizon: a hundred schedules that have fired every second for five minutes have left no dead row in any
// table, and what they have fired is compacted, while a transaction keeps VACUUM from removing anything.
func TestSchedulesLeaveNothingDeadUnderAPinnedHorizon(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, holder := connect(t, url), connect(t, url)
	const seconds = 300
	exec(t, conn, `WITH s AS (SELECT clock_timestamp() - $1 * interval '1 second' AS at)
		INSERT INTO weir.schedule (name, generation, schedule, fields, time_zone, missed, jitter, queue, kind, args, priority, max_attempts, first_due)
		SELECT 's' || i, i, '* * * * * *', weir._parse_schedule('* * * * * *', 'UTC'), 'UTC', 'all', '0', 'q', 'k', '{}', 2, 25, date_trunc('second', s.at)
		FROM generate_series(1, 100) i, s`, seconds)
	exec(t, conn, `SELECT weir._mark_due(name, generation, first_due, first_due) FROM weir.schedule`)
	exec(t, holder, `BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY`)
	exec(t, holder, `SELECT count(*) FROM pg_class`)
	fired := 0
	until(t, "all is fired", func() bool {
		fired += value[int](t, conn, `SELECT promoted FROM weir._promote(5000)`)
		return fired >= 100*seconds
	})
	until(t, "firings are compacted", func() bool {
		exec(t, conn, `SELECT weir._tidy()`)
		return value[int](t, conn, `SELECT count(*) FROM weir.firing`) <= 100
	})
	noneDead(t, url, 100*seconds)
	jobs := value[int](t, conn, `SELECT count(*) FROM weir.job`)
	if n := value[int](t, conn, `SELECT count(*) FROM (SELECT FROM weir.job GROUP BY meta->>'schedule', meta->>'due') d`); n != fired || jobs != fired {
		t.Errorf("fired %d times, and there are %d jobs, of %d due times", fired, jobs, n)
	}
	if n := value[int](t, conn, `SELECT count(*) FROM weir.schedules() s WHERE s.next_at = s.last_at + interval '1 second' AND s.last_job IS NOT NULL`); n != 100 {
		t.Errorf("%d of 100 schedules know their last job and next time", n)
	}
	// What has been fired is not fired again for being forgotten.
	exec(t, conn, `SELECT weir._promote(5000)`)
	if n := value[int](t, conn, `SELECT count(*) - count(DISTINCT (meta->>'schedule', meta->>'due')) FROM weir.job`); n != 0 {
		t.Errorf("%d due times have been fired twice", n)
	}
}
