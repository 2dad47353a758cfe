package proof

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// addOnce adds a job of the queue q that is to be done once, and returns its id, or that of the one that is there already.
func addOnce(t *testing.T, q querier, flow int64, once string) int64 {
	t.Helper()
	return value[int64](t, q, `SELECT weir.enqueue('q', 'k', jsonb_build_object('k', $2::text), flow => $1, once => $2)`, flow, once)
}

// TestWhatIsToBeDoneOnceInAFlowIsDoneOnce: however often it is added, in whatever order transactions commit, and whatever became of the first. What is
// known without waiting is known when it is added; of jobs that do not see each other one runs, and the others leave the flow as if they had never been there.
func TestWhatIsToBeDoneOnceInAFlowIsDoneOnce(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"", "tenant"} {
		url := pgtest.Database(t)
		conn, first, second, gone := connect(t, url), connect(t, url), connect(t, url), connect(t, url)
		worker := startWorker(t, conn, "q", "other", "back")
		flow, other := newFlow(t, conn, "f"), newFlow(t, conn, "other")
		add := func(q querier, flow int64, once string) int64 {
			t.Helper()
			return value[int64](t, q, `SELECT weir.enqueue('q', 'k', jsonb_build_object('k', $2::text), key => nullif($3, ''), flow => $1, once => $2)`, flow, once, key)
		}
		a := add(conn, flow, "a")
		if again := add(conn, flow, "a"); again != a {
			t.Errorf("it was added again, as %d; it is there as %d", again, a)
		}
		ids := value[[]int64](t, conn, `SELECT weir.enqueue_many(ARRAY['q', 'q', 'q', 'q'], ARRAY['k', 'k', 'k', 'k'], flow => ARRAY[$1, $1, $1, $2]::bigint[], once => ARRAY['a', 'b', 'b', 'a'])`, flow, other)
		if ids[0] != a || ids[1] != ids[2] || ids[1] == a || ids[3] == a {
			t.Errorf("added a, b, b, and a to another flow: ids %v, the first a has %d", ids, a)
		}
		wantFlow(t, conn, flow, flowState{State: "open", Generation: 1, Jobs: 2, Unfinished: 2})
		if n := value[int](t, conn, `SELECT count(*) FROM weir.job WHERE flow IS NOT NULL`); n != 3 {
			t.Errorf("%d jobs were logged, want 3", n)
		}
		mustComplete(t, conn, worker, claimAll(t, conn, worker, "q"))

		// Three transactions that do not see each other; one is rolled back.
		for _, tx := range []*pgx.Conn{gone, first, second} {
			exec(t, tx, `BEGIN`)
			add(tx, flow, "c")
		}
		exec(t, gone, `ROLLBACK`)
		exec(t, second, `COMMIT`)
		got := claimAll(t, conn, worker, "q")
		exec(t, first, `COMMIT`)
		add(conn, flow, "c")
		wantFlow(t, conn, flow, flowState{State: "open", Generation: 1, Jobs: 4, Unfinished: 2, Completed: 2})
		if late := claimAll(t, conn, worker, "q"); len(got) != 1 || len(late) != 0 {
			t.Errorf("%d jobs were claimed before the other commits, and %d after, want 1 and 0", len(got), len(late))
		}
		mustComplete(t, conn, worker, got)
		wantFlow(t, conn, flow, flowState{State: "open", Generation: 1, Jobs: 3, Completed: 3})

		// Both in one claim.
		exec(t, first, `BEGIN`)
		add(first, flow, "d")
		add(conn, flow, "d")
		exec(t, first, `COMMIT`)
		got = claimAll(t, conn, worker, "q")
		if len(got) != 1 {
			t.Fatalf("%d jobs were claimed, want 1", len(got))
		}
		if _, err := finish(t.Context(), conn, worker, got[0], "retried", time.Time{}); err != nil {
			t.Fatal(err)
		}
		if got = claimAll(t, conn, worker, "q"); len(got) != 1 {
			t.Fatalf("%d jobs were claimed for another attempt, want 1", len(got))
		}
		if _, err := finish(t.Context(), conn, worker, got[0], "failed", time.Time{}); err != nil {
			t.Fatal(err)
		}
		if again := add(conn, flow, "d"); again != got[0].ID {
			t.Errorf("after the first has failed, it was added as %d, want %d", again, got[0].ID)
		}
		why := value[string](t, conn, `SELECT string_agg(DISTINCT j.error, ', ') FROM weir.jobs_page('{cancelled}', flow => $1) p, jsonb_to_recordset(p.jobs) j(error text)`, flow)
		if !strings.HasPrefix(why, "duplicate of job ") {
			t.Errorf("duplicates say %q", why)
		}
		exec(t, conn, `SELECT weir.seal($1)`, flow)
		fold(t, conn)
		wantFlow(t, conn, flow, flowState{State: "failed", Generation: 1, Jobs: 4, Completed: 3, Failed: 1})
		if n := value[int](t, conn, `SELECT retried FROM weir.retry_flow($1)`, flow); n != 1 {
			t.Errorf("%d members were retried, want 1: duplicates are none", n)
		}
		mustComplete(t, conn, worker, claimAll(t, conn, worker, "q"))
		fold(t, conn)
		wantFlow(t, conn, flow, flowState{State: "succeeded", Generation: 2, Jobs: 4, Completed: 4})
		wantCallbacks(t, conn, flow, "done 1", "success 2", "done 2")
	}
}

