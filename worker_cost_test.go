package weir_test

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAJobCostsAWorkerLittle counts the allocations of a worker for a job that does nothing: collecting them is most of the cost of such a
// job.
func TestAJobCostsAWorkerLittle(t *testing.T) {
	pgtest.Alone(t, "it counts what the whole process allocates")
	const jobs = 20_000
	r := newRig(t)
	all := make([]weir.NewJob, jobs)
	for i := range all {
		all[i].Args = number{i}
	}
	if _, err := r.client.EnqueueMany(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	var recorded atomic.Int64
	done := make(chan struct{})
	runtime.ReadMemStats(&before)
	stop := r.work(func(context.Context, *weir.Job[number]) error { return nil }, func(c *weir.WorkerConfig) {
		c.Queues = map[string]int{"default": 1000}
		c.Hooks = []weir.Hooks{{Recorded: func(n int, _ time.Duration) {
			if recorded.Add(int64(n)) == jobs {
				close(done)
			}
		}}}
	})
	select {
	case <-done:
	case <-time.After(deadline):
		t.Fatalf("%d of %d jobs were recorded", recorded.Load(), jobs)
	}
	runtime.ReadMemStats(&after)
	if err := stop(); err != nil {
		t.Error(err)
	}
	each, bytes := (after.Mallocs-before.Mallocs)/jobs, (after.TotalAlloc-before.TotalAlloc)/jobs
	t.Logf("%d allocations, %d bytes", each, bytes)
	if each > 15 || bytes > 1500 {
		t.Errorf("a job cost %d allocations and %d bytes, want at most 15 and 1500", each, bytes)
	}
}
