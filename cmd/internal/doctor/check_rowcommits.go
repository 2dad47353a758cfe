package doctor

import (
	"context"
	"fmt"
)

const (
	fewRows      = 1.5 // per commit, or fewer: each row is committed separately
	someRows     = 4.0
	manyCommits  = 50.0 // per second
	commitsShare = 0.5  // of all time lost
)

// checkRowCommits detects sessions that wait for a WAL flush again and again, for about one row each time.
func checkRowCommits(ctx context.Context, l *inspection) (result, error) {
	lost := l.waits.Rate(Commit)
	if !l.server.flushes {
		// With fsync off only a standby can delay commits: a session that appears to wait for a flush waits for a CPU.
		lost = per(l.waits.Events[Event{"IPC", "SyncRep"}], seconds(l.waits.Seconds))
	}
	commits := l.commits()
	written := max(0, l.rate(func(c *counters) int64 { return c.Written }))
	perCommit := 0.0
	if commits > 0 {
		perCommit = written / commits
	}
	if lost < costly/2 || commits < manyCommits || perCommit > someRows || lost < commitsShare*l.waits.Lost() {
		return healthy("Commits are fast enough: %s/s of about %s rows each, with %s sessions in them on average.", figure(commits), figure(perCommit), figure(lost))
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
	severity := Info
	if lost >= costly && perCommit <= fewRows && single*2 >= all {
		severity = Warning
	}
	f := l.finding(RowCommits, severity, lost, l.view.seen(Commit))
	f.Summary = fmt.Sprintf("Each commit carries %s rows, at %s commits/s, and %s sessions wait for the WAL flush.", figure(perCommit), figure(commits), figure(lost))
	f.add(`SELECT wait_event_type, wait_event, count(*) FROM pg_stat_activity WHERE state = 'active' GROUP BY 1, 2 ORDER BY 3 DESC`,
		"waits for commits: %s", eventsOf(l.waits, Commit))
	f.add(`SELECT xact_commit, tup_inserted + tup_updated + tup_deleted FROM pg_stat_database WHERE datname = current_database() -- twice`,
		"%s commits/s for %s rows/s", figure(commits), figure(written))
	if single > 0 {
		f.add("", "%s of those sessions run one statement per transaction: %s",
			shareOf(float64(single), float64(all)), ranked(texts, total(texts), func(s string) string { return s }))
	}
	if l.server.commitDelay > 0 {
		f.add("SHOW commit_delay", "commit_delay is %d µs, and each commit waits that long for others", l.server.commitDelay)
	}
	f.Now = "If a crash may lose the last moments of this data, SET synchronous_commit = off for those sessions."
	f.ForGood = "Write what belongs together in one transaction: a commit costs one flush, for one row or a thousand."
	f.Lab = "weir lab tree"
	return found(f)
}
