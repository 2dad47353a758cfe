package proof

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// runningNow returns what the limits of a queue count.
func runningNow(t *testing.T, q querier, queue string) int {
	t.Helper()
	return value[int](t, q, `SELECT l.running_now FROM weir.limits() l WHERE l.queue = $1`, queue)
}

// wantClaimed claims as much as there is, and fails the test unless that is n jobs.
func wantClaimed(t *testing.T, what string, q querier, worker int32, queue string, n int) []attempt {
	t.Helper()
	got := mustClaim(t, q, worker, queue, 960)
	if len(got) != n {
		t.Errorf("%s: %d jobs were claimed, want %d", what, len(got), n)
	}
	return got
}

// TestAtMostSoManyRun: attempts beyond a queue's limit are not claimed, by any worker and with any priority; every end makes room once.
func TestAtMostSoManyRun(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	a, b := startWorker(t, conn, "q", "free"), startWorker(t, conn, "q")
	exec(t, conn, `SELECT weir.set_limit('q', running => 5)`)
	exec(t, conn, `SELECT weir.enqueue('q', 'k', priority => 1 + i % 4) FROM generate_series(1, 40) i`)
	exec(t, conn, `SELECT weir.enqueue('free', 'k') FROM generate_series(1, 10) i`)
	held := wantClaimed(t, "one worker", conn, a, "q", 5)
	wantClaimed(t, "another worker, at the limit", conn, b, "q", 0)
	if got, err := claim(t.Context(), conn, a, []string{"q", "free"}, []int32{10, 10}); err != nil || len(got) != 10 {
		t.Errorf("%d jobs were claimed of a queue without limits beside one at its limit, want 10: %v", len(got), err)
	}
	for i, outcome := range []string{"completed", "failed", "retried", "snoozed", "released"} {
		if _, err := finish(t.Context(), conn, a, held[i], outcome, time.Time{}); err != nil {
			t.Fatal(err)
		}
		// A repeated call records nothing, so it makes no room either.
		if first, err := finish(t.Context(), conn, a, held[i], outcome, time.Time{}); err != nil || first {
			t.Fatalf("%s, recorded again: %v, %v", outcome, first, err)
		}
		got := wantClaimed(t, "after one was "+outcome, conn, b, "q", 1)
		mustComplete(t, conn, b, got)
		wantClaimed(t, "after that one was completed", conn, a, "q", 1)
		wantClaimed(t, "at the limit again", conn, b, "q", 0)
	}
	if n := runningNow(t, conn, "q"); n != 5 {
		t.Errorf("%d are counted, want 5", n)
	}
}

