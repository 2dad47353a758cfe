package model

import "fmt"

// check checks that no more attempts run than the limit allows, and, if no call is in flight, that the gate counts exactly what runs.
func (m *limits) check(s *limitState) error {
	if n := s.runs() + int(s.ghosts); s.limited && !m.late && n > int(m.limit) {
		return fmt.Errorf("%d attempts run, and the limit is %d", n, m.limit)
	}
	if s.ops.n > 0 || s.gates.n == 0 {
		return nil
	}
	at := s.snapshot()
	saw := s.newestGate(at)
	if counted, before := m.count(s, at, &saw, at); int(int8(counted))+int(before) != s.runs() {
		return fmt.Errorf("the gate counts %d attempts, and %d run", int(int8(counted))+int(before), s.runs())
	}
	return nil
}

// runs returns how many attempts run.
func (s *limitState) runs() (n int) {
	for _, r := range s.rows.all() {
		if r.claim != 0 && s.committed(r.claim) && (r.end == 0 || !s.committed(r.end)) {
			n++
		}
	}
	return n
}

func (s *limitState) eachXid(of, bound func(*xid)) {
	bound(&s.next)
	for i := range s.tail.all() {
		of(&s.tail.row[i].by)
	}
	for i := range s.rows.all() {
		r := &s.rows.row[i]
		of(&r.by)
		of(&r.claim)
		of(&r.end)
	}
	for i := range s.gates.all() {
		of(&s.gates.row[i].by)
		bound(&s.gates.row[i].folded.max)
	}
	for i := range s.freed.all() {
		r := &s.freed.row[i]
		of(&r.by)
		of(&r.gone)
		of(&r.xid)
	}
}

// tidy forgets what makes no difference any more: commits that no fault can undo, attempts that have ended, and rows that others have replaced.
func (m *limits) tidy(s *limitState) {
	lossy := unsettled(&s.tail, &s.flushed, s.open, s.crashes, s.failovers)
	s.rows.keep(func(r *started) bool { return r.end == 0 || lossy.has(r.end) })
	newest := uint8(0)
	for _, g := range s.gates.all() {
		if !lossy.has(g.by) {
			newest = max(newest, g.seq)
		}
	}
	s.gates.keep(func(g *gateRow) bool { return g.seq >= newest })
	s.freed.keep(func(r *freed) bool { return r.gone == 0 || lossy.has(r.gone) })
	s.rows.sort(func(r *started) uint64 { return key(r.by, r.claim, r.end, r.job) })
	s.gates.sort(func(g *gateRow) uint64 { return key(g.seq, g.by, 0, 0) })
	s.freed.sort(func(r *freed) uint64 { return key(r.xid, r.by, r.gone, r.ring) })
	s.ops.sort(func(o *slotOp) uint64 { return key(bit(o.claims), o.xid, o.phase, o.lanes) })
}

func (m *limits) say(s *limitState, st step) string {
	i := int(st.a)
	var x xid
	if i < int(s.ops.n) {
		x = s.ops.row[i].xid
	}
	switch st.do {
	case limitClaim:
		return "a claim begins, and gets the lock of the gate if there is one"
	case limitRead:
		return "the claim reads the newest row of the gate, and takes the snapshot up to which it counts releases"
	case limitInsert:
		return "the claim hands out what there is room for, and writes the next row of the gate"
	case limitNextLane:
		return fmt.Sprintf("the claim goes on to the next lane (transaction %d)", x)
	case limitHandBack:
		return fmt.Sprintf("the transaction %d of the claim hands a job back", x)
	case limitCommit:
		return fmt.Sprintf("commit of transaction %d", x)
	case limitEnd:
		return fmt.Sprintf("transaction %d ends the attempt of job %d, and writes a release", s.next, s.rows.row[i].job)
	case limitRetry:
		return fmt.Sprintf("transaction %d ends the attempt of job %d, writes a release, and logs another attempt", s.next, s.rows.row[i].job)
	case limitRollback:
		return fmt.Sprintf("rollback of transaction %d", x)
	case limitSet:
		return "the limit is set"
	case limitRotate:
		return "the next table of releases is opened"
	case limitCompact:
		return "the closed table of releases is truncated, and what is not counted is carried"
	case limitCrash:
		return fmt.Sprintf("the server crashes and starts again, without the last %d commits", s.tail.n-s.flushed)
	case limitFailover:
		return fmt.Sprintf("failover to a standby that lacks the last %d commits", s.tail.n-st.a)
	}
	return "?"
}
