package proof

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// manyQueues starts a worker of n queues, each of which has had one job.
func manyQueues(t *testing.T, conn *pgx.Conn, n int) (worker int32, names []string) {
	t.Helper()
	for i := range n {
		names = append(names, fmt.Sprintf("q%05d", i))
	}
	worker = startWorker(t, conn, names...)
	exec(t, conn, `SELECT weir.enqueue_many($1, array_fill('old'::text, ARRAY[$2::int]), array_fill('{}'::jsonb, ARRAY[$2::int]))`, names, n)
	for left := n; left > 0; { // a claim visits a limited number of lanes
		done, err := claim(t.Context(), conn, worker, names, slices.Repeat([]int32{10}, n))
		if err != nil || len(done) == 0 {
			t.Fatalf("claimed %d of %d (%v)", n-left, n, err)
		}
		mustComplete(t, conn, worker, done)
		left -= len(done)
	}
	return worker, names
}

// hintedClaim claims from all queues with a hint, and returns the hint for the next claim.
func hintedClaim(t *testing.T, conn *pgx.Conn, worker int32, names []string, since string, backlog ...string) (got []attempt, next string) {
	t.Helper()
	next = value[string](t, conn, `SELECT pg_current_snapshot()::text`)
	rows, err := conn.Query(t.Context(), `SELECT queue, lane, seq, id, attempt, max_attempts, kind, coalesce(args->>'k', ''), dropped, put_off
		FROM weir._claim($1, $2, $3, $4::text::pg_snapshot, $5) WHERE id IS NOT NULL`, worker, names, slices.Repeat([]int32{10}, len(names)), since, backlog)
	if err != nil {
		t.Fatal(err)
	}
	if got, err = pgx.CollectRows(rows, pgx.RowToStructByPos[attempt]); err != nil {
		t.Fatal(err)
	}
	return got, next
}

// TestIdleQueuesCostAClaimNothing: with a hint, a claim of a worker of two thousand queues costs as much as one of ten, and so does a hub's poll
// for queues with fresh jobs. The cost is counted in blocks.
func TestIdleQueuesCostAClaimNothing(t *testing.T) {
	pgtest.Alone(t, "what a claim touches depends on the transactions of the whole server")
	measure := func(n int) (claimed, looked int) {
		conn := connect(t, pgtest.Database(t))
		worker, names := manyQueues(t, conn, n)
		exec(t, conn, `CREATE TEMP TABLE queues AS SELECT $1::text[] AS names, array_fill(10, ARRAY[$2::int]) AS limits`, names, n)
		for range 3 { // the first warms the caches
			since := value[string](t, conn, `SELECT pg_current_snapshot()::text`)
			exec(t, conn, `SELECT weir.enqueue($1, 'new')`, names[n/2])
			looked = blocks(t, conn, fmt.Sprintf(`SELECT * FROM weir._fresh_queues('%s', 0)`, since))
			claimed = blocks(t, conn, fmt.Sprintf(`SELECT c.* FROM queues q, weir._claim(%d, q.names, q.limits, '%s', '{}') c`, worker, since))
		}
		if left := value[int](t, conn, `SELECT count(*) FROM weir._claim($1, $2, $3)`, worker, names, slices.Repeat([]int32{10}, n)); left != 0 {
			t.Errorf("the claims have left %d jobs", left)
		}
		return claimed, looked
	}
	few, fewLooked := measure(10)
	many, manyLooked := measure(2000)
	t.Logf("a claim of one touches %d blocks with 10 queues, %d with 2000; a poll for fresh jobs %d and %d", few, many, fewLooked, manyLooked)
	if many > 2*few || manyLooked > 3*fewLooked {
		t.Errorf("a claim of one touches %d blocks with 10 queues, %d with 2000; a poll for fresh jobs %d and %d", few, many, fewLooked, manyLooked)
	}
}

