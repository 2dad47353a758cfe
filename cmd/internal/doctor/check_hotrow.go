package doctor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Sessions per line that wait for one row.
const (
	lineShort = 2.5
	lineLong  = 3.5
)

// workLong is how long a transaction must have run, in seconds, for its holding a row to be no ordinary turn in a line.
const workLong = 2.0

const seeHotRow = `SELECT l.relation::regclass, l.page, l.tuple, count(*) FROM pg_locks l WHERE l.locktype = 'tuple' GROUP BY 1, 2, 3 ORDER BY 4 DESC`

// checkHotRow detects rows that many transactions want to change: each waits for the commit of the one before it.
func checkHotRow(ctx context.Context, l *inspection) (result, error) {
	lost := l.waits.Rate(RowLock)
	if lost < noticeable {
		return healthy("No sessions queue up for a row (%s wait on average).", figure(lost))
	}
	rows, tables, elsewhere := map[place]int{}, map[uint32]int{}, map[uint32]int{} // the last by database
	perTable := map[uint32]map[place]bool{}
	holding, doing, prepared, between := map[Class]int{}, map[string]int{}, 0, 0
	idle, working, newest := map[uint32]int{}, map[uint32]int{}, map[uint32]Lock{} // by pid
	waits, unplaced := 0, 0
	waiters, heads := 0, 0
	for _, s := range l.view.withLocks() {
		n, h := lines(s.Locks)
		waiters, heads = waiters+n, heads+h
		for p, n := range waited(s.Locks) {
			rows[p] += n
			if p.Database == l.server.databaseOID {
				tables[p.Relation] += n
				if perTable[p.Relation] == nil {
					perTable[p.Relation] = map[place]bool{}
				}
				perTable[p.Relation][p] = true
			} else {
				elsewhere[p.Database] += n
			}
		}
		// A session that waits for a transaction but not for a tuple either follows an update chain, or inserts.
		inserting := map[uint32]bool{}
		for _, session := range s.Sessions {
			inserting[session.PID] = inserts.MatchString(session.Query)
		}
		for _, k := range s.Locks {
			if k.Type == "tuple" {
				inserting[k.PID] = false
			}
		}
		for _, k := range s.Locks {
			if !k.Granted && (k.Type == "tuple" || k.Type == "transactionid") {
				waits++
				if inserting[k.PID] {
					unplaced++
				}
			}
			if k.Type != "transactionid" || !k.Granted || k.State == "" && k.PID != 0 {
				continue
			}
			if k.PID == 0 {
				prepared++
				doing["prepared"]++
				holding[notWaiting]++
				continue
			}
			class := k.holding()
			var what string
			switch {
			case strings.HasPrefix(k.State, "idle in transaction") && k.Idle < idleLong:
				between++
				what = "between two statements"
			case strings.HasPrefix(k.State, "idle in transaction"):
				idle[k.PID]++
				what = "idle in transaction"
			case class == CPU:
				what = "at work"
			case class == RowLock:
				what = "waiting for another row"
			case class == Commit:
				what = "committing (" + Event{k.WaitType, k.Wait}.String() + ")"
			default:
				what = "waiting for " + Event{k.WaitType, k.Wait}.String()
			}
			doing[what]++
			holding[class]++
			if k.State == "active" && k.Age >= workLong && k.WaitType != "Lock" && class != Commit {
				working[k.PID]++
				newest[k.PID] = k
			}
		}
	}
	// If clients only occasionally meet at one of many rows, each waits for one other session, and no line forms.
	line := float64(waiters) / float64(max(heads, 1))
	severity := grade(lost)
	switch {
	case line < lineShort:
		severity = Info
	case line < lineLong && severity == Critical:
		severity = Warning
	}
	// One session that stands still loses time as well, however short its line.
	if severity == Info && lost >= oneWhole && len(l.view.stuckIn(func(s Session) bool { return s.Class == RowLock })) > 0 {
		severity = Warning
	}
	f := l.finding(HotRow, severity, lost, l.view.seen(RowLock))
	relations := slices.SortedFunc(maps.Keys(tables), func(a, b uint32) int { return cmp.Or(tables[b]-tables[a], cmp.Compare(a, b)) })
	names, err := relationNames(ctx, l.session, relations)
	if err != nil {
		return result{}, err
	}
	where := "each other's rows"
	const maxRelations = 3
	var facts []string
	for i, oid := range relations[:min(len(relations), maxRelations)] {
		name := names[oid]
		if name == "" {
			name = fmt.Sprintf("relation %d", oid)
		}
		if i == 0 {
			where = "rows of " + name
		}
		var hottest place
		for p := range perTable[oid] {
			if hottest == (place{}) || rows[p] > rows[hottest] || rows[p] == rows[hottest] && p.ctid() < hottest.ctid() {
				hottest = p
			}
		}
		share := ""
		if len(perTable[oid]) > 1 {
			share = "most of them "
		}
		fact := fmt.Sprintf("%s: %s at %s, %sat ctid %s", name, many(tables[oid], "wait"), many(len(perTable[oid]), "row version"), share, hottest.ctid())
		keys, denied := l.hot.known(oid)
		switch {
		case l.hot == nil: // samples of a whole server are taken in another of its databases
			fact += "; its key shows with " + l.session.examines(l.server.Database)
		case len(keys) > 0:
			const limit = 3
			fact += "; primary key: " + strings.Join(keys[:min(len(keys), limit)], " and ")
			if i == 0 && len(keys) == 1 {
				where = fmt.Sprintf("the row of %s with %s", name, keys[0])
			}
		case l.hot.withheld:
			fact += "; its key is left out, as --without-statements says"
		case denied:
			fact += fmt.Sprintf("; %s may not read its key", l.server.User)
		default:
			fact += "; its key could not be read in time"
		}
		facts = append(facts, fact)
	}
	for _, oid := range most(elsewhere) {
		names, err := scalars[string](ctx, l.session, "SELECT datname::text FROM pg_database WHERE oid = $1", oid)
		if err != nil {
			return result{}, err
		}
		for _, name := range names {
			if len(facts) == 0 {
				where = "rows of database " + name
			}
			facts = append(facts, fmt.Sprintf("%s in database %s, whose tables and keys show only there, with %s", many(elsewhere[oid], "wait"), name, l.session.examines(name)))
		}
	}
	f.Summary = fmt.Sprintf("%s for %s, each for the commit of the one before it.", sessionsThat(lost, "queues up", "queue up"), where)
	for _, fact := range facts {
		f.add(seeHotRow, "%s", fact)
	}
	if heads > 0 {
		f.add("SELECT pid, pg_blocking_pids(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'", "lines: %s at any moment, of %s waiting sessions each",
			figure(float64(heads)/float64(max(1, len(l.view.withLocks())))), figure(line))
	}
	if unplaced > 0 {
		f.add("", "%s of the waits are inserts: another transaction has inserted the same key of a unique index, and may still roll back",
			shareOf(float64(unplaced), float64(waits)))
	}
	if n := total(doing); n > 0 {
		f.add("", "what the holders of the rows do: %s", ranked(doing, n, func(s string) string { return s }))
	}
	statements := map[string]int{}
	l.view.each(func(s Session, _ float64) {
		if s.Class == RowLock {
			statements[shape(s.Query)]++
		}
	})
	f.addStatements("", "waiting statements", WaitsForIt, statements)
	scale(holding, lost, f.holders)
	f.Now = "Update that row last in its transaction, and commit immediately: the lock is held from the update to the commit."
	f.ForGood = "Do not keep a running count in one row: insert a row per change and add them up when reading or in the background; " +
		"or collect changes in the process and write one for many."
	switch {
	case prepared*2 > total(doing):
		f.ForGood = endForgotten
		f.Now = "End the prepared transactions that hold the rows, as their coordinator would, with COMMIT PREPARED or ROLLBACK PREPARED: SELECT gid, database FROM pg_prepared_xacts;"
	case total(idle)*2 > total(doing):
		f.ForGood = endIdle
		var ends []string
		for _, pid := range most(idle) {
			ends = append(ends, fmt.Sprintf("SELECT pg_terminate_backend(%d);", pid))
		}
		f.Now = "End the transactions that hold the rows and do nothing: " + strings.Join(ends, " ")
	case total(working)*2 > total(doing):
		for _, pid := range most(working) {
			k := newest[pid]
			f.add("", "pid %d holds rows, %s, in a transaction for %s: %s", pid, describeState(k), span(seconds(k.Age)), shape(k.Query))
			f.names(HoldsIt, k.Query)
		}
		f.Now = fmt.Sprintf("Wait for the statement of pid %[1]d, or cancel it, which undoes all that it has done: SELECT pg_cancel_backend(%[1]d);", most(working)[0])
		f.ForGood = "Change many rows in batches that take less than a second, each in a transaction of its own."
	case between*2 > total(doing):
		f.Now = "Update that row last in its transaction, and commit immediately. Most of the time the lock is held while the server waits for the client's next statement: " +
			"send the update and the COMMIT in one round trip, and do no other work in between."
	}
	f.Lab = "weir lab tree"
	return found(f)
}

// most returns the pids, or databases, that were counted most often.
func most(counts map[uint32]int) []uint32 {
	all := slices.SortedFunc(maps.Keys(counts), func(a, b uint32) int { return cmp.Or(counts[b]-counts[a], cmp.Compare(a, b)) })
	return all[:min(len(all), maxFacts)]
}
