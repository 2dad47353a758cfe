package model

import (
	"fmt"
)

// action is what a step does. If a function of Weir does it, the action has its name.
type action uint8

const (
	_ action = iota
	begin
	enqueue
	commitOp
	rollback
	claim
	claimLane
	claimBatch
	record
	recordRetried
	complete
	insert
	fence
	settle
	reconcile
	reconcileLate
	rotate
	reclaim
	reclaimLook
	carryWaiting
	carryStates
	forgetEnded
	reclaimCarry
	reclaimGivesUp
	crash
	failover
	loseAnswer
	claimLate
	kill
	workerStart
	move
	rebase
)

// steps lists the possible next steps. a is a process or a call, b its object.
func (m *jobs) steps(s *state, all []step) []step {
	can := func(do action, a, b int) { all = append(all, step{do, uint8(a), uint8(b)}) }
	if int(s.begun) < len(m.transactions) {
		can(begin, 0, 0)
	}
	chores := true // rotating and reclaiming exclude each other
	for i := range s.ops.all() {
		o := &s.ops.row[i]
		chores = chores && o.call != reclaiming
		switch {
		case o.call == producing && o.left > 0:
			if !m.off.holds(shareLock) || !s.any(func(k *op) bool { return k.call == reclaiming && k.segment == o.segment }) {
				can(enqueue, i, 0)
			}
			can(rollback, i, 0)
		case o.call == producing:
			can(commitOp, i, 0)
			can(rollback, i, 0)
		case o.call == claiming && o.phase == 0:
			if s.mayClaim(o.worker) {
				can(claim, int(o.worker), i) // a late claim: by its op
			}
		case o.call == claiming && o.phase == 1:
			if !m.off.holds(laneLock) || !s.any(func(k *op) bool { return k.call == claiming && k.phase >= 2 }) {
				can(claimLane, i, 0)
			}
		case o.call == claiming && o.phase == 2:
			can(claimBatch, i, 0)
		case o.call == reconciling:
			if m.mayReconcile(s, o.worker, o.known) {
				can(reconcileLate, i, 0)
			}
		case o.call == reclaiming:
			if o.phase == 0 {
				can(reclaimLook, i, 0)
			} else if m.mayCarry(s, o.segment) {
				can(reclaimCarry, i, 0)
			}
			if s.left.Carries > 0 && o.phase == 1 {
				if o.lane && (!m.off.holds(carryLane) || !s.any(func(k *op) bool { return k.call == claiming && k.phase >= 2 })) {
					can(carryWaiting, i, 0)
				}
				if at := s.snapshot(); s.holdsState(at, s.newest(at).seq, o.segment) {
					can(carryStates, i, 0)
				}
			}
			can(reclaimGivesUp, i, 0)
		case o.phase == 1: // a result
			can(insert, i, 0)
		default:
			can(commitOp, i, 0)
			if o.call == completing {
				can(rollback, i, 0)
			}
		}
		if o.client != 0 && s.left.Losses > 0 {
			can(loseAnswer, i, 0)
		}
	}
	for i := range s.process {
		p := &s.process[i]
		if !p.alive || i > 0 && !s.process[i-1].acted {
			continue
		}
		m.ofProcess(s, i, can)
	}
	for _, w := range s.workers.all() {
		if w.fenced {
			if _, _, found, _ := m.toSettle(s, w.id); found {
				can(settle, int(w.id), 0)
			}
		} else if !s.fenced(s.snapshot(), w.id) && m.mayFence(s, w.id) && (!s.lives(w.id) || s.left.Fences > 0) {
			can(fence, int(w.id), 0)
		}
	}
	if chores {
		if s.left.Rotations > 0 && !s.used(3-s.active()) {
			can(rotate, 0, 0)
		}
		if s.left.Reclaims > 0 && s.used(3-s.active()) && m.mayReclaim(s, 3-s.active()) {
			can(reclaim, 0, 0)
		}
	}
	if s.left.Forgets > 0 && m.mayForget(s) {
		if _, fewer := m.kept(s, s.snapshot()); fewer {
			can(forgetEnded, 0, 0)
		}
	}
	if s.left.Crashes > 0 {
		can(crash, 0, 0)
	}
	if s.left.Failovers > 0 {
		for n := range int(s.tail.n) + 1 {
			can(failover, n, 0)
		}
	}
	if s.left.Moves > 0 && !s.moved {
		can(move, 0, 0)
	}
	if s.moved && !s.any(func(o *op) bool { return o.call == producing && s.wrote(o.xid, 0) }) {
		can(rebase, 0, 0)
	}
	return all
}

