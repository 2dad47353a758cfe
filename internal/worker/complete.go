package worker

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/weir-pg/weir/internal/store"
)

const (
	// flushEvery is the shortest time between two flushes: what ends meanwhile shares one commit.
	flushEvery = 10 * time.Millisecond
	// A call records so many ends at most: plain successes are cheap, others come with texts and with attempts that follow.
	plainMost, otherMost = store.RecordMost, 1000
	// otherBytes is how much text one call carries, if it is not all of one end.
	otherBytes = 8 << 20
	// busyFor is until the next try to record an attempt that a transaction of its handler's may still complete.
	busyFor = 100 * time.Millisecond
	// Past so many ends that are not recorded yet, or so many bytes of text in them, nothing more is claimed.
	unrecordedMost  = 20_000
	unrecordedBytes = 64 << 20
)

// entry is one end to be recorded.
type entry struct {
	task  *Task
	end   store.End
	inTx  bool // completed in a transaction of the handler's own: if that was committed, the attempt has its end
	again int  // how often it was refused for what it says
	told  func(store.Outcome, error)
}

func (e *entry) bytes() (n int) {
	for _, text := range []*string{e.end.Error, e.end.Output} {
		if text != nil {
			n += len(*text)
		}
	}
	return n
}

// completer records ends. add never blocks: what is not recorded yet is bounded, for claims wait for it.
type completer struct {
	s       *session
	mu      sync.Mutex
	entries []entry
	jobs    int           // ends that are not recorded yet, those on their way among them
	bytes   int           // of text in them
	more    chan struct{} // entries were added; never closed
	idle    *sync.Cond    // on mu: nothing is left, or it is given up
	over    bool          // it is given up
	closed  bool          // nothing is recorded any more
	telling chan struct{} // holds one while ends are told
}

func newCompleter(s *session) *completer {
	c := &completer{s: s, more: make(chan struct{}, 1), telling: make(chan struct{}, 1)}
	c.idle = sync.NewCond(&c.mu)
	return c
}

// add takes an end in.
func (c *completer) add(t *Task, r Result) {
	e := entry{task: t, inTx: r.InTx, told: r.Told, end: store.End{Batch: t.Batch, ID: t.ID, Outcome: r.Outcome, After: r.After}}
	if r.InTx {
		// It has its end, unless the transaction was not committed: then it gets this one.
		e.end = store.End{Batch: t.Batch, ID: t.ID, Outcome: store.Retried}
		r.Err, r.Output = errNotCommitted, nil
	}
	if r.Err != nil {
		text := clean(r.Err.Error(), errorMost)
		e.end.Error = &text
	}
	if r.Output != nil {
		text := clean(*r.Output, outputMost)
		e.end.Output = &text
	}
	c.push(1, e)
}

// push queues ends, of which so many are new.
func (c *completer) push(fresh int, some ...entry) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		c.tell(some, asLost)
		return
	}
	c.entries = append(c.entries, some...)
	if c.jobs += fresh; fresh > 0 {
		c.bytes += some[0].bytes()
	}
	first := len(c.entries) == len(some)
	c.mu.Unlock()
	if first {
		select {
		case c.more <- struct{}{}:
		default:
		}
	}
}

// full tells whether results are so far behind that claims wait for them.
func (c *completer) full() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.jobs >= unrecordedMost || c.bytes >= unrecordedBytes
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
	c.entries = nil
	c.mu.Unlock()
	if len(some) == 0 {
		return false
	}
	started := time.Now()
	var plain, other []entry
	for _, e := range some {
		if e.end.Outcome == store.Completed && e.end.Error == nil && e.end.Output == nil {
			plain = append(plain, e)
		} else {
			other = append(other, e)
		}
	}
	for len(plain) > 0 {
		n := min(len(plain), plainMost)
		c.write(ctx, plain[:n])
		plain = plain[n:]
	}
	for len(other) > 0 {
		n := 1
		for bytes := other[0].bytes(); n < min(len(other), otherMost); n++ {
			if bytes += other[n].bytes(); bytes > otherBytes {
				break
			}
		}
		c.write(ctx, other[:n])
		other = other[n:]
	}
	if c.s.Hooks.Recorded != nil {
		c.s.Hooks.Recorded(len(some), time.Since(started))
	}
	return true
}

// drain waits until everything is recorded, but no longer than limit.
func (c *completer) drain(limit time.Duration) {
	giveUp := func() {
		c.mu.Lock()
		c.over = true
		c.mu.Unlock()
		c.idle.Broadcast()
	}
	late := time.AfterFunc(limit, giveUp)
	defer late.Stop()
	done := make(chan struct{})
	defer close(done)
	go func() { // ends with drain
		select {
		case <-c.s.fenced: // nothing more can be recorded
			giveUp()
		case <-done:
		}
	}()
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.jobs > 0 && !c.over {
		c.idle.Wait()
	}
}

