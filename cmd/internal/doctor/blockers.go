package doctor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weir-pg/weir/cmd/internal/horizon"
)

// blocker is a session or prepared transaction for which others wait.
type blocker struct {
	PID         uint32 // 0: a prepared transaction
	Kind        string // client backend, walsender, …
	Application string
	State, Wait string
	Age, Idle   float64 // of its transaction; in its state
	Query       string
	blocks      int // of the waiting sessions
}

const seeBlockers = `SELECT pid, pg_blocking_pids(pid), wait_event_type, wait_event, query FROM pg_stat_activity WHERE wait_event_type = 'Lock'`

// maxBlocked limits the calls of pg_blocking_pids, each of which locks the whole table of locks for a moment.
const maxBlocked = 30

const blockersSQL = `
SELECT w.pid, b.pid, coalesce(a.backend_type, ''), coalesce(a.application_name, ''), coalesce(a.state, ''), coalesce(a.wait_event_type || ':' || a.wait_event, ''),
       coalesce(extract(epoch FROM clock_timestamp() - a.xact_start), 0)::float8, coalesce(extract(epoch FROM clock_timestamp() - a.state_change), 0)::float8,
       coalesce(left(a.query, $2), '')
FROM unnest($1::integer[]) w(pid) CROSS JOIN LATERAL unnest(pg_blocking_pids(w.pid)) b(pid)
LEFT JOIN LATERAL (SELECT s.* FROM pg_stat_get_activity(b.pid) s WHERE b.pid <> 0) a ON true LIMIT 1000`

// blockerRow is a session that waits and one for which it waits.
type blockerRow struct {
	Waits, PID                     int32
	Kind, Application, State, Wait string
	Age, Idle                      float64
	Query                          string `text:"statement"`
}

func (r blockerRow) blocker() blocker {
	return blocker{PID: uint32(r.PID), Kind: r.Kind, Application: r.Application, State: r.State, Wait: r.Wait, Age: r.Age, Idle: r.Idle, Query: r.Query}
}

// blockers returns what the waiting sessions wait for now, and of these only those that wait for nobody themselves, most blocking first.
func (l *inspection) blockers(ctx context.Context, waiting []uint32) ([]blocker, error) {
	pids := make([]int32, 0, maxBlocked)
	for _, pid := range waiting[:min(len(waiting), maxBlocked)] {
		pids = append(pids, int32(pid))
	}
	rows, err := list[blockerRow](ctx, l.session, blockersSQL, pids, queryLength)
	if err != nil {
		return nil, fmt.Errorf("who blocks the waiting sessions: %w", err)
	}
	blocked := map[int32]bool{}
	for _, r := range rows {
		blocked[r.Waits] = true
	}
	roots := map[int32]blocker{}
	for _, r := range rows {
		if blocked[r.PID] {
			continue
		}
		b, known := roots[r.PID]
		if !known {
			b = r.blocker()
		}
		b.blocks++
		roots[r.PID] = b
	}
	return slices.SortedFunc(maps.Values(roots), func(a, b blocker) int { return cmp.Or(b.blocks-a.blocks, cmp.Compare(a.PID, b.PID)) }), nil
}

// text describes a blocker, for evidence.
func (b blocker) text() string {
	if b.PID == 0 {
		return "a prepared transaction blocks " + many(b.blocks, "session")
	}
	doing := b.State
	if b.State == "active" && b.Wait != "" {
		doing += ", waiting for " + b.Wait
	}
	return fmt.Sprintf("pid %d (%s), %s, in a transaction for %s, blocks %s; last statement: %s",
		b.PID, orUnnamed(b.Application), doing, span(seconds(b.Age)), many(b.blocks, "session"), shape(b.Query))
}

// committed reports whether it has committed, and waits for a synchronous standby.
func (b blocker) committed() bool { return b.Wait == standbyWait.String() }

// end says how to end what a blocker holds.
func (b blocker) end() string {
	leave := horizon.Leave(b.Kind, b.Application, b.Query)
	switch {
	case b.PID == 0:
		return "COMMIT PREPARED or ROLLBACK PREPARED, in its database, as its coordinator would: SELECT gid, database FROM pg_prepared_xacts;"
	case b.committed():
		return leaveCommit(b.PID)
	case b.Query == hiddenQuery:
		return endUnseen(b.PID)
	case strings.Contains(leave, "backup"):
		return fmt.Sprintf("Let the backup of pid %d (%s) end, for which the others wait, or cancel those that wait.", b.PID, b.Application)
	case leave != "":
		return fmt.Sprintf("Leave pid %d alone, for which the others wait: it is %s. Let it end, or cancel those that wait.", b.PID, leave)
	case b.State == "active":
		return fmt.Sprintf("Cancel the statement that the others wait for, if they are worth more: SELECT pg_cancel_backend(%d);", b.PID)
	}
	return fmt.Sprintf("End the session that the others wait for: SELECT pg_terminate_backend(%d);", b.PID)
}
