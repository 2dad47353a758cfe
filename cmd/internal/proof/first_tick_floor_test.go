package proof

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// around checks where a relay begins with a time between the last tick that can't be read and the first that can, of which nothing is missing; and just before it.
func around(t *testing.T, conn *pgx.Conn, what string, floor time.Time) {
	t.Helper()
	first := value[int64](t, conn, `SELECT last_value + 1 FROM weir.tick_floor`)
	beginsAt(t, conn, what+": behind the last that is gone", floor.Add(time.Microsecond), first, true)
	beginsAt(t, conn, what+": at the last that is gone", floor, first, true)
	beginsAt(t, conn, what+": before it", floor.Add(-time.Microsecond), first, false)
}

// TestATimeBehindWhatIsTruncatedIsNoGap: also if the truncation was rolled back, and what is known of segments was compacted.
func TestATimeBehindWhatIsTruncatedIsNoGap(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, publisher := connect(t, url), connect(t, url)
	newest := func() time.Time {
		return value[time.Time](t, conn, `SELECT at FROM weir.tick ORDER BY seq DESC LIMIT 1`)
	}
	// turn opens the next segment.
	turn := func(want string) {
		t.Helper()
		exec(t, conn, `UPDATE weir.segment SET at = at - interval '2 hours' WHERE event = 'opened'`)
		if did := value[string](t, conn, `SELECT coalesce(weir._rotate_messages(), '')`); did != want {
			t.Fatalf("rotate_messages did %q, want %q", did, want)
		}
	}
	cutTicks(t, publisher, conn, 3)
	first := newest()
	turn("opened message 2")
	cutTicks(t, publisher, conn, 3)
	second := newest()
	turn("opened message 3")
	cutTicks(t, publisher, conn, 3)

	reclaim := `SELECT weir._reclaim_messages($1, '0')`
	exec(t, conn, `BEGIN`)
	exec(t, conn, reclaim, 1)
	exec(t, conn, `ROLLBACK`)
	if n := value[int](t, conn, `SELECT count(*) FROM weir.tick_1`); n == 0 {
		t.Fatal("the ticks are truncated")
	}
	around(t, conn, "after a truncation that was rolled back", first)
	exec(t, conn, reclaim, 1)
	around(t, conn, "after a truncation", first)
	exec(t, conn, reclaim, 2)
	around(t, conn, "after another one", second)
	if n := value[int](t, conn, `SELECT count(*) FROM weir.tick_1`) + value[int](t, conn, `SELECT count(*) FROM weir.tick_2`); n != 0 {
		t.Fatalf("%d ticks are left", n)
	}

	exec(t, conn, `INSERT INTO weir.segment (log, segment, event) SELECT 'job', 1, 'opened' FROM generate_series(1, 2000)`)
	until(t, "the history of segments is compacted", func() bool {
		return value[string](t, conn, `SELECT coalesce(weir._tidy(), '')`) == "compacted segment"
	})
	around(t, conn, "after the history of segments was compacted", second)
}

// TestATimeBehindARebaseIsNoGap: what was in no tick then is logged again, and all earlier ticks are deleted.
func TestATimeBehindARebaseIsNoGap(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, publisher := connect(t, url), connect(t, url)
	cutTicks(t, publisher, conn, 3)
	last := value[time.Time](t, conn, `SELECT at FROM weir.tick ORDER BY seq DESC LIMIT 1`)
	exec(t, conn, `SELECT weir.publish('c', 'in no tick')`)
	exec(t, conn, `UPDATE weir.setting SET value = 'elsewhere' WHERE name = 'message_cluster'`)
	if n := value[int](t, conn, `SELECT weir.rebase_messages()`); n != 1 {
		t.Fatalf("%d messages were logged again", n)
	}
	around(t, conn, "after a rebase", last)
	exec(t, conn, `SELECT weir._cut()`)
	around(t, conn, "after the next tick", last)
}

// TestATimeIsNoGapIfTheLastTickThatIsGoneIsLeft: it has a message of the segment that was truncated, and was cut when the next one was active.
func TestATimeIsNoGapIfTheLastTickThatIsGoneIsLeft(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, late := connect(t, url), connect(t, url)
	cutTicks(t, conn, conn, 3)
	exec(t, late, `BEGIN`)
	exec(t, late, `SELECT weir.publish('c', 'late')`)
	exec(t, conn, `UPDATE weir.segment SET at = at - interval '2 hours'`)
	if did := value[string](t, conn, `SELECT coalesce(weir._rotate_messages(), '')`); did != "opened message 2" {
		t.Fatalf("rotate_messages did %q", did)
	}
	exec(t, late, `COMMIT`)
	exec(t, conn, `SELECT weir._cut()`)
	at := value[time.Time](t, conn, `SELECT at FROM weir.tick_2 ORDER BY seq DESC LIMIT 1`)
	if !value[bool](t, conn, `SELECT weir._reclaim_messages(1, '0')`) {
		t.Fatal("the segment was not reclaimed")
	}
	around(t, conn, "at first", at)
	cutTicks(t, conn, conn, 2)
	around(t, conn, "after more ticks", at)
}
