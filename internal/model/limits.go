package model

import "fmt"

// The limit of a queue: its gate, the claims that hand out its jobs, and the releases that others write.

// started is an attempt, from the transaction that logged it to the one that ended it.
type started struct {
	job, attempt    uint8
	by, claim, end  xid
	counted, handed bool // it was handed out through the gate; its worker was told
}

// gateRow is the state of the gate.
type gateRow struct {
	by           xid
	seq, running uint8
	folded       snapshot
	before       set // jobs that ran without being counted when the gate was opened
}

// freed is a row of weir.release: a transaction has ended an attempt.
type freed struct{ by, gone, xid, ring uint8 }

// slotOp is a call: a claim, or a transaction that ends an attempt.
type slotOp struct {
	claims, gated, freed bool
	phase, lanes         uint8
	xid                  xid
	saw                  gateRow
	folded               snapshot
}

type limits struct {
	limitScenario
	off off
}

type limitScenario struct {
	name                                        string
	jobs, limit, quota                          uint8
	late                                        bool // the limit is set later
	claimers                                    int
	claims, lanes, retries, handsBack, rollBack uint8
	rotations, crashes, failovers               uint8
}

type limitState struct {
	server
	claims, retries, handsBack, rollBack, rotations, crashes, failovers uint8

	limited bool
	ring    uint8
	ghosts  uint8 // attempts that workers run, although a crash has undone their claims
	rows    table[started]
	gates   table[gateRow]
	freed   table[freed]
	ops     table[slotOp]
}

const (
	limitClaim action = iota + 180
	limitRead
	limitInsert
	limitNextLane
	limitHandBack
	limitCommit
	limitEnd
	limitRetry
	limitRollback
	limitSet
	limitRotate
	limitCompact
	limitCrash
	limitFailover
)

func (m *limits) machine() *machine[limitState] {
	s := limitState{server: server{next: 1}, claims: m.claims, retries: m.retries, handsBack: m.handsBack, rollBack: m.rollBack,
		rotations: m.rotations, crashes: m.crashes, failovers: m.failovers, limited: !m.late, ring: 1}
	for job := range m.jobs {
		s.rows.add(started{job: job + 1, attempt: 1})
	}
	return &machine[limitState]{start: s, steps: m.steps, take: m.take, check: m.check, tidy: m.tidy, say: m.say}
}

func (m *limits) steps(s *limitState, all []step) []step {
	can := func(do action, a int) { all = append(all, step{do, uint8(a), 0}) }
	claims, gated := 0, 0
	for i, o := range s.ops.all() {
		switch {
		case !o.claims:
			can(limitCommit, i)
		case o.phase == 0:
			can(limitRead, i)
		case o.phase == 1:
			can(limitInsert, i)
		default:
			can(limitCommit, i)
			if o.lanes < m.lanes && !o.freed {
				can(limitNextLane, i)
			}
			if s.handsBack > 0 && !o.freed {
				can(limitHandBack, i)
			}
		}
		if s.rollBack > 0 && o.xid != 0 {
			can(limitRollback, i)
		}
		if o.claims {
			claims++
			gated += int(bit(o.gated))
		}
	}
	if s.claims > 0 && claims < m.claimers && (gated == 0 || !m.off.holds(gateLock)) {
		can(limitClaim, 0)
	}
	for i, r := range s.rows.all() {
		if r.claim != 0 && s.committed(r.claim) && r.end == 0 { // whoever ends an attempt excludes others: see record and complete
			can(limitEnd, i)
			if s.retries > 0 {
				can(limitRetry, i)
			}
		}
	}
	if !s.limited && (claims == 0 || !m.off.holds(limitWaits)) {
		can(limitSet, 0)
	}
	if s.rotations > 0 && !s.ringUsed(3-s.ring) {
		can(limitRotate, 0)
	}
	if claims == 0 && s.ringUsed(3-s.ring) && !s.ringHeld(3-s.ring) {
		can(limitCompact, 0)
	}
	if s.crashes > 0 {
		can(limitCrash, 0)
	}
	if s.failovers > 0 {
		for n := range int(s.tail.n) + 1 {
			can(limitFailover, n)
		}
	}
	return all
}

