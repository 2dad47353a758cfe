package worker

import (
	"context"
	"time"
)

// reconciler compares the attempts that this session holds with those that the database says it holds. Attempts unknown to the session are
// released, since they come from a claim whose answer was lost, or from a result that a failover undid. The fetcher owns it,
// because no claim may be in progress.
type reconciler struct {
	*session
	connections int64         // number of connections made until the last comparison: a new one may lead to another server
	compared    time.Time     // time of the last comparison
	took        time.Duration // duration of the last comparison
	claims      int           // claims that returned jobs since the last comparison
	calm        bool          // the last comparison had no cause for doubt, and found no differences
}

// doubt records that a claim without an answer may have been made.
func (r *reconciler) doubt() { r.doubtful = true }

// due reports whether to compare: after a failed claim; after a new connection; and at least once a lease, because a claim may wait in a
// socket and be made only later, and because behind a pooler, one server may replace another. While a session attends, once in several
// leases is enough: its end would have reported that. It also compares after a number of claims, because listing running jobs examines
// everything claimed since the last comparison; but comparing takes no more than a small part of the time.
func (r *reconciler) due() bool {
	every := r.Lease
	if r.calm && r.attends.Load() {
		every *= calmLeases
	}
	if r.claims >= comparedClaims && time.Since(r.compared) > 20*r.took {
		return true
	}
	return r.doubtful || r.shaken.Load() || r.Store.Pool().Stat().NewConnsCount() != r.connections || time.Since(r.compared) > every
}

const (
	calmLeases     = 4
	comparedClaims = 1000
)

// compare compares the attempts if that is due.
func (r *reconciler) compare(ctx context.Context) error {
	if !r.due() {
		return nil
	}
	connections := r.Store.Pool().Stat().NewConnsCount()
	calm := !r.doubtful && !r.shaken.Load() && connections == r.connections
	ctx, cancel := outlasting(ctx, claimTimeout)
	defer cancel()
	r.shaken.Store(false)
	began := time.Now()
	total, err := r.releaseUnknown(ctx)
	if err != nil {
		r.doubtful = true
		return err
	}
	r.connections, r.compared, r.doubtful, r.calm = connections, time.Now(), false, calm && total == 0
	r.took, r.claims = time.Since(began), 0
	return nil
}

// releaseUnknown releases the attempts that only the database considers held by this session, and returns how many. No claim may be in progress, except one without an answer, which it
// waits for.
func (s *session) releaseUnknown(ctx context.Context) (total int, err error) {
	for next := new(int64); next != nil; {
		// Call held again for each step: results recorded since then need no lookup.
		released := 0
		if released, next, err = s.Store.Reconcile(ctx, s.id, s.held(), *next); err != nil {
			return total, err
		}
		total += released
	}
	if total > 0 {
		s.Log.Warn("weir: released jobs that only the database considered claimed by this worker: the answer to a claim was lost, or the server lost results", "worker", s.id, "jobs", total)
	}
	return total, nil
}
