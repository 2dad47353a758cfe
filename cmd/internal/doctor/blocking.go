package doctor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
)

// Blocking is who blocks whom at one moment.
type Blocking struct {
	// Heads are the sessions and prepared transactions that wait for no lock and for which others wait, those for which most wait first. Of sessions that
	// wait for each other, until the server notices, one is among them.
	Heads   []*Blocked
	Waiting int // sessions that wait for locks, with those that are not in the tree because there are too many
}

// Blocked is a session in a tree of who waits for whom, or a prepared transaction, whose PID is 0.
type Blocked struct {
	PID                      uint32
	Prepared                 string // the name of a prepared transaction; may be unknown
	User, Application, State string
	Wait                     string  // what it waits for; "" if it does not
	Age                      float64 // seconds since its transaction started
	Waited                   float64 // seconds that it has waited for a lock; 0 for a head
	Statement                string  // without its values
	Also                     []uint32
	Behind                   []*Blocked // those that wait for it, longest first
}

// mostInTree bounds the calls of pg_blocking_pids, each of which locks the whole table of locks for a moment.
const mostInTree = 64

// blockingSQL lists the sessions that wait for locks, longest first, with those for which they wait, and then these.
const blockingSQL = `
WITH k AS MATERIALIZED (
  SELECT k.pid, min(k.waitstart) AS since, (min(k.transactionid::text) FILTER (WHERE k.locktype = 'transactionid'))::xid AS xid
  FROM pg_lock_status() k WHERE NOT k.granted AND k.pid IS NOT NULL GROUP BY k.pid
), w AS MATERIALIZED (
  SELECT k.pid, k.since, pg_blocking_pids(k.pid) AS whom, coalesce((SELECT x.gid FROM pg_prepared_xacts x WHERE x.transaction = k.xid), '') AS gid
  FROM (SELECT k.* FROM k ORDER BY k.since NULLS LAST, k.pid LIMIT $1) k
), p AS (
  SELECT w.pid FROM w UNION SELECT b.pid FROM w CROSS JOIN LATERAL unnest(w.whom) b(pid)
)
SELECT p.pid, coalesce(w.whom, '{}'), coalesce(w.gid, ''), coalesce(extract(epoch FROM clock_timestamp() - w.since), 0)::float8, (SELECT count(*) FROM k),
       coalesce(r.rolname::text, ''), coalesce(a.application_name, ''), coalesce(a.state, ''), coalesce(a.wait_event_type || ':' || a.wait_event, ''),
       coalesce(extract(epoch FROM clock_timestamp() - a.xact_start), 0)::float8, coalesce(left(a.query, $2), '')
FROM p LEFT JOIN w ON w.pid = p.pid LEFT JOIN LATERAL (SELECT s.* FROM pg_stat_get_activity(p.pid) s) a ON true LEFT JOIN pg_roles r ON r.oid = a.usesysid
WHERE p.pid <> 0`

type blockingRow struct {
	PID                            int32
	Whom                           []int32
	Prepared                       string
	Waited                         float64
	Waiting                        int64
	User, Application, State, Wait string
	Age                            float64
	Query                          string `text:"statement"`
}

func readBlocking(ctx context.Context, s *session) (Blocking, error) {
	rows, err := list[blockingRow](ctx, s, blockingSQL, mostInTree, queryLength)
	if err != nil {
		return Blocking{}, fmt.Errorf("who blocks whom: %w", err)
	}
	return blockingOf(rows), nil
}

