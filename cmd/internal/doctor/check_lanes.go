package doctor

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

const (
	backlogNotable = 1_000
	estimateErrs   = 0.05 // relative error of an estimated backlog
	claimsStopped  = 30 * time.Second
	mostLanes      = 3 // findings; the last names further queues
)

// checkLanes detects Weir queues whose backlog grows.
func checkLanes(ctx context.Context, l *inspection) (result, error) {
	if !l.server.Weir {
		return absent, nil
	}
	if r, ok, err := unless(l.last.queuesErr, "Weir's queues", "the role weir_operate"); !ok {
		return r, err
	}
	first := map[string]queueCount{}
	for _, q := range l.first.Queues {
		first[q.Name] = q
	}
	reached, err := readLimits(ctx, l.session, nil)
	if r, ok, err := unless(err, "the limits of Weir's queues, and so their backlogs", "the role weir_operate"); !ok {
		return r, err
	}
	limits := map[string]limitCount{}
	for _, q := range reached {
		limits[q.Queue] = q
	}
	var r result
	var names []string // of the queues of the findings
	waiting := int64(0)
	pages := 200 // of lists of jobs, at most
	for _, q := range l.last.Queues {
		waiting += q.Available
		was, known := first[q.Name]
		if known && q.PausedAt == nil && q.Workers == 0 && was.Workers == 0 && q.Available > 0 {
			if !l.suspect(q) || pages == 0 {
				continue
			}
			f, all, err := unworked(ctx, l, q, &pages)
			if again, ok, err := unless(err, "jobs of queues without a worker", "the role weir_work"); err != nil && ctx.Err() == nil {
				r.unseen = append(r.unseen, fmt.Sprintf("jobs of the queue %s, which no worker works: %v. List them with weir jobs list --queue %s, and run the doctor again", q.Name, err, q.Name))
				continue
			} else if !ok {
				return again, err
			}
			waiting += all - q.Available
			if f != nil {
				r.findings = append(r.findings, *f)
				names = append(names, q.Name)
			}
			continue
		}
		if !known || q.Available < backlogNotable || q.PausedAt != nil || q.Workers == 0 {
			continue
		}
		grown := float64(q.Available - was.Available)
		if q.Approximate && math.Abs(grown) < estimateErrs*float64(q.Available) {
			grown = 0
		}
		growth, claims := per(grown, l.span()), per(float64(q.Claimed-was.Claimed), l.span())
		limit, isLimited := limits[q.Name]
		var severity Severity
		why := ""
		switch {
		case isLimited && growth <= claims/20:
			continue // as it was asked for
		case isLimited:
			severity, why = Warning, "it is at its limit"
		case claims == 0 && (q.LastClaim == nil || l.since(q.LastClaim) > claimsStopped):
			severity, why = Critical, fmt.Sprintf("%s claim nothing", many(q.Workers, "worker"))
		case float64(q.Available) < claims/2:
			continue // half a second of work: jobs in transit
		case growth > 0 && growth > claims/20:
			severity, why = Warning, fmt.Sprintf("%s workers can't keep up", figure(float64(q.Workers)))
		default:
			continue
		}
		f := l.finding(LaneBacklog, severity, 0, 2)
		f.queues = []string{q.Name}
		f.Samples = 2 // readings of the queues, which are not sampled
		f.Summary = fmt.Sprintf("The queue %s has %s jobs waiting, and %s.", q.Name, about(q), why)
		f.add("SELECT * FROM weir.queues() -- twice", "%s: %s waiting, %s/s more; %s claimed per second, last %s",
			q.Name, about(q), signed(growth), figure(claims), l.ago(q.LastClaim))
		if growth < 0 && claims > 0 {
			f.add("", "empty in %s at this rate", span(seconds(float64(q.Available)/-growth)))
		}
		if isLimited && limit.Running > 0 {
			f.add("SELECT * FROM weir.limits()", "%d of %d attempts run", limit.RunningNow, limit.Running)
		} else if isLimited {
			f.add("SELECT * FROM weir.limits()", "its rate is used up")
		}
		f.Now = "Start more workers for the queue, or raise their concurrency for it: weir work --queue " + q.Name
		if isLimited {
			f.Now = "Raise its limit, if what its jobs use can take it: weir limits set " + q.Name
		}
		f.ForGood = "Give urgent jobs their own queue or priority, with their own workers."
		r.findings = append(r.findings, f)
		names = append(names, q.Name)
	}
	r.findings = firstLanes(r.findings, names)
	if len(r.findings) == 0 {
		waits := many(waiting, "job") + " wait"
		if waiting == 1 {
			waits += "s"
		}
		r.healthy = fmt.Sprintf("Weir's %s: %s, and no backlog of %d or more jobs is growing.", many(len(l.last.Queues), "queue"), waits, backlogNotable)
	}
	return r, nil
}

// firstLanes returns the worst findings; the last of them names the queues of the others.
func firstLanes(findings []Finding, names []string) []Finding {
	order := make([]int, len(findings))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(findings[b].Severity.rank(), findings[a].Severity.rank()) })
	var first []Finding
	var others []string
	for i, at := range order {
		if i < mostLanes {
			first = append(first, findings[at])
		} else {
			others = append(others, names[at])
		}
	}
	if n := len(others); n > 0 {
		const limit = 20
		more := ""
		if n > limit {
			others, more = others[:limit], ", ..."
		}
		first[mostLanes-1].add("SELECT * FROM weir.queues()", "%s with a backlog besides these: %s%s", many(int64(n), "queue"), strings.Join(others, ", "), more)
	}
	return first
}

func about(q queueCount) string {
	if q.Approximate {
		return "about " + figure(float64(q.Available))
	}
	return figure(float64(q.Available))
}

func (l *inspection) ago(t *time.Time) string {
	if t == nil {
		return "never"
	}
	return span(max(0, l.since(t))) + " ago"
}
