package proof

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// TestNothingInsideAFunctionIsCompiled: on a server that compiles every plan it can, no statement of a Weir function is compiled, from the first
// enqueue to the reclaimed segment. The test counts compilations and measures no time.
func TestNothingInsideAFunctionIsCompiled(t *testing.T) {
	t.Parallel()
	server := pgtest.JIT(t, map[string]string{
		"jit_above_cost": "0", "shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.track": "all", "pg_stat_statements.max": "10000"})
	conn, err := pgx.Connect(t.Context(), server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	exec(t, conn, `CREATE EXTENSION pg_stat_statements`)
	if value[int](t, conn, `SELECT count(*) FROM pg_attribute WHERE attrelid = 'pg_stat_statements'::regclass AND attname = 'jit_functions'`) == 0 {
		t.Skip("pg_stat_statements counts compiled functions from PostgreSQL 15 on")
	}
	exec(t, conn, `SELECT pg_stat_statements_reset()`) // discards the installation of the schema
	worker := startWorker(t, conn, "q")
	dead := value[int32](t, conn, `SELECT weir._start('dead', ARRAY['q'], '1 second')`)
	enqueueN(t, conn, "q", 100)
	exec(t, conn, `SELECT weir.enqueue('q', 'later', run_at => now() + interval '1 millisecond')`)
	far := value[int64](t, conn, `SELECT weir.enqueue('q', 'later', run_at => now() + interval '1 hour')`)
	mustClaim(t, conn, dead, "q", 10)
	mine := mustClaim(t, conn, worker, "q", 50)
	mustComplete(t, conn, worker, mine[:40])
	for i, outcome := range []string{"failed", "retried", "snoozed", "released", "cancelled"} {
		if _, err := finish(t.Context(), conn, worker, mine[40+i], outcome, time.Time{}); err != nil {
			t.Errorf("finish as %s: %v", outcome, err)
		}
	}
	exec(t, conn, `SELECT weir._fence($1)`, dead)
	exec(t, conn, `SELECT weir.cancel($1)`, far)
	exec(t, conn, `SELECT weir.retry($1)`, mine[40].ID)
	for _, sql := range []string{
		`SELECT * FROM weir._promote()`, `SELECT weir._rescue()`, `SELECT weir._misses_one()`, `SELECT weir._resurvey()`, `SELECT weir._count_minutes()`, `SELECT * FROM weir.history()`, `SELECT weir._tidy()`, `SELECT weir._rotate_later()`, `SELECT * FROM weir.queues()`, `SELECT * FROM weir.workers()`,
		`SELECT * FROM weir.hubs()`, `SELECT * FROM weir.job_info(1)`, `SELECT * FROM weir.jobs('available')`, `SELECT * FROM weir.jobs('running')`, `SELECT * FROM weir.jobs('completed')`,
		`SELECT * FROM weir.jobs('failed')`, `SELECT * FROM weir.jobs('scheduled')`, `SELECT * FROM weir._watch(0, 0, NULL, NULL)`, `SELECT weir.publish('c', 'p') FROM generate_series(1, 100)`,
		`SELECT * FROM weir._await_tick(0)`, `SELECT * FROM weir.read(1)`, `SELECT weir.newest_tick()`, `SELECT weir._rotate_messages()`, `SELECT * FROM weir._fresh_queues()`, `SELECT weir._beat('h', '', 1, 0)`,
		`SELECT weir.set('completed_retention', '0 s')`,
	} {
		exec(t, conn, sql)
	}
	rotateUntil(t, conn, "reclaimed")
	if n := value[int64](t, conn, `SELECT sum(jit_functions)::bigint FROM pg_stat_statements WHERE toplevel`); n == 0 {
		t.Error("nothing was compiled at all: the server has no JIT, so the test proves nothing")
	}
	for _, text := range column[string](t, conn, `SELECT left(query, 300) FROM pg_stat_statements WHERE NOT toplevel AND jit_functions > 0`) {
		t.Errorf("compiled: %s", text)
	}
}
