package weir

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/store"
)

// Assign gives all slots that no database owns to the router's databases, in equal parts: of a new set of databases, all. Slots that have moved to one which does not know of it any
// more, because it was set back, are given to that one. All databases must be reachable. Call it once, from one place, such as what installs the schema; once more does nothing.
func (r *Router) Assign(ctx context.Context) error {
	said, errs := r.said(ctx)
	if err := r.all(errs); err != nil {
		return err
	}
	for _, part := range r.unowned(said) {
		if part.at.client == nil {
			return fmt.Errorf("weir: slots %d to %d have moved to database %s, which is none of this router's: pass all databases to NewRouter", part.low, part.high, part.peer)
		}
		if assigned, err := part.at.client.store.AssignSlots(ctx, part.low, part.high, part.epoch); err != nil {
			return wrap("assign slots", err, "weir_operate")
		} else if !assigned {
			return fmt.Errorf("weir: slots %d to %d were assigned or moved meanwhile: call Assign again", part.low, part.high)
		}
	}
	r.look(ctx, everySlot)
	return nil
}

// unownedSlots are slots that follow one another, and which nobody owns.
type unownedSlots struct {
	low, high int
	epoch     int64  // to own them with
	at        routed // who is to own them; without a client: none of the router's databases
	peer      string // to which they have moved; "": they were never owned
}

// unowned returns the slots that nobody owns, and who is to own them. Where one has left them, it is the database to which they have moved last.
func (r *Router) unowned(said [][]store.SlotRange) (parts []unownedSlots) {
	order := slices.Clone(r.databases) // the same wherever it is called
	slices.SortFunc(order, func(a, b routed) int { return strings.Compare(a.id, b.id) })
	var left [Slots]*store.SlotRange
	for _, ranges := range said {
		for slot, s := range newest(ranges) {
			if s != nil && s.State == store.SlotsLeft && (left[slot] == nil || s.Epoch > left[slot].Epoch) {
				left[slot] = s
			}
		}
	}
	for slot, c := range claims(said) {
		if c.at != slotUnowned {
			continue
		}
		// The first slot of part n is n*Slots/len(order).
		this := unownedSlots{low: slot, high: slot, epoch: 1, at: order[((slot+1)*len(order)-1)/Slots]}
		if s := left[slot]; s != nil {
			n := slices.IndexFunc(order, func(d routed) bool { return d.id == s.Peer })
			if this.epoch, this.peer, this.at = s.Epoch+1, s.Peer, (routed{}); n >= 0 {
				this.at = order[n]
			}
		}
		if n := len(parts) - 1; n >= 0 && parts[n].high == slot-1 && parts[n].at == this.at && parts[n].epoch == this.epoch && parts[n].peer == this.peer {
			parts[n].high = slot
		} else {
			parts = append(parts, this)
		}
	}
	return parts
}

// all returns an error that names the databases that could not be asked; nil: all were.
func (r *Router) all(errs []error) error {
	var all []error
	for n, err := range errs {
		if err != nil {
			all = append(all, fmt.Errorf("weir: ask database %s which slots it owns: %w", r.databases[n].id, explain(err, "weir_operate")))
		}
	}
	return errors.Join(all...)
}

// SlotOwner says who owns some slots, which follow one another.
type SlotOwner struct {
	Low, High int     // the first and the last
	Client    *Client // of the database that owns them; nil: none does, or they are moving
	Database  string  // the id of that database: of its cluster, and of the database in it
	Moving    bool    // they are moving to another database
}

// Owners returns who owns which slots, in their order, as the databases say now. Those of databases that can't be reached are missing, with an error.
func (r *Router) Owners(ctx context.Context) (owners []SlotOwner, err error) {
	said, errs := r.said(ctx)
	t := r.judge(said, errs)
	for slot, at := range t.owners {
		if n := len(owners); n > 0 && t.owners[slot-1] == at {
			owners[n-1].High = slot
			continue
		}
		o := SlotOwner{Low: slot, High: slot, Moving: at == slotMoving}
		if at >= 0 {
			o.Client, o.Database = r.databases[at].client, r.databases[at].id
		}
		owners = append(owners, o)
	}
	return owners, r.all(errs)
}

// MoveProgress says how far a move of slots is.
type MoveProgress struct {
	Producers int // transactions that may still enqueue jobs of these slots where they were, and are waited for
	Running   int // jobs that run where they were, and are waited for
	Departed  int // jobs that this call has taken out of the log where they were
	Arrived   int // jobs that this call has logged where they are to be
}

