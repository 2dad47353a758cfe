package worker

import (
	"context"
	"time"

	"github.com/weir-pg/weir/internal/store"
)

// watch decides, from looks that touch no table, whether there may be work.
//
// Every path that logs a job first gets its transaction's xid and then draws from the counter that
// Probe.Jobs shows. A look reads the counter, then takes a snapshot, then reads which xid would be given
// out next (Probe.Upto). So whoever had drawn up to the count has an xid below Upto, and has ended in the
// snapshot or not. A claim after the look finds the work of those that had ended; of the others, watch
// keeps snapshot and bound, and wants another claim whenever one of them has ended: whichever xid below
// Upto the kept snapshot does not see as ended, and a later one does. That holds also for the newest,
// which no snapshot lists before a newer one has ended. Transactions that draw later move the counter.
// The same holds of the counter of cancellations and new queues. No look uses up an xid.
type watch struct {
	store *store.Store
	known store.Probe // what claims have followed
}

// look looks, several times if need be, and tells whether anything has changed, and whether among it may
// be what running jobs must hear of. After a change the caller claims.
func (w *watch) look(ctx context.Context, looks int, pause time.Duration) (changed, control bool, err error) {
	seen, ended, err := w.store.Watch(ctx, w.known, looks, pause)
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
