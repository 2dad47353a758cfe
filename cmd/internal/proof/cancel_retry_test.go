package proof

import (
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestARetrySparesAJobFromNoLaterCancellation: a job that was retried is cancelled nevertheless by a cancellation by filter that commits after the retry,
// although it got its number before one that the retry has seen; whether the job had started or not, and also if the latter covers it.
func TestARetrySparesAJobFromNoLaterCancellation(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, first, second string }{
		{"another filter", `SELECT weir.cancel_where('q')`, `SELECT weir.cancel_where(kinds => '{k}')`},
		{"the same filter", `SELECT weir.cancel_where('q')`, `SELECT weir.cancel_where('q')`},
		{"a wider filter", `SELECT weir.cancel_where('q', '{k}')`, `SELECT weir.cancel_where('q')`},
	} {
		for _, state := range []string{"available", "failed"} {
			t.Run(c.name+", "+state, func(t *testing.T) {
				t.Parallel()
				url := pgtest.Database(t)
				conn := connect(t, url)
				worker := startWorker(t, conn, "q")
				id := value[int64](t, conn, `SELECT weir.enqueue('q', 'k', max_attempts => 1)`)
				if state == "failed" {
					if _, err := record(t.Context(), conn, worker, mustClaim(t, conn, worker, "q", 1), "failed", nil); err != nil {
						t.Fatal(err)
					}
				}
				first := begin(t, connect(t, url))
				exec(t, first, c.first)
				exec(t, conn, c.second)
				if now := value[string](t, conn, `SELECT weir.retry($1)`, id); now != "available" {
					t.Fatalf("the job was retried, and is %s, want available", now)
				}
				for range 5 {
					exec(t, conn, `SELECT weir._tidy()`)
				}
				if now := value[string](t, conn, `SELECT state FROM weir.job_info($1)`, id); now != "available" {
					t.Errorf("before the commit, the job is %s, want available", now)
				}
				commit(t, first)
				for range 10 {
					if now := value[string](t, conn, `SELECT state FROM weir.job_info($1)`, id); now != "cancelled" {
						t.Fatalf("after the commit, the job is %s, want cancelled", now)
					}
					exec(t, conn, `SELECT weir._tidy()`)
				}
				if got := mustClaim(t, conn, worker, "q", 1); len(got) != 0 {
					t.Error("the job was claimed")
				}
			})
		}
	}
}

// TestARetryWaitsForNoCancellation: neither does a cancellation by filter wait for a retry, also if both follow each other in transactions that stay open.
func TestARetryWaitsForNoCancellation(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	ids := enqueueN(t, conn, "q", 2)
	exec(t, conn, `SELECT weir.cancel_where('q')`)
	one, other := begin(t, connect(t, url)), begin(t, connect(t, url))
	exec(t, one, `SET LOCAL lock_timeout = '5s'`)
	exec(t, other, `SET LOCAL lock_timeout = '5s'`)
	exec(t, one, `SELECT weir.cancel_where(kinds => '{other}')`)
	exec(t, other, `SELECT weir.cancel_where(kinds => '{another}')`)
	exec(t, one, `SELECT weir.retry($1)`, ids[0])
	exec(t, other, `SELECT weir.cancel_where(kinds => '{a third}')`)
	exec(t, conn, `SET lock_timeout = '5s'`)
	exec(t, conn, `SELECT weir.cancel_where(kinds => '{a fourth}')`)
	for range 5 {
		exec(t, conn, `SELECT weir._tidy()`)
	}
	commit(t, other)
	commit(t, one)
	for i, want := range []string{"available", "cancelled"} {
		if now := value[string](t, conn, `SELECT state FROM weir.job_info($1)`, ids[i]); now != want {
			t.Errorf("job %d is %s, want %s", i, now, want)
		}
	}
}

// TestARetryHoldsUpOnlyWhoMayBeCancelled: while a transaction that retries a job is open, claims from its lane wait only if the job is cancelled by a filter
// or with its flow, not because other jobs are.
func TestARetryHoldsUpOnlyWhoMayBeCancelled(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, other := connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q")
	failed := enqueueN(t, conn, "q", 1)[0]
	fail(t, conn, worker, mustClaim(t, conn, worker, "q", 1)[0])
	flow := newFlow(t, conn, "f")
	exec(t, conn, `SELECT weir.enqueue('elsewhere', 'k', flow => $1, run_at => now() + interval '1 day')`, flow)
	member := addTo(t, conn, flow, 1)[0]
	exec(t, conn, `SELECT weir.cancel_flow($1)`, flow)
	for id, free := range map[int64]bool{failed: true, member: false} {
		exec(t, other, `BEGIN`)
		if got := value[string](t, other, `SELECT weir.retry($1)`, id); got != "available" {
			t.Errorf("job %d is %s after its retry", id, got)
		}
		if got := value[bool](t, conn, `SELECT weir._try_lane((SELECT lane FROM weir.job WHERE id = $1 LIMIT 1))`, id); got != free {
			t.Fatalf("beside the retry of job %d, claims from its lane go on: %t, want %t", id, got, free)
		}
		exec(t, other, `ROLLBACK`)
	}
	exec(t, other, `BEGIN`)
	exec(t, other, `SELECT weir.retry($1)`, failed)
	plain := enqueueN(t, conn, "q", 1)
	if got := takenIDs(takeAll(t, conn, worker, "q")); len(got) != 1 || got[0] != plain[0] {
		t.Errorf("beside the retry, %v are claimed, want %v", got, plain)
	}
	exec(t, other, `COMMIT`)
	if got := takenIDs(takeAll(t, conn, worker, "q")); len(got) != 1 || got[0] != failed {
		t.Errorf("after the retry, %v are claimed, want %d", got, failed)
	}
}
