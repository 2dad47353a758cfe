package doctor

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// queueCount is one reading of a Weir queue, from weir.queues.
type queueCount struct {
	Name        string
	PausedAt    *time.Time
	Available   int64
	Approximate bool
	Claimed     int64
	LastClaim   *time.Time
	Workers     int64
	ReadySince  *time.Time
}

const queuesSQL = `SELECT q.name, q.paused_at, q.available, q.approximate, q.claimed, q.last_claim, q.workers, q.ready_since FROM weir.queues() q ORDER BY q.available DESC LIMIT 1000`

func readQueues(ctx context.Context, s *session) ([]queueCount, error) {
	return list[queueCount](ctx, s, queuesSQL)
}

// limitCount is the limit of a Weir queue that withholds jobs now, from weir.limits.
type limitCount struct {
	Queue      string
	Running    int64 // the limit; 0: the rate is the reason
	RunningNow int64
	Held       int64 // of RunningNow, attempts of the workers asked for
}

const limitsSQL = `SELECT l.queue, CASE WHEN l.next_at IS NULL THEN l.running ELSE 0 END::bigint, l.running_now::bigint,
  (SELECT count(*) FROM weir.jobs('running', queue => l.queue, max_rows => 1000) j WHERE j.worker = ANY ($1::int[]))
FROM weir.limits() l WHERE l.room = 0 LIMIT 1000`

// readLimits returns the queues that are at their limits, and how many of their slots these workers hold.
func readLimits(ctx context.Context, s *session, workers []int32) ([]limitCount, error) {
	return list[limitCount](ctx, s, limitsSQL, workers)
}

// workerCount is a Weir worker, from weir.workers.
type workerCount struct {
	ID     int32
	Name   string
	State  string
	SeenAt time.Time
	Reason *string
	Queues []string
}

const workersSQL = `SELECT w.id, w.name, w.state, w.seen_at, w.reason, w.queues FROM weir.workers() w WHERE w.state <> 'ended' LIMIT 1000`

func readWorkers(ctx context.Context, s *session) ([]workerCount, error) {
	return list[workerCount](ctx, s, workersSQL)
}

// heldCount is how many jobs a worker holds, from weir.jobs: what a worker says in its heartbeats is out of date once it is silent.
type heldCount struct {
	Worker  int32
	Jobs    int64
	AtLeast bool // not all running jobs were read
}

const heldSQL = `SELECT coalesce(j.worker, 0), count(*) FILTER (WHERE j.worker = ANY ($1::int[])), bool_or(j.total = $2) FROM
  (SELECT j.worker, count(*) OVER () AS total FROM weir.jobs('running', max_rows => $2) j) j GROUP BY 1`

const mostHeld = 1000 // jobs read

// readHeld returns how many jobs these workers hold.
func readHeld(ctx context.Context, s *session, workers []int32) ([]heldCount, error) {
	return list[heldCount](ctx, s, heldSQL, workers, mostHeld)
}

func (h heldCount) String() string {
	switch {
	case !h.AtLeast:
		return many(h.Jobs, "job")
	case h.Jobs == 0:
		return "an unknown number of jobs"
	}
	return "at least " + many(h.Jobs, "job")
}

// notPermitted reports whether a statement failed only because of missing privileges.
func notPermitted(err error) bool {
	var refused *pgconn.PgError
	const insufficientPrivilege = "42501"
	return errors.As(err, &refused) && refused.Code == insufficientPrivilege
}

// unless converts a missing privilege into an entry of what could not be seen. If ok is false, the check ends with the result.
func unless(err error, what, needs string) (r result, ok bool, failed error) {
	switch {
	case err == nil:
		return result{}, true, nil
	case notPermitted(err):
		return result{unseen: []string{what + ": it needs " + needs}}, false, nil
	}
	return result{}, false, err
}

// absent is the result of the checks of Weir if its schema is missing.
var absent = result{}
