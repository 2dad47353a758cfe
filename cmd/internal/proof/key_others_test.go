package proof

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// others logs jobs without a key in one queue, of which each leads: most of them in one transaction, the rest each in its own.
func others(t *testing.T, conn *pgx.Conn, queue string) (n int) {
	t.Helper()
	const together, alone = 3000, 300
	exec(t, conn, `SELECT weir.enqueue_many(array_fill($1::text, ARRAY[$2::int]), array_fill('k'::text, ARRAY[$2::int]), priority => (SELECT array_agg(1 + i % 2) FROM generate_series(1, $2::int) i))`, queue, together)
	exec(t, conn, fmt.Sprintf(`DO $$ BEGIN FOR i IN 1..%d LOOP PERFORM weir.enqueue('%s', 'k'); COMMIT; END LOOP; END $$`, alone, queue))
	return together + alone
}

// TestKeysOfOtherQueuesCostAClaimNothing: claims from a busy queue write nothing for the keys of others, which are idle, and are not repeated because of
// them, whatever limits these have, and however many jobs a transaction logs. A queue that was paused meanwhile is claimed from at once.
func TestKeysOfOtherQueuesCostAClaimNothing(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	names := column[string](t, conn, `SELECT 'queue ' || i FROM generate_series(1, 10) i`)
	exec(t, conn, `SELECT weir.set_limit('queue 3', running => 1, per_key => true)`)
	exec(t, conn, `SELECT weir.set_limit('queue 4', rate => 1, per_key => true)`)
	exec(t, conn, `SELECT weir.set_limit('queue 5', running => 5)`)
	exec(t, conn, `SELECT weir.enqueue(q, 'k', key => 'a') FROM unnest($1::text[]) q`, names)
	all := append([]string{"busy"}, names...)
	worker := startWorker(t, conn, all...)
	limits := make([]int32, len(all))
	for i := range limits {
		limits[i] = 500
	}
	claimed := func() []attempt {
		t.Helper()
		got, err := claim(t.Context(), conn, worker, all, limits)
		if err != nil {
			t.Fatal(err)
		}
		mustComplete(t, conn, worker, got)
		return got
	}
	for n := 0; n < len(names); n += len(claimed()) {
	}
	claimed() // sees that they have ended
	exec(t, conn, `SELECT weir.pause('queue 1')`)
	rings := value[int](t, conn, `SELECT count(*)::int FROM weir.ring`)
	jobs := others(t, conn, "busy")
	claims := 0
	for n := 0; n < jobs; claims++ {
		n += len(claimed())
	}
	if most := jobs/500 + 2; claims > most { // of two priorities
		t.Errorf("%d jobs took %d claims, want at most %d", jobs, claims, most)
	}
	if n := value[int](t, conn, `SELECT count(*)::int FROM weir.ring`) - rings; n != 0 {
		t.Errorf("for keys that are idle, %d rows were written", n)
	}
	exec(t, conn, `SELECT weir.resume('queue 1'), weir.enqueue('queue 1', 'k', key => 'b'), weir.enqueue('queue 2', 'k', key => 'b')`)
	if got := claimed(); len(got) != 2 {
		t.Errorf("claimed %d jobs with keys, want 2", len(got))
	}
}

// TestNewsOfKeysAreNotSoughtAmongOtherJobs: what it takes to find out that keys have no news does not depend on what other queues hold, or on how many
// transactions have ended since; also with statistics from before, and where many transactions were open when the queue was claimed from.
func TestNewsOfKeysAreNotSoughtAmongOtherJobs(t *testing.T) {
	pgtest.Alone(t, "what a claim touches depends on the transactions of the whole server")
	url := pgtest.Database(t)
	conn := connect(t, url)
	worker := startWorker(t, conn, "q", "busy")
	var open []pgx.Tx
	for range 40 {
		tx := begin(t, connect(t, url))
		exec(t, tx, `SELECT pg_current_xact_id()`)
		open = append(open, tx)
	}
	exec(t, conn, `SELECT weir.enqueue('q', 'k', key => 'a')`)
	mustComplete(t, conn, worker, mustClaim(t, conn, worker, "q", 10))
	for _, tx := range open {
		commit(t, tx)
	}
	const look = `SELECT weir._has_turns('q', pg_current_snapshot())`
	looks := func(what string) int {
		t.Helper()
		if value[bool](t, conn, look) {
			t.Errorf("%s: there are turns", what)
		}
		return blocks(t, conn, look)
	}
	before := looks("before")
	within := func(what string) {
		t.Helper()
		if n := looks(what); n > before+20 {
			t.Errorf("%s: a look for turns touches %d blocks, before: %d", what, n, before)
		}
	}
	t.Logf("%d blocks", before)
	others(t, conn, "busy")
	within("after others were logged")
	exec(t, conn, `ANALYZE weir.job`)
	conn = connect(t, url) // it plans with these statistics
	within("with statistics")
	others(t, conn, "busy")
	within("with statistics from before")
}
