package proof

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-pg/weir/internal/pgtest"
)

// takeAll claims from the queue until there is nothing left, and returns what is to be run.
func takeAll(t *testing.T, conn *pgx.Conn, worker int32, queue string) (live []attempt) {
	t.Helper()
	for {
		more := false
		for _, a := range claimRows(t, conn, worker, queue, 50) {
			if a.ID == 0 {
				more = true
			} else {
				live = append(live, a)
				more = true
			}
		}
		if !more {
			return live
		}
	}
}

// claimRows is a claim with its last row, which has no values if there may be more.
func claimRows(t *testing.T, conn *pgx.Conn, worker int32, queue string, limit int32) (got []attempt) {
	t.Helper()
	rows, err := conn.Query(t.Context(), `SELECT coalesce(lane, 0), coalesce(seq, 0), coalesce(id, 0), coalesce(attempt, 0) FROM weir._claim($1, ARRAY[$2], ARRAY[$3]::integer[])`, worker, queue, limit)
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var a attempt
		if err := rows.Scan(&a.Lane, &a.Seq, &a.ID, &a.Attempt); err != nil {
			t.Fatal(err)
		}
		got = append(got, a)
	}
	if rows.Err() != nil {
		t.Fatal(rows.Err())
	}
	return got
}

func takenIDs(all []attempt) (ids []int64) {
	for _, a := range all {
		ids = append(ids, a.ID)
	}
	slices.Sort(ids)
	return ids
}

// tidyUntil runs the chore until it says that it has done something. An open transaction of another test may delay it.
func tidyUntil(t *testing.T, conn *pgx.Conn, what string) {
	t.Helper()
	until(t, "tidy has "+what, func() bool {
		return value[string](t, conn, `SELECT coalesce(weir._tidy(), '')`) == what
	})
}

// TestCancellingByFilterIsOneRow: whatever the number of jobs, one row is written; all that wait are shown as cancelled at once, none of them is
// handed out, and those that do not match are.
func TestCancellingByFilterIsOneRow(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q", "other")
	exec(t, conn, `SELECT weir.enqueue_many(array_agg('q'::text), array_agg(CASE WHEN n % 3 = 0 THEN 'keep' ELSE 'drop' END), priority => array_agg(1 + n % 4),
		meta => array_agg(jsonb_build_object('n', n % 7))) FROM generate_series(1, 3000) n`)
	exec(t, conn, `SELECT weir.enqueue('q', 'drop', run_at => now() + interval '1 hour') FROM generate_series(1, 5)`)
	exec(t, conn, `SELECT weir.enqueue('other', 'drop')`)
	before := value[int64](t, conn, `SELECT count(*) FROM weir.job`)
	if no := value[int64](t, conn, `SELECT weir.cancel_where('q', kinds => ARRAY['drop'])`); no != 1 {
		t.Errorf("cancel_where returned %d", no)
	}
	if after := value[int64](t, conn, `SELECT count(*) FROM weir.job`); after != before || value[int](t, conn, `SELECT count(*) FROM weir.cancellation_where`) != 1 {
		t.Errorf("it has written more than one row")
	}
	exec(t, conn, `SELECT weir.enqueue('q', 'drop')`) // later: it does not belong to them

	for state, want := range map[string]int{"available": 1002, "cancelled": 2005, "scheduled": 0} {
		l := list{states: []string{state}}
		jobs, _ := l.all(t, conn, 1000, func() {})
		if len(jobs) != want {
			t.Errorf("%d jobs are %s, want %d", len(jobs), state, want)
		}
	}
	live := takeAll(t, conn, worker, "q")
	if len(live) != 1001 {
		t.Errorf("claimed %d jobs, want 1001", len(live))
	}
	if n := value[int](t, conn, `SELECT count(*) FROM weir.result r, unnest(r.ids) i(id) JOIN weir.job j ON j.id = i.id WHERE r.outcome = 'cancelled' AND j.kind = 'drop'`); n != 2000 {
		t.Errorf("%d jobs have ended as cancelled, want 2000", n)
	}
	mustComplete(t, conn, worker, live)
	if n := len(takeAll(t, conn, worker, "other")); n != 1 {
		t.Errorf("claimed %d jobs of another queue, want 1", n)
	}
	exec(t, conn, `SELECT weir._promote(upto => now() + interval '2 hours')`)
	if n := len(takeAll(t, conn, worker, "q")); n != 0 {
		t.Errorf("claimed %d scheduled jobs that were cancelled", n)
	}
	tidyUntil(t, conn, "retired a cancellation")
	if n := len(column[int64](t, conn, `SELECT id FROM weir.jobs('cancelled', max_rows => 10000)`)); n != 2005 {
		t.Errorf("%d jobs are cancelled, want 2005", n)
	}
}

