package proof

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// survey makes surveys as long as there is an occasion, and one more if any jobs were claimed.
func survey(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	exec(t, conn, `SELECT setval('weir.batch_no', nextval('weir.batch_no') + 1000)`)
	for range 100 {
		if value[string](t, conn, `SELECT coalesce(weir._resurvey(), '')`) == "" {
			return
		}
	}
	t.Fatal("a hundred surveys in a row had an occasion")
}

// TestLooksCostWhatIsNewAndWhatWaits: with the same jobs waiting, the list of available jobs and weir.queues() touch about as many blocks with two
// thousand queues as with ten, apart from the queues' own rows.
func TestLooksCostWhatIsNewAndWhatWaits(t *testing.T) {
	pgtest.Alone(t, "what a query touches depends on the transactions of the whole server")
	measure := func(n int) (available, queues int) {
		conn := connect(t, pgtest.Database(t))
		worker, names := manyQueues(t, conn, n)
		if _, err := reconcile(t.Context(), conn, worker, nil); err != nil { // workers do that now and then
			t.Fatal(err)
		}
		enqueueN(t, conn, names[1], 20)
		exec(t, conn, `SELECT weir.pause($1)`, names[1])
		enqueueN(t, conn, names[n-1], 20)
		survey(t, conn)
		exec(t, conn, `SELECT weir.enqueue($1, 'new')`, names[n/2])
		if jobs := value[int](t, conn, `SELECT count(*) FROM weir.jobs('available')`); jobs != 41 {
			t.Errorf("%d jobs are available, want 41", jobs)
		}
		if sums := value[string](t, conn, `SELECT count(*) || ' ' || sum(available) || ' ' || sum(claimed) || ' ' || count(last_claim) || ' ' || sum(workers) FROM weir.queues()`); sums != fmt.Sprintf("%d 41 %d %d %d", n, n, n, n) {
			t.Errorf("weir.queues() shows %[2]s for %[1]d queues", n, sums)
		}
		for range 3 { // the first warms the caches
			available = blocks(t, conn, `SELECT * FROM weir.jobs('available', max_rows => 5)`)
			queues = blocks(t, conn, `SELECT * FROM weir.queues()`)
		}
		return available, queues
	}
	few, fewQueues := measure(10)
	many, manyQueues := measure(2000)
	t.Logf("a list of available jobs touches %d blocks with 10 queues, %d with 2000; weir.queues() %d and %d", few, many, fewQueues, manyQueues)
	if many > 2*few || manyQueues > fewQueues+2*2000 { // blocks of weir.queue, by its index
		t.Errorf("a list of available jobs touches %d blocks with 10 queues, %d with 2000; weir.queues() %d and %d", few, many, fewQueues, manyQueues)
	}
}