// Move moves the slots from low to high, with the unfinished jobs whose keys are in them, from the database that owns them to another one of the router. Meanwhile routers enqueue
// none of their jobs, but wait. It waits for transactions that have enqueued some and are still open, and for the jobs that run, which end where they are; then it copies those that
// wait, are scheduled or are to be tried again, with their attempts, errors and checkpoints, under new ids; and then the other database owns the slots. No job is lost, or
// logged twice. Meanwhile workers go on with those that have not left yet: see docs/many-databases.md for what that means for the order of a key, and for its limit.
//
// A move that was interrupted, however hard, is gone on with by the same call, of any router; two at once do no harm. Until it has ended, the slots are paused. Progress, unless nil, is
// called after each step.
//
// A move that has not ended is given up by moving the same slots to where they are: what has left the log there is logged again, and the database owns them as before. If that is
// interrupted, the move can only be given up, by the same call. Whoever still moves them gets an error. What has arrived in the other database stays there, and runs there; once all had left, that one is needed, too.
//
// What stays where it is: members of flows, and what was enqueued by other means than a router after the jobs had left; schedules; and jobs
// that have finished, so that those can be found, retried, and counted as duplicates (Unique.Within) only there. Limits, weights and settings belong to a database: set them
// in the other one before.
func (r *Router) Move(ctx context.Context, low, high int, to *Client, progress func(MoveProgress)) error {
	if low < 0 || high >= Slots || low > high {
		return fmt.Errorf("weir: slots are 0 to %d, got %d to %d", Slots-1, low, high)
	}
	at := slices.IndexFunc(r.databases, func(d routed) bool { return d.client == to })
	if at < 0 {
		return errors.New("weir: the database to which slots are to move is none of this router's: pass one of the clients that NewRouter got")
	}
	m := &move{low: low, high: high, to: r.databases[at], report: func(MoveProgress) {}}
	if progress != nil {
		m.report = progress
	}
	err := r.move(ctx, m, at)
	r.look(ctx, low)
	return wrap(fmt.Sprintf("move slots %d to %d to database %s", low, high, m.to.id), err, "weir_operate")
}

// move makes one step after another, each of which follows from what the databases say, until the slots are in the database to which they are to move.
func (r *Router) move(ctx context.Context, m *move, to int) error {
	lookedAgain := false
	for {
		said, errs := r.said(ctx)
		if err := r.all(errs); err != nil {
			return err // one that is not asked may own them
		}
		next, err := r.next(said, m, to)
		if err != nil && !lookedAgain {
			lookedAgain = true // another move may have ended after one database was asked, and before the next
			continue
		}
		if err != nil || next == nil {
			return err
		}
		lookedAgain = false
		if err := next(ctx); err != nil {
			return err
		}
	}
}

// next returns what is to be done next; nil: nothing, the slots are there.
func (r *Router) next(said [][]store.SlotRange, m *move, to int) (func(context.Context) error, error) {
	all := claims(said)
	owner, mixed := all[m.low], false
	for _, c := range all[m.low : m.high+1] {
		mixed = mixed || c.at != owner.at || c.from != owner.from
	}
	// What has begun comes first: a move to there, or one that is to be given up, or whose source does not know that another database has owned the slots since.
	for n, ranges := range said {
		s := newest(ranges)[m.low]
		if s == nil || s.Low != m.low || s.High != m.high || s.State != store.SlotsLeaving && s.State != store.SlotsCopying && s.State != store.SlotsReturning {
			continue
		}
		returning := s.State == store.SlotsReturning // it can't be gone on with
		switch {
		case mixed:
			return nil, fmt.Errorf("slots %d to %d leave database %s, and other databases own some of them: see Router.Owners, and move those to one database first", m.low, m.high, r.databases[n].id)
		case !returning && s.Peer == m.to.id && (owner.from == n || int(owner.at) == to):
			m.from, m.epoch = r.databases[n], m.above(said, n, to)
			return m.run, nil
		case n == to && (owner.from == n || owner.at >= 0), owner.from != n && owner.at >= 0 && (returning || r.databases[owner.at].id != s.Peer):
			return func(ctx context.Context) error { return r.giveUp(ctx, said, n, s, owner) }, nil
		}
	}
	for slot := m.low; slot <= m.high; slot++ {
		switch at := all[slot].at; {
		case at == slotMoving:
			return nil, fmt.Errorf("slot %d is moving already: let that move end first, by the same call with which it began; or give it up: move the same slots to where they are", slot)
		case at < 0:
			return nil, fmt.Errorf("slot %d is owned by none of the router's databases, or by several: see Router.Owners; if it was never owned, or its owner was set back, call Router.Assign", slot)
		case owner.at != at:
			return nil, fmt.Errorf("slots %d and %d belong to different databases: move them one after the other", m.low, slot)
		}
	}
	if int(owner.at) == to {
		return nil, nil
	}
	m.from, m.epoch = r.databases[owner.at], m.above(said, int(owner.at), to)
	return m.run, nil
}

// above returns an epoch that counts more than whatever the databases have said of the slots, apart from what the move itself has said where it comes from, and from what the other
// database owns.
func (m *move) above(said [][]store.SlotRange, from, to int) (epoch int64) {
	for n, ranges := range said {
		slots := newest(ranges)
		for _, s := range slots[m.low : m.high+1] {
			switch {
			case s == nil:
			case n == to && s.State == store.SlotsOwned, n == from && s.Peer == m.to.id && s.State != store.SlotsLeft:
				epoch = max(epoch, s.Epoch)
			default:
				epoch = max(epoch, s.Epoch+1)
			}
		}
	}
	return epoch
}

