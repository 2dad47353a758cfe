package model

import "fmt"

// The turns of one key in order: its lane and the lane in front, what is announced, and claims that read no row that is not.

// turnJob is an attempt, from the transaction that logged it to the one that ended it.
type turnJob struct {
	job, front     uint8
	by, claim, end xid
	again          bool // it is tried again: its next attempt waits in front
}

// turnRow is where a lane stands: its position, and the transactions behind it that are not read to their end. Ids of jobs are their numbers.
type turnRow struct {
	by, seq, lane, xid, id uint8
	late                   table[lateTx]
}

type lateTx struct{ xid, after uint8 }

// ringRow is a row of weir.ring: what is announced.
type ringRow struct {
	by, seq uint8
	arrived snapshot
}

// turnOp is a call: a producer, a claim, or a transaction that ends an attempt.
type turnOp struct {
	claims bool
	phase  uint8
	xid    xid
	saw    snapshot
	ring   ringRow
	lanes  [2]turnRow
}

type turns struct {
	turnScenario
	off off
}

type turnScenario struct {
	name         string
	transactions []uint8 // how many jobs each logs
	claimers     int
	claims       uint8
	retries      uint8
}

type turnState struct {
	server
	begun, claims, retries uint8
	jobs                   uint8
	rows                   table[turnJob]
	turns                  table[turnRow]
	rings                  table[ringRow]
	ops                    table[turnOp]
}

const (
	turnBegin action = iota + 210
	turnEnqueue
	turnCommit
	turnClaim
	turnRead
	turnTake
	turnEnd
	turnRetry
)

func (m *turns) machine() *machine[turnState] {
	return &machine[turnState]{start: turnState{server: server{next: 1}, claims: m.claims, retries: m.retries}, steps: m.steps, take: m.take, check: m.check, tidy: m.tidy, say: m.say}
}

func (m *turns) steps(s *turnState, all []step) []step {
	can := func(do action, a int) { all = append(all, step{do, uint8(a), 0}) }
	claims := 0
	for i, o := range s.ops.all() {
		switch {
		case !o.claims && o.phase > 0:
			can(turnEnqueue, i)
		case o.claims && o.phase == 0:
			can(turnRead, i)
		case o.claims && o.phase == 1:
			can(turnTake, i)
		default:
			can(turnCommit, i)
		}
		claims += int(bit(o.claims))
	}
	if int(s.begun) < len(m.transactions) {
		can(turnBegin, 0)
	}
	if s.claims > 0 && m.mayClaim(s) && claims < m.claimers && (claims == 0 || !m.off.holds(ringLock)) {
		can(turnClaim, 0)
	}
	for i, r := range s.rows.all() {
		if r.claim != 0 && s.committed(r.claim) && r.end == 0 {
			can(turnEnd, i)
			if s.retries > 0 {
				can(turnRetry, i)
			}
		}
	}
	return all
}

// mayClaim reports whether anything has changed since the last claim: others write nothing.
func (m *turns) mayClaim(s *turnState) bool {
	last := s.newestRing(s.snapshot())
	for _, r := range s.rows.all() {
		if r.claim == 0 && s.committed(r.by) || r.end != 0 && s.committed(r.end) && !last.arrived.sees(r.end) {
			return true
		}
	}
	return false
}

func (m *turns) take(s *turnState, st step) error {
	i := int(st.a)
	switch st.do {
	case turnBegin:
		s.ops.add(turnOp{phase: m.transactions[s.begun], xid: s.begin()})
		s.begun++
	case turnEnqueue:
		o := &s.ops.row[i]
		o.phase--
		s.jobs++
		s.rows.add(turnJob{job: s.jobs, by: o.xid})
	case turnCommit:
		o := s.ops.row[i]
		s.ops.remove(i)
		s.commit(o.xid, true, false)
	case turnClaim:
		s.claims = max(s.claims, 1) - 1
		s.ops.add(turnOp{claims: true})
	case turnRead:
		o := &s.ops.row[i]
		o.phase, o.saw = 1, s.snapshot()
		o.ring = s.newestRing(o.saw)
		for lane := range o.lanes {
			o.lanes[lane] = s.newestTurn(o.saw, uint8(lane))
		}
	case turnTake:
		return m.giveTurn(s, i)
	case turnEnd, turnRetry:
		o := s.ops.add(turnOp{xid: s.begin()})
		r := &s.rows.row[i]
		if r.end = o.xid; st.do == turnRetry {
			s.retries--
			r.again = true
			s.rows.add(turnJob{job: r.job, front: 1, by: o.xid})
		}
	}
	return nil
}

