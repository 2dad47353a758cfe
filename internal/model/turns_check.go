package model

import "fmt"

// inOrder checks that nothing else of the key runs or is to be tried again when a job starts.
func (m *turns) inOrder(s *turnState, next *turnJob) error {
	for _, r := range s.rows.all() {
		if r.job == next.job || r.claim == 0 {
			continue
		}
		finished := false
		for _, e := range s.rows.all() {
			finished = finished || e.job == r.job && e.end != 0 && s.committed(e.end) && !e.again
		}
		if !finished {
			return fmt.Errorf("job %d starts before job %d is finished", next.job, r.job)
		}
	}
	return nil
}

// check lets claims go on without any call in flight, and checks that each job is claimed, unless a producer's transaction is open.
func (m *turns) check(s *turnState) error {
	if s.ops.n > 0 {
		return nil
	}
	rest := *s
	for range 2*int(s.rows.n) + 2 {
		for i, r := range rest.rows.all() {
			if r.claim != 0 && r.end == 0 {
				x := rest.begin()
				rest.rows.row[i].end = x
				rest.commit(x, true, false)
			}
		}
		rest.tail, rest.flushed = table[commit]{}, 0
		for _, do := range []action{turnClaim, turnRead, turnTake, turnCommit} {
			if err := m.take(&rest, step{do: do}); err != nil {
				return err
			}
		}
		m.tidy(&rest)
	}
	for _, r := range rest.rows.all() {
		if r.claim == 0 {
			return fmt.Errorf("job %d is never claimed", r.job)
		}
	}
	return nil
}

// tidy forgets what makes no difference any more: turns that were followed by others, and the order of commits.
func (m *turns) tidy(s *turnState) {
	s.tail, s.flushed = table[commit]{}, 0
	at := s.snapshot()
	newest := s.newestRing(at).seq
	s.turns.keep(func(r *turnRow) bool { return r.seq >= newest })
	s.rings.keep(func(r *ringRow) bool { return r.seq >= newest })
	s.rows.sort(func(r *turnJob) uint64 { return key(r.job, r.front, r.by, r.claim) })
	s.turns.sort(func(r *turnRow) uint64 { return key(r.seq, r.lane, r.by, 0) })
	s.rings.sort(func(r *ringRow) uint64 { return key(r.seq, r.by, 0, 0) })
	s.ops.sort(func(o *turnOp) uint64 { return key(bit(o.claims), o.xid, o.phase, o.saw.max) })
}

func (m *turns) say(s *turnState, st step) string {
	i := int(st.a)
	var x xid
	if i < int(s.ops.n) {
		x = s.ops.row[i].xid
	}
	switch st.do {
	case turnBegin:
		return fmt.Sprintf("a producer begins transaction %d", s.next)
	case turnEnqueue:
		return fmt.Sprintf("transaction %d logs job %d", x, s.jobs+1)
	case turnCommit:
		return fmt.Sprintf("commit of transaction %d", x)
	case turnClaim:
		return "a claim begins, and gets the ring's lock"
	case turnRead:
		return "the claim takes its snapshot, and reads what is announced and where the key's lanes stand"
	case turnTake:
		return fmt.Sprintf("the claim announces what is new, and gives the key its turn (transaction %d)", s.next)
	case turnEnd:
		return fmt.Sprintf("transaction %d ends the attempt of job %d", s.next, s.rows.row[i].job)
	case turnRetry:
		return fmt.Sprintf("transaction %d ends the attempt of job %d, and logs another one in front", s.next, s.rows.row[i].job)
	}
	return "?"
}
