package proof

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// firstTick is where a relay begins: at the first tick after a time.
type firstTick struct {
	Tick  int64
	Epoch int64
	Kept  bool
}

func firstTickAfter(ctx context.Context, conn *pgx.Conn, at time.Time) (f firstTick, err error) {
	err = conn.QueryRow(ctx, `SELECT tick, coalesce(epoch, 0), is_kept FROM weir._first_tick_after($1)`, at).Scan(&f.Tick, &f.Epoch, &f.Kept)
	return f, err
}

// beginsAt checks where a relay begins.
func beginsAt(t *testing.T, conn *pgx.Conn, what string, at time.Time, want int64, kept bool) {
	t.Helper()
	if got, err := firstTickAfter(t.Context(), conn, at); err != nil || got.Tick != want || got.Kept != kept || got.Epoch == 0 && want > 1 {
		t.Errorf("%s: %+v, %v; want tick %d, kept %t", what, got, err, want, kept)
	}
}

// aheadOfAll is a time behind that of every tick, as a relay gives it that begins now.
var aheadOfAll = time.Now().AddDate(1, 0, 0)

// eachTick checks for each tick of the table which is the first after its time, and just before it.
func eachTick(t *testing.T, conn *pgx.Conn, after int64) {
	t.Helper()
	seqs := column[int64](t, conn, `SELECT seq FROM weir.tick WHERE seq > $1 ORDER BY seq`, after)
	ats := column[time.Time](t, conn, `SELECT at FROM weir.tick WHERE seq > $1 ORDER BY seq`, after)
	for i, seq := range seqs {
		beginsAt(t, conn, "the time of a tick", ats[i], seq+1, true)
		if i > 0 { // which clocks may not tell from the one before
			beginsAt(t, conn, "just before it", ats[i-1].Add(ats[i].Sub(ats[i-1])/2), seq, true)
		}
	}
}

// cutTicks cuts n ticks of a message each, and returns the last.
func cutTicks(t *testing.T, publisher, conn *pgx.Conn, n int) int64 {
	t.Helper()
	for range n {
		exec(t, publisher, `SELECT weir.publish('c', 'x')`)
		exec(t, conn, `SELECT weir._cut()`)
	}
	return value[int64](t, conn, `SELECT max(seq) FROM weir.tick`)
}

// TestATickThatIsBeingCommittedIsLaterThanAnyTime: a relay that begins with a time, or now, does not begin behind it, although its number is assigned.
func TestATickThatIsBeingCommittedIsLaterThanAnyTime(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, cutter := connect(t, url), connect(t, url)
	quiet := cutTicks(t, conn, conn, 5)
	since := value[time.Time](t, conn, `SELECT clock_timestamp()`)
	exec(t, conn, `SELECT weir.publish('c', 'x')`)
	exec(t, cutter, `BEGIN`)
	exec(t, cutter, `SELECT weir._cut()`)
	if at := value[int64](t, conn, `SELECT last_value FROM weir.tick_seq`); at != quiet+1 {
		t.Fatalf("the sequence is at %d, want %d", at, quiet+1)
	}
	beginsAt(t, conn, "since then", since, quiet+1, true)
	beginsAt(t, conn, "now", aheadOfAll, quiet+1, true)
	exec(t, cutter, `COMMIT`)
	beginsAt(t, conn, "since then, after the commit", since, quiet+1, true)
	beginsAt(t, conn, "now, after the commit", aheadOfAll, quiet+2, true)
}

// TestCutsThatWereRolledBackHideNoTick: reclaiming a segment cuts up to a hundred ticks and may have to give them up. Their numbers stay assigned, until the next tick gets the first of them.
func TestCutsThatWereRolledBackHideNoTick(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, publisher := connect(t, url), connect(t, url)
	last := cutTicks(t, publisher, conn, 20)
	for range 2 {
		exec(t, conn, `BEGIN`)
		cutTicks(t, publisher, conn, 100)
		exec(t, conn, `ROLLBACK`)
		if ahead := value[int64](t, conn, `SELECT last_value FROM weir.tick_seq`) - last; ahead != 100 {
			t.Fatalf("the sequence is %d ahead", ahead)
		}
		eachTick(t, conn, 1)
		beginsAt(t, conn, "now", aheadOfAll, last+1, true)
		if next := cutTicks(t, publisher, conn, 1); next != last+1 {
			t.Fatalf("tick %d follows %d", next, last)
		}
		eachTick(t, conn, 1)
		last = cutTicks(t, publisher, conn, 10)
		eachTick(t, conn, 1)
	}
}