// TestQueuesInWhichLittleWaitsAreReadTogether: a statement for each of their lanes would take ten times as long as to read what waits there.
func TestQueuesInWhichLittleWaitsAreReadTogether(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	if n := value[int](t, conn, `SELECT count(weir.enqueue('q' || n, 'k')) FROM generate_series(1, 300) n`); n != 300 {
		t.Fatalf("%d jobs are enqueued", n)
	}
	for _, surveyed := range []bool{false, true} {
		if surveyed {
			survey(t, conn)
		}
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var waiting, calls int
		if _, err := tx.Exec(t.Context(), `SET LOCAL track_functions = 'all'`); err != nil {
			t.Fatal(err)
		}
		err = tx.QueryRow(t.Context(), `SELECT sum(waiting) FROM weir._waiting_by_queue()`).Scan(&waiting)
		if err == nil {
			err = tx.QueryRow(t.Context(), `SELECT coalesce(sum(pg_stat_get_xact_function_calls(p.oid)), 0) FROM pg_proc p WHERE p.pronamespace = 'weir'::regnamespace`).Scan(&calls)
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = tx.Rollback(t.Context())
		if waiting != 300 || calls == 0 || calls > 50 {
			t.Errorf("surveyed: %t: %d of 300 waiting jobs are counted in %d calls of functions", surveyed, waiting, calls)
		}
	}
}

// TestLooksMissNothing: whatever has happened since the last survey, queries of all queues show the same as queries of each queue, for jobs that are
// late, retried, promoted, rescued, carried or rebased, in new or paused queues, or enqueued by the querying transaction itself.
func TestLooksMissNothing(t *testing.T) {
	t.Parallel()
	seed := newSeed(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	url := pgtest.Database(t)
	conn, admin := connect(t, url), connect(t, url)
	smallSegments(t, conn)
	const filler = "filler"
	worker, names := manyQueues(t, conn, 150)
	fill := startWorker(t, conn, filler)
	pick := func() string { return names[rng.IntN(len(names))] }
	all := func() []int32 { return slices.Repeat([]int32{int32(1 + rng.IntN(3))}, len(names)) }
	var (
		open    []*pgx.Conn
		running []attempt
	)
	steps := []struct {
		name string
		do   func()
	}{
		{"survey", func() { survey(t, conn) }},
		{"enqueue", func() {
			exec(t, conn, `SELECT weir.enqueue($1, 'k', priority => $2) FROM generate_series(1, 3)`, pick(), 1+rng.IntN(4))
		}},
		{"enqueue many", func() {
			exec(t, conn, `SELECT weir.enqueue_many($1, array_fill('k'::text, ARRAY[$2::int]), array_fill('{}'::jsonb, ARRAY[$2::int]))`, []string{pick(), pick(), pick()}, 3)
		}},
		{"begin", func() {
			if len(open) < 8 {
				late := connect(t, url)
				exec(t, late, `BEGIN`)
				exec(t, late, `SELECT weir.enqueue($1, 'late') FROM generate_series(1, 2)`, pick())
				open = append(open, late)
			}
		}},
		{"end", func() {
			if len(open) > 0 {
				i := rng.IntN(len(open))
				exec(t, open[i], `SELECT weir.enqueue($1, 'late')`, pick())
				exec(t, open[i], []string{`COMMIT`, `COMMIT`, `ROLLBACK`}[rng.IntN(3)])
				_ = open[i].Close(t.Context())
				open = slices.Delete(open, i, i+1)
			}
		}},
		{"claim", func() {
			got, err := claim(t.Context(), conn, worker, names, all())
			if err != nil {
				t.Fatal(err)
			}
			running = append(running, got...)
		}},
		{"end some", func() {
			for _, a := range running[:len(running)/2] {
				outcome := []string{"completed", "retried", "failed", "snoozed"}[rng.IntN(4)]
				if _, err := finish(t.Context(), conn, worker, a, outcome, time.Now().Add(time.Duration(rng.IntN(3)-1)*time.Millisecond)); err != nil {
					t.Fatal(err)
				}
			}
			running = running[len(running)/2:]
		}},
		{"promote", func() { promote(t, conn, 3) }},
		{"pause", func() { exec(t, conn, `SELECT weir.pause($1)`, pick()) }},
		{"resume", func() { exec(t, conn, `SELECT weir.resume(name) FROM weir.queue WHERE paused_at IS NOT NULL`) }},
		{"tidy", func() { exec(t, conn, `SELECT weir._tidy()`) }},
		{"fence", func() {
			exec(t, conn, `SELECT weir._fence($1)`, worker)
			until(t, "all attempts are logged again", func() bool {
				return !value[bool](t, conn, `SELECT coalesce(bool_or(more), false) FROM weir._settle($1)`, worker)
			})
			worker, running = startWorker(t, conn, names...), nil
		}},
		{"new queue", func() {
			names = append(names, fmt.Sprintf("new%d", len(names)))
			worker, running = startWorker(t, conn, names...), nil
			exec(t, conn, `SELECT weir.enqueue($1, 'k')`, names[len(names)-1])
		}},
		{"rotate", func() {
			if len(open) == 0 && rng.IntN(3) == 0 {
				turn(t, conn, fill)
			}
		}},
		{"move", func() {
			if len(open) == 0 && rng.IntN(4) == 0 {
				moveElsewhere(t, conn)
				exec(t, conn, `SELECT weir.rebase()`)
				worker, running, fill = startWorker(t, conn, names...), nil, startWorker(t, conn, filler)
			}
		}},
	}
	surveyed, queries := 0, 40
	if *longFlag > 0 {
		queries *= 6
	}
	for n := range queries {
		step := steps[rng.IntN(len(steps))]
		step.do()
		if rng.IntN(3) == 0 {
			steps[0].do()
		}
		observer := conn
		if len(open) > 0 && n%3 == 0 {
			observer = open[0] // it sees its own jobs as well
		}
		wrong := column[string](t, observer, `
			WITH whole AS (SELECT id FROM weir.jobs('available', NULL, 10000)),
			each AS (SELECT j.id, q.name FROM (SELECT DISTINCT name FROM weir.queue) q, weir.jobs('available', q.name, 10000) j)
			SELECT 'job ' || coalesce(w.id, e.id) || ' is shown by the query of ' || CASE WHEN w.id IS NULL THEN e.name ELSE 'all' END || ' alone'
			FROM whole w FULL JOIN each e ON e.id = w.id WHERE w.id IS NULL OR e.id IS NULL
			UNION ALL
			SELECT format('%s has %s of %s available and %s claimed, where %s are', u.name, u.available, e.n, u.claimed, b.total)
			FROM weir.queues() u LEFT JOIN (SELECT name, count(*) AS n FROM each GROUP BY name) e ON e.name = u.name
			CROSS JOIN LATERAL (SELECT coalesce(sum(t.total), 0) AS total FROM weir.queue q CROSS JOIN generate_series(0, 3) p
			  CROSS JOIN LATERAL (SELECT b.total FROM weir.batch b WHERE b.lane = (q.id::bigint << 39) + p ORDER BY b.seq DESC LIMIT 1) t WHERE q.name = u.name) b
			WHERE u.available <> coalesce(e.n, 0) OR u.claimed <> b.total`)
		if len(wrong) > 0 {
			t.Fatalf("seed %d, after step %d (%s): %v", seed, n, step.name, wrong)
		}
		if value[bool](t, admin, `SELECT (weir._surveyed()).upto > 0`) {
			surveyed++
		}
	}
	t.Logf("%d of %d queries used a survey", surveyed, queries)
	if surveyed < queries/8 {
		t.Errorf("only %d of %d queries could use a survey", surveyed, queries)
	}
}
