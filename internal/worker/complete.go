package worker

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/store"
)

const (
	// flushEvery is the shortest time between two flushes: what ends meanwhile shares one commit.
	flushEvery = 25 * time.Millisecond
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

// ending is what there is to say of a task's end. A plain success, as nearly all are, has none.
type ending struct {
	outcome     store.Outcome
	err, output *string
	after       *time.Duration
	inTx        bool // completed in a transaction of the handler's own: if that was committed, the attempt has its end
	again       int  // how often it was refused for what it says
	told        func(store.Outcome, error)
}

// plain tells whether a task ended as nearly all do: without anything to say but that.
func (t *Task) plain() bool {
	return t.ending == nil || t.ending.outcome == store.Completed && t.ending.err == nil && t.ending.output == nil
}

// bytes is how much text there is in a task's end.
func (t *Task) bytes() (n int) {
	if t.ending == nil {
		return 0
	}
	for _, text := range []*string{t.ending.err, t.ending.output} {
		if text != nil {
			n += len(*text)
		}
	}
	return n
}

// end is a task's end as it is recorded.
func (t *Task) end() store.End {
	if e := t.ending; e != nil {
		return store.End{Batch: t.Batch, ID: t.ID, Outcome: e.outcome, Error: e.err, Output: e.output, After: e.after}
	}
	return store.End{Batch: t.Batch, ID: t.ID, Outcome: store.Completed}
}

// completer records the ends of tasks. add never blocks: what is not recorded yet is bounded, for claims wait for it.
type completer struct {
	s       *session
	mu      sync.Mutex
	ended   []*Task       // to be recorded
	spare   []*Task       // empty: what ended is in turn where the last flush's was
	jobs    int           // ends that are not recorded yet, those on their way among them
	bytes   int           // of text in them
	more    chan struct{} // some have ended; never closed
	idle    *sync.Cond    // on mu: nothing is left, or it is given up
	over    bool          // it is given up
	closed  bool          // nothing is recorded any more
	telling chan struct{} // holds one while ends are told
	ends    []store.End   // of a call: run's
}

func newCompleter(s *session) *completer {
	c := &completer{s: s, more: make(chan struct{}, 1), telling: make(chan struct{}, 1)}
	c.idle = sync.NewCond(&c.mu)
	return c
}

// add takes an end in.
func (c *completer) add(t *Task, r Result) {
	if r.Outcome != store.Completed || r.Err != nil || r.Output != nil || r.InTx || r.Told != nil {
		t.ending = newEnding(r)
	}
	c.push(1, t)
}

func newEnding(r Result) *ending {
	e := &ending{outcome: r.Outcome, after: r.After, inTx: r.InTx, told: r.Told}
	if r.InTx {
		// It has its end, unless the transaction was not committed: then it gets this one.
		e.outcome, e.after = store.Retried, nil
		r.Err, r.Output = errNotCommitted, nil
	}
	if r.Err != nil {
		text := clean(r.Err.Error(), errorMost)
		e.err = &text
	}
	if r.Output != nil {
		text := clean(*r.Output, outputMost)
		e.output = &text
	}
	return e
}

// push queues ends, of which so many are new.
func (c *completer) push(fresh int, some ...*Task) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		c.tell(some, asLost)
		return
	}
	c.ended = append(c.ended, some...)
	if c.jobs += fresh; fresh > 0 {
		c.bytes += some[0].bytes()
	}
	first := len(c.ended) == len(some)
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
			if !sleep.For(ctx, flushEvery) {
				return
			}
		}
	}
}

// flush records what there is; false: there was nothing.
func (c *completer) flush(ctx context.Context) bool {
	c.mu.Lock()
	some := c.ended
	c.ended = c.spare
	c.mu.Unlock()
	if len(some) > 0 {
		started := time.Now()
		plain := 0
		var other []*Task
		for _, t := range some {
			if t.plain() {
				some[plain] = t
				plain++
			} else {
				other = append(other, t)
			}
		}
		for rest := some[:plain]; len(rest) > 0; {
			n := min(len(rest), plainMost)
			c.write(ctx, rest[:n])
			rest = rest[n:]
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
	}
	clear(some)
	c.s.Health.results.Rest()
	c.mu.Lock()
	c.spare = some[:0]
	c.mu.Unlock()
	return len(some) > 0
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
func (c *completer) write(ctx context.Context, some []*Task) {
	slices.SortFunc(some, inOrder)
	wait := c.s.backoff()
	for {
		c.s.Health.results.Beat()
		c.ends = c.ends[:0]
		for _, t := range some {
			c.ends = append(c.ends, t.end())
		}
		refused, err := c.s.Store.Record(ctx, c.s.id, c.ends)
		clear(c.ends) // of texts
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

// inOrder has the ends of a batch side by side, in its own order: where all of it has ended, that is found out at a glance.
func inOrder(a, b *Task) int {
	switch {
	case a.batch == b.batch:
		return int(a.place - b.place)
	case a.Lane != b.Lane:
		return cmp.Compare(a.Lane, b.Lane)
	}
	return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.place, b.place))
}

// settle takes recorded ends off, and deals with those refused.
func (c *completer) settle(some []*Task, refused []store.Refusal) {
	if len(refused) == 0 {
		c.done(some)
		c.tell(some, asRecorded)
		return
	}
	why := map[int]store.Refusal{}
	for _, r := range refused {
		why[r.Place-1] = r
	}
	lost := 0
	var recorded, busy, mended, found, dropped []*Task
	for i, t := range some {
		r, isRefused := why[i]
		switch {
		case !isRefused:
			recorded = append(recorded, t)
		case r.Why == store.HasEnded:
			found = append(found, t)
		case r.Why == store.Busy:
			busy = append(busy, t)
		case r.Why == store.NotHeld:
			if t.ending != nil && t.ending.inTx {
				found = append(found, t)
			} else {
				lost++
				dropped = append(dropped, t)
			}
		default:
			c.s.Log.Error("weir: a result was refused", "worker", c.s.id, "job", t.ID, "error", r.Detail)
			if c.mend(t, r.Detail) {
				mended = append(mended, t)
			} else {
				dropped = append(dropped, t) // nothing can be recorded of it
			}
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

// mend gives a task another end, for what its own says cannot be kept: a failure, and where even that was refused one for good, or its job
// would be handed out for ever; false: it has had that already.
func (c *completer) mend(t *Task, detail string) bool {
	if t.ending == nil {
		t.ending = &ending{outcome: store.Completed}
	}
	e := t.ending
	text := "the result of this attempt could not be recorded: " + ascii(detail)
	switch e.again++; {
	case e.again == 1 && e.outcome != store.Failed:
		if e.outcome = store.Retried; e.err != nil {
			text += "; it was: " + ascii(*e.err)
		}
	case e.again <= 2:
		e.outcome, e.after = store.Failed, nil
	default:
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bytes -= t.bytes()
	e.err, e.output = &text, nil
	c.bytes += t.bytes()
	return true
}

// done takes ends off the books.
func (c *completer) done(some []*Task) {
	c.s.recorded(some)
	bytes := 0
	for _, t := range some {
		bytes += t.bytes()
	}
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