// TestAnEmptyFilterIsRefused: a bulk operation without a condition is a mistake, and so is one that is not valid.
func TestAnEmptyFilterIsRefused(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	exec(t, conn, `SELECT weir.enqueue('q', 'k')`)
	for _, f := range []string{"cancel_where", "retry_where", "delete_where"} {
		for _, args := range []string{``, `kinds => '{}'`, `meta => '{}'`, `meta => '[]'`, `priority => 5`, `kinds => ARRAY[NULL::text]`, `key => ''`, `'q', key => repeat('x', 201)`} {
			_, err := conn.Exec(t.Context(), fmt.Sprintf(`SELECT weir.%s(%s)`, f, args))
			wantCode(t, f+"("+args+")", err, "22023")
		}
	}
	for _, args := range []string{`error => ''`, `states => '{failed}'`, `'q', states => '{running}'`, `'q', max_rows => 0`, `'q', after => 'x'`} {
		_, err := conn.Exec(t.Context(), `SELECT weir.retry_where(`+args+`)`)
		wantCode(t, "retry_where("+args+")", err, "22023")
	}
	if !value[bool](t, conn, `SELECT weir.cancel_where('unknown') IS NULL`) {
		t.Error("a queue that does not exist was cancelled")
	}
	wantState(t, conn, 1, "available")
}

// TestAnEmptyConditionIsRefused: an empty value, such as that of a variable that is not set, does not widen a filter to all jobs, whatever other conditions
// there are.
func TestAnEmptyConditionIsRefused(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	failed := deadLetters(t, conn, worker, "q", 1, "x")[0]
	waiting := value[int64](t, conn, `SELECT weir.enqueue('q', 'k')`)
	common := []string{`''`, `'q', kinds => '{}'`, `'q', kinds => ARRAY['']`, `'q', kinds => ARRAY['k', '']`, `'q', meta => '{}'`, `'q', key => ''`}
	for f, conditions := range map[string][]string{
		"cancel_where": common,
		"retry_where":  append([]string{`'q', error => ''`, `'q', shape => ''`, `'q', states => '{}'`, `states => '{}'`}, common...),
		"delete_where": append([]string{`'q', error => ''`, `'q', shape => ''`}, common...),
		"move_where":   common,
	} {
		for _, args := range conditions {
			to := ""
			if f == "move_where" {
				to = ", to_priority => 1"
			}
			_, err := conn.Exec(t.Context(), fmt.Sprintf(`SELECT weir.%s(%s%s)`, f, args, to))
			if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code != "22023" || !strings.Contains(e.Hint, "Pass NULL for ") {
				t.Errorf("%s(%s): %v, want 22023 that says to pass NULL", f, args, err)
			}
		}
	}
	_, err := conn.Exec(t.Context(), `SELECT weir.set_weight('q', '', 2)`)
	if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code != "22023" || strings.Contains(e.Hint, "NULL") {
		t.Errorf("a weight of the key '': %v, want 22023 without the advice to pass NULL", err)
	}
	wantState(t, conn, failed, "failed")
	wantState(t, conn, waiting, "available")
	if n := value[int](t, conn, `SELECT priority FROM weir.job_info($1)`, waiting); n != 2 {
		t.Errorf("the job that waits was moved to priority %d", n)
	}
}