func (s *limitState) ringUsed(ring uint8) bool {
	for _, r := range s.freed.all() {
		if r.gone == 0 && r.ring == ring {
			return true
		}
	}
	return false
}

// ringHeld reports whether an open transaction has rows there.
func (s *limitState) ringHeld(ring uint8) bool {
	for _, r := range s.freed.all() {
		if r.gone == 0 && r.ring == ring && s.open.has(r.by) {
			return true
		}
	}
	return false
}

func (m *limits) take(s *limitState, st step) error {
	i := int(st.a)
	switch st.do {
	case limitClaim:
		s.claims--
		s.ops.add(slotOp{claims: true, gated: s.limited})
	case limitRead:
		m.readGate(s, &s.ops.row[i])
	case limitInsert:
		m.handOut(s, i)
	case limitNextLane:
		o := &s.ops.row[i]
		o.phase, o.lanes = 0, o.lanes+1
	case limitHandBack:
		s.handsBack--
		m.handBack(s, &s.ops.row[i])
	case limitEnd, limitRetry:
		o := s.ops.add(slotOp{xid: s.begin()})
		if m.end(s, o.xid, &s.rows.row[i]); st.do == limitRetry {
			s.retries--
			s.rows.add(started{by: o.xid, job: s.rows.row[i].job, attempt: s.rows.row[i].attempt + 1})
		}
	case limitCommit:
		o := s.ops.row[i]
		s.ops.remove(i)
		s.commit(o.xid, !o.claims || o.gated && m.off.holds(flushGate), false)
		for k := range s.rows.all() {
			if r := &s.rows.row[k]; r.claim == o.xid && r.end != o.xid {
				r.handed = true
			}
		}
		if n := s.runs(); o.claims && o.gated && n > int(m.limit) {
			return fmt.Errorf("%d attempts run, and the limit is %d", n, m.limit)
		}
	case limitRollback:
		s.rollBack--
		var one xids
		one.add(s.ops.row[i].xid)
		s.ops.remove(i)
		s.undo(one)
	case limitSet:
		s.limited = true
	case limitRotate:
		s.rotations--
		s.ring = 3 - s.ring
	case limitCompact:
		m.compact(s)
	case limitCrash:
		s.crashes--
		m.setBack(s, s.flushed)
	case limitFailover:
		s.failovers--
		m.setBack(s, st.a)
		s.ghosts = 0 // these are the attempts that docs/limits.md excepts
	}
	return nil
}

// readGate reads the newest row, and then takes the snapshot up to which releases are counted.
func (m *limits) readGate(s *limitState, o *slotOp) {
	o.phase = 1
	if !o.gated {
		return
	}
	at := s.snapshot()
	o.saw = gateRow{}
	for _, g := range s.gates.all() {
		if (at.sees(g.by) || g.by == o.xid) && g.seq > o.saw.seq {
			o.saw = g
		}
	}
	if o.folded = at; o.xid != 0 && !m.off.holds(othersSnapshot) {
		o.folded.running.drop(o.xid) // as PostgreSQL shows a transaction its own id, once a later one has ended
	}
	if o.saw.seq == 0 { // it opens the gate
		for _, r := range s.rows.all() {
			if r.claim != 0 && at.sees(r.claim) && !r.counted && (r.end == 0 || !at.sees(r.end)) && m.off.holds(gateBefore) {
				o.saw.before.add(r.job)
			}
		}
		o.saw.folded = at
	}
}

// count returns what runs, as a snapshot shows it: what has been counted, with the releases from the gate's row up to another snapshot; and what was
// not counted because it ran before.
func (m *limits) count(s *limitState, at snapshot, saw *gateRow, folded snapshot) (counted, before uint8) {
	counted = saw.running
	for _, r := range s.freed.all() {
		if r.gone == 0 && at.sees(r.by) && folded.sees(r.xid) && (!saw.folded.sees(r.xid) || !m.off.holds(foldedOnce)) {
			counted--
		}
	}
	for _, r := range s.rows.all() {
		if r.attempt == 1 && saw.before.has(r.job) && (r.end == 0 || !at.sees(r.end)) {
			before++
		}
	}
	return counted, before
}

