package proof

import (
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAJobThatHasEndedHoldsUpNoOther: in order, a job that was put off, has ended since, and is in weir.later still but no longer in the log, does not keep
// the next job of its key from starting.
func TestAJobThatHasEndedHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker, fill := startWorker(t, conn, "q"), startWorker(t, conn, "filler")
	exec(t, conn, `SELECT weir.set('completed_retention', '0 s'), weir.set('retention_bytes', '1048576')`)
	exec(t, conn, `SELECT weir.set_limit('q', per_key => true, in_order => true)`)
	ids := column[int64](t, conn, `SELECT weir.enqueue('q', 'k', key => 'a') FROM generate_series(1, 2)`)
	one := func(id int64) attempt {
		t.Helper()
		got := mustClaim(t, conn, worker, "q", 10)
		if len(got) != 1 || got[0].ID != id {
			t.Fatalf("claimed %v, want job %d", got, id)
		}
		return got[0]
	}
	end := func(a attempt, outcome string, at time.Time) {
		t.Helper()
		if first, err := finish(t.Context(), conn, worker, a, outcome, at); err != nil || !first {
			t.Fatal(first, err)
		}
	}
	end(one(ids[0]), "retried", time.Now().Add(time.Hour))
	if got := mustClaim(t, conn, worker, "q", 10); len(got) > 0 {
		t.Fatalf("claimed %v, while job %d waits for its next attempt", got, ids[0])
	}
	promoteUpto(t, conn, time.Now().Add(2*time.Hour))
	end(one(ids[0]), "completed", time.Time{})
	openNext(t, conn, fill)
	until(t, "the log has forgotten the job", func() bool {
		exec(t, conn, `SELECT weir._reclaim(s) FROM generate_series(1, 4) s WHERE s <> pg_sequence_last_value('weir.active_job')`)
		return value[int](t, conn, `SELECT count(*) FROM weir.job WHERE id = $1`, ids[0]) == 0
	})
	if n := value[int](t, conn, `SELECT count(*) FROM weir.later WHERE id = $1`, ids[0]); n != 1 {
		t.Fatalf("weir.later has %d rows of the job, and the test proves nothing", n)
	}
	one(ids[1])
}
