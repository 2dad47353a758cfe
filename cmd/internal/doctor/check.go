package doctor

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/weir-pg/weir/cmd/internal/horizon"
)

// check detects one kind of problem.
type check struct {
	name string
	run  func(context.Context, *inspection) (result, error)
	// sessions says that it judges what sessions do, which only members of pg_monitor see. Locks, and what the server counts, everybody sees.
	sessions bool
	// of says whether it judges what all databases of a server share, or what each has of its own; whole: both.
	of part
	// reads are the readings without which it can't say that all is well.
	reads readings
}

// checks are run in this order; relate.go orders the findings.
func checks() []check {
	return []check{
		{"notify", checkNotify, false, theServer, 0},
		{"listeners", checkListeners, true, theServer, ofTotals},
		{"notify queue", checkNotifyQueue, false, theServer, ofTotals},
		{"postmaster", checkPostmaster, false, theServer, ofTotals},
		{"connections", checkConnections, false, theServer, 0},
		{"churn", checkChurn, false, theServer, ofTotals},
		{"multixact", checkMultiXact, true, theServer, ofTotals},
		{"rows", checkHotRow, false, theDatabase, 0},
		{"idle blockers", checkIdleBlocker, true, theDatabase, 0},
		{"tables", checkTableLock, false, theDatabase, 0},
		{"advisory locks", checkAdvisory, false, theDatabase, 0},
		{"lock manager", checkLockManager, true, theDatabase, 0},
		{"synchronous replication", checkSyncReplication, false, theServer, 0},
		{"replay", checkReplay, false, theServer, 0},
		{"statements", checkChatty, true, theDatabase, ofStatements | ofTables},
		{"commits", checkRowCommits, true, theDatabase, ofTotals},
		{"horizon", checkHorizon, true, theDatabase, ofTotals | ofTables | ofPins},
		{"autovacuum", checkAutovacuum, false, theDatabase, ofTables}, // after the horizon, whose holders explain dead rows
		{"slots", checkSlots, false, theServer, ofExtra},
		{"wraparound", checkWraparound, false, theServer, 0},
		{"sequences", checkSequences, false, theDatabase, 0},
		{"scans", checkScans, true, theDatabase, ofTables},
		{"deadlocks", checkDeadlocks, false, theServer, ofExtra},
		{"temporary files", checkTempFiles, false, theServer, ofExtra},
		{"checkpoints", checkCheckpoints, false, theServer, ofExtra},
		{"subtransactions", checkSubtransactions, true, theServer, ofExtra},
		{"claims", checkSlow, true, theDatabase, 0},
		{"lanes", checkLanes, false, theDatabase, ofQueues},
		{"segments", checkSegments, false, theDatabase, ofQueues},
		{"workers", checkWorkers, false, theDatabase, 0},
		{"promotion", checkPromotion, false, theDatabase, 0},
		{"kinds", checkKinds, false, theDatabase, 0},
		{"hubs", checkHubs, false, theDatabase, 0},
		{"other waits", checkWaits, true, whole, 0}, // last: it reports what no other has found
	}
}

// result is the result of a check: findings, or what is healthy.
type result struct {
	findings []Finding
	healthy  string
	unseen   []string
	blind    bool // it could not see what it judges
}

func found(f Finding) (result, error) { return result{findings: []Finding{f}}, nil }

func healthy(format string, args ...any) (result, error) {
	return result{healthy: fmt.Sprintf(format, args...)}, nil
}

// inspection is the input of checks: a period of samples, the counters at its start and end, and a session for further queries.
type inspection struct {
	server      Server
	view        view
	here        func(database uint32) bool // of which databases the view is
	waits       Waits
	first, last *counters
	pins        []pin         // holders of the horizon at the start
	primary     *horizon.View // what may hold it at the end, as read by the check of the horizon
	standbys    []standbyView
	hot         *hotRows
	session     *session
	local       *local
	findings    []Finding // of the checks before this one
}

// span returns the time between the counters.
func (l *inspection) span() time.Duration { return l.last.At.Sub(l.first.At) }

// since returns how long ago a time was.
func (l *inspection) since(t *time.Time) time.Duration { return l.session.now().Sub(*t) }

// rate returns the growth of a counter per second. A counter that was reset in between counts from zero.
func (l *inspection) rate(get func(*counters) int64) float64 {
	grown := get(l.last) - get(l.first)
	if grown < 0 {
		grown = get(l.last)
	}
	return per(float64(grown), l.span())
}

// commits returns the commits per second in this database, without the doctor's own.
func (l *inspection) commits() float64 {
	return max(0, l.rate(func(c *counters) int64 { return c.Commits })-l.rate(func(c *counters) int64 { return c.Own }))
}

// writes returns the transactions per second that write. Ids are counted at once, while counts of commits may arrive seconds late, and then
// all together; but ids are those of all databases.
func (l *inspection) writes() float64 {
	return max(0, min(l.commits(), l.rate(func(c *counters) int64 { return c.NextXID })))
}

// finding returns a new finding, with how often it was seen.
func (l *inspection) finding(code Code, severity Severity, lost float64, seen int) Finding {
	return Finding{Code: code, Severity: severity, Lost: lost, Seen: seen, Samples: len(l.view.samples), Statements: []Statement{}, holders: map[Class]float64{}}
}

func (f *Finding) add(query, format string, args ...any) {
	f.Evidence = append(f.Evidence, Evidence{Fact: fmt.Sprintf(format, args...), Query: query})
}

// Thresholds of time lost, in sessions waiting at any moment.
const (
	noticeable = 0.1
	costly     = 1.0
	crippling  = 4.0
)

// grade returns the severity for an amount of time lost.
func grade(lost float64) Severity {
	lost = math.Round(1e6*lost) / 1e6 // four sessions that wait all the time may add up to a little less than four
	switch {
	case lost >= crippling:
		return Critical
	case lost >= costly:
		return Warning
	}
	return Info
}

// fresh samples the locks now, for a check that finds only now that it needs them.
func (l *inspection) fresh(ctx context.Context) []Sample {
	const rounds = 8
	const pause = 50 * time.Millisecond
	var fresh []Sample
	for range rounds {
		if l.session.pause(ctx, pause) != nil {
			return fresh
		}
		s, err := takeSample(ctx, l.session, nil)
		if err != nil {
			break
		}
		if s.Locks, err = takeLocks(ctx, l.session, s.writers()); err != nil {
			break
		}
		s.HasLocks = true
		fresh = append(fresh, s)
	}
	return fresh
}