// TestNoSlotIsLeakedOrFreedTwice: whatever becomes of a worker and of its transactions, an attempt holds its slot until it has ended or was logged
// again, and frees it once. Users of other queues complain of slots that are freed twice when a process is terminated, and of some that are lost.
func TestNoSlotIsLeakedOrFreedTwice(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, handler := connect(t, url), connect(t, url)
	other := startWorker(t, conn, "q")
	exec(t, conn, `SELECT weir.set_limit('q', running => 3)`)
	enqueueN(t, conn, "q", 50)
	// full claims what fits, checks that nothing else does, and completes it.
	full := func(t *testing.T, what string, room int) {
		t.Helper()
		got := wantClaimed(t, what, conn, other, "q", room)
		wantClaimed(t, what+", once more", conn, other, "q", 0)
		mustComplete(t, conn, other, got)
	}
	t.Run("an open transaction completes it", func(t *testing.T) {
		for _, end := range []string{"ROLLBACK", "COMMIT"} {
			worker := startWorker(t, conn, "q")
			held := mustClaim(t, conn, worker, "q", 2)
			exec(t, handler, `BEGIN`)
			if err := completeTx(t.Context(), handler, worker, held[0]); err != nil {
				t.Fatal(err)
			}
			full(t, "while the transaction is open", 1)
			exec(t, handler, end)
			full(t, "after "+end, map[string]int{"ROLLBACK": 1, "COMMIT": 2}[end])
			mustComplete(t, conn, worker, held)
			full(t, "after all were recorded", 3)
		}
	})
	t.Run("a prepared transaction completes it", func(t *testing.T) {
		for i, end := range []string{"ROLLBACK", "COMMIT"} {
			worker := startWorker(t, conn, "q")
			held := mustClaim(t, conn, worker, "q", 1)
			exec(t, handler, `BEGIN`)
			if err := completeTx(t.Context(), handler, worker, held[0]); err != nil {
				t.Fatal(err)
			}
			gid := fmt.Sprintf("'slot %d %d'", worker, i)
			exec(t, handler, `PREPARE TRANSACTION `+gid)
			full(t, "while it is prepared", 2)
			exec(t, conn, end+` PREPARED `+gid)
			full(t, "after "+end, map[string]int{"ROLLBACK": 2, "COMMIT": 3}[end])
			mustComplete(t, conn, worker, held)
			full(t, "after all were recorded", 3)
		}
	})
	t.Run("its worker is fenced", func(t *testing.T) {
		worker := startWorker(t, conn, "q")
		held := mustClaim(t, conn, worker, "q", 3)
		value[bool](t, conn, `SELECT weir._fence($1)`, worker)
		full(t, "fenced, but not logged again", 0)
		if n := settle(t, conn, worker); n != 3 {
			t.Fatalf("%d were logged again, want 3", n)
		}
		full(t, "logged again", 3)
		if _, err := record(t.Context(), conn, worker, held, "completed", nil); sqlstate(err) != "WR001" {
			t.Fatalf("a fenced worker records: %v", err)
		}
		settle(t, conn, worker)
		full(t, "settled and recorded again", 3)
	})
	t.Run("its worker does not know of it", func(t *testing.T) {
		worker := startWorker(t, conn, "q")
		held := mustClaim(t, conn, worker, "q", 3)
		if n, err := reconcile(t.Context(), conn, worker, held[:1]); err != nil || n != 2 {
			t.Fatalf("%d released: %v", n, err)
		}
		full(t, "two were released", 2)
		if refused, err := record(t.Context(), conn, worker, held, "completed", nil); err != nil || len(refused) != 2 {
			t.Fatalf("%d ends were refused, want 2: %v", len(refused), err)
		}
		full(t, "the other was completed", 3)
	})
	t.Run("the claim is rolled back", func(t *testing.T) {
		exec(t, handler, `BEGIN`)
		if got := mustClaim(t, handler, other, "q", 3); len(got) != 3 {
			t.Fatalf("%d were claimed", len(got))
		}
		exec(t, handler, `ROLLBACK`)
		full(t, "after a rollback", 3)
	})
	if n := runningNow(t, conn, "q"); n != 0 {
		t.Errorf("%d are counted in the end, want 0", n)
	}
}

// TestWhatATransactionFreesAfterItsClaimIsCounted: take claims, and ends jobs of unknown kinds in the same transaction, whose own snapshots show it as
// ended as soon as a later one has. Its releases are counted all the same, by the next claim.
func TestWhatATransactionFreesAfterItsClaimIsCounted(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, later := connect(t, url), connect(t, url)
	exec(t, conn, `SELECT weir.set_limit('q', running => 2)`)
	exec(t, conn, `BEGIN`)
	exec(t, conn, `SELECT pg_current_xact_id()`)
	exec(t, later, `SELECT pg_current_xact_id()`)
	if !value[bool](t, conn, `SELECT pg_visible_in_snapshot(pg_current_xact_id(), pg_current_snapshot())`) {
		t.Error("a transaction's own snapshot shows it as in progress, so the test proves nothing")
	}
	exec(t, conn, `SELECT weir._gate_now('q', l.gate, true) FROM weir.queue_limit l`)
	if value[bool](t, conn, `SELECT bool_or(pg_visible_in_snapshot(pg_current_xact_id(), g.folded))
		FROM (SELECT g.folded FROM weir.gate g UNION ALL SELECT n.folded FROM weir.queue_limit l, weir._gate_now('q', l.gate, true) n) g`) {
		t.Error("the releases that a transaction will write count as folded in its own gate's row")
	}
	exec(t, conn, `COMMIT`)

	worker := startWorker(t, conn, "q")
	exec(t, conn, `SELECT weir.enqueue('q', 'unknown', priority => 1 + i % 4) FROM generate_series(1, 40) i`)
	for range 10 {
		exec(t, conn, `SELECT weir.take($1, kinds => ARRAY['known'], limits => ARRAY[5], wait => '0')`, worker)
		exec(t, later, `SELECT pg_current_xact_id()`)
	}
	if n := runningNow(t, conn, "q"); n != 0 {
		t.Errorf("%d are counted, though all were handed back", n)
	}
}

