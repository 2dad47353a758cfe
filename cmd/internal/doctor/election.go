package doctor

import "maps"

// waitsToLead is how long, in seconds, each of the sessions must have waited that wait to take over from a leader: requests that somebody waits for give up sooner, or
// others come.
const waitsToLead = 10.0

// election reports whether those that wait for a key wait to take over from a leader: one session has it and is idle, in no transaction; the same ones have waited all the
// time, and for long, each in a transaction of that statement alone.
func (l *inspection) election(key advisory) bool {
	var candidates map[uint32]bool
	var leader uint32
	idle, held := 0, 0
	for _, s := range l.view.withLocks() {
		waiting := map[uint32]bool{}
		for _, k := range s.Locks {
			switch {
			case k.Type != "advisory" || (advisory{k.Database, k.Class, k.Object, k.Sub}) != key:
			case !k.Granted:
				waiting[k.PID] = true
			case k.PID == 0 || leader != 0 && leader != k.PID:
				return false
			default:
				leader = k.PID
				held++
				if k.State == "idle" {
					idle++
				}
			}
		}
		if candidates != nil && !maps.Equal(candidates, waiting) {
			return false
		}
		candidates = waiting
	}
	if 2*idle <= held { // now and then it says that it is there
		return false
	}
	last := map[uint32]Session{}
	l.view.each(func(s Session, _ float64) { last[s.PID] = s })
	for pid := range candidates {
		if s := last[pid]; !s.timed() || s.Running < waitsToLead || s.Age > s.Running+idleLong || s.HasXID {
			return false
		}
	}
	return true
}

// inTheWay reports whether sessions hold what others wait for, in a sample with locks.
func (v view) inTheWay(pids map[uint32]bool) bool {
	for _, s := range v.withLocks() {
		wanted := map[Lock]bool{}
		for _, k := range s.Locks {
			if !k.Granted && !pids[k.PID] {
				wanted[k.object()] = true
			}
		}
		for _, k := range s.Locks {
			if k.Granted && pids[k.PID] && wanted[k.object()] {
				return true
			}
		}
	}
	return false
}

// object is equal for all locks of the same thing.
func (l Lock) object() Lock {
	return Lock{Type: l.Type, Database: l.Database, Relation: l.Relation, Page: l.Page, Tuple: l.Tuple, Transaction: l.Transaction, Class: l.Class, Object: l.Object, Sub: l.Sub}
}
