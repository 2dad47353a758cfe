package doctor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/weir-pg/weir/cmd/internal/horizon"
)

const seeTableLock = `SELECT pid, pg_blocking_pids(pid), wait_event, query FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event = 'relation'`

// checkTableLock detects sessions that wait for a whole table. Usually one of them wants an exclusive lock and waits for a
// transaction that has only read the table, and all later sessions wait behind it.
func checkTableLock(ctx context.Context, l *inspection) (result, error) {
	waits := map[uint32]int{} // by relation
	all, of := 0, 0
	for _, s := range l.view.withLocks() {
		for _, k := range s.Locks {
			if k.Granted {
				continue
			}
			if k.Type != "object" && k.Type != "transactionid" && k.Type != "tuple" {
				all++
			}
			if l.ofTable(k) {
				of++
				waits[k.Relation]++
			}
		}
	}
	lost := 0.0
	if of > 0 {
		lost = l.waits.Rate(OtherLock) * float64(of) / float64(all)
	}
	if lost < noticeable {
		return healthy("No session waits for a table.")
	}
	relations := slices.SortedFunc(maps.Keys(waits), func(a, b uint32) int { return cmp.Or(waits[b]-waits[a], cmp.Compare(a, b)) })
	names, err := relationNames(ctx, l.session, relations)
	if err != nil {
		return result{}, err
	}
	worst := relations[0]
	f := l.finding(TableLock, grade(lost), lost, l.view.seen(OtherLock))
	f.Summary = fmt.Sprintf("%s for the table %s.", sessionsThat(lost, "queues up", "queue up"), names[worst])
	q := l.queueAt(worst)
	if w, waits := q.strongest(); waits {
		query := ""
		l.view.each(func(s Session, _ float64) {
			if s.PID == w.PID {
				query = s.Query
			}
		})
		who, err := l.who(ctx, w.PID)
		if err != nil {
			return result{}, err
		}
		f.add(seeTableLock, "%s wants %s: %s", who, w.Mode, shape(query))
		f.names(WaitsForIt, query)
	}
	holders := q.holders()
	for _, k := range holders {
		f.holders[k.holding()]++
	}
	for _, k := range holders[:min(len(holders), maxFacts)] {
		if k.PID == 0 {
			f.add(seeTableLock, "a prepared transaction holds %s", k.Mode)
			continue
		}
		who, err := l.who(ctx, k.PID)
		if err != nil {
			return result{}, err
		}
		since := ""
		if k.State != "" {
			since = ", in a transaction for " + span(seconds(k.Age))
		}
		f.add(seeTableLock, "%s holds %s, %s%s; last statement: %s", who, k.Mode, describeState(k), since, shape(k.Query))
		f.names(HoldsIt, k.Query)
	}
	if f.Now, err = q.end(ctx, l, worst, names[worst]); err != nil {
		return result{}, err
	}
	f.ForGood = "Set lock_timeout for every ALTER TABLE and retry it: then nobody waits behind it for longer. Keep transactions that read the table short."
	return found(f)
}

