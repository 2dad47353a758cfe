package proof

import (
	"strings"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestALostAnswerIsFoundWhileASessionAttends: the jobs of a lost answer are released even if the worker does not report the loss and, because it
// attends, never renews a lease.
func TestALostAnswerIsFoundWhileASessionAttends(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, attending := connect(t, url), connect(t, url)
	worker := value[int32](t, conn, `SELECT weir.start('w', ARRAY['q'], '1 second')`)
	if !value[bool](t, attending, `SELECT weir.attend($1, pg_backend_pid(), inet_client_addr(), inet_client_port())`, worker) {
		t.Fatal("the session can't attend")
	}
	ids := enqueueN(t, conn, "q", 2)
	held := tokensOf(takeSome(t, conn, worker, atOnce(1)))
	if lost := takeSome(t, conn, worker, atOnce(1)); lost[0].ID != ids[1] {
		t.Fatalf("took %+v", lost)
	}
	got := takeSome(t, conn, worker, taking{held: held, wait: "0"})
	if got[0].ID != ids[1] || *got[0].Attempt != 1 {
		t.Errorf("took %+v", got)
	}
	if refused := recordEnds(t, conn, worker, ends{{"token": held[0]}, {"token": got[0].Token}}); len(refused) > 0 {
		t.Errorf("refused: %v", refused)
	}
	// Batches that have been compared are not compared again: nothing is written.
	until(t, "all batches are compared", func() bool {
		take(t, conn, worker, taking{held: []string{}, wait: "0"})
		return value[bool](t, conn, `SELECT max(no) = (SELECT max(no) FROM weir.batch) FROM weir.settled`)
	})
	before := value[int](t, conn, `SELECT count(*)::int FROM weir.settled`)
	take(t, conn, worker, taking{held: []string{}, wait: "0.5 s"})
	take(t, conn, worker, taking{held: []string{}, wait: "0"})
	if after := value[int](t, conn, `SELECT count(*)::int FROM weir.settled`); after != before {
		t.Errorf("batches were compared again: there were %d marks, and then %d", before, after)
	}
}

// TestTakeEndsBeforeTheServerEndsIt: take waits for work even if the role's statement_timeout is only half a second.
func TestTakeEndsBeforeTheServerEndsIt(t *testing.T) {
	pgtest.Alone(t, "its calls must end within a timeout")
	conn := connect(t, pgtest.Database(t))
	worker := value[int32](t, conn, `SELECT weir.start('w', ARRAY['q'])`)
	exec(t, conn, `SET statement_timeout = '500 ms'`)
	for range 3 {
		if got := take(t, conn, worker, taking{}); len(got) > 0 {
			t.Errorf("took %+v", got)
		}
	}
}

// TestStoppingGoesInBoundedSteps: stopping a worker that never reconciled examines everything it has claimed, in bounded steps.
func TestStoppingGoesInBoundedSteps(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := value[int32](t, conn, `SELECT weir.start('w', ARRAY['q'])`)
	const batches = 12000
	endedBatches(t, conn, worker, batches)
	// A step examines as much as is possible within a second, and at least one part. Here the second is over already, so it is one part.
	exec(t, conn, `BEGIN`)
	exec(t, conn, `SELECT pg_sleep(1.1)`)
	if value[bool](t, conn, `SELECT weir.stop($1)`, worker) {
		t.Errorf("%d batches were examined in one step", batches)
	}
	exec(t, conn, `COMMIT`)
	if seen := value[int](t, conn, `SELECT count(*)::int FROM weir.batch WHERE no <= (SELECT max(no) FROM weir.settled WHERE worker = $1)`, worker); seen == 0 || seen == batches {
		t.Errorf("of %d batches, %d were examined and will not be examined again", batches, seen)
	}
	until(t, "the worker has stopped", func() bool { return value[bool](t, conn, `SELECT weir.stop($1)`, worker) })
}

// TestATakeThatWaitsHoldsNothing: while take waits for work, it holds no lane, which others may need, and no table, which may have to be truncated.
func TestATakeThatWaitsHoldsNothing(t *testing.T) {
	pgtest.Alone(t, "it examines a call while the call waits")
	url := pgtest.Database(t)
	conn, taker, other := connect(t, url), connect(t, url), connect(t, url)
	worker, rival := value[int32](t, conn, `SELECT weir.start('w', ARRAY['q'])`), startWorker(t, conn, "q")
	enqueueN(t, conn, "q", 1)
	// It finds a job, waits for its lane, and gets the lane when another worker has claimed the job.
	exec(t, other, `BEGIN`)
	mustClaim(t, other, rival, "q", 1)
	took := make(chan []taken)
	yes := true
	go func() { took <- take(t, taker, worker, taking{held: []string{}, lost: &yes}) }()
	const is = `SELECT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = $1 AND a.wait_event = $2)`
	until(t, "take waits for the lane", func() bool { return value[bool](t, conn, is, taker.PgConn().PID(), "advisory") })
	exec(t, other, `COMMIT`)
	until(t, "take waits for work", func() bool { return value[bool](t, conn, is, taker.PgConn().PID(), "PgSleep") })
	for _, held := range column[string](t, conn, `
		SELECT concat_ws(' ', l.locktype, l.relation::regclass, l.classid, l.objid, l.mode) FROM pg_locks l
		WHERE l.pid = $1 AND (l.locktype = 'advisory' OR l.relation IN (
			SELECT p.relid FROM unnest(ARRAY['weir.job', 'weir.batch', 'weir.result', 'weir.last_word', 'weir.settled']) t CROSS JOIN pg_partition_tree(t) p))`,
		taker.PgConn().PID()) {
		t.Errorf("while take waits, it holds %s", held)
	}
	if got := pgtest.Receive(t, took, "take returns"); len(got) > 0 {
		t.Errorf("took %+v", got)
	}
}

// TestASettingIsNeverNull: a null value is refused with an error about the setting, not one about the table.
func TestASettingIsNeverNull(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	for _, sql := range []string{`SELECT weir.set('completed_retention', NULL)`, `SELECT weir.set(NULL, '1 day')`, `SELECT weir.set('message_bytes', NULL)`, `SELECT weir.set('q', 'backoff', NULL)`} {
		_, err := conn.Exec(t.Context(), sql)
		wantCode(t, sql, err, "22023")
	}
}

// TestPatternsMeanTheSameWhateverTheSessionsStrings: restrict accepts and refuses the same patterns with either standard_conforming_strings.
func TestPatternsMeanTheSameWhateverTheSessionsStrings(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	for _, setting := range []string{"on", "off"} {
		conn := connect(t, url) // a session parses a function once
		exec(t, conn, `SET standard_conforming_strings = `+setting)
		for pattern, code := range map[string]string{
			"orders.*": "", "orders.>": "", "a.*.b": "", "*": "", ">": "", "a>.b": "", "a>": "", strings.Repeat("a.", 10) + "b": "",
			">.a": "22023", "a.>.b": "22023", strings.Repeat("a.", 10) + "*": "22023", "*." + strings.Repeat("a.", 9) + "b": "22023", strings.Repeat("a.", 10) + ">": "22023",
		} {
			_, err := conn.Exec(t.Context(), `SELECT weir.restrict(current_user, ARRAY[$1])`, pattern)
			wantCode(t, setting+": "+pattern, err, code)
		}
	}
}

// TestAFleetThatWaitsLooksNoMoreThanOneWorker: workers that share a queue poll less often, up to ten times less; other workers do not count.
func TestAFleetThatWaitsLooksNoMoreThanOneWorker(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	var last int32
	start := func(n int, queues ...string) {
		for range n {
			last = value[int32](t, conn, `SELECT weir.start('w', $1)`, queues)
		}
	}
	pause := func(queues ...string) float64 { return value[float64](t, conn, `SELECT weir._pause_among($1)`, queues) }
	check := func(what string, want float64) {
		t.Helper()
		if got := pause("q", "r"); got != want {
			t.Errorf("with %s, take pauses for %g s, want %g", what, got, want)
		}
	}
	check("nobody there", 0.01)
	start(1, "q")
	check("itself alone", 0.01)
	start(20, "others'")
	check("workers of other queues", 0.01)
	start(2, "r", "s")
	check("two that share a queue", 0.03)
	exec(t, conn, `SELECT weir.stop($1)`, last)
	check("one of them stopped", 0.02)
	start(20, "q")
	check("a fleet", 0.1)
}
