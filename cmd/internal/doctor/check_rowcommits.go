package doctor

import (
	"context"
	"fmt"
	"time"
)

const (
	fewRows      = 1.5 // per commit, or fewer: each row is committed separately
	someRows     = 4.0
	manyCommits  = 50.0 // per second
	commitsShare = 0.5  // of all time lost
	slowCommit   = time.Millisecond
	loopShare    = 0.6 // of the samples since it was first seen
)

// checkRowCommits detects sessions that wait for a WAL flush again and again, for about one row each time.
func checkRowCommits(ctx context.Context, l *inspection) (result, error) {
	lost := l.waits.Rate(Commit)
	if !l.server.flushes {
		// With fsync off only a standby can delay commits: a session that appears to wait for a flush waits for a CPU.
		lost = per(l.waits.Events[standbyWait], seconds(l.waits.Seconds))
	}
	commits := l.writes()
	written := max(0, l.rate(func(c *counters) int64 { return c.Written }))
	perCommit := 0.0
	// A login is a transaction that writes nothing.
	if counted := max(commits, l.commits()-l.rate(func(c *counters) int64 { return c.Sessions })); counted > 0 {
		perCommit = written / counted // both come late, but together
	}
	if lost < costly/2 || commits < manyCommits || perCommit > someRows || lost < commitsShare*l.waits.Lost() {
		return healthy("Commits that write are fast enough: %s/s of about %s each, with %s sessions in them on average.", figure(commits), mean(perCommit, "row"), figure(lost))
	}
	// A session that waits for its commit inside INSERT or UPDATE runs one statement per transaction.
	single, all := 0, 0
	texts := map[string]int{}
	l.view.each(func(s Session, _ float64) {
		if s.Class == Commit && s.Kind == "client backend" {
			all++
			if !endsTransaction(s.Query) {
				single++
				texts[shape(s.Query)]++
			}
		}
	})
	took := seconds(lost / commits)
	loops, inserted := l.insertLoops()
	// Sessions that serve requests commit single rows because that is what they are asked for. Time is lost only by those that write row after row.
	severity := Info
	if lost >= costly && perCommit <= fewRows && took >= slowCommit && inserted >= costly {
		severity = Warning
	}
	f := l.finding(RowCommits, severity, lost, l.view.seen(Commit))
	f.Summary = fmt.Sprintf("Each commit carries about %s, at %s commits/s, and %s for the WAL flush.", mean(perCommit, "row"), figure(commits), sessionsThat(lost, "waits", "wait"))
	f.add(`SELECT wait_event_type, wait_event, count(*) FROM pg_stat_activity WHERE state = 'active' GROUP BY 1, 2 ORDER BY 3 DESC`,
		"waits for commits: %s", eventsOf(l.waits, Commit))
	f.add(`SELECT xact_commit, tup_inserted + tup_updated + tup_deleted FROM pg_stat_database WHERE datname = current_database() -- twice`,
		"%s commits/s for %s rows/s", figure(commits), figure(written))
	if single > 0 {
		f.add("", "%s of those sessions run one statement per transaction: %s",
			shareOf(float64(single), float64(all)), ranked(texts, total(texts), func(s string) string { return s }))
		f.count(CausesIt, texts)
	}
	f.add("", "a commit waits for %s on average", span(took))
	if loops > 0 {
		f.add("", "%s do nothing but insert one row after another, each in a transaction of its own", many(loops, "session"))
	}
	if l.server.commitDelay > 0 {
		f.add("SHOW commit_delay", "commit_delay is %d µs, and each commit waits that long for others", l.server.commitDelay)
	}
	f.Now = "If a crash may lose the last moments of this data, SET synchronous_commit = off for those sessions."
	f.ForGood = "Write what belongs together in one transaction: a commit costs one flush, for one row or a thousand."
	f.Lab = "weir lab tree"
	return found(f)
}

// insertLoops returns the number of sessions that insert single rows all the time, and how many of them wait for their commit at any moment.
func (l *inspection) insertLoops() (sessions int, waiting float64) {
	type loop struct {
		first, seen int
		seconds     float64
	}
	loops := map[uint32]loop{}
	for i, sample := range l.view.samples {
		for _, s := range sample.Sessions {
			if s.Class != Commit || s.Kind != "client backend" || !inserts.MatchString(s.Query) {
				continue
			}
			p, known := loops[s.PID]
			if !known {
				p.first = i
			}
			p.seen++
			p.seconds += sample.Weight.Seconds()
			loops[s.PID] = p
		}
	}
	for _, p := range loops {
		if float64(p.seen) >= loopShare*float64(len(l.view.samples)-p.first) {
			sessions++
			waiting += per(p.seconds, l.view.duration())
		}
	}
	return sessions, waiting
}