// TestTicksThatAreTruncatedDuringALookUpAreAGap: the look-up waits for a segment that is being truncated, and then says that not everything since the time is kept.
func TestTicksThatAreTruncatedDuringALookUpAreAGap(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, truncater, reader := connect(t, url), connect(t, url), connect(t, url)
	since := value[time.Time](t, conn, `SELECT clock_timestamp()`)
	gone := cutTicks(t, conn, conn, 10)
	exec(t, conn, `UPDATE weir.segment SET at = at - interval '2 hours'`)
	if did := value[string](t, conn, `SELECT coalesce(weir._rotate_messages(), '')`); did != "opened message 2" {
		t.Fatalf("rotate_messages did %q", did)
	}
	last := cutTicks(t, conn, conn, 3)

	exec(t, truncater, `BEGIN`)
	exec(t, truncater, `LOCK TABLE weir.tick_1, weir.message_1 IN ACCESS EXCLUSIVE MODE`)
	type answer struct {
		firstTick
		err error
	}
	answered := make(chan answer, 1)
	go func() { // ends with its answer
		f, err := firstTickAfter(context.WithoutCancel(t.Context()), reader, since)
		answered <- answer{f, err}
	}()
	until(t, "the look-up waits", func() bool {
		return value[bool](t, conn, `SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND NOT granted)`, reader.PgConn().PID())
	})
	if !value[bool](t, truncater, `SELECT weir._reclaim_messages(1, '0')`) {
		t.Fatal("the segment was not reclaimed")
	}
	exec(t, truncater, `COMMIT`)
	if got := pgtest.Receive(t, answered, "where to begin"); got.err != nil || got.Tick != gone+1 || got.Kept || got.Epoch == 0 {
		t.Errorf("%+v, want tick %d, and that not all is kept", got, gone+1)
	}
	beginsAt(t, conn, "afterwards", since, gone+1, false)
	beginsAt(t, conn, "now", aheadOfAll, last+1, true)
	eachTick(t, conn, gone)
}

// TestATimeIsFoundAmongManyTicksAtOnce: also by a session whose plans are of the time when there were few, and among the remains of cuts that were rolled back.
func TestATimeIsFoundAmongManyTicksAtOnce(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	const call = `SELECT * FROM weir._first_tick_after('2020-01-01 00:50:00Z')`
	few := buffers(t, conn, call)
	const many = 400_000
	exec(t, conn, `DELETE FROM weir.tick`)
	fill := `INSERT INTO weir.tick (seq, from_xid, last_id, bytes, at, count, segments, segment, late, snapshot)
		SELECT i, '3', 0, 0, timestamptz '2020-01-01 00:00:00Z' + i * interval '10 milliseconds', 0, 0, 1 + (i - 1) / 100000, '{}', '3:3:' FROM generate_series(1, 400000) i`
	exec(t, conn, `BEGIN`)
	exec(t, conn, fill)
	exec(t, conn, `ROLLBACK`)
	exec(t, conn, fill)
	exec(t, conn, `SELECT setval('weir.tick_seq', 400000)`)
	for range 2 {
		cost := buffers(t, conn, call)
		t.Logf("%d buffers among few ticks, %d among %d", few, cost, many)
		if cost > 2000 { // 19 steps, of which each looks into four indexes
			t.Errorf("a look-up touches %d buffers", cost)
		}
	}
	at := time.Date(2020, 1, 1, 0, 50, 0, 0, time.UTC)
	beginsAt(t, conn, "the time of a tick", at, 300_001, true)
	beginsAt(t, conn, "just before it", at.Add(-time.Millisecond), 300_000, true)
	beginsAt(t, conn, "before all", at.AddDate(-1, 0, 0), 1, true)
	beginsAt(t, conn, "now", aheadOfAll, many+1, true)
}