// TestHintedClaimsMissNothing: with the previous claim's hint and backlog, a claim finds everything committed since: late, retried and promoted
// jobs, jobs of a queue's twin, and more lanes than it can examine one by one.
func TestHintedClaimsMissNothing(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, late, twin := connect(t, url), connect(t, url), connect(t, url)
	exec(t, twin, `BEGIN`)
	exec(t, twin, `SELECT weir.enqueue('q00007', 'twin')`)
	worker, names := manyQueues(t, conn, 300)
	_, since := hintedClaim(t, conn, worker, names, value[string](t, conn, `SELECT pg_current_snapshot()::text`))
	expect := func(what string, want int, backlog ...string) []attempt {
		t.Helper()
		var got []attempt
		got, since = hintedClaim(t, conn, worker, names, since, backlog...)
		if len(got) != want {
			t.Errorf("%s: claimed %d, want %d", what, len(got), want)
		}
		return got
	}
	expect("nothing", 0)
	exec(t, late, `BEGIN`)
	exec(t, late, `SELECT weir.enqueue($1, 'late')`, names[3])
	exec(t, conn, `SELECT weir.enqueue($1, 'early')`, names[3])
	expect("early", 1)
	exec(t, late, `COMMIT`)
	got := expect("late", 1)
	if _, err := finish(t.Context(), conn, worker, got[0], "retried", time.Time{}); err != nil {
		t.Fatal(err)
	}
	expect("retried", 1)
	exec(t, conn, `SELECT weir.enqueue($1, 'later', run_at => clock_timestamp() + interval '1 ms')`, names[4])
	until(t, "the job is promoted", func() bool { n, _ := promote(t, conn, 10); return n == 1 })
	expect("promoted", 1)
	exec(t, twin, `COMMIT`)
	expect("of a twin", 1)
	enqueueN(t, conn, names[5], 25)
	expect("a part", 10)
	expect("the rest, without its queue in the backlog", 0)
	expect("the next part, with its queue in the backlog", 10, names[5])
	expect("the last", 5, names[5])
	exec(t, conn, `SELECT weir.enqueue_many($1, array_fill('all'::text, ARRAY[300]), array_fill('{}'::jsonb, ARRAY[300]))`, names)
	before := since
	expect("one job of each of as many queues as a claim visits", 200)
	since = before
	expect("one job of each of the others", 100)
	expect("nothing is left", 0)
}

// scatter opens n transactions, and calls between after each.
func scatter(t *testing.T, url string, conn *pgx.Conn, n int, between func(i int)) (open []*pgx.Conn) {
	t.Helper()
	for i := range n {
		other := connect(t, url)
		exec(t, other, `BEGIN`)
		exec(t, other, `SELECT pg_current_xact_id()`)
		open = append(open, other)
		between(i)
	}
	return open
}

// TestScatteredTransactionsCostAClaimOnce: finding what lies between transactions in progress costs a claim the same with ten idle queues as with
// three hundred. The cost is counted in blocks.
func TestScatteredTransactionsCostAClaimOnce(t *testing.T) {
	pgtest.Alone(t, "what a claim touches depends on the transactions of the whole server")
	var extra []int
	for _, n := range []int{10, 300} {
		url := pgtest.Database(t)
		conn := connect(t, url)
		worker, names := manyQueues(t, conn, n)
		exec(t, conn, `CREATE TEMP TABLE queues AS SELECT $1::text[] AS names, array_fill(10, ARRAY[$2::int]) AS limits`, names, n)
		claimSQL := fmt.Sprintf(`SELECT c.* FROM queues q, weir._claim(%d, q.names, q.limits) c`, worker)
		exec(t, conn, claimSQL)
		before := blocks(t, conn, claimSQL)
		open := scatter(t, url, conn, 60, func(int) { exec(t, conn, `SELECT pg_current_xact_id()`) })
		exec(t, conn, claimSQL)
		during := blocks(t, conn, claimSQL)
		for _, other := range open {
			exec(t, other, `ROLLBACK`)
		}
		t.Logf("a claim from %d idle queues touches %d blocks, and with 60 scattered transactions %d", n, before, during)
		if during > 3*before {
			t.Errorf("a claim from %d idle queues touches %d blocks, and with 60 scattered transactions %d", n, before, during)
		}
		extra = append(extra, during-before)
	}
	if extra[1] > 2*extra[0] {
		t.Errorf("the transactions cost %d blocks with 10 queues and %d with 300", extra[0], extra[1])
	}
}

