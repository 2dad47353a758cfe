package proof

import (
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestACancelledJobHoldsUpItsKeyNoMore: in order, the next job of a key starts once the one that is to be tried again in an hour is cancelled, alone or by a
// filter, before its attempt has failed or after; and it is never run again.
func TestACancelledJobHoldsUpItsKeyNoMore(t *testing.T) {
	t.Parallel()
	for _, how := range []string{`weir.cancel($1)`, `weir.cancel_where('q', kinds => '{first}') WHERE $1 > 0`, `weir.cancel_where(key => 'a', kinds => '{first}') WHERE $1 > 0`} {
		for _, when := range []string{"while it runs", "while it waits", "while it waits, in a transaction that ends after a claim"} {
			t.Run(how+" "+when, func(t *testing.T) {
				t.Parallel()
				conn := connect(t, pgtest.Database(t))
				worker := startWorker(t, conn, "q")
				exec(t, conn, `SELECT weir.set_limit('q', per_key => true, in_order => true)`)
				exec(t, conn, `SELECT weir.enqueue('q', 'first', key => 'a'), weir.enqueue('q', 'second', key => 'a'), weir.enqueue('q', 'first', key => 'b', run_at => now() + interval '1 year')`)
				first := mustClaim(t, conn, worker, "q", 10)
				if len(first) != 1 || first[0].Kind != "first" {
					t.Fatalf("claimed %+v, want the first job", first)
				}
				if when == "while it runs" {
					exec(t, conn, `SELECT `+how, first[0].ID)
				}
				if ok, err := finish(t.Context(), conn, worker, first[0], "retried", time.Now().Add(time.Hour)); err != nil || !ok {
					t.Fatal(ok, err)
				}
				if when != "while it runs" {
					if got := mustClaim(t, conn, worker, "q", 10); len(got) != 0 {
						t.Fatalf("claimed %+v while the first job is to be tried again", got)
					}
					canceller := begin(t, connect(t, conn.Config().ConnString()))
					before := value[int64](t, conn, `SELECT last_value FROM weir.job_id`)
					exec(t, canceller, `SELECT `+how, first[0].ID)
					if value[int64](t, conn, `SELECT last_value FROM weir.job_id`) == before {
						t.Error("no idle worker notices the cancellation")
					}
					if when != "while it waits" {
						exec(t, conn, `SELECT weir.enqueue('q', 'other', key => 'c')`)
						if got := mustClaim(t, conn, worker, "q", 10); len(got) != 1 || got[0].Kind != "other" {
							t.Fatalf("claimed %+v before the cancellation is committed", got)
						}
					}
					commit(t, canceller)
				}
				got := mustClaim(t, conn, worker, "q", 10)
				if len(got) != 1 || got[0].Kind != "second" {
					t.Fatalf("claimed %+v, want the second job", got)
				}
				mustComplete(t, conn, worker, got)
				exec(t, conn, `SELECT weir._promote(upto => now() + interval '2 hours')`)
				for _, a := range mustClaim(t, conn, worker, "q", 10) {
					if a.Dropped == nil {
						t.Errorf("claimed %+v, which was cancelled", a)
					}
				}
			})
		}
	}
}

// TestWhatIsNotCancelledKeepsItsPlace: a cancellation by filter that means other jobs lets no job overtake one that is to be tried again.
func TestWhatIsNotCancelledKeepsItsPlace(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	exec(t, conn, `SELECT weir.set_limit('q', per_key => true, in_order => true)`)
	exec(t, conn, `SELECT weir.enqueue('q', 'first', key => 'a'), weir.enqueue('q', 'second', key => 'a'), weir.enqueue('q', 'third', key => 'a')`)
	first := mustClaim(t, conn, worker, "q", 10)
	if ok, err := finish(t.Context(), conn, worker, first[0], "retried", time.Now().Add(time.Hour)); err != nil || !ok {
		t.Fatal(ok, err)
	}
	exec(t, conn, `SELECT weir.cancel_where('q', kinds => '{second}')`)
	exec(t, conn, `SELECT weir.cancel(id) FROM weir.jobs('available') WHERE kind = 'second'`)
	for range 3 {
		if got := mustClaim(t, conn, worker, "q", 10); len(got) != 0 {
			t.Fatalf("claimed %+v before the first job has been tried again", got)
		}
	}
	exec(t, conn, `SELECT weir._promote(upto => now() + interval '2 hours')`)
	if got := mustClaim(t, conn, worker, "q", 10); len(got) != 1 || got[0].Kind != "first" {
		t.Errorf("claimed %+v, want the first job", got)
	}
}
