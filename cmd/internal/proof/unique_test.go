package proof

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// uniquely calls weir.enqueue_unique on queue q with the rest of its arguments, and returns its answer.
func uniquely(t *testing.T, q querier, rest string, args ...any) (id int64, duplicate bool) {
	t.Helper()
	if err := q.QueryRow(t.Context(), `SELECT id, duplicate FROM weir.enqueue_unique('q', 'k', `+rest+`)`, args...).Scan(&id, &duplicate); err != nil {
		t.Fatalf("enqueue_unique(%s): %v", rest, err)
	}
	return id, duplicate
}

// logUniquely is uniquely for a job that must not be a duplicate.
func logUniquely(t *testing.T, q querier, rest string, args ...any) int64 {
	t.Helper()
	id, duplicate := uniquely(t, q, rest, args...)
	if duplicate {
		t.Fatalf("enqueue_unique(%s) reports a duplicate of job %d", rest, id)
	}
	return id
}

// runnable claims from queue q until no more jobs wait, and returns those that are to be run.
func runnable(t *testing.T, q querier, worker int32) (all []attempt) {
	t.Helper()
	for range 10_000 {
		rows, err := q.Query(t.Context(), `SELECT coalesce(queue, ''), coalesce(lane, 0), coalesce(seq, 0), coalesce(id, 0), coalesce(attempt, 0), coalesce(max_attempts, 0),
			coalesce(kind, ''), coalesce(args->>'k', ''), dropped, coalesce(put_off, 0) FROM weir._claim($1, '{q}', '{960}')`, worker)
		if err != nil {
			t.Fatalf("claim: %v", err)
		}
		got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[attempt])
		if err != nil {
			t.Fatalf("claim: %v", err)
		}
		if len(got) == 0 {
			return all
		}
		for _, a := range got {
			if a.ID != 0 {
				all = append(all, a)
			}
		}
	}
	t.Fatal("a claim always says that there may be more")
	return nil
}

// wantRuns checks which jobs are to be run.
func wantRuns(t *testing.T, q querier, worker int32, ids ...int64) []attempt {
	t.Helper()
	got := runnable(t, q, worker)
	if fmt.Sprint(idsOf(got)) != fmt.Sprint(ids) {
		t.Fatalf("jobs %v are to be run, want %v", idsOf(got), ids)
	}
	return got
}

// wantDropped checks that a job was cancelled, for a reason.
func wantDropped(t *testing.T, q querier, id int64, reason string) {
	t.Helper()
	if got := value[string](t, q, `SELECT state || ': ' || coalesce(error, '') FROM weir.job_info($1)`, id); got != "cancelled: "+reason {
		t.Errorf("job %d is %q, want cancelled: %q", id, got, reason)
	}
}

// TestADuplicateIsKnownWithoutWaiting: enqueue_unique answers with the job that it sees, as long as its rule says that this one counts.
func TestADuplicateIsKnownWithoutWaiting(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, rule                                        string
		waiting, running, retried, completed, replacesNow bool // is a call a duplicate while the first job is so?
	}{
		{"until finished", `'{"a": 1}'`, true, true, true, false, false},
		{"until started", `'{"a": 1}', until => 'started'`, true, false, true, false, false},
		{"within an hour", `'{"a": 1}', within => '1 hour'`, true, true, true, true, false},
		{"replacing", `'{"a": 1}', replace => true`, true, false, true, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, pgtest.Database(t))
			worker := startWorker(t, conn, "q")
			first := logUniquely(t, conn, c.rule)
			// ask asks in a transaction that rolls back.
			ask := func(when string, want bool) {
				t.Helper()
				tx, err := conn.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = tx.Rollback(context.Background()) }()
				id, duplicate := uniquely(t, tx, c.rule)
				if duplicate != want {
					t.Errorf("while the first job is %s, a second one is a duplicate: %t, want %t", when, duplicate, want)
				}
				if is := id == first; is != (duplicate && !c.replacesNow) {
					t.Errorf("while the first job (%d) is %s, the answer is job %d, duplicate: %t", first, when, id, duplicate)
				}
			}
			ask("waiting", c.waiting)
			a := wantRuns(t, conn, worker, first)[0]
			ask("running", c.running)
			if _, err := finish(t.Context(), conn, worker, a, "retried", time.Time{}); err != nil {
				t.Fatal(err)
			}
			ask("retried", c.retried)
			mustComplete(t, conn, worker, wantRuns(t, conn, worker, first))
			ask("completed", c.completed)
		})
	}
}

