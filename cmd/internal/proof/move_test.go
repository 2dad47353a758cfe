package proof

import (
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestJobsAreMovedByFilter: to another queue or priority; with their ids, attempts and times; behind those that wait there; and the others stay in their order.
func TestJobsAreMovedByFilter(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, open := connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q", "r")
	there := enqueueN(t, conn, "r", 3)
	ids := enqueueN(t, conn, "q", 40)
	exec(t, open, `BEGIN`)
	late := enqueueN(t, open, "q", 2)
	more := enqueueN(t, conn, "q", 10)
	scheduled := value[int64](t, conn, `SELECT weir.enqueue('q', 'k', run_at => now() + interval '1 hour', meta => '{"m": 1}')`)
	other := value[int64](t, conn, `SELECT weir.enqueue('q', 'stays')`)
	running := mustClaim(t, conn, worker, "q", 2)

	before := value[string](t, conn, `SELECT (to_jsonb(i) - 'queue' - 'priority')::text FROM weir.job_info($1) i`, scheduled)
	if n, steps := runSteps(t, conn, "move_where", `'q', kinds => '{k}', to_queue => 'r', max_rows => 7`); n != 49 || steps < 6 {
		t.Errorf("moved %d jobs in %d steps, want 49", n, steps)
	}
	if after := value[string](t, conn, `SELECT (to_jsonb(i) - 'queue' - 'priority')::text FROM weir.job_info($1) i`, scheduled); after != before {
		t.Errorf("the scheduled job was %s, and is %s", before, after)
	}
	exec(t, open, `COMMIT`)
	if got := idsOf(claimAll(t, conn, worker, "r")); !slices.Equal(got, slices.Concat(there, ids[2:], more)) {
		t.Errorf("claimed %v of r", got)
	}
	if got := idsOf(claimAll(t, conn, worker, "q")); len(got) != 3 || !slices.Contains(got, other) || !slices.Contains(got, late[0]) {
		t.Errorf("claimed %v of q, want %v and %d", got, late, other)
	}
	mustComplete(t, conn, worker, running)
	exec(t, conn, `SELECT weir._promote(upto => now() + interval '2 hours')`)
	if got := idsOf(claimAll(t, conn, worker, "r")); !slices.Equal(got, []int64{scheduled}) {
		t.Errorf("claimed %v, want the scheduled job", got)
	}

	first, last := enqueueN(t, conn, "q", 5), enqueueN(t, conn, "q", 5)
	exec(t, conn, `SELECT weir.move_where(enqueued_before => 'infinity', to_priority => 1, max_rows => 1)`)
	if got := idsOf(claimAll(t, conn, worker, "q")); !slices.Equal(got, append(first, last...)) {
		t.Errorf("claimed %v after one was moved to the front", got)
	}
	for _, args := range []string{`'q'`, `'q', to_priority => 5`, `to_queue => 'r'`, `'q', to_queue => ''`} {
		_, err := conn.Exec(t.Context(), `SELECT weir.move_where(`+args+`)`)
		wantCode(t, "move_where("+args+")", err, "22023")
	}
	exec(t, conn, `BEGIN`)
	exec(t, conn, `SELECT weir.enqueue('q', 'k')`)
	_, err := conn.Exec(t.Context(), `SELECT weir.move_where('q', to_queue => 'r')`)
	wantCode(t, "move_where in a transaction", err, "WR004")
}

// TestACancellationDoesNotMeanWhatIsMovedThereLater: whether it names a queue or a priority; and what it has cancelled stays where it is.
func TestACancellationDoesNotMeanWhatIsMovedThereLater(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q", "r")
	enqueueN(t, conn, "r", 2)
	ids := enqueueN(t, conn, "q", 3)
	scheduled := value[int64](t, conn, `SELECT weir.enqueue('q', 'k', run_at => now() + interval '1 hour')`)
	exec(t, conn, `SELECT weir.cancel_where('r'), weir.cancel_where(priority => 1)`)
	if n, _ := runSteps(t, conn, "move_where", `'q', to_queue => 'r', to_priority => 1`); n != 4 {
		t.Errorf("moved %d jobs, want 4", n)
	}
	if n, _ := runSteps(t, conn, "move_where", `'r', priority => 2, to_queue => 'q'`); n != 0 {
		t.Errorf("moved %d cancelled jobs", n)
	}
	for _, id := range append(slices.Clone(ids), scheduled) {
		if state := value[string](t, conn, `SELECT state FROM weir.job_info($1)`, id); state != "available" && state != "scheduled" {
			t.Errorf("job %d is %s", id, state)
		}
	}
	exec(t, conn, `SELECT weir._promote(upto => now() + interval '2 hours')`)
	if got := takenIDs(takeAll(t, conn, worker, "r")); !slices.Equal(got, append(ids, scheduled)) {
		t.Errorf("%v run, want %v", got, ids)
	}
}

// TestACancellationDuringAMoveMeansWhatIsStillThere: a cancellation of a queue's jobs that commits before a move out of the queue does means the jobs that are being moved.
func TestACancellationDuringAMoveMeansWhatIsStillThere(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, holder, mover, canceller := connect(t, url), connect(t, url), connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q", "r")
	enqueueN(t, conn, "r", 1)
	id := enqueueN(t, conn, "q", 1)[0]
	scheduled := value[int64](t, conn, `SELECT weir.enqueue('q', 'k', run_at => now() + interval '1 hour')`)
	exec(t, holder, `BEGIN; LOCK TABLE weir.later IN SHARE MODE`) // stops the move between its two jobs
	var wg sync.WaitGroup
	defer wg.Wait()
	waits := func(c *pgx.Conn) bool {
		return value[bool](t, conn, `SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND NOT granted)`, c.PgConn().PID())
	}
	wg.Go(func() { exec(t, mover, `SELECT weir.move_where('q', to_queue => 'r')`) })
	until(t, "the move has reached the second job", func() bool { return waits(mover) })
	cancelled := make(chan struct{})
	wg.Go(func() {
		exec(t, canceller, `SELECT weir.cancel_where('q')`)
		close(cancelled)
	})
	until(t, "the cancellation has committed, or waits", func() bool { return closed(cancelled) || waits(canceller) })
	first := closed(cancelled)
	exec(t, holder, `COMMIT`)
	wg.Wait()
	exec(t, conn, `SELECT weir._promote(upto => now() + interval '2 hours')`)
	for _, a := range append(claimAll(t, conn, worker, "q"), claimAll(t, conn, worker, "r")...) {
		if first && (a.ID == id || a.ID == scheduled) {
			t.Errorf("job %d starts in queue %s, although it was cancelled before it was moved there", a.ID, a.Queue)
		}
	}
}

// TestAUniqueJobStaysUniqueInItsQueue: also if it is moved to another priority of the queue, and the queue has twins.
func TestAUniqueJobStaysUniqueInItsQueue(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, other := connect(t, url), connect(t, url)
	exec(t, other, `BEGIN; SELECT weir.enqueue('q', 'another')`)
	first := value[int64](t, conn, `SELECT id FROM weir.enqueue_unique('q', 'k', unique_key => 'one')`) // of a twin
	exec(t, other, `COMMIT`)
	worker := startWorker(t, conn, "q")
	exec(t, conn, `SELECT weir.move_where('q', kinds => '{k}', to_queue => 'q', to_priority => 1)`)
	if got := value[int64](t, conn, `SELECT id FROM weir.enqueue_unique('q', 'k', unique_key => 'one') WHERE duplicate`); got != first {
		t.Errorf("another job is a duplicate of %d, want %d", got, first)
	}
	if got := idsOf(mustClaim(t, conn, worker, "q", 1)); !slices.Equal(got, []int64{first}) {
		t.Errorf("claimed %v, want job %d, which comes first now", got, first)
	}
}

// TestWhatAMoveLeavesAndBringsIsNews: workers that look only at what is new find the jobs that a move has left in their lane, though the first one of
// their transaction is gone, and those that it has brought, however many more are moved on; also jobs that are moved one by one, because of a cancellation.
func TestWhatAMoveLeavesAndBringsIsNews(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]string{"together": ``, "one by one": `SELECT weir.cancel_where('other', kinds => '{none}')`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, pgtest.Database(t))
			before := value[string](t, conn, `SELECT pg_current_snapshot()::text`)
			exec(t, conn, `SELECT weir.enqueue_many(array_agg('q'::text), array_agg('k' || i % 3), priority => array_agg(1 + i / 6)) FROM generate_series(0, 11) i`)
			exec(t, conn, `SELECT weir.enqueue('other', 'none')`)
			exec(t, conn, prepare)
			for _, move := range []string{`'q', kinds => '{k0}', to_queue => 'r'`, `'r', priority => 1, to_priority => 4`, `'q', kinds => '{k1}', to_queue => 'r', to_priority => 2`} {
				runSteps(t, conn, "move_where", move)
			}
			for place, want := range map[string]int{"q 1": 2, "q 2": 2, "r 4": 2, "r 2": 6} {
				got := value[int](t, conn, `SELECT count(*)::int FROM weir.job j JOIN weir.queue q ON q.id = j.lane >> 39 WHERE q.name || ' ' || (j.lane & 3) + 1 = $1
					AND j.lane = ANY (weir._fresh_lanes($2::pg_snapshot, pg_current_snapshot()))`, place, before)
				if got != want {
					t.Errorf("%d jobs in %s are news, want %d", got, place, want)
				}
			}
			if n := value[int](t, conn, `SELECT count(*)::int FROM (SELECT FROM weir.job GROUP BY xid, lane, segment HAVING NOT bool_or(leads)) j`); n != 0 {
				t.Errorf("nothing leads to the jobs of %d transactions", n)
			}
		})
	}
}

