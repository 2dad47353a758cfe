package worker

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/weir-pg/weir/internal/sealed"
	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/store"
)

const (
	// flushEvery is the shortest time between two flushes: attempts that end within it share a commit.
	flushEvery = 25 * time.Millisecond
	// flushSoon is that time while limits withhold jobs, which wait for the ends, and for ends that somebody waits for.
	flushSoon = 2 * time.Millisecond
	// The maximum ends per call. Plain successes are cheap; other ends have texts, or attempts that follow.
	maxPlain, maxOther = store.MaxRecord, 1000
	// maxOtherBytes limits the text of one call with more than one end.
	maxOtherBytes = 8 << 20
	// busyFor is the pause before the next try to record an attempt that its handler's open transaction may still complete.
	busyFor = 100 * time.Millisecond
	// lazily is how long ends may wait that handlers' transactions have recorded. They are only checked, and a call costs the server the same for one as for
	// a hundred; it also keeps transactions of this worker from completing others meanwhile. No more than mostLazy wait.
	lazily   = 250 * time.Millisecond
	mostLazy = 500
	// With this many unrecorded ends, or bytes of text in them, the worker stops claiming.
	maxUnrecorded      = 20_000
	maxUnrecordedBytes = 64 << 20
)

// ending says how a task ended. A plain success, the usual case, has none.
type ending struct {
	outcome     store.Outcome
	err, output *string
	after       *time.Duration
	inTx        bool  // completed in the handler's transaction: if that was committed, the attempt has ended already, as completed
	again       int   // number of times the database refused it as invalid
	why         error // why the outcome is not the handler's; nil: it is
	sealed      bool  // err is encrypted
	told        func(store.Outcome, error)
	found       func()
}

// plain reports whether a task ended like nearly all do: with success, and nothing else to record.
func (t *Task) plain() bool {
	return t.ending == nil || t.ending.outcome == store.Completed && t.ending.err == nil && t.ending.output == nil
}

// checked reports whether a task's handler says that its transaction has recorded its end, which is only to be checked.
func (t *Task) checked() bool {
	return t.ending != nil && t.ending.inTx && t.ending.why == errNotCommitted
}

// bytes returns the size of the texts in a task's end.
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

// end returns a task's end in the form in which it is recorded.
func (t *Task) end() store.End {
	if e := t.ending; e != nil {
		return store.End{Batch: t.Batch, ID: t.ID, Outcome: e.outcome, Error: e.err, Output: e.output, After: e.after}
	}
	return store.End{Batch: t.Batch, ID: t.ID, Outcome: store.Completed}
}

// completer records the ends of tasks. add never blocks. The number of unrecorded ends is bounded all the same, because claims wait for it.
type completer struct {
	s       *session
	mu      sync.Mutex
	ended   []*Task       // to be recorded
	inTx    []*Task       // recorded by their handlers' transactions, to be checked
	since   time.Time     // when the first of these ended
	lazy    bool          // these may wait
	spare   []*Task       // an empty buffer, swapped with ended at each flush
	jobs    int           // unrecorded ends, including those being sent
	bytes   int           // of text in them
	more    chan struct{} // signals that tasks have ended; never closed
	hurry   chan struct{} // signals that somebody waits for one of their ends; never closed
	idle    *sync.Cond    // on mu: no end is left, or recording is given up
	over    bool          // recording is given up
	closed  bool          // nothing is recorded any more
	telling chan struct{} // holds one element while Told functions are called
	ends    []store.End   // buffer for one call, owned by run
}

func newCompleter(s *session) *completer {
	c := &completer{s: s, more: make(chan struct{}, 1), hurry: make(chan struct{}, 1), telling: make(chan struct{}, 1)}
	c.idle = sync.NewCond(&c.mu)
	return c
}

// add queues a task's end.
func (c *completer) add(t *Task, r Result) {
	if r.Outcome != store.Completed || r.Err != nil || r.Output != nil || r.InTx || r.Told != nil {
		t.ending = newEnding(r)
	}
	if t.Flow != 0 && c.s.Maintainer != nil && t.checked() {
		c.s.Maintainer.Arrived() // its end is recorded already
	}
	c.push(1, t)
	if r.Soon {
		select {
		case c.hurry <- struct{}{}:
		default:
		}
	}
}

// signal tells run that tasks have ended.
func (c *completer) signal() {
	select {
	case c.more <- struct{}{}:
	default:
	}
}

