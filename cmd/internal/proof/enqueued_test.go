package proof

import (
	"slices"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestATransactionSeesWhatItHasEnqueued: weir.enqueued shows exactly the jobs of the caller's transaction, whatever else happens.
func TestATransactionSeesWhatItHasEnqueued(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, other := connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q")
	old := enqueueN(t, conn, "q", 3)
	failed := mustClaim(t, conn, worker, "q", 1)
	if refused, err := record(t.Context(), conn, worker, failed, "failed", nil); err != nil || len(refused) > 0 {
		t.Fatal(refused, err)
	}
	if got := column[int64](t, conn, `SELECT id FROM weir.enqueued()`); len(got) > 0 {
		t.Errorf("outside a transaction, weir.enqueued shows %v", got)
	}
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	exec(t, tx, `SELECT weir.publish('c', 'p')`) // assigns the transaction's id
	if got := column[int64](t, tx, `SELECT id FROM weir.enqueued()`); len(got) > 0 {
		t.Errorf("in a transaction that has enqueued nothing, weir.enqueued shows %v", got)
	}
	exec(t, tx, `SELECT weir.retry($1)`, failed[0].ID)
	var want []int64
	want = append(want, value[int64](t, tx, `SELECT weir.enqueue('q', 'now')`))
	enqueueN(t, other, "q", 2)
	want = append(want, value[int64](t, tx, `SELECT weir.enqueue('r', 'later', run_at => now() + interval '1 hour', priority => 4)`))
	exec(t, tx, `SAVEPOINT s`)
	exec(t, tx, `SELECT weir.enqueue('q', 'undone')`)
	exec(t, tx, `ROLLBACK TO s`)
	want = append(want, value[[]int64](t, tx, `SELECT weir.enqueue_many('[{"queue": "r", "kind": "many"}, {"queue": "q", "kind": "many"},
		{"queue": "q", "kind": "many"}, {"queue": "r", "kind": "many", "run_at": "2999-01-01"}]')`)...)
	exec(t, tx, `SELECT weir.cancel($1)`, want[0])
	if got := column[int64](t, tx, `SELECT id FROM weir.enqueued()`); !slices.Equal(got, want) {
		t.Errorf("weir.enqueued shows %v, want %v (other transactions have %v)", got, want, old)
	}
	if got, want := column[string](t, tx, `SELECT state FROM weir.enqueued(3)`), []string{"cancelled", "scheduled", "available"}; !slices.Equal(got, want) {
		t.Errorf("the first three jobs are %v, want %v", got, want)
	}
	if got := column[string](t, tx, `SELECT DISTINCT relation::regclass::text FROM pg_locks WHERE mode = 'AccessShareLock' AND locktype = 'relation' AND pid = pg_backend_pid()
		AND relation::regclass::text LIKE 'weir.batch%'`); len(got) > 0 {
		t.Errorf("weir.enqueued leaves locks on %v", got)
	}
}

// TestWhoMayOnlyEnqueueReadsNoJobs: not even those that another owner's function has enqueued in the same transaction.
func TestWhoMayOnlyEnqueueReadsNoJobs(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context()) // and with it the roles, which belong to the whole server
	for _, sql := range []string{
		`CREATE ROLE weir_proof_payroll IN ROLE weir_enqueue`, `CREATE ROLE weir_proof_clerk IN ROLE weir_enqueue`, `CREATE ROLE weir_proof_tester IN ROLE weir_work`,
		`CREATE SCHEMA payroll AUTHORIZATION weir_proof_payroll`, `GRANT USAGE ON SCHEMA payroll TO PUBLIC`, `SET LOCAL ROLE weir_proof_payroll`,
		`CREATE FUNCTION payroll.run() RETURNS bigint LANGUAGE sql SECURITY DEFINER AS $$ SELECT weir.enqueue('payroll', 'raise', '{"salary": 7}') $$`,
		`SET LOCAL ROLE weir_proof_clerk`, `SELECT payroll.run()`, `SAVEPOINT s`,
	} {
		exec(t, tx, sql)
	}
	if rows, err := tx.Exec(t.Context(), `SELECT args FROM weir.enqueued()`); sqlstate(err) != "42501" {
		t.Errorf("a role that may only enqueue reads %d jobs (%v)", rows.RowsAffected(), err)
	}
	exec(t, tx, `ROLLBACK TO s`)
	exec(t, tx, `SET LOCAL ROLE weir_proof_tester`)
	if got := column[string](t, tx, `SELECT kind FROM weir.enqueued()`); !slices.Equal(got, []string{"raise"}) {
		t.Errorf("a role that may read every job sees %v", got)
	}
}

// TestWhatIsScheduledCanBePromotedBeforeItsTime: with a time in the future, _promote promotes each job due by then once, and jobs scheduled later
// wait for their own time.
func TestWhatIsScheduledCanBePromotedBeforeItsTime(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	promote := func(hours int) int {
		t.Helper()
		return value[int](t, conn, `SELECT promoted FROM weir._promote(upto => now() + $1 * interval '1 hour')`, hours)
	}
	at := func(hours int) int64 {
		t.Helper()
		return value[int64](t, conn, `SELECT weir.enqueue('q', 'k', run_at => now() + $1 * interval '1 hour')`, hours)
	}
	first, second := at(1), at(3)
	if n := promote(-1); n != 0 {
		t.Errorf("with a time in the past, %d jobs were promoted", n)
	}
	if n := promote(2); n != 1 {
		t.Errorf("%d jobs were promoted, want the one job that is due", n)
	}
	third := at(1) // its time is before the point that promotion has reached
	if got := column[int64](t, conn, `SELECT id FROM weir.jobs('scheduled')`); !slices.Equal(got, []int64{third, second}) {
		t.Errorf("the scheduled jobs are %v, want %v", got, []int64{third, second})
	}
	if n := value[int](t, conn, `SELECT promoted FROM weir._promote()`); n != 0 {
		t.Errorf("%d jobs were promoted before their time", n)
	}
	if got := idsOf(claimAll(t, conn, worker, "q")); !slices.Equal(got, []int64{first}) {
		t.Errorf("claimed %v, want %v", got, first)
	}
	if got := column[int64](t, conn, `SELECT id FROM weir.jobs('scheduled')`); !slices.Equal(got, []int64{third, second}) {
		t.Errorf("the scheduled jobs are %v, want %v", got, []int64{third, second})
	}
	if n := promote(4); n != 2 {
		t.Errorf("%d jobs were promoted, want the remaining two", n)
	}
	if got := idsOf(claimAll(t, conn, worker, "q")); !slices.Equal(got, []int64{second, third}) { // jobs promoted together are in the order of their ids
		t.Errorf("claimed %v, want %v", got, []int64{second, third})
	}
}
