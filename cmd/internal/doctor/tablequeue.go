package doctor

import (
	"cmp"
	"slices"
)

// tableQueue is who waits for a table, and who holds it, at one moment.
type tableQueue struct{ wants, held []Lock }

// ofTable reports whether it is the lock of a table of this database, or of a catalog that all databases share.
func (l *inspection) ofTable(k Lock) bool {
	return k.Type == "relation" && (k.Database == l.server.databaseOID || k.Database == 0)
}

// queueAt returns the queue for a table as it was last seen.
func (l *inspection) queueAt(relation uint32) tableQueue {
	for _, s := range slices.Backward(l.view.withLocks()) {
		var q tableQueue
		for _, k := range s.Locks {
			switch {
			case !l.ofTable(k) || k.Relation != relation:
			case k.Granted:
				q.held = append(q.held, k)
			default:
				q.wants = append(q.wants, k)
			}
		}
		if len(q.wants) > 0 {
			return q
		}
	}
	return tableQueue{}
}

// strongest returns the request for the strongest lock.
func (q tableQueue) strongest() (Lock, bool) {
	if len(q.wants) == 0 {
		return Lock{}, false
	}
	return slices.MinFunc(q.wants, func(a, b Lock) int {
		return cmp.Or(cmp.Compare(strength(b.Mode), strength(a.Mode)), cmp.Compare(a.PID, b.PID))
	}), true
}

// blocks counts the requests that a lock stands in the way of.
func (q tableQueue) blocks(k Lock) (n int) {
	for _, w := range q.wants {
		if (w.PID != k.PID || k.PID == 0) && clash(w.Mode, k.Mode) {
			n++
		}
	}
	return n
}

// holders returns the locks that others wait for, each session's strongest: first those in the way of most. A prepared transaction, whose age is not known, is
// before others: it does nothing, and nothing ends it by itself.
func (q tableQueue) holders() []Lock {
	all := slices.DeleteFunc(slices.Clone(q.held), func(k Lock) bool { return q.blocks(k) == 0 })
	slices.SortFunc(all, func(a, b Lock) int {
		return cmp.Or(cmp.Compare(q.blocks(b), q.blocks(a)), cmp.Compare(min(a.PID, 1), min(b.PID, 1)), cmp.Compare(b.Age, a.Age), cmp.Compare(strength(b.Mode), strength(a.Mode)), cmp.Compare(a.PID, b.PID))
	})
	seen := map[uint32]bool{}
	return slices.DeleteFunc(all, func(k Lock) bool {
		again := seen[k.PID]
		seen[k.PID] = true
		return again
	})
}

// barrier returns the request behind which others wait that no holder stands in the way of: were it cancelled, they would go on. If nobody else waits, it is the
// one that wants the table for itself.
func (q tableQueue) barrier() (pid uint32, is bool) {
	w, waits := q.strongest()
	if !waits {
		return 0, false
	}
	if len(q.wants) == 1 {
		return w.PID, w.Mode == accessExclusive
	}
	return w.PID, slices.ContainsFunc(q.wants, func(o Lock) bool {
		return o.PID != w.PID && clash(o.Mode, w.Mode) && !slices.ContainsFunc(q.held, func(k Lock) bool { return k.PID != o.PID && clash(o.Mode, k.Mode) })
	})
}

const accessExclusive = "AccessExclusiveLock"

// tableModes are the lock modes of tables by their strength, each with those it conflicts with, as a set of bits: the table of the chapter Explicit Locking in
// PostgreSQL's documentation.
var tableModes = []struct {
	name      string
	conflicts uint8
}{
	{"AccessShareLock", 0b1000_0000},
	{"RowShareLock", 0b1100_0000},
	{"RowExclusiveLock", 0b1111_0000},
	{"ShareUpdateExclusiveLock", 0b1111_1000},
	{"ShareLock", 0b1110_1100},
	{"ShareRowExclusiveLock", 0b1111_1100},
	{"ExclusiveLock", 0b1111_1110},
	{accessExclusive, 0b1111_1111},
}

// strength orders the lock modes of tables; -1: not one of them.
func strength(mode string) int {
	for i, m := range tableModes {
		if m.name == mode {
			return i
		}
	}
	return -1
}

// clash reports whether two sessions can't hold these locks at once.
func clash(a, b string) bool {
	i, j := strength(a), strength(b)
	return i >= 0 && j >= 0 && tableModes[i].conflicts&(1<<j) != 0
}

// conflicting returns the modes that conflict with one of the wanted ones.
func (q tableQueue) conflicting() []string {
	modes := []string{}
	for _, m := range tableModes {
		if q.blocks(Lock{Mode: m.name}) > 0 {
			modes = append(modes, m.name)
		}
	}
	return modes
}