// end says which session to end: one that holds the table, unless it does what nobody should interrupt, or the one that the others wait behind.
func (q tableQueue) end(ctx context.Context, l *inspection, relation uint32, name string) (string, error) {
	pid, barrier := q.barrier()
	cancel := func(retry string) string {
		return fmt.Sprintf("cancel the session that wants the table for itself%s: SELECT pg_cancel_backend(%d);", retry, pid)
	}
	holders := q.holders()
	switch {
	case len(holders) == 0 && barrier && !l.server.Standby:
		return capitalize(cancel(", and retry with a lock_timeout of about a second")), nil
	case len(holders) == 0:
		return "Whoever held it has ended by now: nothing is left to end.", nil
	case holders[0].PID == 0:
		return endPrepared(ctx, l, "relation", relation, 0, q.conflicting())
	case l.server.Standby:
		return q.endOnStandby(ctx, l, holders[0], name)
	}
	h, err := holderNow(ctx, l, holders[0])
	if err != nil {
		return "", err
	}
	leave := horizon.Leave(h.Kind, h.Application, h.Query)
	compacts := h.State == "active" && compacts.MatchString(h.Query)
	switch {
	case h.Wait == standbyWait.String():
		return leaveCommit(holders[0].PID), nil
	case h.Query == hiddenQuery && barrier:
		return endUnseen(holders[0].PID) + " Or " + cancel(""), nil
	case h.Query == hiddenQuery:
		return endUnseen(holders[0].PID), nil
	case leave != "" && barrier:
		return fmt.Sprintf("Leave pid %d alone, which holds it: it is %s. %s", h.PID, leave, capitalize(cancel(", and retry once it has ended"))), nil
	case leave != "":
		return fmt.Sprintf("Leave pid %d alone, which holds it: it is %s. Let it end.", h.PID, leave), nil
	case compacts && holders[0].Mode == "ShareUpdateExclusiveLock":
		until := fmt.Sprintf("once the VACUUM of pid %d has ended (pg_stat_progress_vacuum shows how far it is)", h.PID)
		wait := "Retry " + until + ";"
		if barrier {
			wait = capitalize(cancel(", and retry " + until))
		}
		return fmt.Sprintf("%s or cancel the VACUUM: most of what it has done stays, and the next one does the rest: SELECT pg_cancel_backend(%d);", wait, h.PID), nil
	case compacts && holders[0].Mode == accessExclusive:
		return fmt.Sprintf("Wait until pid %[1]d has rewritten the table (pg_stat_progress_cluster shows how far it is), or cancel it, which loses all that it has done: SELECT pg_cancel_backend(%[1]d);", h.PID), nil
	case barrier:
		return fmt.Sprintf("End the session that holds it: SELECT pg_terminate_backend(%d); or %s", h.PID, cancel("")), nil
	}
	return fmt.Sprintf("End the session that holds it: SELECT pg_terminate_backend(%d);", h.PID), nil
}

// tableHolder is a session that holds a table, or its leader if it is the worker of a parallel statement.
type tableHolder struct {
	PID                            int32
	Kind, Application, State, Wait string
	Query                          string `text:"statement"`
}

// holderNow reads what a holder does now. If it has ended, only its pid is known.
func holderNow(ctx context.Context, l *inspection, k Lock) (tableHolder, error) {
	rows, err := list[tableHolder](ctx, l.session, `SELECT coalesce(a.leader_pid, a.pid), coalesce(a.backend_type, ''), coalesce(a.application_name, ''), coalesce(a.state, ''),
       coalesce(a.wait_event_type || ':' || a.wait_event, ''), coalesce(left(a.query, 300), '') FROM pg_stat_get_activity($1) a`, int32(k.PID))
	if err != nil {
		return tableHolder{}, fmt.Errorf("who holds the table: %w", err)
	}
	if len(rows) == 0 {
		return tableHolder{PID: int32(k.PID)}, nil
	}
	return rows[0], nil
}

// endOnStandby says it of a standby, whose sessions take no lock that conflicts with those of others: only the startup process does, which replays those of the primary.
func (q tableQueue) endOnStandby(ctx context.Context, l *inspection, k Lock, name string) (string, error) {
	if k.Mode == accessExclusive {
		return fmt.Sprintf("Leave pid %d alone, the startup process: it has replayed the lock of a transaction on the primary, and that transaction must end. "+
			"There: SELECT pid FROM pg_locks WHERE relation = '%s'::regclass AND mode = 'AccessExclusiveLock' AND granted;", k.PID, strings.ReplaceAll(name, "'", "''")), nil
	}
	delay, err := scalars[string](ctx, l.session, "SELECT current_setting('max_standby_streaming_delay')")
	if err != nil {
		return "", err
	}
	how := "max_standby_streaming_delay (" + delay[0] + ") decides for how long, and then cancels its statement or ends it"
	if delay[0] == "-1" {
		how = "max_standby_streaming_delay is -1, so without end"
	}
	w, _ := q.strongest()
	return fmt.Sprintf("End the session that holds it: SELECT pg_terminate_backend(%d); Replay of the primary's changes stands still until then: %s. Leave pid %d alone, the startup process, which replays them.",
		k.PID, how, w.PID), nil
}

// compacts matches the commands that make a table smaller. VACUUM lets reads and writes pass, but not an ALTER TABLE, behind which they wait; VACUUM FULL and
// CLUSTER let nobody pass. Their locks tell them apart.
var compacts = regexp.MustCompile(`(?i)^\s*(vacuum|cluster)\b`)
