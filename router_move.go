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

// Assign gives all slots that no database owns to the router's databases, in equal parts: of a new set of databases, all. All databases must be reachable. Call it once, from one
// place, such as what installs the schema; once more does nothing.
func (r *Router) Assign(ctx context.Context) error {
	said, errs := r.said(ctx)
	if err := r.all(errs); err != nil {
		return err
	}
	t := r.judge(said, errs)
	order := slices.Clone(r.databases) // the same wherever it is called
	slices.SortFunc(order, func(a, b routed) int { return strings.Compare(a.id, b.id) })
	for n, d := range order {
		first, last := n*Slots/len(order), (n+1)*Slots/len(order)-1
		for low := first; low <= last; low++ {
			high := low
			for ; high <= last && t.owners[high] == slotUnowned; high++ {
			}
			if high == low {
				continue
			}
			if assigned, err := d.client.store.AssignSlots(ctx, low, high-1); err != nil {
				return wrap("assign slots", err, "weir_operate")
			} else if !assigned {
				return fmt.Errorf("weir: slots %d to %d were assigned or moved meanwhile: call Assign again", low, high-1)
			}
			low = high
		}
	}
	r.look(ctx)
	return nil
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
	var err error
	if m.from, err = r.source(ctx, low, high, m.to); err == nil && m.from.client != nil {
		err = m.run(ctx)
	}
	r.look(ctx)
	return wrap(fmt.Sprintf("move slots %d to %d to database %s", low, high, m.to.id), err, "weir_operate")
}

// source returns the database from which slots move to another one; without a client: they are there already.
func (r *Router) source(ctx context.Context, low, high int, to routed) (from routed, err error) {
	said, errs := r.said(ctx)
	if err := r.all(errs); err != nil {
		return from, err // one that is not asked may own them
	}
	// A move that has begun, and whose source does not know yet that it has ended, is gone on with first.
	for n, ranges := range said {
		s := newest(ranges)[low]
		if s != nil && s.Low == low && s.High == high && s.Peer == to.id && (s.State == store.SlotsLeaving || s.State == store.SlotsCopying) {
			return r.databases[n], nil
		}
	}
	t := r.judge(said, errs)
	for slot := low; slot <= high; slot++ {
		switch at := t.owners[slot]; {
		case at == slotMoving:
			return from, fmt.Errorf("slot %d is moving already: let that move end first, by the same call with which it began", slot)
		case at < 0:
			return from, fmt.Errorf("slot %d is owned by none of the router's databases, or by several: see Router.Owners", slot)
		case t.owners[low] != at:
			return from, fmt.Errorf("slots %d and %d belong to different databases: move them one after the other", low, slot)
		}
	}
	if from = r.databases[t.owners[low]]; from.id == to.id {
		return routed{}, nil
	}
	return from, nil
}

// move is a move of slots. See schema/functions/slot_move.sql for its steps.
type move struct {
	low, high int
	from, to  routed
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
	for m.copied == "" {
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