// TestALimitCountsWhatRunsAlready: a limit that is set while attempts run counts them, those of open completions too; one that is lowered interrupts
// nothing; one that was cleared and is set again counts what was claimed in between, each attempt once.
func TestALimitCountsWhatRunsAlready(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, handler := connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q")
	enqueueN(t, conn, "q", 100)
	first := mustClaim(t, conn, worker, "q", 6)
	exec(t, handler, `BEGIN`)
	if err := completeTx(t.Context(), handler, worker, first[0]); err != nil {
		t.Fatal(err)
	}
	exec(t, conn, `SELECT weir.set_limit('q', running => 8)`)
	second := wantClaimed(t, "6 ran before the limit of 8", conn, worker, "q", 2)
	mustComplete(t, conn, worker, first[1:3])
	second = append(second, wantClaimed(t, "two of those have ended", conn, worker, "q", 2)...)
	exec(t, handler, `COMMIT`)
	second = append(second, wantClaimed(t, "the open completion has committed", conn, worker, "q", 1)...)
	if n := runningNow(t, conn, "q"); n != 8 {
		t.Errorf("%d are counted, want 8", n)
	}

	exec(t, conn, `SELECT weir.set_limit('q', running => 2)`)
	mustComplete(t, conn, worker, first[3:])
	mustComplete(t, conn, worker, second[:3])
	wantClaimed(t, "2 run, at most 2 may", conn, worker, "q", 0)
	exec(t, conn, `SELECT weir.set_limit('q', running => 4)`)
	second = append(second[3:], wantClaimed(t, "the limit was raised by 2", conn, worker, "q", 2)...)

	if !value[bool](t, conn, `SELECT weir.clear_limit('q')`) || value[bool](t, conn, `SELECT weir.clear_limit('q')`) {
		t.Error("clear_limit does not say whether there was a limit")
	}
	second = append(second, mustClaim(t, conn, worker, "q", 10)...)
	if len(second) != 14 {
		t.Fatalf("%d run without a limit, want 14", len(second))
	}
	mustComplete(t, conn, worker, second[:2])
	exec(t, conn, `SELECT weir.set_limit('q', running => 13)`)
	third := wantClaimed(t, "12 run, at most 13 may", conn, worker, "q", 1)
	mustComplete(t, conn, worker, append(second[2:], third...))
	mustComplete(t, conn, worker, wantClaimed(t, "all have ended", conn, worker, "q", 13))
	if n := runningNow(t, conn, "q"); n != 0 {
		t.Errorf("%d are counted in the end, want 0", n)
	}
}

