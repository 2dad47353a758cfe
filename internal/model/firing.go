package model

import "fmt"

// A schedule that is due at every time: rows of weir.later that mark its due times, the promotions that fire them, and a change, for example of its
// args.

type markRow struct {
	by              xid
	generation, due uint8
	at              uint8 // run_at: twice the time, and one more for "as soon as possible after it"
}

type reachedRow struct {
	by  xid
	seq uint8
	reached
}

// declaredRow is a version of the schedule.
type declaredRow struct {
	by                xid
	generation, first uint8 // first: its first due time
}

// firingOp is a promotion, or the change.
type firingOp struct {
	promotes bool
	phase    uint8
	xid      xid
	now      uint8
	saw      reachedRow
	due      table[markRow]
}

type firings struct {
	firingScenario
	off off
}

type firingScenario struct {
	name                         string
	promoters                    int
	limit                        uint8 // due times of one promotion
	changes, kills               uint8
	rollbacks, crashes, failover uint8
}

type firingState struct {
	server
	changes, kills, rollbacks, crashes, failovers uint8
	clock                                         uint8
	marks                                         table[markRow]
	reached                                       table[reachedRow]
	declared                                      table[declaredRow]
	fired                                         table[mark]
	ops                                           table[firingOp]
}

const lastDue = 3

const (
	firePromote action = iota + 220
	fireTake
	fireFire
	fireCommit
	fireKill
	fireChange
	fireRollback
	fireClock
	fireCrash
	fireFailover
)

func (m *firings) machine() *machine[firingState] {
	s := firingState{server: server{next: longAgo + 1}, changes: m.changes, kills: m.kills, rollbacks: m.rollbacks, crashes: m.crashes, failovers: m.failover}
	s.declared.add(declaredRow{generation: 1, first: 1})
	s.marks.add(markRow{generation: 1, due: 1, at: 2})
	s.reached.add(reachedRow{seq: 1, reached: reached{point{0, lastID}, snapshot{max: longAgo + 1}}})
	return &machine[firingState]{start: s, steps: m.steps, take: m.take, check: m.check, tidy: m.tidy, say: m.say}
}

func (m *firings) steps(s *firingState, all []step) []step {
	can := func(do action, a int) { all = append(all, step{do, uint8(a), 0}) }
	promoting := 0
	for i, o := range s.ops.all() {
		switch {
		case !o.promotes:
			can(fireCommit, i)
			if s.rollbacks > 0 {
				can(fireRollback, i)
			}
		case o.phase == 0:
			can(fireTake, i)
		case o.phase == 1:
			can(fireFire, i)
		default:
			can(fireCommit, i)
		}
		if o.promotes {
			promoting++
			if s.kills > 0 && o.phase > 0 {
				can(fireKill, i)
			}
		}
	}
	if promoting == 0 || !m.off.holds(fireLock) && promoting < m.promoters {
		can(firePromote, 0)
	}
	if s.changes > 0 {
		can(fireChange, 0)
	}
	if s.clock < lastDue {
		can(fireClock, 0)
	}
	if s.crashes > 0 {
		can(fireCrash, 0)
	}
	if s.failovers > 0 {
		for n := range int(s.tail.n) + 1 {
			can(fireFailover, n)
		}
	}
	return all
}

func (m *firings) take(s *firingState, st step) error {
	i := int(st.a)
	switch st.do {
	case firePromote:
		s.ops.add(firingOp{promotes: true, now: s.clock, saw: s.newestReached(s.snapshot())})
	case fireTake:
		m.takeDue(s, i)
	case fireFire:
		return m.fire(s, i)
	case fireCommit:
		o := s.ops.row[i]
		s.ops.remove(i)
		s.commit(o.xid, !o.promotes, !o.promotes)
		return s.once()
	case fireKill:
		s.kills--
		s.drop(i)
	case fireRollback:
		s.rollbacks--
		s.drop(i)
	case fireChange:
		s.changes--
		m.change(s)
	case fireClock:
		s.clock++
	case fireCrash:
		s.crashes--
		m.setBack(s, s.flushed)
	case fireFailover:
		s.failovers--
		m.setBack(s, st.a)
	}
	return nil
}

func (s *firingState) newestReached(at snapshot) (last reachedRow) {
	for _, r := range s.reached.all() {
		if at.sees(r.by) && r.seq > last.seq {
			last = r
		}
	}
	return last
}