// TestTwoHundredConnectionsAddFiftyPathsOnce: at the same moment, in transactions that see each other or not; exactly fifty run, each once.
func TestTwoHundredConnectionsAddFiftyPathsOnce(t *testing.T) {
	t.Parallel()
	const paths, adders = 50, 40 // connections, each of which does it five times
	url := pgtest.Database(t)
	conn := connect(t, url)
	worker := startWorker(t, conn, "q", "back")
	flow := newFlow(t, conn, "f")
	var all sync.WaitGroup
	for range adders {
		adder := connect(t, url)
		all.Go(func() {
			for range 5 {
				if _, err := adder.Exec(t.Context(), `SELECT weir.enqueue_many(array_agg('q'::text), array_agg('k'::text), array_agg(jsonb_build_object('k', n::text)), flow => array_agg($1::bigint), once => array_agg(n::text))
					FROM (SELECT n FROM generate_series(1, $2::int) n ORDER BY random()) n`, flow, paths); err != nil {
					t.Error(err)
				}
			}
		})
	}
	ran := map[string]int{}
	work := func() int {
		got := mustClaim(t, conn, worker, "q", 30)
		for _, a := range got {
			ran[a.Key]++
		}
		mustComplete(t, conn, worker, got)
		return len(got)
	}
	added := make(chan struct{})
	go func() { all.Wait(); close(added) }()
	for !closed(added) {
		work()
	}
	for range 1000 {
		if work() == 0 && value[int64](t, conn, `SELECT unfinished FROM weir.flow_info($1)`, flow) == 0 {
			break
		}
	}
	if len(ran) != paths {
		t.Errorf("%d paths were done, want %d", len(ran), paths)
	}
	for path, n := range ran {
		if n != 1 {
			t.Errorf("path %s was done %d times", path, n)
		}
	}
	exec(t, conn, `SELECT weir.seal($1)`, flow)
	fold(t, conn)
	wantFlow(t, conn, flow, flowState{State: "succeeded", Generation: 1, Jobs: paths, Completed: paths})
	wantCallbacks(t, conn, flow, "success 1", "done 1")
}

// TestWhatWasDoneOnceStaysSo: after its rows have left the log, after a rebase, and when it was moved to another queue, promoted or carried; cancelled ones
// are done once when they are retried.
func TestWhatWasDoneOnceStaysSo(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, open := connect(t, url), connect(t, url)
	smallSegments(t, conn)
	worker := startWorker(t, conn, "q", "elsewhere", "back", "filler")
	flow := newFlow(t, conn, "f")
	a := addOnce(t, conn, flow, "a")
	mustComplete(t, conn, worker, claimAll(t, conn, worker, "q"))
	for range 6 {
		turn(t, conn, worker)
	}
	if n := value[int](t, conn, `SELECT count(*) FROM weir.job WHERE id = $1`, a); n != 0 {
		t.Fatal("its rows are still in the log")
	}
	if again := addOnce(t, conn, flow, "a"); again != a {
		t.Errorf("after its rows have left the log, it was added again, as %d", again)
	}

	// Scheduled, and moved: beside one of the old queue that does not see it.
	exec(t, open, `BEGIN`)
	exec(t, open, `SELECT weir.enqueue('q', 'k', '{"k": "b"}', flow => $1, once => 'b')`, flow)
	b := value[int64](t, conn, `SELECT weir.enqueue('q', 'k', '{"k": "b"}', run_at => now() + interval '1 hour', flow => $1, once => 'b')`, flow)
	if again := addOnce(t, conn, flow, "b"); again != b {
		t.Errorf("a scheduled one was added again, as %d", again)
	}
	exec(t, conn, `SELECT weir.move_where('q', to_queue => 'elsewhere')`)
	exec(t, conn, `SELECT weir._promote(upto => now() + interval '2 hours')`)
	exec(t, open, `COMMIT`)
	got := append(claimAll(t, conn, worker, "elsewhere"), claimAll(t, conn, worker, "q")...)
	if len(got) != 1 || got[0].ID != b {
		t.Errorf("claimed %v, want job %d alone", got, b)
	}
	mustComplete(t, conn, worker, got)

	// Two that do not see each other are cancelled before they start, and retried.
	for range 2 {
		exec(t, open, `BEGIN`)
		c := addOnce(t, open, flow, "c")
		d := addOnce(t, conn, flow, "c")
		exec(t, open, `COMMIT`)
		exec(t, conn, `SELECT weir.cancel_where('q')`)
		exec(t, conn, `SELECT weir.cancel($1)`, c)
		if got := claimAll(t, conn, worker, "q"); len(got) != 0 {
			t.Errorf("claimed %d cancelled jobs", len(got))
		}
		if n := value[int](t, conn, `SELECT count(*) FROM weir.retry_flow($1)`, flow); n != 1 {
			t.Error(n)
		}
		got = claimAll(t, conn, worker, "q")
		if len(got) != 1 || got[0].ID != c && got[0].ID != d {
			t.Errorf("claimed %v after the retry of %d and %d, want one of them", got, c, d)
		}
		mustComplete(t, conn, worker, got)
		moveElsewhere(t, conn)
		exec(t, conn, `SELECT weir.rebase()`)
		worker = startWorker(t, conn, "q", "elsewhere", "back", "filler")
		if again := addOnce(t, conn, flow, "c"); again != c && again != d {
			t.Errorf("after a rebase it was added again, as %d", again)
		}
		flow = newFlow(t, conn, "g")
	}
	fold(t, conn)
	wantFlow(t, conn, flow-2, flowState{State: "open", Generation: 1, Jobs: 3, Completed: 3})
}

