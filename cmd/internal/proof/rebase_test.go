package proof

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/store"
)

// moveElsewhere makes the log look as if it came from another cluster, whose transaction ids were lower.
func moveElsewhere(t *testing.T, q querier) {
	t.Helper()
	exec(t, q, `UPDATE weir.setting SET value = 'elsewhere' WHERE name = 'cluster'`)
}

// TestRebaseStepsOverNobody: the jobs of a transaction that is older than the rebase, and continues after it, are worked.
func TestRebaseStepsOverNobody(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	worker := startWorker(t, conn, "q")
	enqueueN(t, conn, "q", 3)
	mustComplete(t, conn, worker, mustClaim(t, conn, worker, "q", 1))
	older := map[string]*pgx.Conn{}
	for _, name := range []string{"at once", "later", "after a claim", "aborted"} {
		older[name] = connect(t, url)
		exec(t, older[name], `BEGIN`)
		exec(t, older[name], `SELECT pg_current_xact_id()`)
	}
	moveElsewhere(t, conn)
	if n := value[int](t, conn, `SELECT weir.rebase()`); n != 2 {
		t.Errorf("rebase logged %d attempts again, want 2", n)
	}

	worker = startWorker(t, conn, "q")
	seen := map[string]int{}
	work := func() {
		for _, a := range claimAll(t, conn, worker, "q") {
			seen[a.Kind]++
			mustComplete(t, conn, worker, []attempt{a})
		}
	}
	exec(t, older["at once"], `SELECT weir.enqueue('q', 'at once')`)
	exec(t, older["later"], `SELECT weir.enqueue('q', 'later', run_at => clock_timestamp() + interval '10 ms')`)
	exec(t, older["at once"], `COMMIT`)
	work()
	exec(t, conn, `SELECT weir.enqueue('q', 'new')`)
	work() // moves the position past all of them
	for range 3 {
		promote(t, conn, 10)
	}
	exec(t, older["after a claim"], `SELECT weir.enqueue('q', 'after a claim')`)
	exec(t, older["after a claim"], `COMMIT`)
	exec(t, older["later"], `COMMIT`)
	exec(t, older["aborted"], `ROLLBACK`)
	until(t, "all jobs are worked", func() bool {
		promote(t, conn, 10)
		work()
		return len(seen) == 5
	})
	for kind, want := range map[string]int{"k": 2, "at once": 1, "later": 1, "after a claim": 1, "new": 1} {
		if seen[kind] != want {
			t.Errorf("%q was worked %d times, want %d", kind, seen[kind], want)
		}
	}
}

// TestMovedLogIsNoticedByWhoStayed: a session behind a pooler that outlives a logical move gets an error and skips nothing, even if this cluster's
// transaction ids have already passed the old positions.
func TestMovedLogIsNoticedByWhoStayed(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	enqueueN(t, conn, "q", 2)
	mustComplete(t, conn, worker, mustClaim(t, conn, worker, "q", 1))
	moveElsewhere(t, conn)
	_, err := claim(t.Context(), conn, worker, []string{"q"}, []int32{1})
	wantCode(t, "claim", err, "WR003")
	for _, call := range []string{"_promote()", "_rotate()", "_rotate_later()", "_reclaim(2)", "_start('w', '{q}')"} {
		_, err := conn.Exec(t.Context(), `SELECT weir.`+call)
		wantCode(t, call, err, "WR003")
	}
	if n := value[int](t, conn, `SELECT weir.rebase()`); n != 1 {
		t.Errorf("rebase logged %d attempts again, want 1", n)
	}
	if got := claimAll(t, conn, startWorker(t, conn, "q"), "q"); len(got) != 1 {
		t.Errorf("claimed %d jobs after the rebase, want 1", len(got))
	}
}

// TestRebaseOutlivesAStatementTimeout: a role's statement_timeout does not prevent workers from rebasing; a rebase by hand that is cancelled by it
// says what to do.
func TestRebaseOutlivesAStatementTimeout(t *testing.T) {
	pgtest.Alone(t, "its statements must end within a function")
	url := pgtest.Database(t)
	conn := connect(t, url)
	for range 3 {
		enqueueN(t, conn, "q", 10_000)
	}
	moveElsewhere(t, conn)
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.RuntimeParams["statement_timeout"] = "20ms"
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()

	var refused *pgconn.PgError
	for range 10 { // on a busy machine the time may be over before the function has begun
		refused = nil
		_, err = pool.Exec(t.Context(), `SELECT weir.rebase()`)
		wantCode(t, "rebase by hand", err, "57014")
		if errors.As(err, &refused) && refused.Hint != "" {
			break
		}
	}
	if !errors.As(err, &refused) || !strings.Contains(refused.Hint, "SET statement_timeout = 0") || !strings.Contains(refused.Hint, "20ms") {
		t.Errorf("the error does not say what to do: %v", err)
	}
	n, err := store.New(pool, 0).Rebase(t.Context())
	if err != nil || n == nil || *n != 30_000 {
		t.Errorf("rebase logged %v attempts again, %v; want 30000", n, err)
	}
}

// TestRebaseWritesEachRowOnce: because everything waits for a rebase, it writes the rows without their indexes, and creates the same indexes again
// at the end. The cost is counted in bytes of WAL.
func TestRebaseWritesEachRowOnce(t *testing.T) {
	pgtest.Alone(t, "it counts what the whole server writes")
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	for range 3 {
		enqueueN(t, conn, "q", 10_000)
	}
	exec(t, conn, `SELECT weir.enqueue('q', 'k', run_at => now() + interval '1 hour') FROM generate_series(1, 1000)`)
	first := mustClaim(t, conn, worker, "q", 900)
	mustComplete(t, conn, worker, first)
	indexes := func() []string {
		return column[string](t, conn, `SELECT indexdef FROM pg_indexes WHERE schemaname = 'weir' ORDER BY 1`)
	}
	written := func() int64 { return value[int64](t, conn, `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`) }
	before, from := indexes(), written()
	moveElsewhere(t, conn)
	if n := value[int](t, conn, `SELECT weir.rebase()`); n != 29_100 {
		t.Errorf("rebase logged %d attempts again, want 29100", n)
	}
	bytes := (written() - from) / 31_000
	t.Logf("%d bytes of WAL per row", bytes)
	if bytes > 260 {
		t.Errorf("rebase wrote %d bytes of WAL per row, which is too much", bytes)
	}
	if after := indexes(); !slices.Equal(before, after) {
		t.Errorf("the indexes were %v, and are now %v", before, after)
	}
	if state := value[string](t, conn, `SELECT state FROM weir.job_info($1)`, first[0].ID); state != "completed" {
		t.Errorf("the job that had ended is %s", state)
	}
	if n := value[int](t, conn, `SELECT count(*) FROM weir.jobs('scheduled', 'q', 2000)`); n != 1000 {
		t.Errorf("%d jobs are scheduled, want 1000", n)
	}
	if got := claimAll(t, conn, startWorker(t, conn, "q"), "q"); len(got) != 29_100 || !slices.IsSorted(idsOf(got)) {
		t.Errorf("claimed %d jobs, want 29100 in their order", len(got))
	}
}