// TestOfJobsInAnyOrderTheRestStaysNews: jobs that were committed in another order than that of their ids are moved together; what the first of them leaves
// behind, when it is moved on by itself, is still news.
func TestOfJobsInAnyOrderTheRestStaysNews(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	before := value[string](t, conn, `SELECT pg_current_snapshot()::text`)
	tx := begin(t, connect(t, url))
	exec(t, tx, `SELECT pg_current_xact_id()`)
	exec(t, conn, `SELECT weir.enqueue('q', 'stays')`)
	exec(t, tx, `SELECT weir.enqueue('q', 'goes')`) // the greater id, in the earlier transaction
	commit(t, tx)
	runSteps(t, conn, "move_where", `'q', to_queue => 'r'`)
	exec(t, conn, `SELECT weir.cancel_where(kinds => '{none}')`) // now one by one
	runSteps(t, conn, "move_where", `'r', kinds => '{goes}', to_queue => 's'`)
	if got := column[string](t, conn, `SELECT j.kind FROM weir.job j WHERE j.leads AND j.lane = ANY (weir._fresh_lanes($1::pg_snapshot, pg_current_snapshot())) ORDER BY 1`, before); !slices.Equal(got, []string{"goes", "stays"}) {
		t.Errorf("news are %v, want both jobs", got)
	}
}

