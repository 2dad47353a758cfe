package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// seeNotifyLock shows the sessions that wait for NOTIFY's lock, and its holder.
const seeNotifyLock = `SELECT l.pid, l.granted, a.wait_event_type, a.wait_event, a.query FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'object' AND l.database = 0 AND l.classid = 1262 AND l.objid = 0`

// checkNotify detects waits for the cluster-wide lock that a notifying transaction holds through its commit.
func checkNotify(ctx context.Context, l *inspection) (result, error) {
	withLocks := l.view.withLocks()
	// On a busy server, few samples have locks, and these may show none of the waits.
	waits := func(s Sample) bool {
		return slices.ContainsFunc(s.Locks, func(k Lock) bool { return k.Type == "object" && !k.Granted })
	}
	if l.waits.Rate(ObjectLock) >= noticeable && !slices.ContainsFunc(withLocks, waits) {
		withLocks = append(withLocks, l.fresh(ctx)...)
	}
	waiting, others, heldIn := 0, 0, 0
	holding := map[Class]int{}
	events := map[Event]int{}
	statements := map[string]int{}
	for _, s := range withLocks {
		held := false
		for _, k := range s.Locks {
			switch {
			case k.notify() && !k.Granted:
				waiting++
			case k.notify():
				held = true
				// A holder that appears to wait for the lock has released it in the meantime.
				if class := k.holding(); k.State != "" && class != ObjectLock && class != notWaiting {
					holding[class]++
					events[Event{k.WaitType, k.Wait}]++
				}
			case k.Type == "object" && !k.Granted:
				others++
			}
		}
		if held {
			heldIn++
		}
	}
	// The samples with locks show which share of the waits for objects is NOTIFY's; all samples show how long these waits are.
	lost := 0.0
	if waiting > 0 {
		lost = l.waits.Rate(ObjectLock) * float64(waiting) / float64(waiting+others)
	}
	if lost < noticeable {
		if len(withLocks) == 0 {
			return healthy("No session waits for NOTIFY's commit lock: no session waited for any lock in %s.", many(len(l.view.samples), "sample"))
		}
		return healthy("No session waits for NOTIFY's commit lock (%s of all locks).", many(len(withLocks), "sample"))
	}
	l.view.each(func(s Session, _ float64) {
		if s.Class == ObjectLock {
			statements[shape(s.Query)]++
		}
	})
	f := l.finding(NotifyCommitLock, grade(lost), lost, l.view.seen(ObjectLock))
	f.Summary = fmt.Sprintf("NOTIFY lets only one commit through at a time: %s for its lock, at %s commits/s.", sessionsThat(lost, "waits", "wait"), figure(l.writes()))
	f.add(seeNotifyLock, "%s waits for object 0 of class 1262 in database 0 in %s, %s per sample", figure(float64(waiting)), many(len(withLocks), "sample"),
		figure(float64(waiting)/float64(len(withLocks))))
	if n := total(events); n > 0 {
		f.add(seeNotifyLock, "the lock's holder, in %s: %s", many(n, "sample"), ranked(events, n, describeHolder))
	}
	if l.server.commitDelay > 0 {
		f.add("SHOW commit_delay", "commit_delay is %d µs: a holder sleeps that long in its commit without showing a wait", l.server.commitDelay)
	}
	f.addStatements("", "waiting statements", WaitsForIt, statements)
	scale(holding, lost, f.holders)
	result := result{}
	sources, err := notifySources(ctx, l)
	if err != nil {
		result.unseen = append(result.unseen, fmt.Sprintf("which triggers and functions call pg_notify: %v", err))
	}
	for _, s := range sources {
		f.add(notifySourcesSQL, "%s", s.Fact)
	}
	if err == nil && len(sources) == 0 {
		f.add("", "no trigger, function or rule of database %s calls pg_notify or NOTIFY: the application or another database does", l.server.Database)
	}
	result.unseen = append(result.unseen, "triggers and functions that notify in databases other than "+l.server.Database+", which all share this lock")
	f.Now = "Move NOTIFY out of the transactions that write most: let one session notify, " +
		"a few times a second, about everything that has changed." + disable(sources)
	f.ForGood = "Let readers poll a position instead, or publish through Weir: weir.publish takes no lock for which another commit waits."
	f.Lab = "weir lab notify"
	result.findings = []Finding{f}
	return result, nil
}

