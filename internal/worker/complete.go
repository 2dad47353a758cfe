package worker

import (
	"context"
	"sync"
	"time"

	"github.com/weir-pg/weir/internal/store"
)

const (
	// flushEvery is the shortest time between two flushes: what ends meanwhile shares one commit.
	flushEvery = 10 * time.Millisecond
	// flushMost bounds one flush, so that a backlog after a lost connection goes out in pieces.
	flushMost = 10_000
)

// entry is one end to be recorded.
type entry struct {
	task   *Task
	result Result
}

// completer records ends. add never blocks: what is not recorded yet is in flight, and bounded by the
// queues' concurrency.
type completer struct {
	s       *session
	mu      sync.Mutex
	entries []entry
	flying  bool          // a flush is on its way
	more    chan struct{} // entries were added; never closed
	idle    *sync.Cond    // on mu: nothing is left
}

func newCompleter(s *session) *completer {
	c := &completer{s: s, more: make(chan struct{}, 1)}
	c.idle = sync.NewCond(&c.mu)
	return c
}

func (c *completer) add(t *Task, r Result) {
	c.mu.Lock()
	c.entries = append(c.entries, entry{t, r})
	first := len(c.entries) == 1
	c.mu.Unlock()
	if first {
		c.wake()
	}
}

func (c *completer) wake() {
	select {
	case c.more <- struct{}{}:
	default:
	}
}

// run flushes until ctx ends.
func (c *completer) run(ctx context.Context) {
	for {
		select {
		case <-c.more:
		case <-ctx.Done():
			return
		}
		for c.flush(ctx) {
			if !sleep(ctx, flushEvery) {
				return
			}
		}
	}
}

// flush records what there is; false: there was nothing.
func (c *completer) flush(ctx context.Context) bool {
	c.mu.Lock()
	some := c.entries
	if len(some) > flushMost {
		some, c.entries = some[:flushMost:flushMost], some[flushMost:]
	} else {
		c.entries = nil
	}
	c.flying = len(some) > 0
	c.mu.Unlock()
	if len(some) > 0 {
		c.record(ctx, some)
	}
	c.mu.Lock()
	c.flying = false
	if len(c.entries) == 0 {
		c.idle.Broadcast()
	}
	c.mu.Unlock()
	return len(some) > 0
}

// drain waits until everything is recorded, but no longer than limit.
func (c *completer) drain(limit time.Duration) {
	late := time.AfterFunc(limit, func() {
		c.mu.Lock()
		c.entries, c.flying = nil, false
		c.mu.Unlock()
		c.idle.Broadcast()
	})
	defer late.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.entries) > 0 || c.flying {
		select {
		case <-c.s.fenced:
			return // nothing more can be recorded
		default:
		}
		c.idle.Wait()
	}
}

// record sorts ends by what they need, and writes them until the database has them.
func (c *completer) record(ctx context.Context, some []entry) {
	started := time.Now()
	var plain, rest []entry
	for _, e := range some {
		if e.result.InTx {
			if e = c.checkTx(ctx, e); e.result.InTx {
				c.s.recorded([]*Task{e.task})
				continue
			}
		}
		if e.result.Outcome == store.Completed && e.result.Output == nil {
			plain = append(plain, e)
		} else {
			rest = append(rest, e)
		}
	}
	c.write(ctx, plain, c.complete)
	c.write(ctx, rest, c.finish)
	if c.s.Hooks.Recorded != nil {
		c.s.Hooks.Recorded(len(some), time.Since(started))
	}
}

// checkTx asks whether an attempt that says it completed in its own transaction really did.
func (c *completer) checkTx(ctx context.Context, e entry) entry {
	wait := c.s.backoff()
	for {
		ended, err := c.s.Store.HasEnded(ctx, c.s.id, e.task.Batch, e.task.ID)
		if err == nil && !ended {
			e.result = Result{Outcome: store.Retried, Err: errNotCommitted}
		}
		if err == nil || ctx.Err() != nil || store.IsRefused(err) {
			return e
		}
		if !wait.sleep(ctx) {
			return e
		}
	}
}

// write calls send until the entries are recorded, or can't be: then they are dropped, and the attempts
// are run again by others. If one batch among them is lost, each batch is sent by itself; if one entry
// is refused, each entry is, so that it does not take others with it.
func (c *completer) write(ctx context.Context, some []entry, send func(context.Context, []entry) error) {
	if len(some) == 0 {
		return
	}
	wait := c.s.backoff()
	for {
		err := send(ctx, some)
		switch {
		case err == nil:
			c.s.Outage.Worked("results")
		case c.s.endedBy(err):
		case store.IsClaimLost(err):
			parts := byBatch(some)
			if len(parts) > 1 {
				for _, part := range parts {
					c.write(ctx, part, send)
				}
				return
			}
			c.s.Log.Warn("weir: results dropped: the server lost the claim in a crash, and the jobs are handed out again", "worker", c.s.id, "jobs", len(some))
		case store.IsRefused(err) && len(some) > 1:
			for i := range some {
				c.write(ctx, some[i:i+1], send)
			}
			return
		case store.IsRefused(err):
			// It stays on the books, so that the rescuer looks back as far as to its batch.
			c.s.Log.Error("weir: result refused: the attempt will be run again when this worker is gone", "worker", c.s.id, "job", some[0].task.ID, "error", err)
			return
		default:
			c.s.Outage.Failed("results", err)
			if wait.sleep(ctx) {
				continue
			}
		}
		tasks := make([]*Task, len(some))
		for i, e := range some {
			tasks[i] = e.task
		}
		c.s.recorded(tasks)
		return
	}
}

// complete sends plain successes: a row a batch.
func (c *completer) complete(ctx context.Context, some []entry) error {
	var batches []store.Batch
	var ids [][]int64
	at := map[store.Batch]int{}
	for _, e := range some {
		i, ok := at[e.task.Batch]
		if !ok {
			i = len(batches)
			at[e.task.Batch] = i
			batches = append(batches, e.task.Batch)
			ids = append(ids, make([]int64, 0, len(e.task.batch.tasks)))
		}
		ids[i] = append(ids[i], e.task.ID)
	}
	return c.s.Store.Complete(ctx, c.s.id, batches, ids)
}

// finish sends everything else, one by one in one transaction.
func (c *completer) finish(ctx context.Context, some []entry) error {
	ends := make([]store.End, len(some))
	for i, e := range some {
		ends[i] = store.End{Batch: e.task.Batch, ID: e.task.ID, Outcome: e.result.Outcome, Output: e.result.Output, After: e.result.After}
		if e.result.Err != nil {
			text := clean(e.result.Err.Error(), errorMost)
			ends[i].Error = &text
		}
		if ends[i].Output != nil {
			text := clean(*ends[i].Output, outputMost)
			ends[i].Output = &text
		}
	}
	return c.s.Store.Finish(ctx, c.s.id, ends)
}

func byBatch(some []entry) (parts [][]entry) {
	at := map[store.Batch]int{}
	for _, e := range some {
		i, ok := at[e.task.Batch]
		if !ok {
			i = len(parts)
			at[e.task.Batch] = i
			parts = append(parts, nil)
		}
		parts[i] = append(parts[i], e)
	}
	return parts
}
