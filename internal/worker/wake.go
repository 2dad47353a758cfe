package worker

import (
	"context"
	"time"

	"github.com/weir-pg/weir/internal/store"
)

// watch decides, from looks that touch no table, whether there may be work.
//
// Every path that logs a job first gets its transaction's xid and then draws from the counter that
// Probe.Jobs shows. So when a look shows a count, the transactions that drew up to it either have ended
// before the look's snapshot, or are in progress, with an xid below any drawn later. A claim after the
// look finds the work of the first; of the second, watch keeps the list, and wants another claim
// whenever one of them has ended. Transactions that only came later move the counter. The same holds
// of the counter of cancellations and new queues.
type watch struct {
	store *store.Store
	known store.Probe // counters that claims have followed, and transactions that they may have missed
	alert bool        // a change was seen, and answered with a claim at once; it is not settled yet
}

// look looks, several times if need be, and tells whether anything has changed, and whether among it may
// be what running jobs must hear of. After a change the caller claims.
func (w *watch) look(ctx context.Context, looks int, pause time.Duration) (changed, control bool, err error) {
	seen, err := w.store.Watch(ctx, w.known, looks, pause)
	if err != nil {
		return false, false, err
	}
	control = seen.Control != w.known.Control || w.ended(seen.Running)
	changed = seen.Jobs != w.known.Jobs || control
	if !changed {
		return false, false, nil
	}
	// The first claim comes at once. If there is another look, settle the account before the next.
	if !w.alert {
		w.alert = true
		return true, control, nil
	}
	// Whoever had drawn by now has an xid below this one, and the look after it lists him.
	xid, err := w.store.NewXID(ctx)
	if err != nil {
		return false, false, err
	}
	after, err := w.store.Watch(ctx, store.Probe{}, 1, pause)
	if err != nil {
		return false, false, err
	}
	w.settle(seen, xid, after.Running)
	return true, control, nil
}

// settle notes what there is before the claim that follows. seen is the look whose counters had moved,
// xid was assigned after it, and running is of a look after that: so every transaction that had drawn
// by seen has an xid below xid, and stands in running if it has not ended.
func (w *watch) settle(seen store.Probe, xid uint64, running []uint64) {
	w.alert = false
	w.known = store.Probe{Jobs: seen.Jobs, Control: seen.Control}
	for _, x := range running {
		if x < xid {
			w.known.Running = append(w.known.Running, x)
		}
	}
}

// ended tells whether one of the transactions waited for is no longer among those running.
func (w *watch) ended(running []uint64) bool {
	is := make(map[uint64]bool, len(running))
	for _, x := range running {
		is[x] = true
	}
	for _, x := range w.known.Running {
		if !is[x] {
			return true
		}
	}
	return false
}
