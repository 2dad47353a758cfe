package worker

import (
	"context"
	"time"
)

// books are compared with the database's: what it takes this session to hold and the session does not know of is handed out again, be it
// of a claim whose answer was lost, or of a result that a failover has undone. The fetcher owns them, for no claim may be under way.
type books struct {
	*session
	connections int64         // that had been made when they were last compared: a new one may lead to another server
	compared    time.Time     // when they last were
	took        time.Duration // to compare them then
	claims      int           // that brought something since then
	doubtful    bool
	calm        bool // there was nothing to doubt when they last were, and nothing amiss
}

// doubt says that a claim may have been made all the same.
func (b *books) doubt() { b.doubtful = true }

// due: after a claim failed, after a connection was made anew, and once a lease in any case, for a claim may sit in a socket and be made
// only later, and behind a pooler one server may take the place of another. The session of who attends would have told. And after so many
// claims, for people who ask what is running look at all that was claimed since; but not for more than a small part of the time.
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

// compare does it where it is due.
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
		// Anew for each step: what has been recorded since is not to be looked up.
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
		b.Log.Warn("weir: gave back jobs that the database took this worker to hold: of a claim whose answer was lost, or of results that the server lost", "worker", b.id, "jobs", total)
	}
	b.connections, b.compared, b.doubtful, b.calm = connections, time.Now(), false, calm && total == 0
	b.took, b.claims = time.Since(began), 0
	return nil
}
