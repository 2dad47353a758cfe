package doctor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
)

const seeAdvisory = `SELECT l.pid, l.granted, l.classid, l.objid, l.objsubid, a.state, a.query FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE l.locktype = 'advisory'`

// advisory is the key of an advisory lock.
type advisory struct {
	database, class, object uint32
	sub                     int16
}

func (a advisory) String() string {
	if a.sub == 1 {
		return fmt.Sprint(int64(uint64(a.class)<<32 | uint64(a.object)))
	}
	return fmt.Sprintf("(%d, %d)", int32(a.class), int32(a.object))
}

// checkAdvisory detects sessions that queue up for an advisory lock. A few that wait on purpose, to take over from a leader, lose no time: they wait
// for one holder that keeps it. A convoy has many waiters, or many holders one after the other.
func checkAdvisory(ctx context.Context, l *inspection) (result, error) {
	waits, all := map[advisory]int{}, 0
	waiting, holding := map[advisory]map[uint32]bool{}, map[advisory]map[uint32]Lock{}
	doing := map[advisory]map[string]int{}
	for _, s := range l.view.withLocks() {
		for _, k := range s.Locks {
			if !k.Granted && k.Type != "object" && k.Type != "transactionid" && k.Type != "tuple" {
				all++
			}
			if k.Type != "advisory" {
				continue
			}
			key := advisory{k.Database, k.Class, k.Object, k.Sub}
			if waiting[key] == nil {
				waiting[key], holding[key], doing[key] = map[uint32]bool{}, map[uint32]Lock{}, map[string]int{}
			}
			if k.Granted {
				holding[key][k.PID] = k
				doing[key][describeState(k)]++
				continue
			}
			waits[key]++
			waiting[key][k.PID] = true
		}
	}
	of := total(waits)
	lost := 0.0
	if of > 0 {
		lost = l.waits.Rate(OtherLock) * float64(of) / float64(all)
	}
	if lost < noticeable {
		return healthy("No session waits for an advisory lock.")
	}
	worst := slices.SortedFunc(maps.Keys(waits), func(a, b advisory) int {
		return cmp.Or(waits[b]-waits[a], cmp.Compare(a.class, b.class), cmp.Compare(a.object, b.object), cmp.Compare(a.database, b.database))
	})[0]
	holders := slices.SortedFunc(maps.Values(holding[worst]), func(a, b Lock) int { return cmp.Or(cmp.Compare(b.Age, a.Age), cmp.Compare(a.PID, b.PID)) })
	severity := grade(lost)
	// Whoever waits for its turn as a leader has nothing else to do. Then one session keeps the only key that anybody waits for, and nothing else waits with it: a
	// transaction that does nothing leads nobody.
	leads := len(holders) == 1 && len(waits) == 1 && !holders[0].idles() && l.election(worst)
	switch {
	case len(holders) == 1 && holders[0].idles():
		if severity == Info && lost >= oneWhole {
			severity = Warning
		}
	case l.view.inTheWay(waiting[worst]):
		leads = false
	case leads, len(holders) == 1 && len(waits) == 1 && len(waiting[worst]) < int(crippling):
		severity = Info
	case len(holders) == 1 && len(waits) == 1:
		severity = Warning
	}
	isAdvisory := func(s Session) bool { return s.WaitType == "Lock" && s.Wait == "advisory" }
	f := l.finding(AdvisoryLock, severity, lost, l.seenBy(isAdvisory))
	f.Summary = fmt.Sprintf("%s for advisory locks, mostly for %s, which one session at a time gets.", sessionsThat(lost, "queues up", "queue up"), worst)
	if leads {
		f.Summary = fmt.Sprintf("%s to take over the advisory lock %s from a session that keeps it and is idle, in no transaction: so do processes that elect a leader, and then no time is lost.",
			sessionsThat(lost, "waits", "wait"), worst)
	}
	f.add(seeAdvisory, "key %s: %s seen waiting, %s seen holding it", worst, many(len(waiting[worst]), "session"), many(len(holders), "session"))
	if others := len(waits) - 1; others > 0 {
		f.add(seeAdvisory, "%s of the waiting sessions wait for other keys, of which %d were seen", shareOf(float64(of-waits[worst]), float64(of)), others)
	}
	for _, k := range holders {
		f.holders[k.holding()]++
	}
	for _, k := range holders[:min(len(holders), maxFacts)] {
		if k.PID == 0 {
			f.add(seeAdvisory, "a prepared transaction has held it")
			continue
		}
		f.add(seeAdvisory, "pid %d has held it, %s; last statement: %s", k.PID, describeState(k), shape(k.Query))
		f.names(HoldsIt, k.Query)
	}
	if n := total(doing[worst]); n > 0 {
		f.add("", "what its holders do: %s", ranked(doing[worst], n, func(s string) string { return s }))
	}
	statements := map[string]int{}
	l.view.each(func(s Session, _ float64) {
		if isAdvisory(s) {
			statements[shape(s.Query)]++
		}
	})
	f.addStatements("", "waiting statements", WaitsForIt, statements)
	f.Now = "Hold the lock for a shorter time: take it last, and commit or unlock immediately."
	switch {
	case len(holders) == 1 && holders[0].PID == 0:
		end, err := endPrepared(ctx, l, "advisory", worst.class, worst.object, nil)
		if err != nil {
			return result{}, err
		}
		f.Now = end
	case len(holders) == 1 && holders[0].committed():
		f.Now = leaveCommit(holders[0].PID)
	case leads:
		f.add("", "they have waited for %s or longer, are always the same, have no transaction but for that, and nobody waits for them", span(seconds(waitsToLead)))
		f.Now = fmt.Sprintf("Nothing, if they elect a leader. If not, pid %[1]d has kept the lock by mistake, as happens in a connection that went back to its pool: SELECT pg_terminate_backend(%[1]d);", holders[0].PID)
	case len(holders) == 1:
		f.Now = fmt.Sprintf("Look at what its holder does. If it is not to hold the lock: SELECT pg_terminate_backend(%d);", holders[0].PID)
	}
	f.ForGood = "Use one key per thing that is protected instead of one for all, pg_try_advisory_xact_lock where the work can be skipped, and lock_timeout where it can't. " +
		"For jobs that must not run at the same time, Weir has limits and keys."
	if leads {
		f.ForGood = "Let those that are to take over call pg_try_advisory_lock every few seconds: while one waits in pg_advisory_lock, it keeps a connection busy, and a snapshot, which holds back VACUUM."
	}
	return found(f)
}

// describeState says what a holder does.
func describeState(k Lock) string {
	switch {
	case k.PID == 0:
		return "prepared"
	case k.State == "":
		return "in an unknown state"
	case k.State != "active" || k.WaitType == "":
		return k.State
	}
	return "active, waiting for " + Event{k.WaitType, k.Wait}.String()
}