// TestNoJobIsMovedTwiceOrLost: two runs move jobs to and fro while they are enqueued, claimed, put off, promoted and carried: each job is handed out once for
// each of its attempts.
func TestNoJobIsMovedTwiceOrLost(t *testing.T) {
	t.Parallel()
	const rounds, each = 12, 50
	url := pgtest.Database(t)
	conn := connect(t, url)
	smallSegments(t, conn)
	worker := startWorker(t, conn, "q", "r")
	handed := map[int64][]step{}
	var wg, busy sync.WaitGroup
	over := make(chan bool)
	claimed := make(chan bool, 3) // each claim lets all move on: without pauses, moves could be faster than claims, which would not find the last jobs where they saw them
	busy.Go(func() {
		c := connect(t, url)
		for range rounds {
			exec(t, c, `SELECT count(weir.enqueue('q', 'k', jsonb_build_object('pad', repeat('x', 400)), priority => 1 + n % 4, run_at => CASE WHEN n % 3 = 0 THEN now() + interval '20 ms' END))
				FROM generate_series(1, $1) n`, each)
		}
	})
	for _, to := range []string{`'q', to_queue => 'r'`, `'r', to_queue => 'q', to_priority => 3`, `enqueued_before => 'infinity', to_priority => 2`} {
		c := connect(t, url)
		wg.Go(func() {
			for {
				runSteps(t, c, "move_where", to+`, max_rows => 20`)
				select {
				case <-over:
					return
				case <-claimed:
				}
			}
		})
	}
	chores := connect(t, url)
	wg.Go(func() {
		for {
			for _, sql := range []string{`SELECT weir._promote()`, `SELECT weir._rotate()`, `SELECT weir._rotate_later(65536)`, `SELECT weir._tidy()`} {
				if _, err := chores.Exec(t.Context(), sql); err != nil {
					t.Error(err)
				}
			}
			select {
			case <-over:
				return
			default:
			}
		}
	})
	ended := 0
	pgtest.Until(t, "all jobs have ended", func() bool {
		got, err := claim(t.Context(), conn, worker, []string{"q", "r"}, []int32{30, 30})
		if err != nil {
			t.Fatal(err)
		}
		for len(got) > 0 && len(claimed) < cap(claimed) {
			claimed <- true
		}
		for i, a := range got {
			handed[a.ID] = append(handed[a.ID], a.step())
			outcome := "completed"
			if (i+len(handed))%4 == 0 && len(handed[a.ID]) < 5 { // the last job must not be put off each time
				outcome = "snoozed"
			} else {
				ended++
			}
			if _, err := record(t.Context(), conn, worker, []attempt{a}, outcome, nil); err != nil {
				t.Fatal(err)
			}
		}
		return ended == rounds*each
	})
	busy.Wait()
	close(over)
	wg.Wait()
	for id, steps := range handed {
		for i := 1; i < len(steps); i++ {
			if !steps[i].follows(steps[i-1]) {
				t.Errorf("job %d was handed out as %v", id, steps)
			}
		}
	}
	exec(t, conn, `SELECT weir._promote(upto => now() + interval '1 hour')`)
	var rest []attempt
	for _, queue := range []string{"q", "r"} {
		rest = append(rest, claimAll(t, conn, worker, queue)...)
	}
	if len(rest) > 0 || len(handed) != rounds*each {
		t.Errorf("%d jobs were handed out, want %d; left are %v", len(handed), rounds*each, rest)
	}
}
