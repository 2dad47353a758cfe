package doctor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// idleLong is how long a session must have been idle in its transaction, in seconds, for it not to be between two statements.
const idleLong = 1.0

// What keeps transactions that do nothing from staying.
const (
	endIdle      = "Set idle_in_transaction_session_timeout, and call nothing outside the database between a change and its commit."
	endForgotten = "No time-out ends a prepared transaction: have whoever prepares them finish each one, after a crash as well; if nobody needs them, set max_prepared_transactions = 0."
)

// idleHead is what others wait for and does nothing.
type idleHead struct {
	pid         uint32
	transaction uint32 // of a prepared transaction, whose pid is 0
}

// idleHeads returns, for the sessions of one sample that wait for a row, the idle sessions and prepared transactions at the heads of their lines.
func idleHeads(locks []Lock) map[idleHead]int {
	next, before := inLine(locks)
	at := map[uint32]idleHead{}
	for pid, holder := range before {
		if holder.PID == 0 {
			at[pid] = idleHead{transaction: holder.Transaction}
		} else if strings.HasPrefix(holder.State, "idle in transaction") && holder.Idle >= idleLong {
			at[pid] = idleHead{pid: holder.PID}
		}
	}
	heads := map[idleHead]int{}
	for pid := range next {
		last := pid
		for range next { // bounds the steps if they wait in a circle
			further, waits := next[last]
			if _, more := next[further]; !waits || !more {
				break
			}
			last = further
		}
		if head, idle := at[last]; idle {
			heads[head]++
		}
	}
	return heads
}

// checkIdleBlocker detects sessions that wait for a row of a transaction that does nothing.
func checkIdleBlocker(ctx context.Context, l *inspection) (result, error) {
	waits, heads := 0, map[idleHead]int{}
	holders := map[uint32]Lock{}
	for _, s := range l.view.withLocks() {
		for _, k := range s.Locks {
			if !k.Granted && (k.Type == "tuple" || k.Type == "transactionid") {
				waits++
			}
			if k.Granted && k.Type == "transactionid" {
				holders[k.PID] = k
			}
		}
		for head, n := range idleHeads(s.Locks) {
			heads[head] += n
		}
	}
	lost := 0.0
	if waits > 0 {
		lost = l.waits.Rate(RowLock) * float64(total(heads)) / float64(waits)
	}
	if lost < noticeable {
		return healthy("No session waits for a row of a transaction that does nothing.")
	}
	severity := grade(lost)
	if lost >= oneWhole && severity == Info {
		severity = Warning
	}
	f := l.finding(IdleBlocker, severity, lost, l.view.seen(RowLock))
	worst := slices.SortedFunc(maps.Keys(heads), func(a, b idleHead) int {
		return cmp.Or(heads[b]-heads[a], cmp.Compare(a.pid, b.pid), cmp.Compare(a.transaction, b.transaction))
	})
	var ends []string
	for i, head := range worst[:min(len(worst), maxFacts)] {
		share := shareOf(float64(heads[head]), float64(total(heads)))
		var what, end string
		var err error
		if head.pid == 0 {
			what, end, err = describePrepared(ctx, l, head.transaction)
		} else {
			what, end, err = describeIdle(ctx, l, holders[head.pid])
		}
		if err != nil {
			return result{}, err
		}
		if i == 0 {
			f.Summary = fmt.Sprintf("%s for rows that %s has changed.", sessionsThat(lost, "waits", "wait"), what)
		}
		f.add(seeBlockers, "%s for which %s of them wait", what, share)
		if head.pid != 0 {
			f.add("", "its last statement: %s", shape(holders[head.pid].Query))
			f.names(HoldsIt, holders[head.pid].Query)
		}
		ends = append(ends, end)
	}
	statements := map[string]int{}
	l.view.each(func(s Session, _ float64) {
		if s.Class == RowLock {
			statements[shape(s.Query)]++
		}
	})
	f.addStatements("", "waiting statements", WaitsForIt, statements)
	f.Now = strings.Join(ends, " ")
	f.ForGood = endIdle
	if worst[0].pid == 0 {
		f.ForGood = endForgotten
	}
	return found(f)
}

func describeIdle(ctx context.Context, l *inspection, k Lock) (what, end string, err error) {
	who, err := l.who(ctx, k.PID)
	if err != nil {
		return "", "", err
	}
	return fmt.Sprintf("%s, idle in its transaction for %s,", who, span(seconds(k.Idle))), fmt.Sprintf("SELECT pg_terminate_backend(%d);", k.PID), nil
}

func describePrepared(ctx context.Context, l *inspection, transaction uint32) (what, end string, err error) {
	type row struct {
		GID, Database string
		Age           float64
	}
	rows, err := list[row](ctx, l.session, `SELECT p.gid, p.database::text, extract(epoch FROM clock_timestamp() - p.prepared)::float8 FROM pg_prepared_xacts p
WHERE p.transaction::text::bigint = $1`, int64(transaction))
	if err != nil {
		return "", "", err
	}
	if len(rows) == 0 {
		return "a prepared transaction that has ended by now", "Nothing is left to end.", nil
	}
	return fmt.Sprintf("the prepared transaction %q in database %s, prepared %s ago,", rows[0].GID, rows[0].Database, span(seconds(rows[0].Age))),
		endPreparedStatement(rows[0].GID, rows[0].Database) + ".", nil
}
