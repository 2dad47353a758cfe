package proof

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestLimitsOutliveReclaimAndRebase: attempts stay counted when their segments are reclaimed, those from before the limit too, and free their slots
// when they end; limits keep no segment from being reclaimed. After a rebase nothing runs, and the limits are what they were.
func TestLimitsOutliveReclaimAndRebase(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	smallSegments(t, conn)
	worker := startWorker(t, conn, "q", "filler")
	enqueueN(t, conn, "q", 30)
	before := mustClaim(t, conn, worker, "q", 3)
	exec(t, conn, `SELECT weir.set_limit('q', running => 7)`)
	exec(t, conn, `SELECT weir.set_limit('filler', running => 1000)`)
	held := wantClaimed(t, "3 ran before", conn, worker, "q", 4)
	mustComplete(t, conn, worker, []attempt{before[0], held[0]})
	for range 5 { // each segment once
		turn(t, conn, worker)
	}
	if n := runningNow(t, conn, "q"); n != 5 {
		t.Errorf("after reclaiming %d are counted, want 5", n)
	}
	held = append(held, wantClaimed(t, "two have ended", conn, worker, "q", 2)...)
	mustComplete(t, conn, worker, before[1:])
	wantClaimed(t, "those from before have ended", conn, worker, "q", 2)
	mustComplete(t, conn, worker, held[1:3])
	wantClaimed(t, "two carried ones have ended", conn, worker, "q", 2)

	moveElsewhere(t, conn)
	exec(t, conn, `SELECT weir.rebase()`)
	if n := runningNow(t, conn, "q"); n != 0 {
		t.Errorf("after a rebase %d are counted, want 0", n)
	}
	worker = startWorker(t, conn, "q")
	wantClaimed(t, "after a rebase", conn, worker, "q", 7)
	wantClaimed(t, "after a rebase, at the limit", conn, worker, "q", 0)
}

// TestTheTablesOfLimitsAreCompacted: what limits have counted is given back by TRUNCATE, while releases that are not counted yet are kept; an open
// completion keeps one table of releases, and the others go round meanwhile.
func TestTheTablesOfLimitsAreCompacted(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, handler := connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q")
	enqueueN(t, conn, "q", 30)
	before := mustClaim(t, conn, worker, "q", 2)
	exec(t, conn, `SELECT weir.set_limit('q', running => 9)`)
	held := wantClaimed(t, "2 ran before", conn, worker, "q", 7)
	// Releases of long ago, which the gate's newest row has counted.
	fill := func() {
		exec(t, conn, `INSERT INTO weir.release (gate, ring, xid, n) SELECT l.gate, pg_sequence_last_value('weir.active_release'), '3', 1
			FROM weir.queue_limit l, generate_series(1, 120000)`)
	}
	tidied := func(want string) {
		t.Helper()
		until(t, "tidying has "+want, func() bool { return value[string](t, conn, `SELECT coalesce(weir._tidy(), '')`) == want })
	}
	exec(t, handler, `BEGIN`)
	if err := completeTx(t.Context(), handler, worker, held[0]); err != nil {
		t.Fatal(err)
	}
	fill()
	tidied("opened release 2")
	mustComplete(t, conn, worker, held[1:2])
	fill()
	tidied("opened release 3")
	tidied("emptied release 2")
	if n := runningNow(t, conn, "q"); n != 8 {
		t.Errorf("%d are counted, want 8: one of 9 has ended", n)
	}
	exec(t, handler, `COMMIT`)
	tidied("emptied release 1")
	if n := runningNow(t, conn, "q"); n != 7 {
		t.Errorf("%d are counted, want 7: two of 9 have ended", n)
	}
	exec(t, conn, `INSERT INTO weir.gate (gate, seq, running, folded) SELECT l.gate + i % 2, -i, 1000, pg_current_snapshot() FROM weir.queue_limit l, generate_series(1, 60000) i`)
	tidied("compacted gate")
	if n := value[int](t, conn, `SELECT count(*) FROM weir.gate`); n != 2 {
		t.Errorf("%d rows are left, want the first and the newest", n)
	}
	if n := runningNow(t, conn, "q"); n != 7 {
		t.Errorf("after compacting %d are counted, want 7", n)
	}
	mustComplete(t, conn, worker, append(before, held[2:]...))
	wantClaimed(t, "all have ended", conn, worker, "q", 9)

	// A snapshot from before is told so, instead of an empty table.
	exec(t, handler, `BEGIN ISOLATION LEVEL REPEATABLE READ`)
	exec(t, handler, `SELECT count(*) FROM pg_class`)
	exec(t, conn, `INSERT INTO weir.gate (gate, seq, running, folded) SELECT 0, -i, 1000, pg_current_snapshot() FROM generate_series(1, 60000) i`)
	tidied("compacted gate")
	_, err := handler.Exec(t.Context(), `SELECT weir.limits()`)
	wantCode(t, "limits under a snapshot from before compacting", err, "40001")
	exec(t, handler, `ROLLBACK`)
}

