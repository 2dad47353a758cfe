package weir_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestJobsThatWereClaimedAheadDoNotWaitBehindLongOnes: a worker claims short jobs ahead. When long ones take all its slots, it gives those back that wait, and another worker runs them.
func TestJobsThatWereClaimedAheadDoNotWaitBehindLongOnes(t *testing.T) {
	t.Parallel()
	const slots, short = 4, 200
	r := newRig(t)
	var started, done atomic.Int64
	release := make(chan struct{})
	run := func(_ context.Context, j *weir.Job[number]) error {
		if j.Args.N >= 0 {
			done.Add(1)
			return nil
		}
		started.Add(1)
		<-release
		return nil
	}
	concurrency := func(c *weir.WorkerConfig) { c.Queues = map[string]int{"default": slots} }
	r.work(run, concurrency)
	var once sync.Once
	end := func() { once.Do(func() { close(release) }) }
	t.Cleanup(end)
	for i := range short {
		r.enqueue(i, nil)
	}
	pgtest.Until(t, "the short jobs are done", func() bool { return done.Load() == short })
	tx, err := r.pool.Begin(t.Context()) // so that a claim finds them all
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 * slots {
		n := i
		if i < slots {
			n = -1
		}
		if _, err := r.client.EnqueueTx(t.Context(), tx, number{n}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	pgtest.Until(t, "the long jobs run", func() bool { return started.Load() == slots })
	r.work(run, concurrency)
	pgtest.Until(t, "another worker does the rest", func() bool { return done.Load() == short+2*slots })
}