// TestClaimsFindWhatLiesBetweenOpenTransactions: the next claim finds everything that has been committed, wherever it lies among the transactions
// in progress, in any number of lanes, and the rest of a transaction that was claimed in part.
func TestClaimsFindWhatLiesBetweenOpenTransactions(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	worker, names := manyQueues(t, conn, 40)
	limits := func(limit int32) []int32 { return slices.Repeat([]int32{limit}, len(names)) }
	take := func(limit int32) int {
		t.Helper()
		got, err := claim(t.Context(), conn, worker, names, limits(limit))
		if err != nil {
			t.Fatal(err)
		}
		return len(got)
	}
	enqueue := func(from, lanes, each int) int {
		exec(t, conn, `SELECT weir.enqueue_many(array_agg(($1::text[])[1 + ($2 + n / $4) % 40] ORDER BY n), array_agg('k'::text), array_agg('{}'::jsonb))
			FROM generate_series(0, $3::int * $4::int - 1) n`, names, from, lanes, each)
		return lanes * each
	}
	waiting := 0
	open := scatter(t, url, conn, 80, func(i int) {
		switch i % 8 {
		case 0: // no transaction
		case 7:
			for n := range 7 { // jobs of several transactions
				waiting += enqueue(i+n, 1, 2)
			}
		default:
			waiting += enqueue(i, 1+i%8, 3)
		}
	})
	for waiting > 0 {
		n := take(2)
		if n == 0 {
			t.Fatalf("%d jobs were not found", waiting)
		}
		waiting -= n
	}
	for _, i := range []int{79, 40, 3} { // behind the position of most lanes
		exec(t, open[i], `SELECT weir.enqueue($1, 'k')`, names[i%40])
		exec(t, open[i], `COMMIT`)
		if n := take(10); n != 1 {
			t.Errorf("claimed %d jobs of a transaction that had just ended, want 1", n)
		}
	}
	for i := range 40 {
		enqueue(i, 1, 1)
		if n := take(10); n != 1 {
			t.Errorf("claimed %d jobs, want the newest one", n)
		}
	}
	if n := take(10); n != 0 {
		t.Errorf("%d jobs were claimed again", n)
	}
}

// TestWhatIsLoggedWhileSegmentsTurnIsFound: if the first jobs of a statement are done and truncated long before the rest, the leading rows still
// lead to the rest.
func TestWhatIsLoggedWhileSegmentsTurnIsFound(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, open := connect(t, url), connect(t, url)
	queues, limits := make([]string, 8), make([]int32, 8)
	for i := range queues {
		queues[i], limits[i] = fmt.Sprint("q", i), 10
	}
	worker := startWorker(t, conn, queues...)
	exec(t, open, `BEGIN`)
	exec(t, open, `SELECT pg_current_xact_id()`) // with an older transaction open, queries use the leading rows
	exec(t, conn, `CREATE FUNCTION turn() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM setval('weir.active_job', 2); RETURN NEW; END $$`)
	exec(t, conn, `CREATE TRIGGER turn BEFORE INSERT ON weir.job_1 FOR EACH ROW EXECUTE FUNCTION turn()`)
	ids := enqueueN(t, conn, "q1", 3)
	exec(t, conn, `DROP TRIGGER turn ON weir.job_1`)
	exec(t, conn, `INSERT INTO weir.segment (log, segment, event) VALUES ('job', 1, 'closed'), ('job', 2, 'opened')`)
	mustComplete(t, conn, worker, mustClaim(t, conn, worker, "q1", 1))
	until(t, "the first segment is empty", func() bool { return value[bool](t, conn, `SELECT weir._reclaim(1)`) })
	got, err := claim(t.Context(), conn, worker, queues, limits)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(idsOf(got), ids[1:]) {
		t.Errorf("claimed %v of %v", idsOf(got), ids[1:])
	}
}