// ofProcess lists the possible steps of a worker's process.
func (m *jobs) ofProcess(s *state, i int, can func(action, int, int)) {
	p := &s.process[i]
	if p.worker == 0 {
		can(workerStart, i, 0)
		return
	}
	asks := s.any(func(o *op) bool { return int(o.client) == i+1 && o.call == claiming })
	if !asks && s.left.Claims > 0 && !p.doubt && p.held[len(p.held)-m.quota] == (held{}) && !s.moved {
		if s.mayClaim(p.worker) {
			can(claim, int(p.worker), 255-i)
		}
		if s.left.Late > 0 {
			can(claimLate, i, 0)
		}
	}
	for k, h := range p.held {
		if h == (held{}) {
			break
		}
		mine, tx := false, false
		for _, o := range s.ops.all() {
			if int(o.client) == i+1 && o.what == h {
				mine = mine || o.call != completing
				tx = tx || o.call == completing
			}
		}
		if mine {
			continue
		}
		// A worker's records exclude each other, and a completion in a handler's transaction has its attempt to itself.
		if m.mayEnd(s, p.worker, h.id, false) {
			can(record, i, k)
			if s.left.Retries > 0 {
				can(recordRetried, i, k)
			}
		}
		if !tx && s.left.Txs > 0 && m.mayEnd(s, p.worker, h.id, true) {
			can(complete, i, k)
		}
	}
	if p.doubt || s.left.Reconciles > 0 && m.off.holds(reconcileAgain) {
		if !asks && m.mayReconcile(s, p.worker, p.held) {
			can(reconcile, i, 0)
		}
	}
	if s.left.Late > 0 && !asks {
		can(reconcileLate, 255-i, 0)
	}
	if s.left.Kills > 0 {
		can(kill, i, 0)
	}
}

// any reports whether there is such a call.
func (s *state) any(such func(*op) bool) bool {
	for i := range s.ops.all() {
		if such(&s.ops.row[i]) {
			return true
		}
	}
	return false
}

// lives reports whether a process works under an id.
func (s *state) lives(id uint8) bool {
	for _, p := range s.process {
		if p.alive && p.worker == id {
			return true
		}
	}
	return false
}

// wrote reports whether a transaction has rows in the log of a segment, or (0) of any.
func (s *state) wrote(x xid, segment uint8) bool {
	if x == 0 {
		return false
	}
	for _, j := range s.jobs.all() {
		if j.by == x && (segment == 0 || j.segment == segment) {
			return true
		}
	}
	return false
}

// used reports whether a segment is in use.
func (s *state) used(segment uint8) bool {
	for _, j := range s.jobs.all() {
		if j.gone == 0 && j.segment == segment {
			return true
		}
	}
	for _, b := range s.batches.all() {
		if b.gone == 0 && b.segment == segment {
			return true
		}
	}
	return false
}

// take takes one of the steps.
func (m *jobs) take(s *state, st step) error {
	i := int(st.a)
	switch st.do {
	case begin:
		m.begin(s)
	case enqueue:
		m.enqueue(s, i)
	case commitOp:
		return m.commit(s, i)
	case rollback, reclaimGivesUp:
		s.drop(i)
	case claim:
		return m.claim(s, st)
	case claimLate:
		s.left.Late--
		p := &s.process[i]
		p.doubt, p.acted = true, true
		m.sendClaim(s, p).client = 0
	case claimLane:
		m.claimLane(s, i)
	case claimBatch:
		m.claimBatch(s, i)
	case record:
		return m.result(s, i, int(st.b), recording)
	case recordRetried:
		s.left.Retries--
		return m.result(s, i, int(st.b), retrying)
	case complete:
		s.left.Txs--
		return m.result(s, i, int(st.b), completing)
	case insert:
		return m.insert(s, i)
	case fence:
		m.fence(s, st.a)
	case settle:
		return m.settle(s, st.a)
	case reconcile:
		return m.reconcile(s, i)
	case reconcileLate:
		return m.reconcileLate(s, i)
	case rotate:
		m.rotate(s)
	case reclaim:
		m.reclaim(s)
	case reclaimLook:
		m.reclaimLook(s, i)
	case carryWaiting:
		s.left.Carries--
		m.carryWaiting(s, i)
	case carryStates:
		s.left.Carries--
		m.carryStates(s, i)
	case forgetEnded:
		s.left.Forgets--
		m.forgetEnded(s)
	case reclaimCarry:
		return m.reclaimCarry(s, i)
	case crash:
		s.left.Crashes--
		return m.crash(s)
	case failover:
		s.left.Failovers--
		m.failover(s, uint8(i))
	case loseAnswer:
		s.left.Losses--
		o := &s.ops.row[i]
		s.process[o.client-1].doubt = true
		o.client = 0
	case kill:
		s.left.Kills--
		s.process[i].ends()
		for k := range s.ops.all() {
			if int(s.ops.row[k].client) == i+1 {
				s.ops.row[k].client = 0
			}
		}
	case workerStart:
		m.workerStart(s, i)
	case move:
		m.move(s)
	case rebase:
		return m.rebase(s)
	default:
		return fmt.Errorf("unknown step %d", st.do)
	}
	return nil
}
