package doctor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

const seeWaits = `SELECT wait_event_type, wait_event, count(*), min(query) FROM pg_stat_activity WHERE state = 'active' GROUP BY 1, 2 ORDER BY 3 DESC`

// oneWhole is slightly less than one session that waits all the time, because the first sample of a period has no weight.
const oneWhole = 0.8

// explains reports whether a finding of this code explains such a wait. What a check counts in its own database explains nothing in others.
func (l *inspection) explains(code Code, s Session) bool {
	switch code {
	case NotifyCommitLock:
		return s.Class == ObjectLock && !l.waitsForObject(s.PID)
	case ListenersWoken:
		return s.Class == NotifyQueue
	case MultiXactContention:
		return s.Class == MultiXact
	case HotRow, IdleBlocker:
		return s.Class == RowLock
	case TableLock:
		return s.WaitType == "Lock" && s.Wait == "relation" && s.Database == l.server.databaseOID
	case AdvisoryLock:
		return s.WaitType == "Lock" && s.Wait == "advisory"
	case SubtransactionOverflow:
		return s.Class == TransactLog
	case TempFiles:
		return strings.HasPrefix(strings.ToLower(s.Wait), "buffile")
	case LockManager:
		return s.Class == LockTable
	case RowCommits:
		return s.Class == Commit && (s.committed() || s.Database == l.server.databaseOID) // standbys that do not confirm are a finding of their own, of all databases
	case SyncReplicationStalled:
		return s.committed()
	}
	return false
}

// waitsForObject reports whether a session was seen waiting for a type, a schema or another object, which has the same wait event as the lock of NOTIFY.
func (l *inspection) waitsForObject(pid uint32) bool {
	for _, s := range l.view.withLocks() {
		for _, k := range s.Locks {
			if k.PID == pid && !k.Granted && k.Type == "object" && !k.notify() {
				return true
			}
		}
	}
	return false
}

// works reports whether a wait is a part of doing work: it ends by itself, and soon. Waits of parallel queries for their own processes count.
func works(s Session) bool {
	switch s.WaitType {
	case "Lock":
		return s.Wait == "extend" // a table that grows
	case "IO":
		return true
	case "IPC":
		for _, own := range []string{"Hash", "MessageQueue", "Parallel", "Append", "Btree", "Execute", "BgWorker", "BufferIO", "BufferIo"} {
			if strings.HasPrefix(s.Wait, own) {
				return true
			}
		}
	}
	return s.Class == Commit && !s.committed() || s.Class == ClientWrite
}