func newEnding(r Result) *ending {
	e := &ending{outcome: r.Outcome, after: r.After, inTx: r.InTx, told: r.Told, found: r.Found}
	if r.InTx && r.Outcome == store.Completed {
		// The transaction recorded the end. This one takes effect only if the transaction was not committed.
		e.outcome, e.after, e.why = store.Retried, new(store.ByQueue), errNotCommitted
		r.Err, r.Output, r.Seal = errNotCommitted, nil, nil
	}
	if r.Output != nil {
		text, err := r.stored(sealed.Output, *r.Output, maxOutput)
		if e.output = &text; err != nil {
			// The job's effects may be complete, but nobody would learn its output.
			e.output, e.why = nil, fmt.Errorf("the output of the attempt could not be encrypted: %w", err)
			if e.outcome == store.Completed {
				e.outcome, e.after, r.Err, r.Seal = store.Retried, new(store.ByQueue), e.why, nil
			}
		}
	}
	if r.Err != nil {
		text, err := r.stored(sealed.Error, fmt.Sprint(r.Err), maxError) // Sprint, because an Error method may panic: of a nil pointer, for example
		if err != nil {
			text = clean("the error of this attempt could not be encrypted: "+fmt.Sprint(err), maxError)
		}
		e.err, e.sealed = &text, r.Seal != nil
	}
	return e
}

// StoredOutput returns an output as it is stored: shortened, and encrypted by seal; nil: it is not.
func StoredOutput(seal func(part sealed.Part, text string) (string, error), text string) (string, error) {
	return Result{Seal: seal}.stored(sealed.Output, text, maxOutput)
}

// StoredError returns the text of an error as it is stored: shortened.
func StoredError(text string) string { return clean(text, maxError) }

// stored returns a text as it is stored: shortened, and encrypted if the attempt is.
func (r Result) stored(part sealed.Part, text string, limit int) (stored string, err error) {
	if r.Seal == nil {
		return clean(text, limit), nil
	}
	// Encrypted data is stored in base64, four bytes for three, with its key. The server would cut off what is too long, and the rest would
	// be of no use.
	most := limit/4*3 - 1024
	for range 4 {
		if stored, err = r.Seal(part, clean(text, most)); err != nil || len(stored) <= limit {
			return stored, err
		}
		most /= 2
	}
	return "", fmt.Errorf("%d bytes were encrypted to %d, at most %d can be stored", min(len(text), most*2), len(stored), limit)
}

// push queues ends, of which fresh are new.
func (c *completer) push(fresh int, some ...*Task) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		c.tell(some, asLost)
		return
	}
	if c.lazy && fresh == 1 && some[0].checked() {
		if len(c.inTx) == 0 {
			c.since = time.Now()
		}
		c.inTx = append(c.inTx, some[0])
	} else {
		c.ended = append(c.ended, some...)
	}
	if c.jobs += fresh; fresh > 0 {
		c.bytes += some[0].bytes()
	}
	first := len(c.ended)+len(c.inTx) == len(some)
	c.mu.Unlock()
	if first {
		c.signal()
	}
}

// full reports whether so many ends are unrecorded that claims wait.
func (c *completer) full() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.jobs >= maxUnrecorded || c.bytes >= maxUnrecordedBytes
}

// run flushes until ctx ends.
func (c *completer) run(ctx context.Context) {
	c.mu.Lock()
	c.lazy = true
	c.mu.Unlock()
	for {
		select {
		case <-c.more:
		case <-ctx.Done():
			return
		}
		for c.flush(ctx) {
			if !c.gather(ctx) {
				return
			}
		}
	}
}

// gather lets ends gather; false: ctx has ended.
func (c *completer) gather(ctx context.Context) bool {
	if !sleep.For(ctx, flushSoon) {
		return false
	}
	if c.s.limited.Load() {
		return true
	}
	rest := time.NewTimer(flushEvery - flushSoon)
	defer rest.Stop()
	select {
	case <-rest.C:
	case <-c.hurry:
	case <-ctx.Done():
		return false
	}
	return true
}

// flush records all queued ends, except those that may wait; false: there were none.
func (c *completer) flush(ctx context.Context) bool {
	c.mu.Lock()
	some := c.ended
	c.ended = c.spare
	if !c.lazy || len(c.inTx) >= mostLazy || time.Since(c.since) >= lazily || c.s.limited.Load() {
		some = append(some, c.inTx...)
		clear(c.inTx)
		c.inTx = c.inTx[:0]
	}
	left := len(c.inTx) > 0
	c.mu.Unlock()
	if len(some) > 0 {
		c.s.reports.ends(ctx, some)
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
			n := min(len(rest), maxPlain)
			c.write(ctx, rest[:n])
			rest = rest[n:]
		}
		for len(other) > 0 {
			n := 1
			for bytes := other[0].bytes(); n < min(len(other), maxOther); n++ {
				if bytes += other[n].bytes(); bytes > maxOtherBytes {
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
	return len(some) > 0 || left
}

// drain waits until all ends are recorded, but no longer than limit.
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
	c.lazy = false
	for c.jobs > 0 && !c.over {
		c.idle.Wait()
	}
}

// write sends ends until the database has recorded them, or cannot.
func (c *completer) write(ctx context.Context, some []*Task) {
	slices.SortStableFunc(some, inOrder) // of two ends of one attempt, the first counts
	wait := c.s.backoff()
	for {
		c.s.Health.results.Beat()
		c.ends = c.ends[:0]
		for _, t := range some {
			c.ends = append(c.ends, t.end())
		}
		refusals, err := c.s.Store.Record(ctx, c.s.id, c.ends)
		clear(c.ends)                                           // frees the texts
		refused := store.IsRefused(err) && !store.IsDenied(err) // a role that was revoked is no fault of the ends, and may be granted again
		switch {
		case err == nil:
			c.s.Outage.Worked("results")
			c.settle(some, refusals)
			return
		case c.s.endedBy(err):
			c.done(some)
			c.tell(some, asLost)
			return
		case refused && len(some) > 1:
			// One of them has a fault that the function does not check for: record the others without waiting for it.
			c.write(ctx, some[:len(some)/2])
			c.write(ctx, some[len(some)/2:])
			return
		case refused:
			c.settle(some, []store.Refusal{{Place: 1, Why: store.Invalid, Detail: err.Error()}})
			return
		}
		c.s.shaken.Store(true)
		c.s.Outage.Failed("results", err)
		if !wait.sleep(ctx) {
			c.tell(some, asLost)
			return // the session is over, or gives these ends up
		}
	}
}

// inOrder sorts the ends of a batch next to each other, in the batch's order: the server then recognizes cheaply that a whole batch has
// ended.
func inOrder(a, b *Task) int {
	switch {
	case a.batch == b.batch:
		return int(a.place - b.place)
	case a.Lane != b.Lane:
		return cmp.Compare(a.Lane, b.Lane)
	}
	return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.place, b.place))
}