// TestWhatMakesJobsUnique: queue, kind and args; or some fields of args; or a key.
func TestWhatMakesJobsUnique(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	for _, c := range []struct {
		one, other string
		same       bool
	}{
		{`'q', 'a', '{"x": 1, "y": 2}'`, `'q', 'a', '{"y": 2, "x": 1}'`, true},
		{`'q', 'b', '{"x": 1}'`, `'q', 'b', '{"x": 2}'`, false},
		{`'q', 'n', '{"x": 1}'`, `'q', 'n', '{"x": 1.0}'`, false}, // as docs/unique.md says
		{`'q', 'c'`, `'q', 'c', NULL`, true},
		{`'q', 'c'`, `'r', 'c'`, false},
		{`'q', 'd'`, `'q', 'e'`, false},
		{`'q', 'f', '{"x": 1, "y": 2}', fields => '{x}'`, `'q', 'f', '{"x": 1, "y": 3}', fields => '{x}'`, true},
		{`'q', 'g', '{"x": 1, "y": 2}', fields => '{x,y}'`, `'q', 'g', '{"x": 1, "y": 2, "z": 3}', fields => '{y,x}'`, true},
		{`'q', 'h', '{"x": 1}', fields => '{x}'`, `'q', 'h', '{"x": 2}', fields => '{x}'`, false},
		{`'q', 'i', '{"x": 1}', fields => '{}'`, `'q', 'i', '{"x": 2}', fields => '{}'`, true},
		{`'q', 'j', '{"x": 1}', unique_key => 'one'`, `'q', 'other kind', '{"x": 2}', unique_key => 'one'`, true},
		{`'q', 'k', unique_key => 'two'`, `'q', 'k', unique_key => 'three'`, false},
		{`'q', 'l', unique_key => 'four'`, `'r', 'l', unique_key => 'four'`, false},
		{`'q', 'm', '{"x": 1}', priority => 1`, `'q', 'm', '{"x": 1}', priority => 4, run_at => now() + interval '1 day', meta => '{}'`, true},
	} {
		exec(t, conn, `SELECT weir.enqueue_unique(`+c.one+`)`)
		if got := value[bool](t, conn, `SELECT duplicate FROM weir.enqueue_unique(`+c.other+`)`); got != c.same {
			t.Errorf("after %s, %s is a duplicate: %t, want %t", c.one, c.other, got, c.same)
		}
	}
}

