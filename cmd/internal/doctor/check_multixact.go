package doctor

import (
	"context"
	"fmt"
)

const seeMultiXact = `SELECT wait_event, count(*) FROM pg_stat_activity WHERE wait_event_type = 'LWLock' AND wait_event ILIKE 'multixact%' GROUP BY 1`

// Rates per second, below which multixacts are not worth reporting.
const (
	manyMultiXacts = 200.0
	manyReads      = 50_000.0
)

// checkMultiXact detects waits for the multixact log, which is written when two transactions lock one row, and read by every session that
// visits such a row. Most of these locks are caused by foreign keys.
func checkMultiXact(ctx context.Context, l *inspection) (result, error) {
	lost := l.waits.Rate(MultiXact)
	made := max(0, l.rate(func(c *counters) int64 { return c.NextMultiXact }))
	reads := l.rate(func(c *counters) int64 { return c.MultiXactReads })
	if lost < noticeable && made < manyMultiXacts {
		return healthy("No session waits for multixacts; %s are created per second.", figure(made))
	}
	severity := grade(lost)
	// On few CPUs the same work shows as CPU time instead of waits.
	if severity == Info && made >= 5*manyMultiXacts && reads >= manyReads {
		severity = Warning
	}
	f := l.finding(MultiXactContention, severity, lost, l.view.seen(MultiXact))
	f.Summary = fmt.Sprintf("Rows that several transactions lock at the same time need %s multixacts/s, and %s for the multixact log.", figure(made), sessionsThat(lost, "waits", "wait"))
	if lost > 0 {
		f.add(seeMultiXact, "%s on average: %s", sessionsThat(lost, "waits", "wait"), eventsOf(l.waits, MultiXact))
	}
	f.add(`SELECT mxid_age('1'::xid) -- twice, a few seconds apart`, "%s multixacts made per second", figure(made))
	f.add(`SELECT name, blks_hit, blks_read FROM pg_stat_slru WHERE name ILIKE 'multixact%'`, "%s pages of their log looked up per second", figure(reads))
	waiting := func(s Session) bool { return s.Class == MultiXact }
	keys, err := foreignKeys(ctx, l, l.view.withLocks(), waiting)
	if err == nil && len(keys) == 0 {
		// No sample shows a waiting session's tables: use those of any writing session.
		writing := func(s Session) bool { return s.State != "idle" }
		keys, err = foreignKeys(ctx, l, append(l.view.withLocks(), l.fresh(ctx)...), writing)
	}
	if err != nil {
		return result{}, err
	}
	for _, k := range keys {
		f.add(foreignKeySQL, "%s", k)
	}
	if len(keys) == 0 {
		f.add("", "no foreign key was seen behind it: SELECT … FOR SHARE or FOR KEY SHARE, or savepoints in transactions that lock rows, do the same")
	}
	f.Now = "Spread the children of a parent over time, or let one worker insert them in one transaction: " +
		"a transaction that is alone with a parent row creates no multixact."
	f.ForGood = "Drop the foreign keys named here from tables with this write rate, and check the reference in the application or with a periodic query."
	f.Lab = "weir lab tree"
	return found(f)
}
