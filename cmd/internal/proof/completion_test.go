package proof

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// rescueAll rescues until a step logs nothing, and returns how many attempts were logged again.
func rescueAll(t *testing.T, q querier) (relogged int) {
	t.Helper()
	until(t, "rescue has nothing more to do", func() bool {
		n := value[int](t, q, `SELECT coalesce(sum(relogged), 0) FROM weir._rescue()`)
		relogged += n
		return n == 0
	})
	return relogged
}

// TestOpenCompletionKeepsNoWorkerAlive: while a dead worker's transaction that completes a job is open or prepared, the worker is fenced and its
// other jobs run again; only that job waits for the end of the transaction.
func TestOpenCompletionKeepsNoWorkerAlive(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	other := startWorker(t, conn, "q")
	for n, end := range []string{"COMMIT", "ROLLBACK", "COMMIT PREPARED", "ROLLBACK PREPARED"} {
		handler := connect(t, url)
		enqueueN(t, conn, "q", 30)
		worker := startWorker(t, conn, "q")
		got := mustClaim(t, conn, worker, "q", 10)
		got = append(got, mustClaim(t, conn, worker, "q", 20)...)
		exec(t, handler, `BEGIN`)
		if err := completeTx(t.Context(), handler, worker, got[3]); err != nil {
			t.Fatal(err)
		}
		prepared := fmt.Sprintf("'%s %d'", handler.Config().Database, n)
		if n >= 2 {
			exec(t, handler, `PREPARE TRANSACTION `+prepared)
			end += " " + prepared
		}
		wantFenced(t, conn, worker, 29)
		if n := rescueAll(t, conn); n != 0 {
			t.Errorf("%s: %d attempts were logged again while the completion is open", end, n)
		}
		if held := value[int](t, conn, `SELECT count(*) FROM weir._holds($1)`, worker); held != 1 {
			t.Errorf("%s: %d batches are held while the completion is open, want only the batch of the completed job", end, held)
		}
		exec(t, handler, end)
		want := 29
		if end[0] == 'R' {
			want = 30
		}
		if n := rescueAll(t, conn); n != want-29 {
			t.Errorf("%s: %d attempts were logged again after the end of the completion, want %d", end, n, want-29)
		}
		again := claimAll(t, conn, other, "q")
		if len(again) != want {
			t.Errorf("%s: %d attempts were claimed again, want %d", end, len(again), want)
		}
		mustComplete(t, conn, other, again)
		if left := value[int](t, conn, `SELECT count(*) FROM weir.worker w WHERE fenced AND NOT EXISTS (SELECT FROM weir.settled s WHERE s.worker = w.id AND s.no = 9223372036854775807)`); left != 0 {
			t.Errorf("%s: %d workers are not settled yet", end, left)
		}
	}
}

// TestFencedWorkerCompletesNothingMore: once a fence is committed, no completion of the worker succeeds, even one that started during the fencing.
func TestFencedWorkerCompletesNothingMore(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, handler, rescuer := connect(t, url), connect(t, url), connect(t, url)
	enqueueN(t, conn, "q", 2)
	worker := startWorker(t, conn, "q")
	got := mustClaim(t, conn, worker, "q", 2)
	exec(t, rescuer, `BEGIN`)
	if !fence(t, rescuer, worker) {
		t.Fatal("not fenced")
	}
	if n := settle(t, rescuer, worker); n != 2 {
		t.Fatalf("%d attempts were logged again, want 2", n)
	}
	completed := make(chan error, 1)
	go func() { completed <- completeTx(context.Background(), handler, worker, got[0]) }() // ends when rescuer commits
	until(t, "the completion waits for the fence", func() bool {
		return value[bool](t, conn, `SELECT cardinality(pg_blocking_pids($1)) > 0`, handler.PgConn().PID())
	})
	exec(t, rescuer, `COMMIT`)
	wantCode(t, "complete that came before the fence was committed", <-completed, "WR001")
	wantCode(t, "complete after the fence", completeTx(t.Context(), handler, worker, got[1]), "WR001")
	if again := claimAll(t, conn, startWorker(t, conn, "q"), "q"); len(again) != 2 {
		t.Errorf("%v were claimed again, want both attempts", again)
	}
}