// TestRunningJobsHearOfACancellationByFilter: the worker of a running job is told, as by cancel; and if the job is tried again, it does not start.
func TestRunningJobsHearOfACancellationByFilter(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	ids := enqueueN(t, conn, "q", 3)
	held := mustClaim(t, conn, worker, "q", 3)
	control := value[int64](t, conn, `SELECT last_value FROM weir.control`)
	exec(t, conn, `SELECT weir.cancel_where('q')`)
	if value[int64](t, conn, `SELECT last_value FROM weir.control`) == control {
		t.Error("workers are not told")
	}
	if got := value[[]int64](t, conn, `SELECT weir._cancelled_among($1)`, ids); len(got) != 3 {
		t.Errorf("cancelled among %v are %v", ids, got)
	}
	if !value[bool](t, conn, `SELECT state = 'running' AND cancel_requested FROM weir.job_info($1)`, ids[0]) {
		t.Error("a running job does not show that it is cancelled")
	}
	mustComplete(t, conn, worker, held[:1])
	for i, outcome := range []string{"retried", "snoozed"} {
		if _, err := finish(t.Context(), conn, worker, held[i+1], outcome, pgTime(t, conn)); err != nil {
			t.Fatal(err)
		}
	}
	if !value[bool](t, conn, `SELECT state = 'completed' AND NOT cancel_requested FROM weir.job_info($1)`, ids[0]) {
		t.Error("a job that completed is shown as cancelled")
	}
	wantState(t, conn, ids[1], "cancelled")
	wantState(t, conn, ids[2], "cancelled")
	exec(t, conn, `SELECT weir._promote()`)
	if live := takeAll(t, conn, worker, "q"); len(live) != 0 {
		t.Errorf("claimed %v", live)
	}
	tidyUntil(t, conn, "retired a cancellation")
	for _, id := range ids[1:] {
		wantState(t, conn, id, "cancelled")
	}
}

// TestACancellationByFilterMeansTheJobsOfOpenTransactionsToo: a job whose id was assigned before is cancelled, though its transaction commits later; and
// the cancellation is kept until that transaction has ended.
func TestACancellationByFilterMeansTheJobsOfOpenTransactionsToo(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, open := connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q")
	exec(t, conn, `SELECT weir.enqueue('q', 'k')`)
	exec(t, open, `BEGIN`)
	id := value[int64](t, open, `SELECT weir.enqueue('q', 'k')`)
	exec(t, conn, `SELECT weir.cancel_where('q')`)
	later := value[int64](t, open, `SELECT weir.enqueue('q', 'k')`)
	for range 50 {
		takeAll(t, conn, worker, "q")
		exec(t, conn, `SELECT weir._tidy()`)
	}
	exec(t, open, `COMMIT`)
	if got := takenIDs(takeAll(t, conn, worker, "q")); len(got) != 1 || got[0] != later {
		t.Errorf("claimed %v, want %d", got, later)
	}
	wantState(t, conn, id, "cancelled")
	tidyUntil(t, conn, "retired a cancellation")
}

// TestAJobCancelledByFilterCanBeRetried: before a worker has passed it, and after; while its cancellation lasts, and for all later attempts. A later
// cancellation means it again.
func TestAJobCancelledByFilterCanBeRetried(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	ids := enqueueN(t, conn, "q", 4)
	failed := mustClaim(t, conn, worker, "q", 1)[0]
	fail(t, conn, worker, failed)
	later := value[int64](t, conn, `SELECT weir.enqueue('q', 'k', run_at => now() + interval '1 hour')`)
	exec(t, conn, `SELECT weir.cancel_where('q')`)
	for id, want := range map[int64]string{ids[0]: "available", ids[1]: "available", later: "scheduled"} {
		if got := value[string](t, conn, `SELECT weir.retry($1)`, id); got != want {
			t.Errorf("retry of job %d returned %s, want %s", id, got, want)
		}
		wantState(t, conn, id, want)
	}
	live := takeAll(t, conn, worker, "q")
	if got := takenIDs(live); !slices.Equal(got, ids[:2]) {
		t.Fatalf("claimed %v, want %v", got, ids[:2])
	}
	if _, err := finish(t.Context(), conn, worker, live[0], "retried", pgTime(t, conn)); err != nil {
		t.Fatal(err)
	}
	wantState(t, conn, ids[2], "cancelled")
	if got := value[string](t, conn, `SELECT weir.retry($1)`, ids[2]); got != "available" {
		t.Errorf("retry of an ended job returned %s", got)
	}
	exec(t, conn, `SELECT weir._promote(upto => now() + interval '2 hours')`)
	if got, want := takenIDs(takeAll(t, conn, worker, "q")), []int64{live[0].ID, ids[2], later}; !slices.Equal(got, want) {
		t.Errorf("claimed %v, want %v", got, want)
	}
	wantState(t, conn, ids[3], "cancelled")
	exec(t, conn, `SELECT weir.cancel_where('q')`)
	if got := value[[]int64](t, conn, `SELECT weir._cancelled_among($1)`, []int64{ids[2], later}); len(got) != 2 {
		t.Errorf("a later cancellation means %v of those that were retried", got)
	}
}