// TestUniqueJobsRefuseWhatTheyDoNotUnderstand: errors name the value.
func TestUniqueJobsRefuseWhatTheyDoNotUnderstand(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	for _, c := range []struct{ args, says string }{
		{`unique_key => ''`, "1 to 1000 characters, got 0"},
		{`unique_key => repeat('x', 1001)`, "got 1001"},
		{`unique_key => 'a', fields => '{b}'`, "both a unique_key and fields"},
		{`fields => ARRAY[NULL]`, "fields"},
		{`fields => array_fill('f'::text, ARRAY[101])`, "at most 100 fields, got 101"},
		{`until => 'done'`, `got "done"`},
		{`until => ''`, `got ""`},
		{`within => '0'`, "within must be more than 0"},
		{`within => '367 days'`, "367 days"},
		{`within => '1 hour', until => 'started'`, "both until (started) and within (01:00:00)"},
		{`replace => true, until => 'finished'`, "got until finished"},
		{`replace => true, within => '1 hour'`, "got within 01:00:00"},
		{`priority => 5`, "5"},
		{`run_at => 'infinity'`, "infinity"},
	} {
		_, err := conn.Exec(t.Context(), `SELECT weir.enqueue_unique('q', 'k', `+c.args+`)`)
		if sqlstate(err) != "22023" || !strings.Contains(err.Error(), c.says) {
			t.Errorf("enqueue_unique with %s: %v, want 22023 that says %q", c.args, err, c.says)
		}
	}
	exec(t, conn, `SELECT weir.enqueue_unique('q', 'k', within => '365 days'), weir.enqueue_unique('q', 'k', within => '1 year')`) // for PostgreSQL, a year has 360 days when intervals are compared
	tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	_, err = tx.Exec(t.Context(), `SELECT weir.enqueue_unique('q', 'k', wait => true)`)
	wantCode(t, "wait in REPEATABLE READ", err, "WR004")
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestMisspelledFieldsAreRefused: if args has none of the fields, the job is refused, in each way to enqueue it; otherwise it would be a duplicate of any
// other. One that is missing beside another counts as null.
func TestMisspelledFieldsAreRefused(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	for _, sql := range []string{
		`SELECT weir.enqueue_unique('q', 'k', '{"account": 1}', fields => '{acount,Account}')`,
		`SELECT weir.enqueue_unique('q', 'k', fields => '{acount}')`,
		`SELECT weir.enqueue_many('[{"queue": "q", "kind": "k", "args": {"account": 1}, "unique": {"fields": ["account"]}}, {"queue": "q", "kind": "k", "args": {"account": 2}, "unique": {"fields": ["acount"]}}]'::jsonb)`,
		`SELECT weir.enqueue_many('[{"queue": "q", "kind": "k", "unique": {"fields": ["acount"]}}]'::jsonb)`,
	} {
		_, err := conn.Exec(t.Context(), sql)
		if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code != "22023" || !strings.Contains(e.Message, "acount") || !strings.Contains(e.Hint, "names in the JSON of args") {
			t.Errorf("%s: %v, want 22023 that names the fields, and says what they are", sql, err)
		}
	}
	if n := value[int](t, conn, `SELECT count(*) FROM weir.job`); n != 0 {
		t.Errorf("%d jobs were enqueued", n)
	}
	if !value[bool](t, conn, `SELECT NOT a.duplicate AND b.duplicate FROM weir.enqueue_unique('q', 'k', '{"account": 1}', fields => '{account,page}') a,
		weir.enqueue_unique('q', 'k', '{"account": 1, "page": null}', fields => '{account,page}') b`) {
		t.Error("a field that is missing beside another does not count as null")
	}
}

// TestAHolderThatRollsBackLosesNobodysJob: of two transactions that do not see each other each logs its job, and neither waits. Whichever commits
// is run; if both do, one is.
func TestAHolderThatRollsBackLosesNobodysJob(t *testing.T) {
	t.Parallel()
	for _, rule := range []string{`unique_key => 'a'`, `unique_key => 'a', until => 'started'`, `unique_key => 'a', within => '1 day'`, `unique_key => 'a', replace => true`} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			conn := connect(t, url)
			worker := startWorker(t, conn, "q")
			for _, commit := range [][2]bool{{true, true}, {true, false}, {false, true}} {
				one, other := begin(t, connect(t, url)), begin(t, connect(t, url))
				ids := [2]int64{logUniquely(t, one, rule), logUniquely(t, other, rule)}
				want := []int64{}
				for i, tx := range []pgx.Tx{one, other} {
					end := tx.Rollback
					if commit[i] {
						end = tx.Commit
						want = append(want, ids[i])
					}
					if err := end(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				switch {
				case len(want) < 2:
					mustComplete(t, conn, worker, wantRuns(t, conn, worker, want...))
				case strings.Contains(rule, "replace"):
					mustComplete(t, conn, worker, wantRuns(t, conn, worker, ids[1]))
					wantDropped(t, conn, ids[0], fmt.Sprintf("replaced by job %d", ids[1]))
				default:
					mustComplete(t, conn, worker, wantRuns(t, conn, worker, ids[0]))
					wantDropped(t, conn, ids[1], fmt.Sprintf("duplicate of job %d", ids[0]))
				}
				rule = strings.ReplaceAll(rule, "'a", "'aa")
			}
		})
	}
}

