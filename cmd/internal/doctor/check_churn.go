package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"
)

const seeYoung = `SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND backend_start > clock_timestamp() - interval '10 seconds' -- which few outlive`

// youngSQL counts the sessions that are younger than so many seconds. A role without pg_monitor does not see when they did.
const youngSQL = `
SELECT count(*) FILTER (WHERE a.backend_start > clock_timestamp() - make_interval(secs => $1)), count(*) FILTER (WHERE a.backend_start IS NULL)
FROM pg_stat_get_activity(NULL) a WHERE (a.backend_type = 'client backend' OR a.backend_start IS NULL) AND a.application_name IS DISTINCT FROM '` + ApplicationName + `'`

// stillThere returns how many sessions there are that have begun since the first reading of the counters, or shortly before it, because sessions may be counted late;
// false if that can't be seen.
func (l *inspection) stillThere(ctx context.Context) (int64, bool, error) {
	type young struct{ Seen, Hidden int64 }
	n, err := one[young](ctx, l.session, youngSQL, (l.span() + churnBack).Seconds())
	return n.Seen, err == nil && n.Hidden == 0, err
}

const (
	churnShort = 10.0 // transactions per session, or fewer
	churnLeft  = 0.25 // of the sessions that began: those that are still there
	churnBack  = 10 * time.Second
	churnCost  = 0.25 // sessions that connect at any moment
	churnWaits = 0.5
)

// checkChurn detects clients that connect for a few statements each, and parallel queries that start and end processes all the time. Connecting costs
// the client and the server several milliseconds, which no wait shows.
func checkChurn(ctx context.Context, l *inspection) (result, error) {
	var r result
	sessions := max(0, l.rate(func(c *counters) int64 { return c.Sessions }))
	// A login is a transaction of its own.
	perSession := max(0, l.rate(func(c *counters) int64 { return c.AllCommits })/max(sessions, 1)-1)
	saturated := slices.ContainsFunc(l.findings, func(f Finding) bool { return f.Code == PostmasterSaturated })
	began := sessions * l.span().Seconds()
	left, seen, ends := int64(0), false, false // soon
	if sessions >= stormSessions {
		var err error
		if left, seen, err = l.stillThere(ctx); err != nil {
			return result{}, fmt.Errorf("how many of the new sessions are still there: %w", err)
		}
		ends = seen && float64(left) <= churnLeft*began
	}
	took := l.session.connected()
	if cost := sessions * took.Seconds(); sessions >= stormSessions && (perSession <= churnShort || ends) && !saturated {
		severity := Info
		if cost >= churnCost {
			severity = Warning
		}
		f := l.finding(ConnectionChurn, severity, cost, len(l.view.samples))
		f.Summary = fmt.Sprintf("%s sessions log in per second, for %.1f transactions each on average.", figure(sessions), perSession)
		if perSession > churnShort {
			f.Summary = fmt.Sprintf("%s sessions log in per second, and end soon: about %s began in %s, and %s from then or the %s before are still there.",
				figure(sessions), figure(began), span(l.span()), figure(float64(left)), span(churnBack))
		}
		f.add(seeSessions, "%s sessions/s, all databases; %.1f transactions each on average, without their logins, if all transactions are theirs", figure(sessions), perSession)
		if ends {
			f.add(seeYoung, "about %s sessions began in %s; %s from then or the %s before are still there", figure(began), span(l.span()), figure(float64(left)), span(churnBack))
		}
		if !seen {
			r.unseen = append(r.unseen, "who connects all the time: it needs pg_monitor")
		} else if err := l.addConnecting(ctx, &f); err != nil {
			return result{}, err
		}
		f.add("", "logging in took the doctor %s; at this rate %s sessions are logging in at any moment", span(took), figure(cost))
		f.Now = "Keep connections open between requests: use the pool of the driver, or lengthen the lifetime of its connections."
		f.ForGood = "Put a connection pooler in front of programs that are too short-lived for a pool of their own."
		f.Lab = "weir lab storm"
		r.findings = append(r.findings, f)
	}
	waits, events := 0.0, map[Event]int{}
	statements := map[string]int{}
	l.view.each(func(s Session, weight float64) {
		if s.waitsForWorkers() {
			waits += weight
			events[Event{s.WaitType, s.Wait}]++
			statements[shape(s.Query)]++
		}
	})
	waits = per(waits, l.view.duration())
	launched, how, counted := parallelRate(l)
	// Before 18 nothing counts them, but each of these waits is a start or an end: they last for milliseconds.
	if waits >= churnWaits && (launched >= stormSessions || !counted) {
		severity := Info
		if waits >= costly {
			severity = Warning
		}
		f := l.finding(ParallelChurn, severity, waits, len(l.view.samples))
		if counted {
			f.Summary = fmt.Sprintf("Parallel queries start %s processes per second, and %s for these to start or end.", figure(launched), sessionsThat(waits, "waits", "wait"))
			f.add(how, "parallel workers launched: %s/s", figure(launched))
		} else {
			f.Summary = fmt.Sprintf("Parallel queries start and end processes all the time, and %s for these to start or end.", sessionsThat(waits, "waits", "wait"))
			f.add(how, "parallel workers launched: %s/s or more", figure(launched))
		}
		f.add(seeWaits, "waits: %s", ranked(events, total(events), Event.String))
		f.addStatements("", "their statements", CausesIt, statements)
		f.Now = "ALTER ROLE … SET max_parallel_workers_per_gather = 0, for the role of these short queries."
		f.ForGood = "Keep parallel queries for reports: raise parallel_setup_cost and min_parallel_table_scan_size until short queries are planned without them."
		f.Lab = "weir lab storm"
		r.findings = append(r.findings, f)
	}
	switch {
	case len(r.findings) > 0 || saturated:
	case sessions < stormSessions:
		r.healthy = fmt.Sprintf("Few sessions and parallel workers start: %s new sessions/s, %s parallel workers/s.", figure(sessions), figure(launched))
	default:
		r.healthy = fmt.Sprintf("Connections last: %s new sessions/s, for %s transactions each on average; %s parallel workers/s.", figure(sessions), figure(perSession), figure(launched))
	}
	return r, nil
}