func describeHolder(e Event) string {
	switch classify("active", e.Type, e.Name) {
	case CPU:
		return "no wait (computing, or asleep in commit_delay)"
	case Commit:
		if strings.EqualFold(e.Name, "SyncRep") {
			return e.String() + " (a synchronous standby)"
		}
		return e.String() + " (the WAL flush)"
	}
	return e.String()
}

// total adds up counts.
func total[K comparable](counts map[K]int) int {
	n := 0
	for _, c := range counts {
		n += c
	}
	return n
}

// ranked lists the largest counts with their shares.
func ranked[K comparable](counts map[K]int, of int, name func(K) string) string {
	const limit = 3
	keys := make([]K, 0, len(counts))
	for k := range counts {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b K) int {
		if counts[a] != counts[b] {
			return counts[b] - counts[a]
		}
		return strings.Compare(name(a), name(b))
	})
	var parts []string
	for _, k := range keys[:min(len(keys), limit)] {
		parts = append(parts, name(k)+" "+shareOf(float64(counts[k]), float64(of)))
	}
	if len(keys) > limit {
		parts = append(parts, fmt.Sprintf("%d more", len(keys)-limit))
	}
	return strings.Join(parts, "; ")
}

// scale spreads time lost over what holders do.
func scale(counts map[Class]int, lost float64, into map[Class]float64) {
	n := total(counts)
	for c, k := range counts {
		into[c] = lost * float64(k) / float64(n)
	}
}

// Functions in SQL-standard form have no source text, so their definition is rendered. A word in a comment may match:
// a false positive is better than a missed call.
const notifySourcesSQL = `WITH f AS (
  SELECT p.oid, p.oid::regprocedure::text AS name
  FROM pg_proc p JOIN pg_language g ON g.oid = p.prolang
  WHERE p.pronamespace <> 'pg_catalog'::regnamespace AND g.lanname NOT IN ('internal', 'c')
    AND coalesce(pg_get_function_sqlbody(p.oid), p.prosrc) ~* '\mpg_notify\s*\(|(^|;|''|\m(begin|then|else|loop))\s*notify\s+"?\w'
)
SELECT 'trigger ' || t.tgname || ' on ' || t.tgrelid::regclass::text || ' calls ' || f.name || CASE WHEN t.tgenabled = 'D' THEN ' (disabled)' ELSE '' END,
       CASE WHEN t.tgenabled IN ('O', 'A') THEN format('ALTER TABLE %s DISABLE TRIGGER %I;', t.tgrelid::regclass, t.tgname) ELSE '' END,
       CASE WHEN t.tgenabled IN ('O', 'A') THEN format('ALTER TABLE %s ENABLE %sTRIGGER %I;', t.tgrelid::regclass, CASE WHEN t.tgenabled = 'A' THEN 'ALWAYS ' ELSE '' END, t.tgname) ELSE '' END
FROM f JOIN pg_trigger t ON t.tgfoid = f.oid WHERE NOT t.tgisinternal AND t.tgparentid = 0
UNION ALL
SELECT 'function ' || f.name || ' notifies', '', '' FROM f WHERE NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgfoid = f.oid)
UNION ALL
SELECT 'rule ' || r.rulename || ' on ' || r.ev_class::regclass::text || ' notifies', '', ''
FROM pg_rewrite r WHERE r.ev_type <> '1' AND pg_get_ruledef(r.oid) ~* '\mnotify\M|\mpg_notify\M'
LIMIT 20`

// notifySource is a trigger, a function or a rule that notifies.
type notifySource struct{ Fact, Disable, Enable string } // the statements: of a trigger that is not disabled

func notifySources(ctx context.Context, l *inspection) ([]notifySource, error) {
	return list[notifySource](ctx, l.session, notifySourcesSQL)
}

// disable says how to stop the triggers that notify, and what that costs.
func disable(sources []notifySource) string {
	var off, on []string
	for _, s := range sources {
		if s.Disable != "" && len(off) < maxFacts {
			off, on = append(off, s.Disable), append(on, s.Enable)
		}
	}
	if len(off) == 0 {
		return ""
	}
	return fmt.Sprintf(" If listeners can do without for a while: SET lock_timeout = '1s'; %s Until %s they are told nothing of these tables, and so must look by themselves, also for what happened meanwhile; the rest that such a trigger does is left undone too; and each of these statements waits for all transactions that write to its table.",
		strings.Join(off, " "), strings.Join(on, " "))
}
