package proof

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestUniqueJobsThatWaitAgainDoNotDropEachOther: two jobs of a key may run at the same time (until started), or one is retried by hand while the other
// runs. If both must be tried again, one of them is, although one claim picks both.
func TestUniqueJobsThatWaitAgainDoNotDropEachOther(t *testing.T) {
	t.Parallel()
	for _, outcome := range []string{"retried", "snoozed", "released"} {
		t.Run(outcome, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			conn := connect(t, url)
			worker := startWorker(t, conn, "q")
			const rule = `unique_key => 'a', until => 'started'`
			late := begin(t, connect(t, url))
			one := logUniquely(t, late, rule)
			other := logUniquely(t, conn, rule)
			both := wantRuns(t, conn, worker, other)
			commit(t, late)
			both = append(both, wantRuns(t, conn, worker, one)...)
			if refused, err := record(t.Context(), conn, worker, both, outcome, nil); err != nil || len(refused) > 0 {
				t.Fatal(refused, err)
			}
			again := runnable(t, conn, worker)
			if len(again) != 1 {
				t.Fatalf("jobs %v are tried again, want one of %d and %d", idsOf(again), one, other)
			}
			wantDropped(t, conn, one+other-again[0].ID, fmt.Sprintf("duplicate of job %d", again[0].ID))
		})
	}
	t.Run("by hand", func(t *testing.T) {
		t.Parallel()
		conn := connect(t, pgtest.Database(t))
		worker := startWorker(t, conn, "q")
		first := logUniquely(t, conn, `unique_key => 'a'`)
		mustComplete(t, conn, worker, wantRuns(t, conn, worker, first))
		second := logUniquely(t, conn, `unique_key => 'a'`)
		a := wantRuns(t, conn, worker, second)[0]
		exec(t, conn, `SELECT weir.retry($1)`, first)
		if _, err := finish(t.Context(), conn, worker, a, "retried", time.Time{}); err != nil {
			t.Fatal(err)
		}
		if again := runnable(t, conn, worker); len(again) != 1 {
			t.Fatalf("jobs %v are tried again, want one of %d and %d", idsOf(again), first, second)
		}
	})
}

// TestAClaimThatWasHandedBackIsNoRun: a job that a worker has claimed, handed back unstarted, and that was then cancelled, hides no other of its key.
func TestAClaimThatWasHandedBackIsNoRun(t *testing.T) {
	t.Parallel()
	for _, rule := range []string{`unique_key => 'a'`, `unique_key => 'a', until => 'started'`} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			conn := connect(t, url)
			worker := startWorker(t, conn, "q")
			late := begin(t, connect(t, url))
			other := logUniquely(t, late, rule+`, priority => 4`)
			first := logUniquely(t, conn, rule+`, priority => 1`)
			commit(t, late)
			a := mustClaim(t, conn, worker, "q", 1)
			if len(a) != 1 || a[0].ID != first {
				t.Fatalf("claimed %v, want job %d", a, first)
			}
			if _, err := finish(t.Context(), conn, worker, a[0], "released", time.Time{}); err != nil {
				t.Fatal(err)
			}
			exec(t, conn, `SELECT weir.cancel($1)`, first)
			for _, a := range runnable(t, conn, worker) {
				if a.ID == other {
					return
				}
			}
			t.Errorf("job %d is not run, though no other of its key has been started", other)
		})
	}
}

// TestAJobThatAClaimLogsAgainIsNotSteppedOver: a claim that visits several lanes may log a job again in one where it reads jobs of transactions that
// began after its own. The job is found all the same.
func TestAJobThatAClaimLogsAgainIsNotSteppedOver(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, claimer := connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q")
	late := begin(t, connect(t, url))
	job := logUniquely(t, late, `unique_key => 'a', priority => 4`)
	mustComplete(t, conn, worker, wantRuns(t, conn, worker, logUniquely(t, conn, `unique_key => 'a', priority => 4`)))
	commit(t, late)
	plain := value[int64](t, conn, `SELECT weir.enqueue('q', 'k', priority => 1)`)
	lane := value[int32](t, conn, `SELECT (lane >> 39) * 4 + (lane & 3) FROM weir.job WHERE id = $1 LIMIT 1`, job)
	blocker := begin(t, connect(t, url))
	exec(t, blocker, `SELECT pg_advisory_xact_lock(1464158546, $1)`, lane)
	type answer struct {
		got []attempt
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		got, err := claim(t.Context(), claimer, worker, []string{"q"}, []int32{10})
		answers <- answer{got, err}
	}()
	until(t, "the claim is between two lanes", func() bool {
		return value[bool](t, conn, `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = $1 AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`, lane)
	})
	newer := value[int64](t, conn, `SELECT weir.enqueue('q', 'k', priority => 4)`)
	commit(t, blocker)
	a := pgtest.Receive(t, answers, "the claim returns")
	if a.err != nil {
		t.Fatal(a.err)
	}
	got := idsOf(append(a.got, runnable(t, conn, worker)...))
	if want := []int64{plain, newer, job}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("jobs %v run, want %v", got, want)
	}
}

// TestAJobThatAClaimLogsAgainKeepsItsPlaceInItsKey: of two jobs of a key that one transaction has enqueued, the first is unique, and must be logged
// again because a job with its unique key has run in the meantime. It still starts first.
func TestAJobThatAClaimLogsAgainKeepsItsPlaceInItsKey(t *testing.T) {
	t.Parallel()
	for _, limit := range []string{`per_key => true, in_order => true`, `1, per_key => true`, `1`} {
		t.Run(limit, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, pgtest.Database(t))
			worker := startWorker(t, conn, "q")
			exec(t, conn, `SELECT weir.set_limit('q', `+limit+`)`)
			late := begin(t, connect(t, conn.Config().ConnString()))
			want := []int64{logUniquely(t, late, `unique_key => 'a', key => 'x'`)}
			for range 3 {
				want = append(want, value[int64](t, late, `SELECT weir.enqueue('q', 'k', key => 'x')`))
			}
			mustComplete(t, conn, worker, wantRuns(t, conn, worker, logUniquely(t, conn, `unique_key => 'a', key => 'x'`)))
			commit(t, late)
			var got []int64
			for range 20 {
				all := mustClaim(t, conn, worker, "q", 10)
				mustComplete(t, conn, worker, all)
				got = append(got, idsOf(all)...)
			}
			if n := value[int](t, conn, `SELECT count(*) FROM weir.result WHERE outcome = 'released'`); n != 1 {
				t.Errorf("%d jobs were logged again, want 1: the test proves nothing", n)
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("jobs %v ran, want %v", got, want)
			}
		})
	}
}
