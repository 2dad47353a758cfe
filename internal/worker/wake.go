package worker

import (
	"context"
	"time"

	"github.com/weir-pg/weir/internal/store"
)

// watch decides whether there may be work, with polls that read no table.
//
// Every transaction that logs a job first receives its xid and then increments the counter in Probe.Jobs. A poll reads the counter, then
// takes a snapshot, then reads the next xid to be assigned (Probe.Upto). So every transaction that contributed to the counter has an xid
// below Upto, and in the snapshot it either has ended or has not. A claim after the poll finds the jobs of those that have ended. For the
// others, watch keeps the snapshot and the bound, and requests another claim whenever one of them ends, that is, an xid below Upto which
// has not ended in the kept snapshot but has in a later one. This also covers the newest transaction, which no snapshot lists until a newer
// one has ended. Transactions that increment the counter later move it. The same holds for the counter of cancellations and new queues. No
// poll consumes an xid.
type watch struct {
	store *store.Store
	known store.Probe // the state up to which claims have followed
}

// poll polls, up to polls times, and reports whether anything has changed, and whether that may concern running jobs. After a change, the
// caller claims.
func (w *watch) poll(ctx context.Context, polls int, pause time.Duration) (changed, control bool, err error) {
	seen, ended, err := w.store.Watch(ctx, w.known, polls, pause)
	if err != nil {
		return false, false, err
	}
	control = ended || seen.Control != w.known.Control
	changed = control || seen.Jobs != w.known.Jobs
	if changed {
		w.known = seen
	}
	return changed, control, nil
}

// pollOn is poll for a worker that may stop meanwhile, which waits for the answer as for those of its other calls.
func (w *watch) pollOn(ctx context.Context, polls int, pause time.Duration) (changed, control bool, err error) {
	ctx, cancel := outlasting(ctx, claimTimeout)
	defer cancel()
	return w.poll(ctx, polls, pause)
}