// begin begins a transaction that is rolled back at the end of the test.
func begin(t *testing.T, conn *pgx.Conn) pgx.Tx {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

func commit(t *testing.T, tx pgx.Tx) {
	t.Helper()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestFiftyKeysEnqueuedByTwoHundredConnectionsRunFiftyTimes: 200 connections enqueue the same 50 keys at the same time, in transactions that do not see
// each other: each key runs exactly once.
func TestFiftyKeysEnqueuedByTwoHundredConnectionsRunFiftyTimes(t *testing.T) {
	pgtest.Alone(t, "200 connections at once")
	const clients, keys = 200, 50
	server := pgtest.Server(t, map[string]string{"max_connections": "250"})
	url := server.URL("postgres")
	conn := connect(t, url)
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	worker := startWorker(t, conn, "q")
	var ready, done sync.WaitGroup
	ready.Add(clients)
	for i := range clients {
		done.Go(func() {
			c, err := pgx.Connect(t.Context(), url)
			if err != nil {
				t.Error(err)
				ready.Done()
				return
			}
			defer func() { _ = c.Close(context.Background()) }()
			err = pgx.BeginFunc(t.Context(), c, func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), `SELECT weir.enqueue_unique('q', 'k', unique_key => 'key ' || n, priority => 1 + ($1 + n) % 4) FROM generate_series(1, $2) n`, i, keys)
				ready.Done()
				ready.Wait()
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	done.Wait()
	if t.Failed() {
		return
	}
	if n := value[int](t, conn, `SELECT count(*) FROM weir.job`); n != clients*keys {
		t.Fatalf("%d jobs are logged, want %d that do not see each other", n, clients*keys)
	}
	got := runnable(t, conn, worker)
	if len(got) != keys || value[int](t, conn, `SELECT count(DISTINCT unique_key) FROM weir.job WHERE id = ANY ($1)`, idsOf(got)) != keys {
		t.Fatalf("%d jobs are to be run, want one of each of %d keys", len(got), keys)
	}
	mustComplete(t, conn, worker, got)
	if n := value[int](t, conn, `SELECT sum(cardinality(ids)) FROM weir.result WHERE outcome = 'cancelled' AND (SELECT bool_and(e ~ '^duplicate of job [0-9]+$') FROM unnest(errors) e)`); n != (clients-1)*keys {
		t.Errorf("%d jobs were cancelled as duplicates, want %d", n, (clients-1)*keys)
	}
}

// TestAJobThatCommitsAfterTheRunHasStartedIsNotLost: the run of another job that started before the commit does not count for until started, and
// not after its end for until finished either.
func TestAJobThatCommitsAfterTheRunHasStartedIsNotLost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rule         string
		whileRunning bool // it runs, although the other still does
	}{{`unique_key => 'a'`, false}, {`unique_key => 'a', until => 'started'`, true}, {`unique_key => 'a', replace => true`, true}} {
		t.Run(c.rule, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			conn := connect(t, url)
			worker := startWorker(t, conn, "q")
			older, old, other := begin(t, connect(t, url)), begin(t, connect(t, url)), connect(t, url)
			late := [2]int64{logUniquely(t, older, c.rule), logUniquely(t, old, c.rule)}
			first := logUniquely(t, other, c.rule)
			running := wantRuns(t, conn, worker, first)
			commit(t, older)
			if c.whileRunning {
				mustComplete(t, conn, worker, wantRuns(t, conn, worker, late[0]))
			} else {
				wantRuns(t, conn, worker)
				wantDropped(t, conn, late[0], fmt.Sprintf("duplicate of job %d", first))
			}
			mustComplete(t, conn, worker, running)
			commit(t, old)
			again := wantRuns(t, conn, worker, late[1])
			// While it runs it is found, although newer ones have run before.
			if _, duplicate := uniquely(t, conn, `unique_key => 'a'`); !duplicate {
				t.Error("a late job that runs is not found")
			}
			mustComplete(t, conn, worker, again)
		})
	}
}

// TestAJobThatWillBeDroppedIsNoDuplicate: of two jobs that did not see each other, one has started, and the other, which waits, will end as its
// duplicate. A job that is asked for now runs, because neither of the two would run after the call.
func TestAJobThatWillBeDroppedIsNoDuplicate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rule string
		ends bool // the first one has ended when the call is made
	}{{`unique_key => 'a'`, true}, {`unique_key => 'a', until => 'started'`, false}} {
		t.Run(c.rule, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			conn := connect(t, url)
			worker := startWorker(t, conn, "q")
			late := begin(t, connect(t, url))
			first := logUniquely(t, late, c.rule+`, priority => 1`)
			second := logUniquely(t, conn, c.rule)
			commit(t, late)
			running := mustClaim(t, conn, worker, "q", 1)
			if len(running) != 1 || running[0].ID != first {
				t.Fatalf("claimed %v, want job %d", running, first)
			}
			if c.ends {
				mustComplete(t, conn, worker, running)
			} else if id, duplicate := uniquely(t, conn, `unique_key => 'a'`); !duplicate || id != first {
				t.Errorf("until finished, a call while job %d runs answers %d, %v", first, id, duplicate)
			}
			third := logUniquely(t, conn, c.rule)
			if id, duplicate := uniquely(t, conn, c.rule); !duplicate || id != third {
				t.Errorf("the next call answers %d, %v, want a duplicate of job %d", id, duplicate, third)
			}
			wantRuns(t, conn, worker, third)
			wantDropped(t, conn, second, fmt.Sprintf("duplicate of job %d", first))
		})
	}
}

