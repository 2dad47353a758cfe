package proof

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestManyCancelledJobsAreEndedInFewClaims: a claim ends thousands of them, whatever its limit, and the jobs behind them are found at once.
func TestManyCancelledJobsAreEndedInFewClaims(t *testing.T) {
	t.Parallel()
	jobs := 30_000
	if *longFlag > 0 {
		jobs = 1_000_000
	}
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	for range jobs / 10_000 {
		exec(t, conn, `SELECT weir.enqueue_many(array_fill('q'::text, ARRAY[10000]), array_fill('k'::text, ARRAY[10000]))`)
	}
	began := time.Now()
	exec(t, conn, `SELECT weir.cancel_where('q')`)
	told := time.Since(began)
	last := value[int64](t, conn, `SELECT weir.enqueue('q', 'k')`)
	began = time.Now()
	claims := 0
	for live := 0; live == 0; claims++ {
		for _, a := range claimRows(t, conn, worker, "q", 1) {
			if a.ID != 0 && a.ID != last {
				t.Fatalf("claimed job %d", a.ID)
			} else if a.ID == last {
				live++
			}
		}
	}
	took := time.Since(began)
	t.Logf("cancelled %d jobs in %s; ended in %d claims and %s, %.0f a second", jobs, told, claims, took, float64(jobs)/took.Seconds())
	if claims > jobs/9600+2 {
		t.Errorf("%d jobs were ended in %d claims, want at most %d", jobs, claims, jobs/9600+2)
	}
	if n := value[int](t, conn, `SELECT sum(cardinality(ids))::integer FROM weir.result WHERE outcome = 'cancelled'`); n != jobs {
		t.Errorf("%d jobs have ended, want %d", n, jobs)
	}
}

// TestClaimsReadNoMoreBecauseOfCancellations: without cancellations a claim reads nothing for them, and a hundred cost it a few pages.
func TestClaimsReadNoMoreBecauseOfCancellations(t *testing.T) {
	pgtest.Alone(t, "it counts blocks")
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	for i := range 100 {
		exec(t, conn, `SELECT weir.enqueue($1, 'k')`, fmt.Sprint("other", i))
	}
	blocks := func() int {
		enqueueN(t, conn, "q", 100)
		var plan []map[string]any
		for range 3 { // the first fill caches
			plan = value[[]map[string]any](t, conn, fmt.Sprintf(`EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT count(*) FROM weir._claim(%d, ARRAY['q'], ARRAY[20])`, worker))
		}
		top := plan[0]["Plan"].(map[string]any)
		return int(top["Shared Hit Blocks"].(float64) + top["Shared Read Blocks"].(float64))
	}
	none := blocks()
	for i := range 100 {
		exec(t, conn, `SELECT weir.cancel_where($1)`, fmt.Sprint("other", i))
	}
	others := blocks()
	for i := range 100 {
		exec(t, conn, `SELECT weir.cancel_where('q', kinds => ARRAY[$1])`, fmt.Sprint("kind", i))
	}
	claimAll(t, conn, worker, "q")
	own := blocks()
	t.Logf("a claim reads %d blocks without cancellations, %d with a hundred of other queues, %d with a hundred of its own", none, others, own)
	if others > none+20 || own > none+40 {
		t.Errorf("a claim reads %d blocks without cancellations, %d with a hundred of other queues, %d with a hundred of its own", none, others, own)
	}
}