// TestWhatWasSeenIsForgottenWithItsFlow: the table of what was done once gives its space back, leaves nothing dead, and keeps what flows that have not ended need.
func TestWhatWasSeenIsForgottenWithItsFlow(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	exec(t, conn, `SELECT weir.set('failed_retention', '0 s'), weir.set('completed_retention', '0 s')`)
	worker := startWorker(t, conn, "q", "back")
	kept := newFlow(t, conn, "kept")
	a := addOnce(t, conn, kept, "a")
	mustComplete(t, conn, worker, claimAll(t, conn, worker, "q"))
	size := func() int64 {
		return value[int64](t, conn, `SELECT sum(pg_relation_size(t)) FROM unnest(ARRAY['weir.seen_1', 'weir.seen_2', 'weir.seen_3', 'weir.seen_4']::regclass[]) t`)
	}
	var most int64
	for range 4 {
		gone := newFlow(t, conn, "gone")
		// As if so many jobs had been done.
		exec(t, conn, `INSERT INTO weir.seen (key, job, flow, ring) SELECT gen_random_uuid(), n, $1, pg_sequence_last_value('weir.active_seen') FROM generate_series(1, 300000) n`, gone)
		most = max(most, size())
		exec(t, conn, `SELECT weir.seal($1)`, gone)
		fold(t, conn)
		for range 8 {
			exec(t, conn, `SELECT weir._compact_flows()`)
		}
		if again := addOnce(t, conn, kept, "a"); again != a {
			t.Errorf("it was added again, as %d", again)
		}
		most = max(most, size())
	}
	if most > 64<<20 {
		t.Errorf("the tables had %d bytes", most)
	}
	if n := value[int](t, conn, `SELECT sum(n_dead_tup) FROM pg_stat_all_tables WHERE relname ~ '^seen_'`); n > 0 {
		t.Errorf("%d rows are dead", n)
	}
}

// TestOnceIsRefusedWithoutAFlow: and other mistakes, which leave nothing behind.
func TestOnceIsRefusedWithoutAFlow(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	flow := newFlow(t, conn, "f")
	for _, sql := range []string{
		`SELECT weir.enqueue('q', 'k', once => 'a')`, `SELECT weir.enqueue('q', 'k', flow => %d, once => '')`, `SELECT weir.enqueue('q', 'k', flow => %d, once => repeat('x', 1001))`,
		`SELECT weir.enqueue('q', 'k', flow => 77, once => 'a')`, `SELECT weir.enqueue_many(ARRAY['q'], ARRAY['k'], flow => ARRAY[%d], once => ARRAY['a', 'b'])`,
		`SELECT weir.enqueue_many('[{"queue": "q", "kind": "k", "once": "a"}]')`, `SELECT weir.enqueue_many('[{"queue": "q", "kind": "k", "flow": %d, "once": "a", "unique": true}]')`,
		`SELECT weir.enqueue_many('[{"queue": "q", "kind": "k", "once": "a", "unique": true}]')`,
	} {
		if strings.Contains(sql, "%d") {
			sql = fmt.Sprintf(sql, flow)
		}
		_, err := conn.Exec(t.Context(), sql)
		wantCode(t, sql, err, "22023")
	}
	if n := value[int](t, conn, `SELECT (SELECT count(*) FROM weir.job) + (SELECT count(*) FROM weir.seen) + (SELECT count(*) FROM weir.keyed)`); n != 0 {
		t.Errorf("%d rows were left behind", n)
	}
	ids := value[[]int64](t, conn, `SELECT weir.enqueue_many(format('[{"queue": "q", "kind": "k", "flow": %s, "once": "a"}, {"queue": "q", "kind": "k", "flow": %s, "once": "a"}, {"queue": "q", "kind": "k"}]', $1::bigint, $1::bigint)::jsonb)`, flow)
	if ids[0] != ids[1] || ids[2] == ids[0] {
		t.Errorf("from JSON: %v", ids)
	}
}