// TestALimitAppliesFromTheMomentItIsSet: claims in progress end before set_limit returns, so that what they have claimed counts; a claim that begins
// meanwhile waits, and then keeps the limit.
func TestALimitAppliesFromTheMomentItIsSet(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, slow, operator := connect(t, url), connect(t, url), connect(t, url)
	a, b := startWorker(t, conn, "q"), startWorker(t, conn, "q")
	enqueueN(t, conn, "q", 20)
	exec(t, slow, `BEGIN`)
	held := mustClaim(t, slow, a, "q", 5)
	set := make(chan error, 1)
	go func() {
		_, err := operator.Exec(t.Context(), `SELECT weir.set_limit('q', running => 7)`)
		set <- err
	}()
	until(t, "set_limit waits", func() bool {
		return value[bool](t, conn, `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND classid = 1464158547 AND objid = 0 AND NOT granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`)
	})
	select {
	case err := <-set:
		t.Fatalf("set_limit has not waited for a claim in progress: %v", err)
	default:
	}
	exec(t, slow, `COMMIT`)
	if err := pgtest.Receive(t, set, "set_limit returns"); err != nil {
		t.Fatal(err)
	}
	wantClaimed(t, "5 were claimed while the limit was set", conn, b, "q", 2)
	mustComplete(t, conn, a, held)
	wantClaimed(t, "they have ended", conn, b, "q", 5)

	exec(t, slow, `BEGIN`)
	mustClaim(t, slow, a, "q", 1) // holds the claims' lock, or nothing: there is no room
	exec(t, slow, `COMMIT`)
	// A transaction that keeps claims from ending is given up on.
	exec(t, slow, `BEGIN`)
	exec(t, slow, `SELECT pg_advisory_xact_lock_shared(1464158547, 0)`)
	_, err := operator.Exec(t.Context(), `SELECT weir.set_limit('q', running => 9)`)
	wantCode(t, "set_limit while a claim does not end", err, "55P03")
	exec(t, slow, `COMMIT`)
}

// TestLimitsAreOfNames: a limit is that of a queue's name: it may be set before there is the queue, and twins of a name share it.
func TestLimitsAreOfNames(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	exec(t, conn, `SELECT weir.set_limit('later', running => 1)`)
	worker := startWorker(t, conn, "later", "twins")
	enqueueN(t, conn, "later", 3)
	wantClaimed(t, "a limit from before its queue", conn, worker, "later", 1)

	var users []*pgx.Conn
	for range 4 {
		c := connect(t, url)
		exec(t, c, `BEGIN ISOLATION LEVEL REPEATABLE READ`)
		exec(t, c, `SELECT weir.enqueue('new', 'k') FROM generate_series(1, 5)`)
		users = append(users, c)
	}
	exec(t, users[0], `COMMIT`)
	exec(t, users[1], `COMMIT`)
	exec(t, conn, `SELECT weir.set_limit('new', running => 7)`)
	exec(t, users[2], `COMMIT`) // its twin is not visible to set_limit
	exec(t, users[3], `COMMIT`)
	worker = startWorker(t, conn, "new")
	held := wantClaimed(t, "four twins", conn, worker, "new", 7)
	wantClaimed(t, "four twins at their limit", conn, worker, "new", 0)
	mustComplete(t, conn, worker, held)
	wantClaimed(t, "four twins again", conn, worker, "new", 7)
}