// TestManyOpenCompletionsHideNoDeadWorker: workers that wait for open completions do not delay the rescue of workers that died after them.
func TestManyOpenCompletionsHideNoDeadWorker(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	const open, dead = 60, 3
	enqueueN(t, conn, "q", open+dead)
	for n := range open + dead {
		worker := startWorker(t, conn, "q")
		got := mustClaim(t, conn, worker, "q", 1)
		if n < open {
			handler := connect(t, url)
			exec(t, handler, `BEGIN`)
			if err := completeTx(t.Context(), handler, worker, got[0]); err != nil {
				t.Fatal(err)
			}
		}
		if !fence(t, conn, worker) {
			t.Fatalf("worker %d is not fenced", n+1)
		}
	}
	if n := rescueAll(t, conn); n != dead {
		t.Errorf("%d attempts were logged again, want one for each of the %d workers without open completions", n, dead)
	}
}

// TestCompletionInEveryOrder: in every order of the steps of a handler and a rescuer, and for every end of the handler's transaction, the attempt
// ends once, and its job is either done or claimed again.
func TestCompletionInEveryOrder(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	exec(t, conn, `SELECT weir.set('completed_retention', '0 s')`)
	other := value[int32](t, conn, `SELECT weir._start('other', '{q}', '5 minutes')`)
	orders := 0
	for _, end := range []string{"commit", "rollback", "commit prepared", "rollback prepared", "terminate", "rollback to savepoint"} {
		handlers := []string{"complete", "end"}
		if strings.HasSuffix(end, "prepared") {
			handlers = []string{"complete", "prepare", "end"}
		}
		for _, order := range interleavings(handlers, []string{"fence", "settle", "rotate", "rescue"}) {
			orders++
			name := fmt.Sprintf("%s, %v", end, order)
			enqueueN(t, conn, "q", 3)
			worker := startWorker(t, conn, "q")
			got := mustClaim(t, conn, worker, "q", 3)
			handler, err := pgx.Connect(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			prepared := fmt.Sprintf("'%s in order %d'", handler.Config().Database, orders)
			refused, isPrepared := false, false
			for _, step := range order {
				switch step {
				case "complete":
					exec(t, handler, `BEGIN`)
					if end == "rollback to savepoint" {
						exec(t, handler, `SAVEPOINT s`)
					}
					err := completeTx(t.Context(), handler, worker, got[1])
					if refused = slices.Index(order, "fence") < slices.Index(order, "complete"); refused {
						wantCode(t, name, err, "WR001")
					} else if err != nil {
						t.Fatalf("%s: %v", name, err)
					}
				case "prepare":
					if isPrepared = !refused; isPrepared {
						exec(t, handler, `PREPARE TRANSACTION `+prepared)
					}
				case "end":
					switch {
					case isPrepared:
						exec(t, conn, end+" "+prepared)
					case end == "terminate":
						exec(t, conn, `SELECT pg_terminate_backend($1, 30000)`, handler.PgConn().PID())
					case end == "rollback to savepoint":
						exec(t, handler, `ROLLBACK TO s`)
						exec(t, handler, `COMMIT`)
					case end == "commit":
						exec(t, handler, `COMMIT`)
					default:
						exec(t, handler, `ROLLBACK`)
					}
				case "fence":
					if !fence(t, conn, worker) {
						t.Fatalf("%s: not fenced", name)
					}
				case "settle":
					settle(t, conn, worker)
				case "rotate":
					exec(t, conn, `UPDATE weir.segment SET at = at - interval '1 hour'`)
					exec(t, conn, `SELECT weir._rotate() FROM generate_series(1, 2)`)
				case "rescue":
					rescueAll(t, conn)
				}
			}
			_ = handler.Close(t.Context())
			rescueAll(t, conn)
			completes := !refused && (end == "commit" || end == "commit prepared")
			want := idsOf(got)
			if completes {
				want = slices.Delete(want, 1, 2)
			}
			again := claimAll(t, conn, other, "q")
			handed := idsOf(again)
			slices.Sort(handed)
			if !slices.Equal(handed, want) {
				t.Fatalf("%s: jobs %v were claimed again, want %v", name, handed, want)
			}
			mustComplete(t, conn, other, again)
			if twice := value[int](t, conn, `SELECT count(*) FROM (SELECT FROM weir.result r, unnest(r.ids) i GROUP BY r.lane, r.seq, i HAVING count(*) > 1) d`); twice > 0 {
				t.Fatalf("%s: %d attempts ended twice", name, twice)
			}
			if holds := value[int](t, conn, `SELECT count(*) FROM weir._holds($1)`, worker); holds > 0 {
				t.Fatalf("%s: the dead worker still holds %d batches", name, holds)
			}
		}
	}
	t.Logf("%d orders", orders)
}

// interleavings returns every way to merge two sequences.
func interleavings(a, b []string) (all [][]string) {
	if len(a) == 0 || len(b) == 0 {
		return [][]string{slices.Concat(a, b)}
	}
	for _, rest := range interleavings(a[1:], b) {
		all = append(all, slices.Concat(a[:1], rest))
	}
	for _, rest := range interleavings(a, b[1:]) {
		all = append(all, slices.Concat(b[:1], rest))
	}
	return all
}

// TestReconcileGoesPastOpenCompletions: reconciling finds the attempts that a worker does not hold even behind batches with open completions,
// with or without a starting point, and the calls come to an end.
func TestReconcileGoesPastOpenCompletions(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	const batches = 40
	enqueueN(t, conn, "q", 2*batches)
	worker := startWorker(t, conn, "q")
	var got []attempt
	for n := range batches {
		got = append(got, mustClaim(t, conn, worker, "q", 1)...)
		if n%5 < 2 { // eight in all, with and without existing exceptions
			handler := connect(t, url)
			exec(t, handler, `BEGIN`)
			if err := completeTx(t.Context(), handler, worker, got[n]); err != nil {
				t.Fatal(err)
			}
		}
		if n == batches/2 {
			if n, err := reconcile(t.Context(), conn, worker, got); err != nil || n != 0 {
				t.Fatal(n, err) // from now on, all of these are exceptions
			}
		}
	}
	released := 0
	for calls := 0; released < batches-batches/5*2; calls++ {
		if calls > 2*batches {
			t.Fatalf("%d attempts were released in %d calls, want %d", released, calls, batches-batches/5*2)
		}
		released += value[int](t, conn, `SELECT released FROM weir._reconcile($1, '{}', '{}', '{}', '{}')`, worker)
	}
	for after, calls := new(int64), 0; after != nil; calls++ {
		if calls > 2*batches {
			t.Fatalf("reconcile did not come to an end: next is %d", *after)
		}
		if err := conn.QueryRow(t.Context(), `SELECT next FROM weir._reconcile($1, '{}', '{}', '{}', '{}', $2)`, worker, *after).Scan(&after); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRescueGoesPastAWorkerThatCannotBeSettled: an error of one worker is reported, and does not delay the rescue of others.
func TestRescueGoesPastAWorkerThatCannotBeSettled(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	enqueueN(t, conn, "q", 3)
	var workers []int32
	for range 3 {
		worker := startWorker(t, conn, "q")
		workers = append(workers, worker)
		mustClaim(t, conn, worker, "q", 1)
		if !fence(t, conn, worker) {
			t.Fatal("not fenced")
		}
	}
	exec(t, conn, fmt.Sprintf(`ALTER TABLE weir.result ADD CONSTRAINT broken CHECK (worker <> %d)`, workers[0]))
	rows, err := conn.Query(t.Context(), `SELECT worker, relogged, coalesce(error, '') FROM weir._rescue()`)
	if err != nil {
		t.Fatal(err)
	}
	relogged, errors := 0, map[int32]string{}
	var worker int32
	var n int
	var text string
	if _, err := pgx.ForEachRow(rows, []any{&worker, &n, &text}, func() error {
		relogged += n
		if text != "" {
			errors[worker] = text
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if relogged != 2 || len(errors) != 1 || errors[workers[0]] == "" {
		t.Errorf("%d attempts were logged again, want 2; the errors are %q, want one of worker %d", relogged, errors, workers[0])
	}
	exec(t, conn, `ALTER TABLE weir.result DROP CONSTRAINT broken`)
	if n := rescueAll(t, conn); n != 1 {
		t.Errorf("%d attempts were logged again, want 1", n)
	}
}

// TestOpenCompletionHoldsItsOwnSegmentAlone: an open transaction that has completed a job holds tables of that job's segment only; the other
// segments are reclaimed in the meantime.
func TestOpenCompletionHoldsItsOwnSegmentAlone(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, handler := connect(t, url), connect(t, url)
	age := func(by string) {
		t.Helper()
		exec(t, conn, `UPDATE weir.segment SET at = at - $1::text::interval`, by)
	}
	worker := startWorker(t, conn, "q")
	for n := range 2 {
		enqueueN(t, conn, "q", 1)
		mustComplete(t, conn, worker, mustClaim(t, conn, worker, "q", 1))
		age("13 hours")
		rotateUntil(t, conn, fmt.Sprintf("opened job %d", n+2))
	}
	enqueueN(t, conn, "q", 1)
	got := mustClaim(t, conn, worker, "q", 1)
	exec(t, handler, `BEGIN`)
	if err := completeTx(t.Context(), handler, worker, got[0]); err != nil {
		t.Fatal(err)
	}
	held := column[string](t, conn, `SELECT DISTINCT c.relname::text FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
		WHERE l.pid = $1 AND c.relnamespace = 'weir'::regnamespace AND c.relkind IN ('r', 'p') ORDER BY 1`, handler.PgConn().PID())
	if want := []string{"result", "result_3"}; !slices.Equal(held, want) {
		t.Errorf("the transaction holds %v, want %v", held, want)
	}
	age("13 hours")
	rotateUntil(t, conn, "reclaimed job 1")
	age("13 hours")
	rotateUntil(t, conn, "reclaimed job 2")
	exec(t, handler, `COMMIT`)
}

// TestCompletionOfAnOlderSegmentStaysThere: a job that was claimed before another segment was opened is completed in its own segment, which is not reclaimed
// while the transaction is open.
func TestCompletionOfAnOlderSegmentStaysThere(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, handler := connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q")
	enqueueN(t, conn, "q", 1)
	got := mustClaim(t, conn, worker, "q", 1)
	age := func() { exec(t, conn, `UPDATE weir.segment SET at = at - interval '30 hours'`) }
	age()
	rotateUntil(t, conn, "opened job 2")
	exec(t, handler, `BEGIN`)
	if err := completeTx(t.Context(), handler, worker, got[0]); err != nil {
		t.Fatal(err)
	}
	age()
	if reclaimed := value[bool](t, conn, `SELECT weir._reclaim(1)`); reclaimed {
		t.Error("the segment was reclaimed under an open completion")
	}
	exec(t, handler, `COMMIT`)
	if in := column[int](t, conn, `SELECT r.segment::int FROM weir.result r WHERE $1 = ANY (r.ids)`, got[0].ID); !slices.Equal(in, []int{1}) {
		t.Errorf("the result is in segments %v, want 1", in)
	}
}

// TestEndsAreFoundWithoutWaiting: a worker that passes attempts that have all ended learns how, without waiting for anybody who records ends of the same worker;
// with one that has not among them, that one is recorded.
func TestEndsAreFoundWithoutWaiting(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, other := connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q")
	enqueueN(t, conn, "q", 3)
	got := mustClaim(t, conn, worker, "q", 3)
	for _, a := range got[:2] {
		if err := completeTx(t.Context(), conn, worker, a); err != nil {
			t.Fatal(err)
		}
	}
	const sql = `SELECT string_agg(r.place || ' ' || coalesce(r.refusal, '-') || ' ' || r.outcome, ', ' ORDER BY r.place)
		FROM weir._record($1, $2, $3, $4, $5, $6) r WHERE r.refusal IS NOT NULL`
	pass := func(attempts ...attempt) string {
		t.Helper()
		var lanes, seqs, ids []int64
		var sizes []int32
		var outcomes []string
		for _, a := range attempts {
			lanes, seqs, sizes, ids, outcomes = append(lanes, a.Lane), append(seqs, a.Seq), append(sizes, 1), append(ids, a.ID), append(outcomes, "retried")
		}
		return value[string](t, conn, `SELECT coalesce((`+sql+`), '')`, worker, lanes, seqs, sizes, ids, outcomes)
	}
	exec(t, other, `BEGIN`)
	exec(t, other, `SELECT pg_advisory_xact_lock(1464158550, $1)`, worker)
	if said, want := pass(got[1], got[0]), "1 ended completed, 2 ended completed"; said != want {
		t.Errorf("recorded while others record: %q, want %q", said, want)
	}
	exec(t, other, `COMMIT`)
	if said, want := pass(got...), "1 ended completed, 2 ended completed"; said != want {
		t.Errorf("recorded with one that has not ended: %q, want %q", said, want)
	}
	again := mustClaim(t, conn, worker, "q", 3)
	if len(again) != 1 || again[0].ID != got[2].ID || again[0].Attempt != 2 {
		t.Fatalf("claimed %v, want the second attempt of job %d", again, got[2].ID)
	}
	if err := completeTx(t.Context(), conn, worker, again[0]); err != nil {
		t.Fatal(err)
	}
	if said, want := pass(again[0], got[2]), "1 ended completed, 2 ended retried"; said != want {
		t.Errorf("recorded with two attempts of a job: %q, want %q", said, want)
	}
	if said, want := pass(got[2], got[2]), "1 ended retried, 2 ended retried"; said != want {
		t.Errorf("recorded twice in a call: %q, want %q", said, want)
	}
	if other := startWorker(t, conn, "q"); other != worker {
		worker = other
		if said, want := pass(got[0]), "1 lost -"; said == "1 ended completed" {
			t.Errorf("another worker's attempt: %q, want something like %q", said, want)
		}
	}
}