// TestAMovedJobIsNotUniqueAnyMore: in another queue it is a duplicate of none, and runs; in its old queue there is room for another.
func TestAMovedJobIsNotUniqueAnyMore(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	now, later := logUniquely(t, conn, `unique_key => 'a'`), logUniquely(t, conn, `unique_key => 'b', run_at => now() + interval '1 hour'`)
	exec(t, conn, `SELECT weir.move_where('q', to_queue => 'other')`)
	if n := value[int](t, conn, `SELECT count(*) FROM weir.job_info($1) WHERE queue = 'other'`, now); n != 1 {
		t.Fatal("the job was not moved")
	}
	logUniquely(t, conn, `unique_key => 'a'`)
	logUniquely(t, conn, `unique_key => 'b'`)
	exec(t, conn, `SELECT weir._promote(upto => now() + interval '2 hours')`)
	worker := startWorker(t, conn, "other")
	if got := idsOf(claimAll(t, conn, worker, "other")); fmt.Sprint(got) != fmt.Sprint([]int64{now, later}) {
		t.Errorf("jobs %v run in the other queue, want %v", got, []int64{now, later})
	}
}

// TestOneKeyUsedManyTimesStaysFlat: under a pinned horizon, what enqueuing, claiming and recording a unique job read does not depend on how often its
// key was used before, nor on how many jobs of the key were replaced. The cost is counted in blocks.
func TestOneKeyUsedManyTimesStaysFlat(t *testing.T) {
	pgtest.Alone(t, "what is read depends on the transactions of the whole server")
	url := pgtest.Database(t)
	conn, pin := connect(t, url), begin(t, connect(t, url))
	exec(t, pin, `SELECT pg_current_xact_id()`)
	worker := startWorker(t, conn, "q")
	const replacing = `replace => true, run_at => now() + interval '1 hour'`
	steps := []string{"an enqueue", "a duplicate", "a claim", "a result", "a replacement"}
	// use uses two keys once more, and returns what each step read.
	use := func() (read []int) {
		const enqueue = `SELECT * FROM weir.enqueue_unique('q', 'k', unique_key => 'a')`
		read = append(read, blocks(t, conn, enqueue), blocks(t, conn, enqueue), blocks(t, conn, fmt.Sprintf(`SELECT * FROM weir._claim(%d, '{q}', '{960}')`, worker)))
		record := value[string](t, conn, `SELECT format('SELECT * FROM weir._record(%s, ARRAY[%s], ARRAY[%s], ARRAY[1], ARRAY[%s])', worker, lane, seq, ids[1]::text || '::bigint')
			FROM weir.batch WHERE worker = $1 ORDER BY no DESC LIMIT 1`, worker)
		return append(read, blocks(t, conn, record), blocks(t, conn, `SELECT * FROM weir.enqueue_unique('q', 'k', unique_key => 'b', `+replacing+`)`))
	}
	for range 300 { // so that the indexes are no longer a single page
		use()
	}
	before := use()
	uses := 2000
	if *longFlag > 0 {
		uses = 100_000
	}
	for range uses {
		use()
	}
	after := use()
	if n := value[int](t, conn, `SELECT sum(cardinality(ids)) FROM weir.result WHERE outcome = 'completed'`); n != 302+uses {
		t.Fatalf("%d jobs have run, want %d", n, 302+uses)
	}
	t.Logf("blocks read by %v: %v after 300 uses of the key, %v after %d", steps, before, after, 301+uses)
	for i, step := range steps {
		allowed := 4 // a page of an index may have just been filled
		if uses > 10_000 {
			allowed = 12 // and each index is one level higher
		}
		if after[i] > before[i]+allowed {
			t.Errorf("%s reads %d blocks after %d uses of the key, and %d after 300: it grows with the uses", step, after[i], 301+uses, before[i])
		}
	}
	exec(t, conn, `SELECT weir._promote(10000, upto => now() + interval '2 hours')`)
	if got := runnable(t, conn, worker); len(got) != 1 {
		t.Errorf("%d jobs of a key are to be run, want the last one", len(got))
	}
}