// handOut is the statement that hands out what there is room for, and writes the gate's next row.
func (m *limits) handOut(s *limitState, i int) {
	o := &s.ops.row[i]
	o.phase = 2
	at, room := s.snapshot(), m.quota
	var counted uint8
	if o.gated {
		var before uint8
		counted, before = m.count(s, at, &o.saw, o.folded)
		room = min(room, uint8(max(0, int(m.limit)-int(int8(counted))-int(before))))
	}
	first := o.xid == 0
	if first {
		o.xid = s.begin()
	}
	n := uint8(0)
	for k := range s.rows.all() {
		if r := &s.rows.row[k]; n < room && r.claim == 0 && at.sees(r.by) {
			r.claim, r.counted = o.xid, o.gated
			n++
		}
	}
	if n == 0 {
		if first {
			s.drop(i)
		}
		return
	}
	if !o.gated {
		return
	}
	for _, g := range s.gates.all() {
		if g.seq == o.saw.seq+1 { // the primary key
			s.drop(i)
			return
		}
	}
	s.gates.add(gateRow{by: o.xid, seq: o.saw.seq + 1, running: counted + n, folded: o.folded, before: o.saw.before})
}

func (m *limits) end(s *limitState, x xid, r *started) {
	if r.end = x; r.counted {
		s.freed.add(freed{by: x, xid: x, ring: s.ring})
	}
}

// handBack ends an attempt in the transaction that has claimed it, as weir.take does with a job of an unknown kind.
func (m *limits) handBack(s *limitState, o *slotOp) {
	for k := range s.rows.all() {
		if r := &s.rows.row[k]; r.claim == o.xid && r.end == 0 {
			m.end(s, o.xid, r)
			o.freed = true
			s.rows.add(started{by: o.xid, job: r.job, attempt: r.attempt + 1})
			return
		}
	}
}

// compact truncates the closed ring, and keeps what the newest row has not counted.
func (m *limits) compact(s *limitState) {
	at, x := s.snapshot(), s.begin()
	saw := s.newestGate(at)
	for k := range s.freed.all() {
		r := &s.freed.row[k]
		if r.gone != 0 || r.ring == s.ring {
			continue
		}
		if r.gone = x; !saw.folded.sees(r.xid) && m.off.holds(keepReleases) {
			s.freed.add(freed{by: x, xid: r.xid, ring: s.ring})
		}
	}
	s.commit(x, false, false)
}

func (s *limitState) newestGate(at snapshot) (last gateRow) {
	for _, g := range s.gates.all() {
		if at.sees(g.by) && g.seq > last.seq {
			last = g
		}
	}
	return last
}

func (s *limitState) drop(i int) {
	var one xids
	one.add(s.ops.row[i].xid)
	s.ops.remove(i)
	s.undo(one)
}

func (m *limits) setBack(s *limitState, n uint8) {
	lost := s.lose(n)
	for _, r := range s.rows.all() {
		if r.handed && lost.has(r.claim) {
			s.ghosts++
		}
	}
	s.undo(lost)
	s.ops = table[slotOp]{}
	s.next = 0
	s.eachXid(func(x *xid) { s.next = max(s.next, *x+1) }, func(x *xid) { s.next = max(s.next, *x) })
}

func (s *limitState) undo(lost xids) {
	s.open = s.open.without(lost)
	s.rows.keep(func(r *started) bool { return !lost.has(r.by) })
	for i := range s.rows.all() {
		r := &s.rows.row[i]
		if restore(&r.end, lost); r.claim != 0 && lost.has(r.claim) {
			r.claim, r.counted, r.handed = 0, false, false
		}
	}
	s.gates.keep(func(g *gateRow) bool { return !lost.has(g.by) })
	s.freed.keep(func(r *freed) bool { return !lost.has(r.by) })
	for i := range s.freed.all() {
		restore(&s.freed.row[i].gone, lost)
	}
}