func (s *turnState) newestRing(at snapshot) (last ringRow) {
	for _, r := range s.rings.all() {
		if at.sees(r.by) && r.seq > last.seq {
			last = r
		}
	}
	return last
}

func (s *turnState) newestTurn(at snapshot, lane uint8) turnRow {
	last := turnRow{lane: lane}
	for _, r := range s.turns.all() {
		if at.sees(r.by) && r.lane == lane && r.seq > last.seq {
			last = r
		}
	}
	return last
}

// waits reports whether a row waits, according to its lane's turn.
func (t *turnRow) waits(r *turnJob) bool {
	for _, l := range t.late.all() {
		if l.xid == r.by && r.job > l.after {
			return true
		}
	}
	return r.by > t.xid || r.by == t.xid && r.job > t.id
}

// giveTurn is the statement that announces what is new, claims the next job of the key if none keeps it, and writes where the lanes stand.
func (m *turns) giveTurn(s *turnState, i int) error {
	o := &s.ops.row[i]
	at := s.snapshot()
	seen := o.saw // rows that only the statement's own snapshot shows are left alone
	o.phase, o.xid = 2, s.begin()
	held := false
	for k := range s.rows.all() {
		r := &s.rows.row[k]
		lane := &o.lanes[r.front]
		if r.by < lane.xid && o.saw.sees(r.by) && !o.ring.arrived.sees(r.by) && m.off.holds(lateAnnounced) {
			known := false
			for _, l := range lane.late.all() {
				known = known || l.xid == r.by
			}
			if !known {
				lane.late.add(lateTx{xid: r.by})
			}
		}
	}
	for k := range s.rows.all() {
		r := &s.rows.row[k]
		if r.claim != 0 && at.sees(r.claim) && (r.end == 0 || !at.sees(r.end)) {
			held = true
		} else if r.front == 1 && at.sees(r.by) && (o.lanes[1].waits(r) || !seen.sees(r.by)) && m.off.holds(orderKept) {
			held = held || !seen.sees(r.by)
		}
	}
	var next *turnJob
	for lane := 1; lane >= 0 && next == nil && !held; lane-- {
		for k := range s.rows.all() {
			r := &s.rows.row[k]
			if int(r.front) == lane && seen.sees(r.by) && o.lanes[lane].waits(r) && (next == nil || r.by < next.by || r.by == next.by && r.job < next.job) {
				next = r
			}
		}
	}
	for lane := range o.lanes {
		t := &o.lanes[lane]
		t.by, t.seq = o.xid, o.ring.seq+1
		if next != nil && int(next.front) == lane {
			isLate := false
			for k := range t.late.all() {
				if l := &t.late.row[k]; l.xid == next.by {
					isLate, l.after = true, next.job
				}
			}
			if !isLate {
				t.xid, t.id = next.by, next.job
			}
		}
		// What is read to its end is forgotten.
		t.late.keep(func(l *lateTx) bool {
			for _, r := range s.rows.all() {
				if int(r.front) == lane && r.by == l.xid && r.job > l.after {
					return true
				}
			}
			return false
		})
		s.turns.add(*t)
	}
	s.rings.add(ringRow{by: o.xid, seq: o.ring.seq + 1, arrived: o.saw})
	if next == nil {
		return nil
	}
	if next.claim != 0 {
		return fmt.Errorf("job %d is claimed twice", next.job)
	}
	next.claim = o.xid
	return m.inOrder(s, next)
}