// TestJobsThatDoNotRunTakeNoSlot: jobs that a claim ends itself, because they were cancelled by filter or are duplicates, are not counted; a moved job
// counts where it runs.
func TestJobsThatDoNotRunTakeNoSlot(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q", "other")
	exec(t, conn, `SELECT weir.set_limit('q', running => 2)`)
	exec(t, conn, `SELECT weir.set_limit('other', running => 1)`)
	exec(t, conn, `SELECT weir.enqueue('q', CASE WHEN i % 2 = 0 THEN 'gone' ELSE 'k' END) FROM generate_series(1, 3000) i`)
	exec(t, conn, `SELECT weir.cancel_where(queue => 'q', kinds => ARRAY['gone'])`)
	seen := 0
	for range 10 {
		held := claimAll(t, conn, worker, "q")
		if len(held) != 2 {
			t.Fatalf("%d run, want 2", len(held))
		}
		for _, a := range held {
			if a.Kind == "gone" {
				t.Errorf("a cancelled job was handed out")
			}
		}
		if n := runningNow(t, conn, "q"); n != 2 {
			t.Fatalf("%d are counted, want 2", n)
		}
		mustComplete(t, conn, worker, held)
		seen += len(held)
	}
	exec(t, conn, `SELECT weir.cancel_where(queue => 'q')`)
	claimAll(t, conn, worker, "q")
	if left := value[int](t, conn, `SELECT count(*) FROM weir.jobs('available', 'q')`); left > 0 {
		t.Errorf("%d cancelled jobs are left", left)
	}
	if n := runningNow(t, conn, "q"); n != 0 {
		t.Errorf("%d are counted after all were cancelled, want 0", n)
	}

	// Two that do not see each other: one of them is dropped by its claim.
	url := conn.Config().ConnString()
	rival := connect(t, url)
	exec(t, rival, `BEGIN`)
	exec(t, rival, `SELECT weir.enqueue_unique('q', 'once', unique_key => 'u')`)
	exec(t, conn, `SELECT weir.enqueue_unique('q', 'once', unique_key => 'u')`)
	exec(t, rival, `COMMIT`)
	held := claimAll(t, conn, worker, "q")
	if n := runningNow(t, conn, "q"); len(held) != 1 || n != 1 {
		t.Errorf("of two jobs with one key %d were handed out, and %d are counted, want 1", len(held), n)
	}
	mustComplete(t, conn, worker, held)

	enqueueN(t, conn, "q", 3)
	exec(t, conn, `SELECT weir.move_where(queue => 'q', to_queue => 'other')`)
	held = wantClaimed(t, "moved to a queue with another limit", conn, worker, "other", 1)
	if from, to := runningNow(t, conn, "q"), runningNow(t, conn, "other"); from != 0 || to != 1 {
		t.Errorf("%d are counted where the job was, %d where it runs", from, to)
	}
	mustComplete(t, conn, worker, held)
}

// TestSettingTheSameLimitsAgainCostsNothing: many processes declare the limits of their queues when they start; that waits for nothing.
func TestSettingTheSameLimitsAgainCostsNothing(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, slow := connect(t, url), connect(t, url)
	exec(t, conn, `SELECT weir.set_limit('q', running => 5, rate => 100, per => '1 minute')`)
	exec(t, slow, `BEGIN`)
	exec(t, slow, `SELECT pg_advisory_xact_lock_shared(1464158547, 0)`) // as a claim
	exec(t, conn, `BEGIN`)
	exec(t, conn, `SELECT weir.set_limit('q', running => 5, rate => 100, per => '1 minute')`)
	if value[bool](t, conn, `SELECT pg_current_xact_id_if_assigned() IS NOT NULL OR EXISTS (SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory')`) {
		t.Error("the same limits again have written, or taken a lock")
	}
	exec(t, conn, `COMMIT`)
	exec(t, slow, `COMMIT`)
}

// TestLimitsRefuseWhatTheyDoNotUnderstand: mistakes are reported with the value, and change nothing.
func TestLimitsRefuseWhatTheyDoNotUnderstand(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	for args, want := range map[string]string{
		`'q'`:                                            "both are null",
		`'q', running => 0`:                              "running must be at least 1, got 0",
		`'q', rate => 0`:                                 "got 0",
		`'q', rate => 'NaN'`:                             "got NaN",
		`'q', rate => 1, per => '0 s'`:                   "got 00:00:00",
		`'q', rate => 1, per => '10 years'`:              "got 10 years",
		`'q', rate => 1e9, per => '1 s'`:                 "1000000 a second",
		`'q', rate => 1, burst => 0`:                     "burst must be 1 to 1000000, got 0",
		`'q', running => 1, burst => 3`:                  "burst 3, but no rate",
		`'q', running => 1, per => '1 s'`:                "per 00:00:01, but no rate",
		`'', running => 1`:                               "got ''",
		`NULL, running => 1`:                             "got null",
		`repeat('x', 129), running => 1`:                 "at most 128 characters",
		`'q', rate => '-5', per => '1 hour'`:             "got -5",
		`'q', rate => 1e-6, per => '366 days'`:           "1 in 30 years",
		`'q', rate => 'Infinity', per => '1 s'`:          "got Infinity",
		`'q', running => 1, rate => 1, burst => 1000001`: "got 1000001",
	} {
		_, err := conn.Exec(t.Context(), `SELECT weir.set_limit(`+args+`)`)
		if sqlstate(err) != "22023" || !strings.Contains(err.Error(), want) {
			t.Errorf("set_limit(%s): got %v, want 22023 with %q", args, err, want)
		}
	}
	exec(t, conn, `BEGIN`)
	exec(t, conn, `SELECT weir.enqueue('q', 'k')`)
	_, err := conn.Exec(t.Context(), `SELECT weir.set_limit('q', running => 1)`)
	wantCode(t, "set_limit in a transaction that has written", err, "WR004")
	exec(t, conn, `ROLLBACK`)
	exec(t, conn, `BEGIN ISOLATION LEVEL REPEATABLE READ`)
	_, err = conn.Exec(t.Context(), `SELECT weir.set_limit('q', running => 1)`)
	wantCode(t, "set_limit in REPEATABLE READ", err, "WR004")
	exec(t, conn, `ROLLBACK`)
	if n := value[int](t, conn, `SELECT count(*) FROM weir.limits()`); n != 0 {
		t.Errorf("there are %d limits, want none", n)
	}
}

