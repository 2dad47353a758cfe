package doctor

import (
	"context"
	"fmt"
	"time"
)

// A queue may have no worker for some minutes while its workers are deployed.
const unworkedFor = 5 * time.Minute

// Of jobs that were cancelled by filter, weir.queues counts those that no worker has passed yet, so jobs are listed.
const unworkedSQL = `
SELECT count(*), min(greatest(j.enqueued_at, j.run_at)), EXISTS (SELECT FROM weir.jobs('cancelled', queue => $1, max_rows => 1))
FROM weir.jobs('available', queue => $1, max_rows => $2) j`

// suspect reports whether the jobs of a queue without workers need to be looked at.
func suspect(q queueCount) bool {
	return q.Available >= backlogNotable || q.ReadySince != nil && time.Since(*q.ReadySince) >= unworkedFor
}

// unworked detects that jobs wait in a queue without workers: many, or some for long. It also returns how many wait.
func unworked(ctx context.Context, l *inspection, q queueCount) (*Finding, int64, error) {
	type row struct {
		Jobs      int64
		Since     *time.Time
		Cancelled bool
	}
	rows, err := list[row](ctx, l.session, unworkedSQL, q.Name, backlogNotable)
	if err != nil {
		return nil, 0, err
	}
	waiting := rows[0]
	if waiting.Jobs == 0 {
		return nil, 0, nil
	}
	isLong := time.Since(*waiting.Since) >= unworkedFor && (q.LastClaim == nil || time.Since(*q.LastClaim) >= unworkedFor)
	if waiting.Jobs < backlogNotable && !isLong {
		return nil, waiting.Jobs, nil
	}
	jobs := many(waiting.Jobs, "job")
	switch {
	case waiting.Jobs == backlogNotable && waiting.Cancelled:
		jobs += " or more"
	case waiting.Jobs == backlogNotable:
		waiting.Jobs = q.Available
		jobs = about(q) + " jobs"
	}
	f := l.finding(LaneBacklog, Warning, 0, 2)
	f.Samples = 2
	f.Summary = fmt.Sprintf("The queue %s has %s waiting, and no worker works it.", q.Name, jobs)
	f.add("SELECT * FROM weir.queues()", "%s: %s waiting, the first for %s; no worker; last claim %s", q.Name, jobs, span(time.Since(*waiting.Since)), ago(q.LastClaim))
	f.Now = "Start a worker for the queue: weir work --queue " + q.Name + ". If its name is misspelled where its jobs are enqueued, move them: weir jobs move --queue " + q.Name + " --to-queue NAME."
	f.ForGood = "Have a supervisor run workers for each queue, and take the names of queues from one place in your programs."
	return &f, waiting.Jobs, nil
}
