package worker

import "github.com/weir-pg/weir/internal/store"

// watch decides from probes, which touch no table, whether there may be work.
//
// Every path that logs a job first gets its transaction's xid and then draws from the counter that
// Probe.Jobs shows. So when a probe shows a count, the transactions that drew up to it either have
// ended before the probe's snapshot, or are in progress, with an xid below any drawn later. A claim
// after the probe finds the work of the first; of the second, watch keeps the list, and wants another
// claim whenever one of them has ended. Transactions that only came later move the counter.
type watch struct {
	jobs    int64
	control int64
	pending map[uint64]struct{}
}

// look tells whether anything has changed since the last settle, and whether among it may be what
// running jobs must hear of.
func (w *watch) look(p store.Probe) (changed, control bool) {
	ended := false
	if len(w.pending) > 0 {
		still := 0
		for _, xid := range p.Running {
			if _, ok := w.pending[xid]; ok {
				still++
			}
		}
		ended = still < len(w.pending)
	}
	control = p.Control != w.control || ended
	return p.Jobs != w.jobs || control, control
}

// settle notes what there was before the claim that follows. seen is the probe whose counters had
// moved, xid was assigned after it, and running is of a probe after that: so every transaction that had
// drawn by seen has an xid below xid, and stands in running if it has not ended.
func (w *watch) settle(seen store.Probe, xid uint64, running []uint64) {
	w.jobs, w.control = seen.Jobs, seen.Control
	w.pending = map[uint64]struct{}{}
	for _, x := range running {
		if x < xid {
			w.pending[x] = struct{}{}
		}
	}
}
