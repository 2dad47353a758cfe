package proof

import (
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// promote promotes, and returns the number of jobs and the next due time, which is zero if none is known.
func promote(t *testing.T, conn *pgx.Conn, limit int) (int, time.Time) {
	t.Helper()
	var n int
	var next *time.Time
	if err := conn.QueryRow(t.Context(), `SELECT promoted, next_due FROM weir._promote($1)`, limit).Scan(&n, &next); err != nil {
		t.Fatalf("promote: %v", err)
	}
	if next == nil {
		return n, time.Time{}
	}
	return n, *next
}

// TestPromotionMissesNothing: each scheduled job is promoted exactly once, including jobs with equal times, those that are committed after their
// time, and those of a transaction that is prepared in the meantime.
func TestPromotionMissesNothing(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, open, prepared, aborted := connect(t, url), connect(t, url), connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q")
	const soon = `now() + interval '100 ms'`
	for _, c := range []*pgx.Conn{open, prepared, aborted} {
		exec(t, c, `BEGIN`)
		exec(t, c, `SELECT weir.enqueue('q', 'late', run_at => `+soon+`)`)
	}
	exec(t, prepared, `PREPARE TRANSACTION 'TestPromotionMissesNothing'`)
	exec(t, conn, `SELECT weir.enqueue('q', 'hour', run_at => now() + interval '1 hour')`)
	const ties, limit = 5000, 1000
	tie := value[time.Time](t, conn, `SELECT now() + interval '300 ms'`)
	exec(t, conn, `SELECT weir.enqueue_many(array_fill('q'::text, ARRAY[$1::int]), array_fill('tie'::text, ARRAY[$1::int]),
		array_fill('{}'::jsonb, ARRAY[$1::int]), run_at => array_fill($2::timestamptz, ARRAY[$1::int]))`, ties, tie)

	total, calls := 0, 0
	until(t, "all ties are promoted", func() bool {
		n, next := promote(t, conn, limit)
		if n > limit {
			t.Errorf("promoted %d in one call, want at most %d", n, limit)
		}
		if n > 0 {
			calls++
		}
		total += n
		want := tie
		if total >= ties {
			want = time.Time{} // none soon
		}
		if !next.Equal(want) {
			t.Errorf("after %d promotions, the next time is %v, want %v", total, next, want)
		}
		return total >= ties
	})
	if calls != ties/limit {
		t.Errorf("%d calls promoted something, want %d", calls, ties/limit)
	}
	if n, _ := promote(t, conn, limit); n != 0 {
		t.Errorf("promoted %d again", n)
	}
	// Their time is long past, and so is the cursor.
	exec(t, open, `COMMIT`)
	if n, next := promote(t, conn, limit); n != 1 || !next.IsZero() {
		t.Errorf("promoted %d of the transaction that committed late, with the next due at %v; want 1, and none soon", n, next)
	}
	exec(t, aborted, `ROLLBACK`)
	exec(t, conn, `COMMIT PREPARED 'TestPromotionMissesNothing'`)
	if n, _ := promote(t, conn, limit); n != 1 {
		t.Errorf("promoted %d of the prepared transaction, want 1", n)
	}
	before := value[int64](t, conn, `SELECT max(seq) FROM weir.promotion`)
	for range 3 {
		if n, _ := promote(t, conn, limit); n != 0 {
			t.Errorf("promoted %d again", n)
		}
	}
	if after := value[int64](t, conn, `SELECT max(seq) FROM weir.promotion`); after != before {
		t.Errorf("promote wrote %d rows although nothing was due", after-before)
	}

	kinds, seen := map[string]int{}, map[int64]bool{}
	for _, a := range claimAll(t, conn, worker, "q") {
		if kinds[a.Kind]++; seen[a.ID] {
			t.Errorf("job %d was promoted twice", a.ID)
		}
		seen[a.ID] = true
	}
	if kinds["tie"] != ties || kinds["late"] != 2 || kinds["hour"] != 0 {
		t.Errorf("claimed %v, want %d ties and 2 late ones", kinds, ties)
	}
}

// TestJobsThatAreCommittedAfterTheirTimeAreShown: a scheduled job whose transaction commits when its time has passed is counted and listed as scheduled
// until it is promoted, on every page in its order.
func TestJobsThatAreCommittedAfterTheirTimeAreShown(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, open := connect(t, url), connect(t, url)
	exec(t, open, `BEGIN`)
	var ids []int64
	for range 3 {
		ids = append(ids, value[int64](t, open, `SELECT weir.enqueue('q', 'late', run_at => now() + interval '50 ms')`))
	}
	exec(t, conn, `SELECT weir.enqueue('q', 'in time', run_at => now() + interval '50 ms')`)
	until(t, "the job that is in time is promoted", func() bool {
		n, _ := promote(t, conn, 1000)
		return n == 1
	})
	ids = append(ids, value[int64](t, conn, `SELECT weir.enqueue('q', 'hour', run_at => now() + interval '1 hour')`))
	exec(t, open, `COMMIT`)
	if d := depthOf(t, conn, "q"); d.Later != 4 || d.Approximate {
		t.Errorf("%d of 4 scheduled jobs are counted, approximate: %t", d.Later, d.Approximate)
	}
	for _, queue := range []*string{nil, new("q")} {
		var listed []int64
		var after *string
		for more := true; more; more = after != nil {
			var page []int64
			if err := conn.QueryRow(t.Context(), `SELECT ARRAY(SELECT (j->>'id')::bigint FROM jsonb_array_elements(p.jobs) WITH ORDINALITY u(j, ord) ORDER BY ord), p.next
				FROM weir.jobs_page('{scheduled}', queue => $1, after => $2, max_rows => 2) p`, queue, after).Scan(&page, &after); err != nil {
				t.Fatal(err)
			}
			listed = append(listed, page...)
		}
		if !slices.Equal(listed, ids) {
			t.Errorf("jobs %v are listed as scheduled, want %v", listed, ids)
		}
	}
	if n, _ := promote(t, conn, 1000); n != 3 {
		t.Errorf("%d jobs were promoted, want 3", n)
	}
	if d := depthOf(t, conn, "q"); d.Later != 1 || d.Available != 4 {
		t.Errorf("after promotion %d jobs are scheduled and %d available, want 1 and 4", d.Later, d.Available)
	}
}

// TestPromotionOutlivesItsSegments: rotating the segments of later reclaims promoted rows and carries the others, including late ones.
func TestPromotionOutlivesItsSegments(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, late := connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q")
	exec(t, late, `BEGIN`)
	exec(t, late, `SELECT weir.enqueue('q', 'late', run_at => now() + interval '50 ms')`)
	exec(t, conn, `SELECT weir.enqueue('q', 'hour', run_at => now() + interval '1 hour')`)
	exec(t, conn, `SELECT weir.enqueue_many(array_fill('q'::text, ARRAY[1000]), array_fill('soon'::text, ARRAY[1000]),
		array_fill('{}'::jsonb, ARRAY[1000]), run_at => array_fill(now() + interval '50 ms', ARRAY[1000]))`)
	total := 0
	until(t, "all that is due is promoted", func() bool {
		n, _ := promote(t, conn, 2000)
		total += n
		return total == 1000
	})
	if did := value[string](t, conn, `SELECT coalesce(weir._rotate_later(0), '')`); did != "opened later 2" {
		t.Errorf("rotate_later did %q with a transaction in flight, want it to open segment 2", did)
	}
	exec(t, late, `COMMIT`)
	until(t, "the first segment is reclaimed", func() bool {
		return value[string](t, conn, `SELECT coalesce(weir._rotate_later(0), '')`) == "reclaimed later 1"
	})
	if n := value[int](t, conn, `SELECT count(*) FROM weir.later`); n != 2 {
		t.Errorf("%d rows were carried, want the late one and the scheduled one", n)
	}
	if n, _ := promote(t, conn, 2000); n != 1 {
		t.Errorf("promoted %d jobs, want the late one", n)
	}
	if got := claimAll(t, conn, worker, "q"); len(got) != 1001 {
		t.Errorf("claimed %d jobs, want 1001", len(got))
	}
}

// TestAFallingUptoKeepsFewCursors: promoting ahead of time up to earlier and earlier times, a hundred times, promotes each job once and leaves up
// to 16 cursors, as clocks that step back do.
func TestAFallingUptoKeepsFewCursors(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	const n = 100
	schedule := func(minutes int) {
		exec(t, conn, `SELECT weir.enqueue('q', 'k', run_at => now() + $1 * interval '1 minute')`, minutes)
	}
	promoted, most := 0, 0
	for i := n; i > 0; i-- {
		schedule(i)
		promoted += value[int](t, conn, `SELECT promoted FROM weir._promote(upto => now() + $1 * interval '1 minute' + interval '1 second')`, i)
		if promoted < n-i+1 {
			t.Fatalf("%d jobs are promoted of %d that are due by the time given", promoted, n-i+1)
		}
		most = max(most, value[int](t, conn, `SELECT coalesce(cardinality(ahead_due), 0) FROM weir.promotion ORDER BY seq DESC LIMIT 1`))
	}
	if most > 16 {
		t.Errorf("up to %d cursors are kept beside the newest, want at most 16", most)
	}
	schedule(n - 1)
	if more, _ := promote(t, conn, 1000); more != 0 {
		t.Errorf("%d jobs are promoted again, or before their time", more)
	}
	if last := value[int](t, conn, `SELECT promoted FROM weir._promote(upto => now() + interval '1 day')`); last != 1 || promoted != n {
		t.Errorf("%d jobs are promoted, and then %d; want each of %d and 1 once", promoted, last, n)
	}
}

// TestAPromotionThatLogsNothingWakesNobody: while some transaction is in progress, as there always is on a busy server, also in other databases, the cursor goes on, but not the
// counter that idle workers poll. What that transaction logs is promoted all the same.
func TestAPromotionThatLogsNothingWakesNobody(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, other := connect(t, url), connect(t, url)
	exec(t, other, `BEGIN`)
	due := value[time.Time](t, other, `SELECT clock_timestamp() + interval '50 ms'`)
	exec(t, other, `SELECT weir.enqueue('q', 'late', run_at => $1)`, due)
	until(t, "its time has come", func() bool { return value[bool](t, conn, `SELECT clock_timestamp() > $1`, due) })
	const ids, cursors = `SELECT last_value FROM weir.job_id`, `SELECT max(seq) FROM weir.promotion`
	id, cursor := value[int64](t, conn, ids), value[int64](t, conn, cursors)
	if n, _ := promote(t, conn, 10); n != 0 {
		t.Errorf("promoted %d", n)
	}
	if now := value[int64](t, conn, ids); now != id {
		t.Error("the counter has moved")
	}
	if now := value[int64](t, conn, cursors); now != cursor+1 {
		t.Errorf("the cursor has moved %d times, want once", now-cursor)
	}
	if _, next := promote(t, conn, 10); !next.IsZero() {
		t.Errorf("the next one is due at %v", next)
	}
	exec(t, other, `COMMIT`)
	if n, _ := promote(t, conn, 10); n != 1 {
		t.Errorf("promoted %d, want the job that was committed late", n)
	}
	if now := value[int64](t, conn, ids); now == id {
		t.Error("the counter has not moved")
	}
}
