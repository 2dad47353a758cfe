package proof

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// turn fills the active segment with finished jobs until the next is opened, and then reclaims all closed ones.
func turn(t *testing.T, conn *pgx.Conn, worker int32) {
	t.Helper()
	openNext(t, conn, worker)
	rotateUntil(t, conn, "reclaimed job")
}

// openNext fills the active segment until the next is opened.
func openNext(t *testing.T, conn *pgx.Conn, worker int32) {
	t.Helper()
	until(t, "another segment is opened", func() bool {
		exec(t, conn, `SELECT weir.enqueue_many(array_fill('filler'::text, ARRAY[500]), array_fill('k'::text, ARRAY[500]),
			array_fill(jsonb_build_object('pad', repeat('x', 500)), ARRAY[500]))`)
		mustComplete(t, conn, worker, claimAll(t, conn, worker, "filler"))
		did := value[string](t, conn, `SELECT coalesce(weir._rotate(), '')`)
		return strings.HasPrefix(did, "opened job")
	})
}

func smallSegments(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	exec(t, conn, `SELECT weir.set('completed_retention', '0 s')`)
	exec(t, conn, `SELECT weir.set('retention_bytes', '1048576')`)
}

// TestReclaimKeepsWhatIsUnfinished: running, waiting, paused, late and scheduled jobs outlive the segments in which they were logged, keep their order,
// and end under the batch in which they were claimed.
func TestReclaimKeepsWhatIsUnfinished(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, late := connect(t, url), connect(t, url)
	smallSegments(t, conn)
	worker := startWorker(t, conn, "q", "paused", "filler", "later")
	ids := enqueueN(t, conn, "q", 10)
	pausedIDs := enqueueN(t, conn, "paused", 5)
	urgent := value[int64](t, conn, `SELECT weir.enqueue('q', 'k', priority => 1)`)
	laterID := value[int64](t, conn, `SELECT weir.enqueue('later', 'k', '{"k": "later"}', run_at => now() + interval '1 hour')`)
	exec(t, conn, `SELECT weir.pause('paused')`)
	exec(t, late, `BEGIN`)
	lateIDs := enqueueN(t, late, "q", 3)
	behind := enqueueN(t, conn, "q", 2)
	// First by priority; then past the late transaction, whose jobs are now pending.
	running := mustClaim(t, conn, worker, "q", 12)
	if want := append([]int64{urgent}, append(slices.Clone(ids), behind[0])...); !slices.Equal(idsOf(running), want) {
		t.Fatalf("claimed %v, want %v", idsOf(running), want)
	}
	mustComplete(t, conn, worker, running[1:3])
	exec(t, late, `COMMIT`)

	for n := range 6 {
		turn(t, conn, worker)
		exec(t, conn, `SELECT weir._rotate_later(0)`)
		if segment := value[int](t, conn, `SELECT segment FROM weir.job WHERE id = $1`, ids[9]); n == 0 && segment == 1 {
			t.Error("a running job was not carried")
		}
	}
	for _, a := range running[3:5] {
		if first, err := finish(t.Context(), conn, worker, a, "failed", time.Time{}); err != nil || !first {
			t.Errorf("finish after the segment was reclaimed: %v %v", first, err)
		}
	}
	mustComplete(t, conn, worker, append(running[:1:1], running[5:]...))
	if state := value[string](t, conn, `SELECT state FROM weir.job_info($1)`, ids[2]); state != "failed" {
		t.Errorf("job %d is %s, want failed", ids[2], state)
	}
	// The late jobs come before those that had not been claimed when they were committed, and both keep their order.
	rest := claimAll(t, conn, worker, "q")
	if want := append(slices.Clone(lateIDs), behind[1]); !slices.Equal(idsOf(rest), want) {
		t.Errorf("claimed %v, want %v", idsOf(rest), want)
	}
	if got := claimAll(t, conn, worker, "paused"); len(got) > 0 {
		t.Errorf("claimed %v from a paused queue", idsOf(got))
	}
	exec(t, conn, `SELECT weir.resume('paused')`)
	unpaused := claimAll(t, conn, worker, "paused")
	if !slices.Equal(idsOf(unpaused), pausedIDs) {
		t.Errorf("claimed %v, want %v", idsOf(unpaused), pausedIDs)
	}
	if state := value[string](t, conn, `SELECT state FROM weir.job_info($1)`, laterID); state != "scheduled" {
		t.Errorf("the scheduled job is %s", state)
	}
	mustComplete(t, conn, worker, append(rest, unpaused...))
	turn(t, conn, worker)
	turn(t, conn, worker)
	if n := value[int](t, conn, `SELECT count(*) FROM weir.job WHERE kind = 'k' AND lane >> 39 <> (SELECT id FROM weir.queue WHERE name = 'filler')`); n != 0 {
		t.Errorf("%d finished jobs were carried", n)
	}
}

