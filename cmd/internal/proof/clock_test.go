package proof

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// stepClock makes the database's history look as if the clock had been ahead by this much and was set right just now, or with a negative step,
// as if it had been behind.
func stepClock(t *testing.T, conn *pgx.Conn, by time.Duration) {
	t.Helper()
	exec(t, conn, `UPDATE weir.later SET run_at = run_at + $1::interval`, by)
	exec(t, conn, `UPDATE weir.promotion SET due = due + $1::interval,
		ahead_due = (SELECT array_agg(d + $1::interval ORDER BY n) FROM unnest(ahead_due) WITH ORDINALITY a(d, n))`, by)
}

// TestClockStepsLoseNothingAndHurryNothing: if the clock steps back, each scheduled job waits for its time by the clock as it is now, and is
// promoted exactly once, even if the promoter has been past that time before.
func TestClockStepsLoseNothingAndHurryNothing(t *testing.T) {
	t.Parallel()
	const step = time.Hour
	enqueueAt := func(t *testing.T, conn *pgx.Conn, kind, at string) {
		t.Helper()
		exec(t, conn, `SELECT weir.enqueue('q', $1, run_at => clock_timestamp() + $2::text::interval)`, kind, at)
	}
	kinds := func(t *testing.T, conn *pgx.Conn) map[string]int {
		t.Helper()
		all := map[string]int{}
		for _, k := range column[string](t, conn, `SELECT kind FROM weir.job`) {
			all[k]++
		}
		return all
	}

	t.Run("ties", func(t *testing.T) {
		conn := connect(t, pgtest.Database(t))
		tie := value[time.Time](t, conn, `SELECT clock_timestamp() + interval '2 s'`) // jobs that are already due when enqueued are not promoted
		for range 5 {
			exec(t, conn, `SELECT weir.enqueue('q', 'tie', run_at => $1)`, tie)
		}
		until(t, "three of five ties are promoted", func() bool { n, _ := promote(t, conn, 3); return n == 3 })
		stepClock(t, conn, step)
		enqueueAt(t, conn, "new", "500 ms")
		until(t, "a new job is promoted", func() bool { n, _ := promote(t, conn, 3); return n == 1 })
		stepClock(t, conn, -step)
		until(t, "the other ties are promoted", func() bool { promote(t, conn, 3); return kinds(t, conn)["tie"] >= 5 })
		promote(t, conn, 3)
		if got := kinds(t, conn); got["tie"] != 5 || got["new"] != 1 {
			t.Errorf("promoted %v, want 5 jobs with equal times and a new one", got)
		}
	})

	t.Run("ahead", func(t *testing.T) {
		conn := connect(t, pgtest.Database(t))
		late := connect(t, conn.Config().ConnString())
		exec(t, late, `BEGIN`)
		enqueueAt(t, late, "late", "500 ms")
		enqueueAt(t, conn, "before", "500 ms")
		until(t, "a job is promoted", func() bool { n, _ := promote(t, conn, 10); return n == 1 })
		stepClock(t, conn, step)
		exec(t, late, `UPDATE weir.later SET run_at = run_at + $1::interval WHERE kind = 'late'`, step)
		enqueueAt(t, conn, "soon", "2 s")
		enqueueAt(t, conn, "in half an hour", "30 minutes")
		if n, _ := promote(t, conn, 10); n != 0 {
			t.Errorf("%d jobs were promoted before their time: %v", n, kinds(t, conn))
		}
		until(t, "the job that is due is promoted", func() bool { n, _ := promote(t, conn, 10); return n == 1 })
		exec(t, late, `COMMIT`)
		promote(t, conn, 10)
		if got := kinds(t, conn); got["soon"] != 1 || len(got) != 2 {
			t.Errorf("promoted %v, want only before and soon", got)
		}
		// The clock steps again and again: the size of the cursor is bounded.
		for range 40 {
			stepClock(t, conn, time.Millisecond)
			enqueueAt(t, conn, "flapping", "1 microsecond")
			promote(t, conn, 10)
		}
		if n := value[int](t, conn, `SELECT coalesce(cardinality(ahead_due), 0) FROM weir.promotion ORDER BY seq DESC LIMIT 1`); n > 16 {
			t.Errorf("the cursor has %d steps, want at most 16", n)
		}
		stepClock(t, conn, -2*step)
		until(t, "everything is promoted", func() bool { promote(t, conn, 10); return kinds(t, conn)["flapping"] >= 40 })
		if n := value[*int](t, conn, `SELECT cardinality(ahead_due) FROM weir.promotion ORDER BY seq DESC LIMIT 1`); n != nil {
			t.Errorf("the cursor still has %d steps although the clock is past them", *n)
		}
		got := kinds(t, conn)
		for kind, want := range map[string]int{"before": 1, "soon": 1, "late": 1, "in half an hour": 1, "flapping": 40} {
			if got[kind] != want {
				t.Errorf("%q was promoted %d times, want %d", kind, got[kind], want)
			}
		}
	})

	// Many jobs of a transaction that committed late are promoted in bounded steps, in order, and no other job is promoted twice.
	t.Run("many late", func(t *testing.T) {
		conn := connect(t, pgtest.Database(t))
		late := connect(t, conn.Config().ConnString())
		exec(t, late, `BEGIN`)
		exec(t, late, `SELECT weir.enqueue('q', 'late', run_at => clock_timestamp() + interval '20 ms' + n * interval '10 microseconds') FROM generate_series(1, 5000) n`)
		exec(t, conn, `SELECT weir.enqueue('q', 'other', run_at => clock_timestamp() + interval '20 ms' + n * interval '10 microseconds') FROM generate_series(1, 500) n`)
		until(t, "the others are promoted", func() bool { promote(t, conn, 1000); return kinds(t, conn)["other"] == 500 })
		exec(t, late, `COMMIT`)
		calls := 0
		until(t, "the late ones are promoted", func() bool {
			n, _ := promote(t, conn, 1000)
			if n > 1000 {
				t.Errorf("promoted %d in one call, want at most 1000", n)
			}
			calls++
			return kinds(t, conn)["late"] >= 5000
		})
		promote(t, conn, 1000)
		if got := kinds(t, conn); got["late"] != 5000 || got["other"] != 500 || calls > 6 {
			t.Errorf("promoted %v in %d calls, want 5000 late ones and 500 others in 5", got, calls)
		}
	})
}
