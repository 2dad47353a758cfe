package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// A queue may have no worker for some minutes while its workers are deployed.
const unworkedFor = 5 * time.Minute

// A page's cost is bounded, however many jobs are passed over because a filter has cancelled them; a list of all jobs reads until it has enough.
const (
	waitingSQL = `
SELECT jsonb_array_length(p.jobs), coalesce(p.next, ''),
       (SELECT min(greatest((j ->> 'enqueued_at')::timestamptz, (j ->> 'run_at')::timestamptz)) FROM jsonb_array_elements(p.jobs) j)
FROM weir.jobs_page(ARRAY['available'], queue => $1, max_rows => $2, after => $3) p`
	// Of jobs that were cancelled by filter, weir.queues counts those that no worker has passed yet.
	cancelledSQL = `SELECT p.jobs <> '[]' OR p.next IS NOT NULL FROM weir.jobs_page(ARRAY['cancelled'], queue => $1, max_rows => 1) p`
	onPage       = 100 // arguments may be large
	mostPages    = 12  // of a queue
)

// waitingJobs are the first jobs that wait in a queue, up to backlogNotable.
type waitingJobs struct {
	jobs  int64
	since *time.Time
	more  bool // there may be more
}

// readWaiting takes the pages that it reads from pages.
func readWaiting(ctx context.Context, s *session, queue string, pages *int) (w waitingJobs, err error) {
	type row struct {
		Jobs  int64
		Next  string
		Since *time.Time
	}
	after := ""
	for range min(mostPages, *pages) {
		*pages--
		page, err := one[row](ctx, s, waitingSQL, queue, onPage, after)
		if err != nil {
			return w, err
		}
		if w.jobs += page.Jobs; page.Since != nil && (w.since == nil || page.Since.Before(*w.since)) {
			w.since = page.Since
		}
		after = page.Next
		if w.more = after != ""; !w.more || w.jobs >= backlogNotable {
			break
		}
	}
	return w, nil
}

// suspect reports whether the jobs of a queue without workers need to be looked at.
func (l *inspection) suspect(q queueCount) bool {
	return q.Available >= backlogNotable || q.ReadySince != nil && l.since(q.ReadySince) >= unworkedFor
}

// unworked detects that jobs wait in a queue without workers: many, or some for long. It also returns how many wait.
func unworked(ctx context.Context, l *inspection, q queueCount, pages *int) (*Finding, int64, error) {
	waiting, err := readWaiting(ctx, l.session, q.Name, pages)
	if err != nil || waiting.jobs == 0 {
		return nil, 0, err
	}
	isLong := l.since(waiting.since) >= unworkedFor && (q.LastClaim == nil || l.since(q.LastClaim) >= unworkedFor)
	if waiting.jobs < backlogNotable && !isLong {
		return nil, waiting.jobs, nil
	}
	jobs := many(waiting.jobs, "job")
	if waiting.more {
		cancelled, err := scalars[bool](ctx, l.session, cancelledSQL, q.Name)
		switch {
		case err != nil:
			return nil, 0, err
		case slices.Contains(cancelled, true):
			jobs += " or more"
		default:
			waiting.jobs = q.Available
			jobs = about(q) + " jobs"
		}
	}
	f := l.finding(LaneBacklog, Warning, 0, 2)
	f.Samples, f.queues = 2, []string{q.Name}
	f.Summary = fmt.Sprintf("The queue %s has %s waiting, and no worker works it.", q.Name, jobs)
	f.add("SELECT * FROM weir.queues()", "%s: %s waiting, the first for %s; no worker; last claim %s", q.Name, jobs, span(l.since(waiting.since)), l.ago(q.LastClaim))
	f.Now = "Start a worker for the queue: weir work --queue " + q.Name + "; if its name is misspelled where its jobs are enqueued, move them: weir jobs move --queue " + q.Name + " --to-queue NAME"
	f.ForGood = "Have a supervisor run workers for each queue, and take the names of queues from one place in your programs."
	return &f, waiting.jobs, nil
}