// TestACancellationByFilterSurvivesRebaseAndReclaim: the row means the same jobs wherever they are.
func TestACancellationByFilterSurvivesRebaseAndReclaim(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	smallSegments(t, conn)
	worker := startWorker(t, conn, "q", "filler")
	ids := enqueueN(t, conn, "q", 100)
	later := value[int64](t, conn, `SELECT weir.enqueue('q', 'k', run_at => now() + interval '1 hour')`)
	exec(t, conn, `SELECT weir.cancel_where('q')`)
	for range 3 {
		turn(t, conn, worker)
	}
	moveElsewhere(t, conn)
	exec(t, conn, `SELECT weir.rebase()`)
	worker = startWorker(t, conn, "q", "filler")
	wantState(t, conn, ids[0], "cancelled")
	wantState(t, conn, later, "cancelled")
	if live := takeAll(t, conn, worker, "q"); len(live) != 0 {
		t.Errorf("claimed %d jobs", len(live))
	}
	exec(t, conn, `SELECT weir._promote(upto => now() + interval '2 hours')`)
	if live := takeAll(t, conn, worker, "q"); len(live) != 0 {
		t.Errorf("claimed %d scheduled jobs", len(live))
	}
	tidyUntil(t, conn, "retired a cancellation")
}

// pgTime is a time that is due in the log of scheduled jobs as soon as it is promoted.
func pgTime(t *testing.T, conn *pgx.Conn) time.Time {
	t.Helper()
	return value[time.Time](t, conn, `SELECT clock_timestamp()`)
}

// TestAWiderCancellationReplacesThoseThatItCovers: a transaction that stays open keeps every cancellation by filter, and there are too many for another one.
// One that covers some of them is taken, and takes their place; what it does not cover stays cancelled, too.
func TestAWiderCancellationReplacesThoseThatItCovers(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	worker := startWorker(t, conn, "q")
	old := begin(t, connect(t, url))
	exec(t, old, `SELECT weir.enqueue('q', 'batch', meta => '{"batch": 7}')`)
	exec(t, conn, `SELECT weir.enqueue('q', 'other', meta => '{"batch": 0}')`)
	kept := value[int64](t, conn, `SELECT weir.enqueue('q', 'kept')`)
	exec(t, conn, `SELECT weir.cancel_where('q', kinds => '{other}')`)
	exec(t, conn, `SELECT weir.cancel_where('q', kinds => '{batch}', meta => jsonb_build_object('batch', n)) FROM generate_series(1, 999) n`)
	tidy := func(want string) {
		t.Helper()
		until(t, "tidying "+want, func() bool { return value[string](t, conn, `SELECT coalesce(weir._tidy(), '')`) == want })
	}
	tidy("noted cancellations")
	_, err := conn.Exec(t.Context(), `SELECT weir.cancel_where('q', kinds => '{more}')`)
	wantCode(t, "one too many", err, "54000")
	for _, sql := range []string{
		`SELECT weir.cancel_where('q', kinds => '{batch}', meta => '{"batch": 5}')`, // the same again
		`SELECT weir.cancel_where('q', kinds => '{batch,more}')`,
	} {
		if value[int64](t, conn, sql) == 0 {
			t.Errorf("%s has cancelled nothing", sql)
		}
	}
	tidy("merged cancellations")
	if n := value[int](t, conn, `SELECT count(*) FROM weir.cancellation_where`); n != 2 {
		t.Errorf("%d cancellations are kept, want that of other jobs and the wider one", n)
	}
	exec(t, conn, `SELECT weir.cancel_where('q', kinds => '{more}')`)
	commit(t, old)
	got := takeAll(t, conn, worker, "q")
	if len(got) != 1 || got[0].ID != kept {
		t.Errorf("%v run, want the one job that is not cancelled", got)
	}
	mustComplete(t, conn, worker, got)
	tidyUntil(t, conn, "retired a cancellation")
}
