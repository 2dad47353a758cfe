package weir

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/weir-pg/weir/internal/store"
)

const (
	askSlots  = 10 * time.Second // a database may take to say which slots it owns
	slowSlots = time.Second      // others are waited for, while somebody waits for a slot of which something is known
	everySlot = -1
)

// answer is what a database has said of slots. What one that is silent said last counts on: if it does not own them any more, another one says so, with a greater epoch.
type answer struct {
	said  []store.SlotRange
	err   error     // of the last time that it was asked
	asked time.Time // when that was; zero: it has not answered yet

	busy   bool      // it is being asked
	wanted time.Time // somebody wants an answer to a question that is not older
}

// slotTable says who owns each slot.
type slotTable struct {
	owners [Slots]int16 // the place of the database in Router.databases; or one of those below
	unread []string     // ids of databases that could not be asked, and why
}

const (
	slotUnowned  int16 = -1
	slotMoving   int16 = -2
	slotDisputed int16 = -3
)

// look asks the databases which slots they own. It waits until the one that owns a slot has said so, or all have answered; but no longer than a second for those of which the
// slot is known to be, or to move from. What others answer later is known then.
func (r *Router) look(ctx context.Context, slot int) {
	began := time.Now()
	r.mu.Lock()
	for n := range r.databases {
		r.ask(context.WithoutCancel(ctx), n, began)
	}
	r.mu.Unlock()
	slow := time.NewTimer(slowSlots)
	defer slow.Stop()
	for late := false; ; {
		r.mu.Lock()
		changed, enough := r.changed, r.isEnough(slot, began, late)
		r.mu.Unlock()
		if enough {
			break
		}
		select {
		case <-changed:
		case <-slow.C:
			late = true
		case <-ctx.Done():
			return
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isOld {
		r.known, r.isOld = r.judge(r.heard()), false
	}
}

// ask has a database asked, unless it is being asked what is not older. The caller holds mu.
func (r *Router) ask(ctx context.Context, n int, since time.Time) {
	a := &r.answers[n]
	if since.After(a.wanted) {
		a.wanted = since
	}
	if a.busy {
		return
	}
	a.busy = true
	go r.asks(ctx, n) // ends when the database has answered, or not within askSlots, and nobody wants to know more
}

func (r *Router) asks(ctx context.Context, n int) {
	for again := true; again; {
		at := time.Now()
		said, err := r.slotsOf(ctx, n)
		r.mu.Lock()
		a := &r.answers[n]
		if err == nil {
			a.said = said
		}
		a.err, a.asked, r.isOld = err, at, true
		again = at.Before(a.wanted)
		a.busy = again
		close(r.changed)
		r.changed = make(chan struct{})
		r.mu.Unlock()
	}
}

func (r *Router) slotsOf(ctx context.Context, n int) ([]store.SlotRange, error) {
	ctx, cancel := context.WithTimeout(ctx, askSlots)
	defer cancel()
	return r.databases[n].client.store.Slots(ctx)
}

// isEnough reports whether enough has been answered since then to know where a slot is. The caller holds mu.
func (r *Router) isEnough(slot int, since time.Time, late bool) bool {
	all := true
	for n := range r.answers {
		all = all && !r.answers[n].asked.Before(since)
	}
	if all || slot == everySlot {
		return all
	}
	said, _ := r.heard()
	switch at := ownerOf(said, slot); at {
	case slotUnowned, slotDisputed:
		return false
	case slotMoving:
		return late
	default:
		a := &r.answers[at]
		return late || a.err == nil && !a.asked.Before(since)
	}
}

// heard returns what each database has said last, and why some have said nothing. The caller holds mu.
func (r *Router) heard() (said [][]store.SlotRange, errs []error) {
	said, errs = make([][]store.SlotRange, len(r.answers)), make([]error, len(r.answers))
	for n := range r.answers {
		if said[n] = r.answers[n].said; said[n] == nil {
			errs[n] = r.answers[n].err
		}
	}
	return said, errs
}

// said asks all databases, and returns what each says about slots, or why it does not.
func (r *Router) said(ctx context.Context) (said [][]store.SlotRange, errs []error) {
	said, errs = make([][]store.SlotRange, len(r.databases)), make([]error, len(r.databases))
	var all sync.WaitGroup
	for n := range r.databases {
		all.Go(func() { said[n], errs[n] = r.slotsOf(ctx, n) })
	}
	all.Wait()
	return said, errs
}

// claim is what the databases say together about a slot.
type claim struct {
	at    int16 // who owns it
	from  int   // the database that says so, or that it moves from there
	epoch int64
}

// claims finds out who owns each slot: of those that say so, or that it moves from there, the one with the greatest epoch. That is the newest, also after one was set back.
func claims(said [][]store.SlotRange) *[Slots]claim {
	var all [Slots]claim
	for slot := range all {
		all[slot] = claim{at: slotUnowned, from: -1}
	}
	for n, ranges := range said {
		for slot, s := range newest(ranges) {
			all[slot].hear(n, s)
		}
	}
	return &all
}

// ownerOf returns who owns a slot.
func ownerOf(said [][]store.SlotRange, slot int) int16 {
	c := claim{at: slotUnowned, from: -1}
	for n, ranges := range said {
		c.hear(n, lastOf(ranges, slot))
	}
	return c.at
}

// lastOf returns what a database says about a slot: of what it says, the last counts; nil: nothing.
func lastOf(ranges []store.SlotRange, slot int) *store.SlotRange {
	for i := len(ranges) - 1; i >= 0; i-- {
		if s := &ranges[i]; slot >= s.Low && slot <= s.High {
			return s
		}
	}
	return nil
}

// hear hears what one more database says about the slot; nil: nothing.
func (c *claim) hear(n int, s *store.SlotRange) {
	if s == nil || s.State == store.SlotsLeft || s.Epoch < c.epoch {
		return
	}
	owned := s.State == store.SlotsOwned
	switch {
	case s.Epoch > c.epoch, owned && c.at == slotMoving:
		if c.at, c.from = slotMoving, n; owned {
			c.at = int16(n)
		}
	case owned: // another one says the same
		c.at = slotDisputed
	}
	c.epoch = s.Epoch
}

// judge makes a table of what databases have said.
func (r *Router) judge(said [][]store.SlotRange, errs []error) (t slotTable) {
	for slot, c := range claims(said) {
		t.owners[slot] = c.at
	}
	for n, err := range errs {
		if err != nil {
			t.unread = append(t.unread, fmt.Sprintf("%s (%v)", r.databases[n].id, explain(err, "weir_enqueue")))
		}
	}
	return t
}

// newest returns what a database says about each slot; nil: nothing.
func newest(ranges []store.SlotRange) (slots [Slots]*store.SlotRange) {
	for i, s := range ranges {
		for slot := max(s.Low, 0); slot <= min(s.High, Slots-1); slot++ {
			slots[slot] = &ranges[i]
		}
	}
	return slots
}

// leftError says that nobody owns a slot, although one has left it to another of the router's databases: it may have said so after it had left, and the other one before it
// had arrived there; or the move was interrupted in between.
type leftError struct{ error }

// hasLeft reports whether a database has said that a slot has left it to another one of the router's. The caller holds mu.
func (r *Router) hasLeft(slot int) bool {
	return slices.ContainsFunc(r.answers, func(a answer) bool {
		s := lastOf(a.said, slot)
		return s != nil && s.State == store.SlotsLeft && slices.ContainsFunc(r.databases, func(d routed) bool { return d.id == s.Peer })
	})
}

// owner returns who owned a slot when the databases were asked last.
func (r *Router) owner(slot int) (routed, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch at := r.known.owners[slot]; at {
	case slotMoving:
		return routed{}, ErrMoving
	case slotDisputed:
		return routed{}, fmt.Errorf("weir: several databases say that they own slot %d, with the same epoch, as copies of one do: leave out the copy", slot)
	case slotUnowned:
		if len(r.known.unread) > 0 {
			return routed{}, fmt.Errorf("weir: no database says that it owns slot %d, and some could not be asked: %v", slot, r.known.unread)
		}
		err := fmt.Errorf("weir: no database of this router owns slot %d: pass all databases to NewRouter, or, if they are new, call Router.Assign", slot)
		if r.hasLeft(slot) {
			err = &leftError{fmt.Errorf("%w; it has left one of them: if whoever moved it was killed, move the same slots to the same database again", err)}
		}
		return routed{}, err
	default:
		return r.databases[at], nil
	}
}