// blockingOf makes the tree. A session that waits for several is behind the first that waits for nobody itself, if there is one.
func blockingOf(rows []blockingRow) Blocking {
	var b Blocking
	nodes, whom := map[int32]*Blocked{}, map[int32][]int32{}
	prepared := map[string]*Blocked{}
	for _, r := range rows { // all of them, before the first is asked for
		b.Waiting = int(r.Waiting)
		nodes[r.PID] = &Blocked{
			PID: uint32(r.PID), User: r.User, Application: r.Application, State: r.State, Wait: r.Wait, Age: r.Age, Waited: r.Waited, Statement: shape(r.Query),
		}
		if len(r.Whom) > 0 {
			whom[r.PID] = r.Whom
		}
	}
	parent := map[int32]int32{}
	for _, r := range rows {
		node, first := nodes[r.PID], int32(-1)
		before := slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(r.Whom))), func(pid int32) bool {
			return pid != 0 && nodes[pid] == nil // it has ended meanwhile
		})
		if len(before) > 0 {
			head := max(0, slices.IndexFunc(before, func(pid int32) bool { return len(whom[pid]) == 0 }))
			first = before[head]
			for _, pid := range slices.Delete(before, head, head+1) {
				node.Also = append(node.Also, uint32(pid))
			}
		}
		switch {
		case first == 0:
			if prepared[r.Prepared] == nil {
				prepared[r.Prepared] = &Blocked{Prepared: r.Prepared, State: "prepared"}
			}
			prepared[r.Prepared].Behind = append(prepared[r.Prepared].Behind, node)
			parent[r.PID] = 0
		case first > 0:
			parent[r.PID] = first
		}
	}
	// Who wait for each other stand in a circle: it is opened at the smallest pid.
	for _, pid := range slices.Sorted(maps.Keys(parent)) {
		for at, steps := pid, 0; steps <= len(parent); steps++ {
			next, waits := parent[at]
			if !waits || next == 0 {
				break
			}
			if next == pid {
				nodes[pid].Also = append(nodes[pid].Also, uint32(parent[pid]))
				delete(parent, pid)
				break
			}
			at = next
		}
	}
	for _, pid := range slices.Sorted(maps.Keys(nodes)) {
		before, waits := parent[pid]
		switch {
		case waits && before != 0:
			nodes[before].Behind = append(nodes[before].Behind, nodes[pid])
		case !waits:
			b.Heads = append(b.Heads, nodes[pid])
		}
	}
	for _, gid := range slices.Sorted(maps.Keys(prepared)) {
		b.Heads = append(b.Heads, prepared[gid])
	}
	b.Heads = slices.DeleteFunc(b.Heads, func(h *Blocked) bool { return len(h.Behind) == 0 })
	for _, h := range b.Heads {
		h.sort()
	}
	slices.SortStableFunc(b.Heads, func(x, y *Blocked) int { return cmp.Or(y.Size()-x.Size(), cmp.Compare(x.PID, y.PID)) })
	return b
}

// line returns a session that waits and those before it, up to the last that waits; none if it does not wait, or is not in the tree.
func (b Blocking) line(pid uint32) []*Blocked {
	var line []*Blocked
	var find func(n *Blocked) bool
	find = func(n *Blocked) bool {
		if n.PID == pid && n.PID != 0 || slices.ContainsFunc(n.Behind, find) {
			line = append(line, n)
			return true
		}
		return false
	}
	for _, h := range b.Heads {
		if slices.ContainsFunc(h.Behind, find) {
			return line
		}
	}
	return nil
}

func (b *Blocked) sort() {
	slices.SortStableFunc(b.Behind, func(x, y *Blocked) int { return cmp.Or(cmp.Compare(y.Waited, x.Waited), cmp.Compare(x.PID, y.PID)) })
	for _, n := range b.Behind {
		n.sort()
	}
}

// Size returns how many wait for it, directly or behind one another.
func (b *Blocked) Size() int {
	n := len(b.Behind)
	for _, behind := range b.Behind {
		n += behind.Size()
	}
	return n
}

// Lines returns the tree as text, those behind a session below it and indented.
func (b Blocking) Lines() []string {
	var lines []string
	shown := 0
	var add func(n *Blocked, indent string)
	add = func(n *Blocked, indent string) {
		lines = append(lines, indent+n.text())
		for _, behind := range n.Behind {
			shown++
			add(behind, indent+"  ")
		}
	}
	for _, h := range b.Heads {
		if h.Waited > 0 {
			shown++ // in a circle
		}
		add(h, "")
	}
	if more := b.Waiting - shown; more > 0 && len(lines) > 0 {
		wait := "sessions wait"
		if more == 1 {
			wait = "session waits"
		}
		lines = append(lines, fmt.Sprintf("%d more %s", more, wait))
	}
	return lines
}

// who names a session for people.
func (b *Blocked) who() string {
	if b.PID == 0 {
		if b.Prepared == "" {
			return "a prepared transaction"
		}
		return fmt.Sprintf("the prepared transaction %q", b.Prepared)
	}
	return fmt.Sprintf("pid %d (%s, %s)", b.PID, cmp.Or(b.User, "?"), orUnnamed(b.Application))
}

func (b *Blocked) text() string {
	if b.PID == 0 {
		return b.who()
	}
	text := b.who()
	if b.State != "" {
		text += " " + b.State
	}
	if b.Age > 0 {
		text += ", in a transaction for " + span(seconds(b.Age))
	}
	waits, reason := b.Waited > 0 || len(b.Also) > 0, b.Wait != "" && b.State == "active"
	if waits {
		text += ", waits " + span(seconds(b.Waited))
	}
	switch {
	case waits && reason:
		text += " for " + b.Wait
	case reason:
		text += ", waiting for " + b.Wait // nobody's lock
	}
	for i, pid := range b.Also {
		if i == 0 {
			text += ", also behind"
		}
		if pid == 0 {
			text += " a prepared transaction"
		} else {
			text += fmt.Sprintf(" %d", pid)
		}
	}
	if b.Statement != "" {
		text += ": " + b.Statement
	}
	return text
}