// current returns the version of the schedule that a snapshot shows.
func (s *firingState) current(at snapshot) (d declaredRow) {
	for _, r := range s.declared.all() {
		if at.sees(r.by) && r.generation > d.generation {
			d = r
		}
	}
	return d
}

// wasFired reports whether a snapshot shows that a due time has been fired, or a transaction itself has done it.
func (s *firingState) wasFired(at snapshot, own xid, due uint8) bool {
	for _, f := range s.fired.all() {
		if f.of == due && (at.sees(f.by) || f.by == own) {
			return true
		}
	}
	return false
}

// mark inserts the row by which promotion will find a due time.
func (s *firingState) mark(x xid, generation, due, at uint8) {
	s.marks.add(markRow{by: x, generation: generation, due: due, at: at})
}

// takeDue is the statement that moves the cursor, and returns the marks that are due.
func (m *firings) takeDue(s *firingState, i int) {
	o := &s.ops.row[i]
	at := s.snapshot()
	o.xid = s.begin()
	// PostgreSQL shows a transaction its own id as ended once a later one has ended.
	snap := snapshot{max: s.next, running: at.running}
	for _, r := range s.marks.all() {
		if at.sees(r.by) && r.at <= 2*o.now && (r.at > o.saw.to.at || !o.saw.snap.sees(r.by)) {
			o.due.add(r)
		}
	}
	if o.due.n == 0 {
		s.drop(i)
		return
	}
	for _, r := range s.reached.all() {
		if r.seq == o.saw.seq+1 && m.off.holds(promotionKey) {
			s.drop(i)
			return
		}
	}
	s.reached.add(reachedRow{by: o.xid, seq: o.saw.seq + 1, reached: reached{point{2 * o.now, lastID}, snap}})
	o.phase = 1
}

// fire is weir._fire.
func (m *firings) fire(s *firingState, i int) error {
	o := &s.ops.row[i]
	at := s.snapshot()
	d := s.current(at)
	n := uint8(0)
	for _, r := range o.due.all() {
		if r.generation != d.generation && m.off.holds(generations) {
			continue
		}
		due := r.due
		for due <= o.now && n < m.limit {
			if !s.wasFired(at, o.xid, due) || !m.off.holds(firedOnce) {
				if r.generation != d.generation {
					return fmt.Errorf("the due time %d was fired as the schedule was before its change", due)
				}
				s.fired.add(mark{by: o.xid, of: due})
				n++
			}
			due++
		}
		when := 2 * due
		if m.off.holds(nextBeyond) {
			when = max(when, 2*o.now+1)
		}
		s.mark(o.xid, r.generation, due, when)
	}
	o.phase, o.due = 2, table[markRow]{}
	return nil
}

// change is weir.set_schedule, up to its commit.
func (m *firings) change(s *firingState) {
	at := s.snapshot()
	d := s.current(at)
	pending := d.first
	for _, f := range s.fired.all() {
		if at.sees(f.by) && f.of >= pending {
			pending = f.of + 1
		}
	}
	o := s.ops.add(firingOp{xid: s.begin(), now: s.clock})
	first := s.clock + 1
	if pending <= s.clock && m.off.holds(pendingMoves) {
		first = pending
	}
	s.declared.add(declaredRow{o.xid, d.generation + 1, first})
	s.mark(o.xid, d.generation+1, first, 2*first)
}

func (s *firingState) drop(i int) {
	var one xids
	one.add(s.ops.row[i].xid)
	s.ops.remove(i)
	s.undo(one)
}

func (m *firings) setBack(s *firingState, n uint8) {
	s.undo(s.lose(n))
	s.ops = table[firingOp]{}
	s.next = longAgo + 1
	s.eachXid(func(x *xid) { s.next = max(s.next, *x+1) }, func(at *snapshot) { s.next = max(s.next, at.max) })
}

func (s *firingState) undo(lost xids) {
	s.open = s.open.without(lost)
	s.marks.keep(func(r *markRow) bool { return !lost.has(r.by) })
	s.reached.keep(func(r *reachedRow) bool { return !lost.has(r.by) })
	s.declared.keep(func(r *declaredRow) bool { return !lost.has(r.by) })
	s.fired.keep(func(r *mark) bool { return !lost.has(r.by) })
}

// once checks that no due time has fired twice.
func (s *firingState) once() error {
	var due set
	for _, f := range s.fired.all() {
		if s.committed(f.by) {
			if due.has(f.of) {
				return fmt.Errorf("the due time %d was fired twice", f.of)
			}
			due.add(f.of)
		}
	}
	return nil
}
