package weir_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/weir-pg/weir"
)

// TestABusyWorkersClaimsAreNotLookedThroughAgain: a listing of running jobs examines everything that a worker has claimed since its last
// reconciliation, so a busy worker reconciles without waiting for its lease.
func TestABusyWorkersClaimsAreNotLookedThroughAgain(t *testing.T) {
	t.Parallel()
	const jobs, batches = 3500, 1100 // of up to three jobs each
	r := newRig(t)
	all := make([]weir.NewJob, jobs)
	for i := range all {
		all[i].Args = number{i}
	}
	if _, err := r.client.EnqueueMany(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	stop := r.work(func(context.Context, *weir.Job[number]) error { return nil }, func(c *weir.WorkerConfig) {
		c.Queues, c.Lease = map[string]int{"default": 1}, 5*time.Minute
	})
	eventually(t, func() error {
		var all, since int
		if err := r.pool.QueryRow(t.Context(), `SELECT count(*), count(*) FILTER (WHERE b.no > coalesce((SELECT max(s.no) FROM weir.settled s WHERE s.worker = b.worker), 0))
			FROM weir.batch b`).Scan(&all, &since); err != nil {
			return err
		}
		if all < batches || since > all-900 {
			return fmt.Errorf("a listing of running jobs examines %[2]d of %[1]d batches, want at least %[3]d batches, and at least 900 of them not examined", all, since, batches)
		}
		return nil
	})
	if err := stop(); err != nil {
		t.Error(err)
	}
}