// giveUp gives up the move that database n has begun, and none that has followed it since n was asked: the slots stay there, unless another one owns them.
func (r *Router) giveUp(ctx context.Context, said [][]store.SlotRange, n int, s *store.SlotRange, c claim) error {
	from, peer, owner := r.databases[n].client.store, slices.IndexFunc(r.databases, func(d routed) bool { return d.id == s.Peer }), ""
	if c.at >= 0 {
		owner = r.databases[c.at].id
	}
	epoch := s.Epoch
	for _, ranges := range said {
		slots := newest(ranges)
		for _, k := range slots[s.Low : s.High+1] {
			if k != nil {
				epoch = max(epoch, k.Epoch)
			}
		}
	}
	for copied, upto := "", ""; ; {
		name, next, err := from.StaySlots(ctx, s.Move, epoch+1, owner, copied, upto)
		switch {
		case err != nil, name == "" && next == "":
			return err
		case name == "": // some have been logged again
			upto = next
			continue
		case peer < 0:
			return fmt.Errorf("slots %d to %d move to database %s, which may have some of their jobs, and is none of this router's: pass it to NewRouter, too", s.Low, s.High, s.Peer)
		}
		if upto, err = r.databases[peer].client.store.StopTaking(ctx, name); err != nil {
			return err
		}
		if upto == store.MoveDone {
			return from.ClearDeparted(ctx, s.Move)
		}
		copied = name
	}
}

// move is a move of slots. See schema/functions/slot_move.sql for its steps.
type move struct {
	low, high int
	from, to  routed
	epoch     int64  // with which the slots are owned there, at least
	copied    string // what it is called where jobs arrive
	report    func(MoveProgress)
	done      MoveProgress
}

func (m *move) run(ctx context.Context) error {
	from, to := m.from.client.store, m.to.client.store
	name, epoch, closed, err := from.LeaveSlots(ctx, m.low, m.high, m.to.id)
	if err != nil {
		return err
	}
	epoch = max(epoch, m.epoch)
	for m.copied = ""; m.copied == ""; {
		if !closed {
			if err := m.depart(ctx, name); err != nil {
				return err
			}
		}
		if m.copied, err = from.CloseSlots(ctx, name); err != nil {
			return err
		}
		if m.copied == "" && !sleep.For(ctx, moveMost) { // one that was claimed while others departed
			return context.Cause(ctx)
		}
	}
	for owns := false; !owns; { // again, if the other database is set back before it owns them
		upto, err := m.copy(ctx, name)
		if err == nil {
			owns, err = to.OwnSlots(ctx, m.low, m.high, epoch, m.copied, upto)
		}
		if err != nil {
			return err
		}
	}
	return from.ClearDeparted(ctx, name)
}

// depart takes all unfinished jobs out of the log, once nobody adds any.
func (m *move) depart(ctx context.Context, name string) error {
	from := m.from.client.store
	var holders []string // those that may not know yet that the slots leave, and none that have begun since
	for wait := moveFirst; ; wait = min(2*wait, moveMost) {
		var err error
		if holders, err = from.HoldersOfSlots(ctx, holders); err != nil {
			return err
		}
		m.done.Producers = len(holders)
		m.report(m.done)
		if len(holders) == 0 {
			break
		}
		if !sleep.For(ctx, wait) {
			return context.Cause(ctx)
		}
	}
	for wait := moveFirst; ; wait = min(2*wait, moveMost) {
		found, ran, after := 0, 0, ""
		for whole := false; !whole; { // from the beginning to the end
			departed, running, next, err := from.Depart(ctx, name, after)
			switch {
			case store.IsLockTimeout(err): // it locks what claims lock, and gives up before they have waited for long
				if !sleep.For(ctx, moveMost) {
					return context.Cause(ctx)
				}
				continue
			case err != nil:
				return err
			}
			found, ran = found+departed, max(ran, running)
			m.done.Departed, m.done.Running = m.done.Departed+departed, running
			m.report(m.done)
			after, whole = next, next == ""
		}
		if found == 0 && ran == 0 {
			return nil
		}
		if found > 0 {
			wait = moveFirst
		} else if !sleep.For(ctx, wait) {
			return context.Cause(ctx)
		}
	}
}

// copy logs the jobs that have departed in the other database. It returns the place up to which they have arrived there.
func (m *move) copy(ctx context.Context, name string) (upto string, err error) {
	upto, err = m.to.client.store.TakenUpto(ctx, m.copied)
	for err == nil && upto != store.MoveDone {
		var page []store.Departed
		if page, err = m.from.client.store.Departing(ctx, name, upto); err != nil || len(page) == 0 {
			break
		}
		jobs := make([]string, len(page))
		for i, d := range page {
			jobs[i] = d.Job
		}
		last := page[len(page)-1].Place
		if upto, err = m.to.client.store.TakeIn(ctx, m.copied, upto, last, "["+strings.Join(jobs, ",")+"]"); err == nil && upto == last {
			m.done.Arrived += len(page)
			m.report(m.done)
		}
	}
	return upto, err
}