// TestCancellationsByFilterHitWhatTheyDescribe: while jobs are enqueued, claimed, retried, rescued, carried and promoted, filters made at random cancel what they
// describe and nothing else: no claim that begins after a cancellation returns a job of it, and a job that no filter describes completes.
func TestCancellationsByFilterHitWhatTheyDescribe(t *testing.T) {
	t.Parallel()
	seed := newSeed(t)
	span := max(*longFlag, 2*time.Second)
	url := pgtest.Database(t)
	setUp := connect(t, url)
	smallSegments(t, setUp)
	queues, keys := []string{"a", "b"}, []string{"", "", "c", twinKey, otherTwin}
	type enqueued struct {
		queue, kind, key string
		meta             int
		began, done      int64
	}
	type cancelled struct {
		queue, kind, key string
		meta             int
		began, done      int64
	}
	type run struct{ id, began int64 }
	var (
		clock   atomic.Int64
		mu      sync.Mutex
		jobs    = map[int64]enqueued{}
		filters []cancelled
		runs    []run
		wg      sync.WaitGroup
		until   = time.Now().Add(span)
	)
	matches := func(f cancelled, j enqueued) bool {
		return (f.queue == "" || f.queue == j.queue) && (f.kind == "" || f.kind == j.kind) && (f.key == "" || f.key == j.key) && (f.meta < 0 || f.meta == j.meta)
	}
	start := func(nr uint64, do func(conn *pgx.Conn, r *rand.Rand) error) {
		conn := connect(t, url)
		r := rand.New(rand.NewPCG(seed, nr))
		wg.Go(func() {
			for time.Now().Before(until) && !t.Failed() {
				if err := do(conn, r); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for nr := range uint64(2) {
		start(nr, func(conn *pgx.Conn, r *rand.Rand) error {
			j := enqueued{queue: queues[r.IntN(2)], kind: fmt.Sprint("k", r.IntN(3)), key: keys[r.IntN(len(keys))], meta: r.IntN(3), began: clock.Add(1)}
			var ids []int64
			err := conn.QueryRow(t.Context(), `SELECT array_agg(weir.enqueue($1, $2, jsonb_build_object('pad', repeat('x', 300)), meta => jsonb_build_object('m', $3::integer), priority => 1 + n % 4,
				run_at => CASE WHEN n % 5 = 0 THEN now() + interval '50 ms' END, key => nullif($4, ''))) FROM generate_series(1, 20) n`, j.queue, j.kind, j.meta, j.key).Scan(&ids)
			j.done = clock.Add(1)
			mu.Lock()
			defer mu.Unlock()
			for _, id := range ids {
				jobs[id] = j
			}
			return err
		})
	}
	start(10, func(conn *pgx.Conn, r *rand.Rand) error {
		f := cancelled{meta: -1, began: clock.Add(1)}
		var queue *string
		var kinds []string
		var meta *string
		if r.IntN(2) == 0 {
			f.queue = queues[r.IntN(2)]
			queue = &f.queue
		}
		if f.key = keys[r.IntN(len(keys))]; f.key == "" || r.IntN(3) == 0 {
			f.kind = fmt.Sprint("k", r.IntN(3))
			kinds = []string{f.kind}
		}
		if r.IntN(2) == 0 {
			f.meta = r.IntN(3)
			text := fmt.Sprintf(`{"m": %d}`, f.meta)
			meta = &text
		}
		if _, err := conn.Exec(t.Context(), `SELECT weir.cancel_where($1, $2, $3::text::jsonb, key => nullif($4, '')), pg_sleep(0.05)`, queue, kinds, meta, f.key); err != nil {
			return err
		}
		f.done = clock.Add(1)
		mu.Lock()
		filters = append(filters, f)
		mu.Unlock()
		return nil
	})
	work := func(conn *pgx.Conn, worker int32, r *rand.Rand) (int, error) {
		began := clock.Add(1)
		rows, err := conn.Query(t.Context(), `SELECT queue, lane, seq, id, attempt, max_attempts, kind, '', dropped, put_off FROM weir._claim($1, $2, $3)`, worker, queues, []int32{int32(1 + r.IntN(60)), int32(1 + r.IntN(60))})
		if err != nil {
			return 0, err
		}
		var got []attempt
		more := 0
		for rows.Next() {
			if rows.RawValues()[0] == nil {
				more = 1
				continue
			}
			a, err := pgx.RowToStructByPos[attempt](rows)
			if err != nil {
				return 0, err
			}
			got = append(got, a)
		}
		if rows.Err() != nil {
			return 0, rows.Err()
		}
		mu.Lock()
		for _, a := range got {
			runs = append(runs, run{a.ID, began})
		}
		mu.Unlock()
		for part := range slices.Chunk(got, 10) {
			outcome := []string{"completed", "completed", "completed", "retried", "snoozed"}[r.IntN(5)]
			if _, err := record(t.Context(), conn, worker, part, outcome, nil); err != nil {
				return 0, err
			}
		}
		return len(got) + more, nil
	}
	for nr := range uint64(2) {
		worker := startWorker(t, setUp, queues...)
		start(20+nr, func(conn *pgx.Conn, r *rand.Rand) error {
			if r.IntN(40) == 0 { // it dies with what it holds
				if _, err := conn.Exec(t.Context(), `SELECT count(*) FROM weir._claim($1, $2, ARRAY[5, 5])`, worker, queues); err != nil {
					return err
				}
				if _, err := conn.Exec(t.Context(), `SELECT weir._fence($1)`, worker); err != nil {
					return err
				}
				return conn.QueryRow(t.Context(), `SELECT weir._start('w', $1)`, queues).Scan(&worker)
			}
			_, err := work(conn, worker, r)
			return err
		})
	}
	start(30, func(conn *pgx.Conn, r *rand.Rand) error {
		for _, chore := range []string{`SELECT weir._promote()`, `SELECT weir._rotate()`, `SELECT weir._rotate_later(65536)`, `SELECT count(*) FROM weir._rescue()`, `SELECT weir._tidy()`} {
			if _, err := conn.Exec(t.Context(), chore); err != nil {
				return fmt.Errorf("%s: %w", chore, err)
			}
		}
		return nil
	})
	wg.Wait()
	if t.Failed() {
		return
	}
	worker := startWorker(t, setUp, queues...)
	r := rand.New(rand.NewPCG(seed, 99))
	pgtest.Until(t, "all jobs have ended", func() bool {
		exec(t, setUp, `SELECT weir._promote()`)
		exec(t, setUp, `SELECT count(*) FROM weir._rescue()`)
		for {
			n, err := work(setUp, worker, r)
			if err != nil {
				t.Fatal(err)
			}
			if n == 0 {
				break
			}
		}
		return value[int64](t, setUp, `SELECT sum(available + running + scheduled)::bigint FROM weir.queues() WHERE name IN ('a', 'b')`) == 0
	})
	ran := map[int64]bool{}
	for _, u := range runs {
		ran[u.id] = true
		j := jobs[u.id]
		for _, f := range filters {
			if matches(f, j) && j.done < f.began && f.done < u.began {
				t.Fatalf("job %d (%+v) was handed out at %d, though %+v had cancelled it", u.id, j, u.began, f)
			}
		}
	}
	spared := 0
	for id, j := range jobs {
		if !slices.ContainsFunc(filters, func(f cancelled) bool { return matches(f, j) && f.done > j.began }) {
			spared++
			if !ran[id] {
				t.Errorf("job %d (%+v) was not handed out, though no filter describes it", id, j)
			}
		}
	}
	t.Logf("%d jobs, %d cancellations, %d attempts; no filter describes %d", len(jobs), len(filters), len(runs), spared)
	pgtest.Until(t, "all cancellations are retired", func() bool {
		exec(t, setUp, `SELECT weir._tidy()`)
		return value[int](t, setUp, `SELECT count(*) FROM weir.cancellation_where`) == 0
	})
}

// TestCancellingLeavesNothingDeadUnderAPinnedHorizon: of jobs that are cancelled by filter, dropped and reclaimed while an old snapshot pins the horizon, no row is
// dead but those of the cancellations themselves, at most three for each.
func TestCancellingLeavesNothingDeadUnderAPinnedHorizon(t *testing.T) {
	t.Parallel()
	const rounds, each = 10, 3000
	url := ownServer(t) // nothing is retired before the transactions of others have ended
	conn, holder := connect(t, url), connect(t, url)
	exec(t, conn, `SELECT weir.set('completed_retention', '0 s')`)
	exec(t, conn, `SELECT weir.set('retention_bytes', '4194304')`)
	worker := startWorker(t, conn, "q")
	exec(t, holder, `BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY`)
	exec(t, holder, `SELECT count(*) FROM pg_class`)
	for range rounds {
		enqueueN(t, conn, "q", each)
		exec(t, conn, `SELECT weir.cancel_where('q')`)
		if live := takeAll(t, conn, worker, "q"); len(live) != 0 {
			t.Fatalf("claimed %d jobs", len(live))
		}
		exec(t, conn, `SELECT weir._rotate()`)
		tidyUntil(t, conn, "retired a cancellation")
	}
	_ = conn.Close(t.Context()) // a session reports its statistics when it ends
	watch := connect(t, url)
	until(t, "the statistics are current", func() bool {
		return value[int64](t, watch, `SELECT sum(n_tup_ins)::bigint FROM pg_stat_all_tables WHERE schemaname = 'weir' AND relname LIKE 'job\_%'`) >= rounds*each
	})
	for _, dead := range column[string](t, watch, `SELECT relname || ' has ' || n_dead_tup || ' dead tuples' FROM pg_stat_all_tables
		WHERE schemaname = 'weir' AND n_dead_tup > CASE relname WHEN 'setting' THEN 2 WHEN 'cancellation_where' THEN $1::integer ELSE 0 END`, 3*rounds) {
		t.Error(dead)
	}
	exec(t, holder, `COMMIT`)
}