// TestNothingIsDeadUnderALimit: under a pinned horizon, limits leave no dead tuple, and claims read no more after thousands of them.
func TestNothingIsDeadUnderALimit(t *testing.T) {
	pgtest.Alone(t, "what a claim touches depends on the transactions of the whole server")
	for name, pin := range map[string][]string{
		"snapshot": {`BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY`, `SELECT count(*) FROM pg_class`},
		"xid":      {`BEGIN`, `SELECT pg_current_xact_id()`},
	} {
		t.Run(name, func(t *testing.T) {
			url := pgtest.Database(t)
			conn, holder := connect(t, url), connect(t, url)
			exec(t, conn, `SELECT weir.set_limit('q', running => 10, rate => 1e6)`) // before there is the queue, whose row it would update
			worker := startWorker(t, conn, "q")
			for _, sql := range pin {
				exec(t, holder, sql)
			}
			const jobs = 3000
			enqueueN(t, conn, "q", jobs+100)
			cost := func() int {
				return blocks(t, conn, fmt.Sprintf(`SELECT * FROM weir._claim(%d, ARRAY['q'], ARRAY[1])`, worker))
			}
			var first, last int
			for done := 0; done < jobs; {
				got := mustClaim(t, conn, worker, "q", 9)
				mustComplete(t, conn, worker, got)
				if done += len(got); done == 900 {
					first = cost()
					if n, err := reconcile(t.Context(), conn, worker, nil); err != nil || n != 1 {
						t.Fatal(n, err)
					}
				}
			}
			last = cost()
			t.Logf("a claim touches %d blocks at the beginning, %d at the end", first, last)
			if last > first+20 {
				t.Errorf("a claim touches %d blocks at the beginning, and %d after %d jobs", first, last, jobs)
			}
			_ = conn.Close(t.Context())
			noneDead(t, url, jobs)
		})
	}
}

// TestAQueueWithoutLimitsPaysNothing: a claim from it touches as many blocks whether others have limits or not; and a claim from a queue at its limit
// writes nothing, and needs no transaction id.
func TestAQueueWithoutLimitsPaysNothing(t *testing.T) {
	pgtest.Alone(t, "what a claim touches depends on the transactions of the whole server")
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "free", "limited")
	enqueueN(t, conn, "free", 100)
	enqueueN(t, conn, "limited", 100)
	cost := func() int {
		return blocks(t, conn, fmt.Sprintf(`SELECT * FROM weir._claim(%d, ARRAY['free'], ARRAY[1])`, worker))
	}
	recorded := func() int {
		a := mustClaim(t, conn, worker, "free", 1)[0]
		return blocks(t, conn, fmt.Sprintf(`SELECT weir._record(%d, ARRAY[%d], ARRAY[%d], ARRAY[1], ARRAY[%d])`, worker, a.Lane, a.Seq, a.ID))
	}
	for range 3 {
		cost() // the catalog is in the session's cache afterwards
		recorded()
	}
	claims, records := cost(), recorded()
	exec(t, conn, `SELECT weir.set_limit('limited', running => 5, rate => 1000)`)
	wantClaimed(t, "the limited queue", conn, worker, "limited", 5)
	if c, r := cost(), recorded(); c > claims || r > records {
		t.Errorf("a claim touches %d blocks and a record %d, and %d and %d beside a queue with limits", claims, records, c, r)
	}

	exec(t, conn, `BEGIN`)
	rows := column[string](t, conn, `SELECT concat_ws(' ', c.queue, c.lane, c.seq, c.id, c.ready_at) FROM weir._claim($1, ARRAY['limited'], ARRAY[10]) c`, worker)
	if strings.Join(rows, ", ") != "limited" {
		t.Errorf("a claim at the limit returned %q, want only the queue's name", rows)
	}
	if value[bool](t, conn, `SELECT pg_current_xact_id_if_assigned() IS NOT NULL`) {
		t.Error("a claim at the limit has taken a transaction id")
	}
	if n := value[int](t, conn, `SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory' AND classid IN (1464158546, 1464158558)`); n > 0 {
		t.Errorf("a claim at the limit has locked %d lanes and gates", n)
	}
	exec(t, conn, `COMMIT`)
}