// TestNoLimitThatIsAcceptedStopsAClaim: with the most extreme limits and weights that are accepted, one after the other, claims hand out the jobs of other queues, and limits are listed.
func TestNoLimitThatIsAcceptedStopsAClaim(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(newSeed(t), 1))
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "free", "q")
	accepted := 0
	try := func(call string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), `SELECT `+call); err != nil {
			if wantCode(t, call, err, "22023"); strings.Contains(err.Error(), "out of range") {
				t.Errorf("%s: %v", call, err)
			}
			return
		}
		accepted++
		exec(t, conn, `SELECT weir.enqueue('free', 'k'), weir.enqueue('q', 'k'), weir.enqueue('q', 'k', key => 'a')`)
		for range 2 {
			got, err := claim(t.Context(), conn, worker, []string{"free", "q"}, []int32{1, 2})
			if err != nil {
				t.Fatalf("after %s: %v", call, err)
			}
			mustComplete(t, conn, worker, got)
		}
		if n := value[int](t, conn, `SELECT available FROM weir.queues() WHERE name = 'free'`); n != 0 {
			t.Fatalf("after %s, %d jobs of another queue wait", call, n)
		}
		exec(t, conn, `SELECT * FROM weir.limits()`)
	}
	for _, perKey := range []bool{false, true} {
		for _, limit := range []string{"rate => 1, per => '366 days', burst => 1000000", "rate => 1, per => '120 days', burst => 1000000", "rate => 1, per => '30 days', burst => 1000",
			"rate => 1e-300", "rate => 0.03, per => '366 days'", "rate => 1e9, per => '1000 seconds', burst => 1000000", "rate => 1e6, burst => 1", "running => 2147483647"} {
			try(fmt.Sprintf("weir.set_limit('q', per_key => %t, %s)", perKey, limit))
		}
	}
	pick := func(from ...string) string { return from[rng.IntN(len(from))] }
	for range 80 {
		try(fmt.Sprintf("weir.set_limit('q', running => %s, rate => %s, per => %s, burst => %s, per_key => %s)", pick("NULL", "1", "1000", "2147483647", "0"),
			pick("NULL", "1e-9", "0.0001", "1", "1000", "1e6", "1e9", "1e10", "'NaN'", "'Infinity'"), pick("NULL", "'1 millisecond'", "'1 second'", "'1 day'", "'12 months'", "'366 days'", "'367 days'"),
			pick("NULL", "1", "2", "100", "10000", "1000000", "1000001"), pick("true", "false")))
		try(fmt.Sprintf("weir.set_weight('q', 'a', %s)", pick("NULL", "0.01", "1000", "'NaN'", "1e-300", "0.009", "'Infinity'")))
	}
	if accepted < 20 {
		t.Errorf("%d calls were accepted", accepted)
	}
	t.Logf("%d calls were accepted", accepted)
}