// TestReclaimWaitsForNobody: transactions and results in flight, and prepared ones, only postpone the reclaiming of their own segment; in the
// meantime jobs run and other segments rotate.
func TestReclaimWaitsForNobody(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	for name, c := range map[string]struct{ hold, release string }{
		"in flight": {"", "COMMIT"},
		"prepared":  {"PREPARE TRANSACTION 'TestReclaimWaitsForNobody'", "COMMIT PREPARED 'TestReclaimWaitsForNobody'"},
		"result":    {"", "COMMIT"},
	} {
		t.Run(name, func(t *testing.T) {
			url := url
			if name != "in flight" {
				url = pgtest.Database(t)
			}
			conn, holder := connect(t, url), connect(t, url)
			smallSegments(t, conn)
			exec(t, conn, `SET statement_timeout = '10s'`)
			worker := startWorker(t, conn, "q", "filler")
			enqueueN(t, conn, "q", 1)
			claimed := mustClaim(t, conn, worker, "q", 1)
			exec(t, holder, `BEGIN`)
			if name == "result" {
				if err := completeTx(t.Context(), holder, worker, claimed[0]); err != nil {
					t.Fatal(err)
				}
			} else {
				enqueueN(t, holder, "q", 1)
			}
			if c.hold != "" {
				exec(t, holder, c.hold)
			}
			openNext(t, conn, worker)
			for range 5 {
				if value[bool](t, conn, `SELECT weir._reclaim(1)`) {
					t.Fatal("the segment was reclaimed although a transaction is in flight")
				}
				exec(t, conn, `SELECT weir.enqueue('filler', 'k')`)
				mustComplete(t, conn, worker, claimAll(t, conn, worker, "filler"))
			}
			if name != "result" { // a result in flight locks all partitions of batch and result, in the weakest mode
				openNext(t, conn, worker)
				until(t, "the other segment is reclaimed", func() bool { return value[bool](t, conn, `SELECT weir._reclaim(2)`) })
			}
			exec(t, holder, c.release)
			until(t, "the segment is reclaimed", func() bool {
				return value[string](t, conn, `SELECT coalesce(weir._rotate(), '')`) == "reclaimed job 1"
			})
			if name == "result" {
				wantFenced(t, conn, worker, 0)
				return
			}
			if got := claimAll(t, conn, worker, "q"); len(got) != 1 {
				t.Errorf("claimed %v, want the single job that was in flight", got)
			}
			mustComplete(t, conn, worker, claimed)
		})
	}
}

// TestRotationSurvivesARollback: a rollback between the sequence with the active segment, which it does not undo, and the list of events, which it
// does, loses no segment.
func TestRotationSurvivesARollback(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	smallSegments(t, conn)
	worker := startWorker(t, conn, "q", "filler")
	enqueueN(t, conn, "q", 3)
	exec(t, conn, `SELECT weir.enqueue_many(array_fill('filler'::text, ARRAY[1000]), array_fill('k'::text, ARRAY[1000]),
		array_fill(jsonb_build_object('pad', repeat('x', 500)), ARRAY[1000]))`)
	exec(t, conn, `BEGIN`)
	rotateUntil(t, conn, "opened job 2")
	exec(t, conn, `ROLLBACK`)
	if active := value[int](t, conn, `SELECT last_value FROM weir.active_job`); active != 2 {
		t.Fatalf("segment %d is active, want 2", active)
	}
	mustComplete(t, conn, worker, claimAll(t, conn, worker, "filler"))
	reclaimed := false
	for range 4 {
		openNext(t, conn, worker)
		until(t, "nothing is left to do for segments", func() bool {
			did := value[string](t, conn, `SELECT coalesce(weir._rotate(), '')`)
			reclaimed = reclaimed || did == "reclaimed job 1"
			return did == ""
		})
	}
	if !reclaimed {
		t.Error("segment 1 is no longer reclaimed")
	}
	if got := claimAll(t, conn, worker, "q"); len(got) != 3 {
		t.Errorf("claimed %d jobs, want 3", len(got))
	}
}

