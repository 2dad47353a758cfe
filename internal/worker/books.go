package worker

import (
	"context"
	"time"
)

// books compare the attempts that this session holds with those that the database says it holds. Attempts unknown to the session are
// released, since they come from a claim whose answer was lost, or from a result that a failover undid. The books are owned by the fetcher,
// because no claim may be in progress.
type books struct {
	*session
	connections int64         // number of connections made until the last comparison: a new one may lead to another server
	compared    time.Time     // time of the last comparison
	took        time.Duration // duration of the last comparison
	claims      int           // claims that returned jobs since the last comparison
	doubtful    bool
	calm        bool // the last comparison had no cause for doubt, and found no differences
}

// doubt records that a claim without an answer may have been made.
func (b *books) doubt() { b.doubtful = true }

// due reports whether to compare: after a failed claim; after a new connection; and at least once a lease, because a claim may wait in a
// socket and be made only later, and because behind a pooler, one server may replace another. While a session attends, once in several
// leases is enough: its end would have reported that. It also compares after a number of claims, because listing running jobs examines
// everything claimed since the last comparison; but comparing takes no more than a small part of the time.
func (b *books) due() bool {
	every := b.Lease
	if b.calm && b.attends.Load() {
		every *= calmLeases
	}
	if b.claims >= comparedClaims && time.Since(b.compared) > 20*b.took {
		return true
	}
	return b.doubtful || b.shaken.Load() || b.Store.Pool().Stat().NewConnsCount() != b.connections || time.Since(b.compared) > every
}

const (
	calmLeases     = 4
	comparedClaims = 1000
)

// compare compares the books if that is due.
func (b *books) compare(ctx context.Context) error {
	if !b.due() {
		return nil
	}
	connections := b.Store.Pool().Stat().NewConnsCount()
	calm := !b.doubtful && !b.shaken.Load() && connections == b.connections
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), claimTimeout)
	defer cancel()
	b.shaken.Store(false)
	began := time.Now()
	total, after := 0, int64(0)
	for {
		// Call held again for each step: results recorded since then need no lookup.
		released, next, err := b.Store.Reconcile(ctx, b.id, b.held(), after)
		if err != nil {
			b.doubtful = true
			return err
		}
		if total += released; next == nil {
			break
		}
		after = *next
	}
	if total > 0 {
		b.Log.Warn("weir: released jobs that only the database considered claimed by this worker: the answer to a claim was lost, or the server lost results", "worker", b.id, "jobs", total)
	}
	b.connections, b.compared, b.doubtful, b.calm = connections, time.Now(), false, calm && total == 0
	b.took, b.claims = time.Since(began), 0
	return nil
}