// settle removes recorded ends, and handles refused ones.
func (c *completer) settle(some []*Task, refused []store.Refusal) {
	if len(refused) == 0 {
		c.done(some)
		c.arrived(some)
		c.tell(some, asRecorded)
		return
	}
	why := map[int]store.Refusal{}
	for _, r := range refused {
		why[r.Place-1] = r
	}
	lost := 0
	var recorded, busy, replaced, found, dropped []*Task
	for i, t := range some {
		r, isRefused := why[i]
		if r.Outcome != "" && t.ending != nil {
			if r.Why == store.HasEnded && !sameEnd(r.Outcome, t.ending.outcome) {
				t.ending.why = ErrEnded
			}
			t.ending.outcome = r.Outcome
		}
		switch {
		case !isRefused || r.Why == "":
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
			c.s.Log.Error("weir: the database refused a result", "worker", c.s.id, "job", t.ID, "error", r.Detail)
			if c.replace(t, r.Detail) {
				replaced = append(replaced, t)
			} else {
				dropped = append(dropped, t) // nothing can be recorded for it
			}
		}
	}
	if lost > 0 {
		c.s.Log.Warn("weir: results dropped: the server lost the claim in a crash, and the jobs run again", "worker", c.s.id, "jobs", lost)
	}
	c.done(slices.Concat(recorded, found, dropped))
	c.arrived(some)
	c.tell(recorded, asRecorded)
	c.tell(found, asFound)
	c.tell(dropped, asLost)
	if len(replaced) > 0 {
		c.push(0, replaced...)
	}
	if len(busy) > 0 {
		time.AfterFunc(busyFor, func() { c.push(0, busy...) })
	}
}

// sameEnd reports whether the outcome that the database has may be that of the same end: a failure that was to be retried is one for good after the last attempt.
func sameEnd(found, sent store.Outcome) bool {
	return found == sent || found == store.Failed && sent == store.Retried
}

// arrived signals that members of flows have ended, if some have.
func (c *completer) arrived(some []*Task) {
	if c.s.Maintainer != nil && slices.ContainsFunc(some, func(t *Task) bool { return t.Flow != 0 && !t.checked() }) {
		c.s.Maintainer.Arrived()
	}
}

// replace gives a task an end that can be stored, because its own cannot: a failure that is retried, and if that is refused too, one for
// good. Otherwise the job would be claimed again forever. It returns false if both have been tried.
func (c *completer) replace(t *Task, detail string) bool {
	if t.ending == nil {
		t.ending = &ending{outcome: store.Completed}
	}
	e := t.ending
	text := "the result of this attempt could not be recorded: " + ascii(detail)
	switch e.again++; {
	case e.again == 1 && e.outcome != store.Failed:
		if e.outcome = store.Retried; e.err != nil && !e.sealed {
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

// done removes ended attempts from those that the session holds.
func (c *completer) done(some []*Task) {
	c.s.recorded(some)
	select {
	case c.s.released <- struct{}{}:
	default:
	}
	bytes := 0
	for _, t := range some {
		bytes += t.bytes()
	}
	c.mu.Lock()
	before := c.jobs >= maxUnrecorded || c.bytes >= maxUnrecordedBytes
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

// ascii reduces a text to ASCII, which every database can store, whatever its encoding.
func ascii(text string) string {
	b := []byte(clean(text, maxError/2))
	for i, c := range b {
		if c < ' ' && c != '\n' && c != '\t' || c > '~' {
			b[i] = '?'
		}
	}
	return string(b)
}
