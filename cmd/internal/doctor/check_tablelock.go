package doctor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"

	"github.com/weir-pg/weir/cmd/internal/horizon"
)

const seeTableLock = `SELECT pid, pg_blocking_pids(pid), wait_event, query FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event = 'relation'`

// checkTableLock detects sessions that wait for a whole table. Usually one of them wants an exclusive lock and waits for a
// transaction that has only read the table, and all later sessions wait behind it.
func checkTableLock(ctx context.Context, l *inspection) (result, error) {
	waits := map[uint32]int{} // by relation
	type want struct {
		pid      uint32
		relation uint32
		mode     string
	}
	wants, held := map[want]int{}, map[want]Lock{}
	all, of := 0, 0
	for _, s := range l.view.withLocks() {
		for _, k := range s.Locks {
			if !k.Granted && k.Type != "object" && k.Type != "transactionid" && k.Type != "tuple" {
				all++
			}
			if k.Type != "relation" || k.Database != l.server.databaseOID && k.Database != 0 { // 0: a catalog that all databases share
				continue
			}
			w := want{k.PID, k.Relation, k.Mode}
			if k.Granted {
				held[w] = k
				continue
			}
			of++
			waits[k.Relation]++
			wants[w]++
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
	name := names[worst]
	f := l.finding(TableLock, grade(lost), lost, l.view.seen(OtherLock))
	f.Summary = fmt.Sprintf("%s for the table %s.", sessionsThat(lost, "queues up", "queue up"), name)
	queries := map[uint32]Session{}
	l.view.each(func(s Session, _ float64) { queries[s.PID] = s })
	// The others wait behind the strongest requested lock.
	strongest := slices.SortedFunc(maps.Keys(wants), func(a, b want) int {
		return cmp.Or(cmp.Compare(strength(b.mode), strength(a.mode)), wants[b]-wants[a], cmp.Compare(a.pid, b.pid))
	})
	var wanting uint32
	for _, w := range strongest {
		if w.relation == worst {
			wanting = w.pid
			f.add(seeTableLock, "pid %d wants %s: %s", w.pid, w.mode, shape(queries[w.pid].Query))
			break
		}
	}
	holders := slices.SortedFunc(maps.Keys(held), func(a, b want) int {
		return cmp.Or(cmp.Compare(held[b].Age, held[a].Age), cmp.Compare(strength(b.mode), strength(a.mode)), cmp.Compare(a.pid, b.pid))
	})
	const limit = 3
	var first *Lock
	for _, w := range holders {
		if w.relation != worst || len(f.Evidence) > limit {
			continue
		}
		k := held[w]
		if first == nil {
			first = &k
		}
		if w.pid == 0 {
			f.add(seeTableLock, "a prepared transaction holds %s", w.mode)
			continue
		}
		since := ""
		if k.State != "" {
			since = ", for " + span(seconds(k.Age))
		}
		f.add(seeTableLock, "pid %d holds %s, %s%s; last statement: %s", w.pid, w.mode, describeState(k), since, shape(k.Query))
	}
	f.Now = "Cancel the session that wants the table for itself, and retry with a lock_timeout of about a second."
	if first != nil {
		if f.Now, err = endHolder(ctx, l, worst, first.PID, wanting); err != nil {
			return result{}, err
		}
	}
	f.ForGood = "Set lock_timeout for every ALTER TABLE and retry it: then nobody waits behind it for longer. Keep transactions that read the table short."
	return found(f)
}

// endHolder says which of two sessions to end: the one that holds the table, unless it does what nobody should interrupt, or the one that wants it.
func endHolder(ctx context.Context, l *inspection, relation, holder, wanting uint32) (string, error) {
	if holder == 0 {
		return endPrepared(ctx, l, "relation", relation, 0)
	}
	type row struct {
		Kind, Application string
		Query             string `text:"statement"`
	}
	rows, err := list[row](ctx, l.session, `SELECT coalesce(a.backend_type, ''), coalesce(a.application_name, ''), coalesce(left(a.query, 300), '') FROM pg_stat_get_activity($1) a`, int32(holder))
	if err != nil {
		return "", fmt.Errorf("who holds the table: %w", err)
	}
	is, vacuum := "", false
	for _, r := range rows {
		is, vacuum = horizon.Leave(r.Kind, r.Application, r.Query), vacuums.MatchString(r.Query)
	}
	if is == "" && vacuum {
		return fmt.Sprintf("Cancel the session that wants the table for itself, and retry once the VACUUM of pid %d has ended (pg_stat_progress_vacuum shows how far it is): SELECT pg_cancel_backend(%d); "+
			"or cancel the VACUUM: most of what it has done stays, and the next one does the rest: SELECT pg_cancel_backend(%d);", holder, wanting, holder), nil
	}
	if is != "" {
		return fmt.Sprintf("Leave pid %d alone, which holds it: it is %s. Cancel the session that wants the table for itself, and retry once it has ended: SELECT pg_cancel_backend(%d);",
			holder, is, wanting), nil
	}
	return fmt.Sprintf("End the session that holds it: SELECT pg_terminate_backend(%d); or cancel the session that wants the table for itself: SELECT pg_cancel_backend(%d);",
		holder, wanting), nil
}

// vacuums matches a VACUUM that somebody runs: it lets reads and writes pass, but not an ALTER TABLE, behind which they wait.
var vacuums = regexp.MustCompile(`(?i)^\s*vacuum\b`)

// strength orders the lock modes of tables.
func strength(mode string) int {
	return slices.Index([]string{
		"AccessShareLock", "RowShareLock", "RowExclusiveLock", "ShareUpdateExclusiveLock", "ShareLock", "ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock",
	}, mode)
}
