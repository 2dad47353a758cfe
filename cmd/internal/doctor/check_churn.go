package doctor

import (
	"context"
	"fmt"
	"slices"
)

const (
	churnShort = 10.0 // transactions per session, or fewer
	churnCost  = 0.25 // sessions that connect at any moment
	churnWaits = 0.5
)

// checkChurn detects clients that connect for a few statements each, and parallel queries that start and end processes all the time. Connecting costs
// the client and the server several milliseconds, which no wait shows.
func checkChurn(_ context.Context, l *inspection) (result, error) {
	var r result
	sessions := max(0, l.rate(func(c *counters) int64 { return c.Sessions }))
	// A login is a transaction of its own.
	perSession := max(0, l.rate(func(c *counters) int64 { return c.AllCommits })/max(sessions, 1)-1)
	saturated := slices.ContainsFunc(l.findings, func(f Finding) bool { return f.Code == PostmasterSaturated })
	took := l.session.connected()
	if cost := sessions * took.Seconds(); sessions >= stormSessions && perSession <= churnShort && !saturated {
		severity := Info
		if cost >= churnCost {
			severity = Warning
		}
		f := l.finding(ConnectionChurn, severity, cost, len(l.view.samples))
		f.Summary = fmt.Sprintf("%s sessions log in per second, for %.1f transactions each on average.", figure(sessions), perSession)
		f.add(seeSessions, "%s sessions/s, all databases; %.1f transactions each on average, without their logins", figure(sessions), perSession)
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
		f.add("", "their statements: %s", ranked(statements, total(statements), func(s string) string { return s }))
		f.Now = "ALTER ROLE … SET max_parallel_workers_per_gather = 0, for the role of these short queries."
		f.ForGood = "Keep parallel queries for reports: raise parallel_setup_cost and min_parallel_table_scan_size until short queries are planned without them."
		f.Lab = "weir lab storm"
		r.findings = append(r.findings, f)
	}
	if len(r.findings) == 0 {
		r.healthy = fmt.Sprintf("Connections are kept: %s new sessions/s, %s parallel workers/s.", figure(sessions), figure(launched))
	}
	return r, nil
}
