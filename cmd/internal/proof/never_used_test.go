package proof

import (
	"slices"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestOnlyQueuesWithoutATraceOfJobsAreNeverUsed: not those whose jobs wait, are scheduled, or ended long ago and are gone.
func TestOnlyQueuesWithoutATraceOfJobsAreNeverUsed(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	smallSegments(t, conn)
	worker := startWorker(t, conn, "done", "empty", "filler")
	exec(t, conn, `SELECT weir.enqueue('waits', 'k'), weir.enqueue('scheduled', 'k', run_at => now() + interval '1 day')`)
	enqueueN(t, conn, "done", 3)
	mustComplete(t, conn, worker, mustClaim(t, conn, worker, "done", 3))
	openNext(t, conn, worker)
	rotateUntil(t, conn, "reclaimed job 1")
	if n := value[int](t, conn, `SELECT count(*) FROM weir.jobs('completed', 'done')`); n > 0 {
		t.Errorf("%d jobs are left of the segment that was reclaimed", n)
	}
	got := value[[]string](t, conn, `SELECT weir._never_used(ARRAY['waits', 'scheduled', 'unknown', 'done', 'empty'])`)
	if want := []string{"empty", "unknown"}; !slices.Equal(got, want) {
		t.Errorf("%q were never used, want %q", got, want)
	}
}