// checkWaits reports waits that no finding explains. It keeps "nothing is wrong" from being said while sessions stand still.
func checkWaits(ctx context.Context, l *inspection) (result, error) {
	unexplained := func(s Session) bool {
		return s.Class.lost() && !slices.ContainsFunc(l.findings, func(f Finding) bool { return l.explains(f.Code, s) })
	}
	events, statements := map[Event]float64{}, map[string]int{}
	locks, contention, lost := 0.0, 0.0, 0.0
	pids := map[uint32]bool{}
	l.view.each(func(s Session, weight float64) {
		if !unexplained(s) {
			return
		}
		weight /= max(l.waits.Seconds, 1e-9)
		lost += weight
		events[Event{s.WaitType, s.Wait}] += weight
		statements[s.doing()]++
		switch {
		case works(s):
		case s.WaitType == "Lock":
			locks += weight
			pids[s.PID] = true
		default:
			contention += weight
		}
	})
	stands := l.view.stuckIn(func(s Session) bool { return unexplained(s) && !works(s) })
	r := result{}
	logins, err := l.logins(ctx)
	if err != nil {
		r.unseen, r.blind = append(r.unseen, err.Error()), true
	}
	for _, s := range logins {
		lost++
		locks++
		events[Event{s.WaitType, s.Wait}]++
		statements[s.doing()]++
		pids[s.PID] = true
	}
	stands = append(stands, logins...)
	extended := l.view.inExtensions()
	active := l.waits.Lost() + l.waits.Rate(CPU)
	severity := Info
	switch {
	case locks >= crippling, len(stands) >= crippling:
		severity = Critical
	case locks >= oneWhole, len(stands) > 0, contention >= costly && contention >= active/2:
		severity = Warning
	case lost < costly:
		if len(extended) > 0 {
			r.findings = append(r.findings, l.extensions(extended))
		} else if err == nil {
			r.healthy = fmt.Sprintf("No waits are left unexplained (%s sessions on average).", figure(lost))
		}
		return r, nil
	}
	f := l.finding(WaitsUnexplained, severity, lost, l.seenBy(unexplained))
	top := slices.SortedFunc(maps.Keys(events), func(a, b Event) int {
		return cmp.Or(cmp.Compare(events[b], events[a]), strings.Compare(a.String(), b.String()))
	})
	f.Summary = fmt.Sprintf("%s at any moment, mostly for %s, and no other finding explains it.", sessionsThat(lost, "waits", "wait"), top[0])
	if locks+contention == 0 {
		f.Summary = fmt.Sprintf("%s at any moment, mostly for %s, which is a part of their work.", sessionsThat(lost, "waits", "wait"), top[0])
	}
	var parts []string
	const limit = 5
	for _, e := range top[:min(len(top), limit)] {
		parts = append(parts, e.String()+" "+figure(events[e]))
	}
	f.add(seeWaits, "sessions by what they wait for: %s", strings.Join(parts, "; "))
	f.addStatements(seeWaits, "their statements", WaitsForIt, statements)
	for _, s := range stands[:min(len(stands), maxFacts)] {
		f.add("", "pid %d has stood still for %s or longer, in %s: %s", s.PID, span(s.lasted), Event{s.WaitType, s.Wait}, s.doing())
		pids[s.PID] = true
	}
	if len(extended) > 0 {
		f.add(seeExtensions, "%s too, for %s or longer: %s", standInExtensions(extended), span(standStill), extended[0].doing())
	}
	f.Now = "Look the event up in PostgreSQL's list of wait events, and look at the statements named here."
	if blockers, err := l.blockers(ctx, slices.Sorted(maps.Keys(pids))); err != nil {
		r.unseen = append(r.unseen, err.Error())
	} else if len(blockers) > 0 {
		for _, b := range blockers[:min(len(blockers), maxFacts)] {
			f.add(seeBlockers, "%s", b.text())
			f.names(HoldsIt, b.Query)
		}
		f.Now = blockers[0].end()
		for _, b := range blockers {
			if b.committed() {
				f.holders[Commit] += float64(b.blocks)
			} else {
				f.holders[notWaiting] += float64(b.blocks)
			}
		}
	}
	f.ForGood = "Bound waits where the statements come from: lock_timeout, statement_timeout, idle_in_transaction_session_timeout. " +
		"Short waits for the disk, for the log or for pages in memory are a part of work; fewer sessions at once get as much done."
	r.findings = append(r.findings, f)
	return r, nil
}

const seeExtensions = `SELECT pid, wait_event, now() - query_start, query FROM pg_stat_activity WHERE wait_event_type = 'Extension' AND backend_type = 'client backend'`

func standInExtensions(all []stuck) string {
	return fmt.Sprintf("%s in a wait of an extension (%s)", sessionsThat(float64(len(all)), "stands still", "stand still"), Event{all[0].WaitType, all[0].Wait})
}

// extensions reports sessions that stand still in a wait of an extension. That may be work, such as a long query on a foreign server, or a peer that will never
// answer: the server does not tell which.
func (l *inspection) extensions(all []stuck) Finding {
	f := l.finding(WaitsUnexplained, Info, 0, len(l.view.samples))
	f.Summary = standInExtensions(all) + ", and whether what they wait for will come the server does not tell."
	for _, s := range all[:min(len(all), maxFacts)] {
		f.add(seeExtensions, "pid %d has stood still for %s or longer, in %s: %s", s.PID, span(s.lasted), Event{s.WaitType, s.Wait}, s.doing())
		f.names(WaitsForIt, s.Query)
	}
	f.Now = fmt.Sprintf("Look whether what their statements talk to answers. If it does not: SELECT pg_cancel_backend(%d);", all[0].PID)
	f.ForGood = "Give connections to other servers a connect_timeout, keepalives and a statement_timeout: in dblink's connection string, or in the options of the foreign server."
	return f
}

// seenBy counts the samples in which some session is as is says.
func (l *inspection) seenBy(is func(Session) bool) int {
	n := 0
	for _, s := range l.view.samples {
		if slices.ContainsFunc(s.Sessions, is) {
			n++
		}
	}
	return n
}