// TestPausedQueueStaysPaused: if two transactions have created a queue with the same name, pausing it applies to both, even to one that was not
// committed yet.
func TestPausedQueueStaysPaused(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, open := connect(t, url), connect(t, url)
	exec(t, open, `BEGIN`)
	enqueueN(t, open, "q", 1)
	enqueueN(t, conn, "q", 1)
	exec(t, conn, `SELECT weir.pause('q')`)
	exec(t, open, `COMMIT`)
	worker := startWorker(t, conn, "q")
	if got := claimAll(t, conn, worker, "q"); len(got) != 0 {
		t.Errorf("claimed %d jobs of a paused queue", len(got))
	}
	exec(t, conn, `SELECT weir.resume('q')`)
	if got := claimAll(t, conn, worker, "q"); len(got) != 2 {
		t.Errorf("claimed %d jobs after resume, want 2", len(got))
	}
}

// TestReclaimLooksAtBatchesAndNotAtJobs: the slow part of reclaiming, during which chores wait, costs less than unnesting the ids of finished jobs.
func TestReclaimLooksAtBatchesAndNotAtJobs(t *testing.T) {
	pgtest.Alone(t, "it compares times")
	conn := connect(t, pgtest.Database(t))
	smallSegments(t, conn)
	worker := startWorker(t, conn, "filler", "q")
	mustClaim(t, conn, worker, "q", int32(len(enqueueN(t, conn, "q", 3))))
	// The log is as a flow of jobs leaves it: batches of several jobs, whose results come in parts.
	exec(t, conn, `INSERT INTO weir.batch (lane, segment, origin, worker, seq, from_xid, to_xid, pos_xid, pos_id, total, claimed_at, no, ids)
		SELECT q.id * 4 + 1, 1, 1, $1, n, '3', '3', '3', 0, n * 8, now(), n, ARRAY(SELECT -8 * n - i FROM generate_series(1, 8) i)
		FROM weir.queue q, generate_series(1, 40000) n WHERE q.name = 'filler'`, worker)
	for _, part := range []string{"1:3", "4:8"} {
		exec(t, conn, `INSERT INTO weir.result (lane, segment, worker, seq, finished_at, outcome, ids)
			SELECT b.lane, 1, b.worker, b.seq, now(), 'completed', b.ids[`+part+`] FROM weir.batch b WHERE cardinality(b.ids) = 8`)
	}
	rotateUntil(t, conn, "opened")
	exec(t, conn, `SET max_parallel_workers_per_gather = 0`)
	took := func(sql string) time.Duration {
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(t.Context())
		began := time.Now()
		exec(t, tx, sql)
		return time.Since(began)
	}
	// The two are measured in turn, and the fastest of each counts, so that other load affects both.
	unnested, reclaimed := time.Hour, time.Hour
	for range 8 {
		unnested = min(unnested, took(`SELECT count(*) FROM (SELECT lane, seq, unnest(ids) FROM weir.batch_1 EXCEPT SELECT lane, seq, unnest(ids) FROM weir.result_1) e`))
		reclaimed = min(reclaimed, took(`SELECT 1 / weir._reclaim(1)::int`))
	}
	t.Logf("reclaiming 320,000 jobs in 40,000 batches takes %v, unnesting their ids %v", reclaimed, unnested)
	if reclaimed > unnested*3/4 {
		t.Errorf("reclaiming takes %v, unnesting all ids %v", reclaimed, unnested)
	}
	rotateUntil(t, conn, "reclaimed job 1")
	if running := value[int](t, conn, `SELECT count(*) FROM weir.jobs('running', 'q')`); running != 3 {
		t.Errorf("%d jobs are running, want 3", running)
	}
}