// write sends ends until the database has them, or cannot have them.
func (c *completer) write(ctx context.Context, some []entry) {
	some = inOrder(some)
	ends := make([]store.End, len(some))
	for i, e := range some {
		ends[i] = e.end
	}
	wait := c.s.backoff()
	for {
		refused, err := c.s.Store.Record(ctx, c.s.id, ends)
		switch {
		case err == nil:
			c.s.Outage.Worked("results")
			c.settle(some, refused)
			return
		case c.s.endedBy(err):
			c.done(some)
			c.tell(some, asLost)
			return
		case store.IsRefused(err) && len(some) > 1:
			// Something about one of them that the function does not judge: the others are not to wait for it.
			c.write(ctx, some[:len(some)/2])
			c.write(ctx, some[len(some)/2:])
			return
		case store.IsRefused(err):
			c.settle(some, []store.Refusal{{Place: 1, Why: store.Invalid, Detail: err.Error()}})
			return
		}
		c.s.shaken.Store(true)
		c.s.Outage.Failed("results", err)
		if !wait.sleep(ctx) {
			c.tell(some, asLost)
			return // the session is over, or gives these up
		}
	}
}

// inOrder puts the ends of a batch side by side, in its own order: where all of it has ended, that is found out at a glance.
func inOrder(some []entry) []entry {
	at := map[*batch]int{}
	var batches [][]uint64 // of each, a task's place in it and its entry's
	for i, e := range some {
		b, ok := at[e.task.batch]
		if !ok {
			b = len(batches)
			at[e.task.batch] = b
			batches = append(batches, make([]uint64, 0, min(len(e.task.batch.tasks), len(some)-i)))
		}
		batches[b] = append(batches[b], uint64(e.task.place)<<32|uint64(i))
	}
	ordered := make([]entry, 0, len(some))
	for _, b := range batches {
		slices.Sort(b)
		for _, k := range b {
			ordered = append(ordered, some[uint32(k)])
		}
	}
	return ordered
}

// settle takes recorded ends off, and deals with those refused.
func (c *completer) settle(some []entry, refused []store.Refusal) {
	why := map[int]store.Refusal{}
	for _, r := range refused {
		why[r.Place-1] = r
	}
	lost := 0
	recorded := make([]entry, 0, len(some))
	var busy, mended, found, dropped []entry
	for i, e := range some {
		r, isRefused := why[i]
		switch {
		case !isRefused:
			recorded = append(recorded, e)
		case r.Why == store.HasEnded:
			found = append(found, e)
		case r.Why == store.Busy:
			busy = append(busy, e)
		case r.Why == store.NotHeld:
			if e.inTx {
				found = append(found, e)
			} else {
				lost++
				dropped = append(dropped, e)
			}
		default:
			c.s.Log.Error("weir: a result was refused", "worker", c.s.id, "job", e.task.ID, "error", r.Detail)
			if e.again++; e.again > 1 {
				dropped = append(dropped, e) // given up: the job is handed out again when the books are compared
				continue
			}
			// What it says cannot be kept, so that is its end.
			text := "the result of this attempt could not be recorded: " + ascii(r.Detail)
			if e.end.Outcome = store.Retried; e.end.Error != nil {
				text += "; it was: " + ascii(*e.end.Error)
			}
			c.mu.Lock()
			c.bytes -= e.bytes()
			e.end.Error, e.end.Output = &text, nil
			c.bytes += e.bytes()
			c.mu.Unlock()
			mended = append(mended, e)
		}
	}
	if lost > 0 {
		c.s.Log.Warn("weir: results dropped: the server lost the claim in a crash, and the jobs are handed out again", "worker", c.s.id, "jobs", lost)
	}
	c.done(slices.Concat(recorded, found, dropped))
	c.tell(recorded, asRecorded)
	c.tell(found, asFound)
	c.tell(dropped, asLost)
	if len(mended) > 0 {
		c.push(0, mended...)
	}
	if len(busy) > 0 {
		time.AfterFunc(busyFor, func() { c.push(0, busy...) })
	}
}

// done takes ends off the books.
func (c *completer) done(some []entry) {
	tasks := make([]*Task, len(some))
	bytes := 0
	for i, e := range some {
		tasks[i] = e.task
		bytes += e.bytes()
	}
	c.s.recorded(tasks)
	c.mu.Lock()
	before := c.jobs >= unrecordedMost || c.bytes >= unrecordedBytes
	c.jobs -= len(some)
	c.bytes -= bytes
	if c.jobs == 0 {
		c.idle.Broadcast()
	}
	c.mu.Unlock()
	if before && !c.full() {
		c.s.tellRoom()
	}
}

// ascii is what every database can keep, whatever its encoding.
func ascii(text string) string {
	b := []byte(clean(text, errorMost/2))
	for i, c := range b {
		if c < ' ' && c != '\n' && c != '\t' || c > '~' {
			b[i] = '?'
		}
	}
	return string(b)
}
