package model

// The log of scheduled attempts: how they are logged and promoted, and how its segments are reclaimed.

type laterRow struct {
	by, gone, xid   xid
	id, at, segment uint8 // at: run_at
}

// point is a place in the order of run_at.
type point struct{ at, id uint8 }

func (p point) before(q point) bool { return q.at > p.at || q.at == p.at && q.id > p.id }

func (r *laterRow) point() point { return point{r.at, r.id} }

const lastID = 255

// reached is a cursor: everything that the snapshot sees, up to the point, is promoted.
type reached struct {
	to   point
	snap snapshot
}

func (c reached) covers(r *laterRow) bool { return !c.to.before(r.point()) && c.snap.sees(r.xid) }

// promotionRow is a cursor of the promoter, with the ones that are kept since the clock stepped back.
type promotionRow struct {
	by  xid
	seq uint8
	reached
	ahead [4]reached
}

func (c *promotionRow) wasAhead(r *laterRow) bool {
	for _, a := range c.ahead {
		if a != (reached{}) && a.covers(r) {
			return true
		}
	}
	return false
}

// lop is a call: a producer's transaction or a promotion.
type lop struct {
	promotes bool
	phase    uint8
	xid      xid
	now      uint8        // for promote: the clock when it began
	saw      promotionRow // for promote: the newest cursor
	snap     snapshot     // for promote: the snapshot of its single statement
}

type later struct {
	laterScenario
	off off
}

type laterScenario struct {
	name                               string
	at                                 []uint8 // for each transaction: run_at of its job
	limit                              int     // maximum jobs of a promotion
	promoters                          int
	back, rotations, crashes, failover uint8
}

type laterState struct {
	server
	back, rotations, crashes, failovers uint8
	clock                               uint8
	rows                                table[laterRow]
	promotions                          table[promotionRow]
	opened                              table[mark]
	wanted, promoted                    table[mark] // jobs that were scheduled, and jobs that were copied into the log
	ops                                 table[lop]
	begun                               uint8
}

const lastTime = 3

const (
	laterBegin action = iota + 150
	laterCommit
	laterRollback
	promote
	promoteLook
	promoteInsert
	promoteCommit
	clockGoesOn
	clockStepsBack
	rotateLater
	reclaimLater
	laterCrash
	laterFailover
)

func (m *later) machine() *machine[laterState] {
	s := laterState{server: server{next: 1}, back: m.back, rotations: m.rotations, crashes: m.crashes, failovers: m.failover}
	s.opened.add(mark{of: 1})
	s.promotions.add(promotionRow{seq: 1, reached: reached{point{0, lastID}, snapshot{max: 1}}})
	return &machine[laterState]{start: s, steps: m.steps, take: m.take, check: m.check, tidy: m.tidy, say: m.say}
}

func (m *later) steps(s *laterState, all []step) []step {
	can := func(do action, a int) { all = append(all, step{do, uint8(a), 0}) }
	if int(s.begun) < len(m.at) {
		can(laterBegin, 0)
	}
	promoting := 0
	for i, o := range s.ops.all() {
		switch {
		case !o.promotes:
			can(laterCommit, i)
			can(laterRollback, i)
		case o.phase == 0:
			can(promoteLook, i)
		case o.phase == 1:
			can(promoteInsert, i)
		default:
			can(promoteCommit, i)
		}
		if o.promotes {
			promoting++
		}
	}
	if promoting == 0 || !m.off.holds(promoteLock) && promoting < m.promoters {
		can(promote, 0)
	}
	if s.clock < lastTime {
		can(clockGoesOn, 0)
	}
	if s.back > 0 && s.clock > 0 {
		can(clockStepsBack, 0)
	}
	if s.rotations > 0 && !s.used(3-s.active()) {
		can(rotateLater, 0)
	}
	if s.used(3-s.active()) && m.mayReclaim(s) && (promoting == 0 || !m.off.holds(promoteLock)) {
		can(reclaimLater, 0)
	}
	if s.crashes > 0 {
		can(laterCrash, 0)
	}
	if s.failovers > 0 {
		for n := range int(s.tail.n) + 1 {
			can(laterFailover, n)
		}
	}
	return all
}

func (s *laterState) active() uint8 { return s.opened.row[s.opened.n-1].of }

func (s *laterState) used(segment uint8) bool {
	for _, r := range s.rows.all() {
		if r.gone == 0 && r.segment == segment {
			return true
		}
	}
	return false
}

// mayReclaim reports whether rotate_later gets ACCESS EXCLUSIVE on the closed segment: no transaction in flight has rows there.
func (m *later) mayReclaim(s *laterState) bool {
	for _, r := range s.rows.all() {
		if r.gone == 0 && r.segment != s.active() && s.open.has(r.by) && m.off.holds(laterLock) {
			return false
		}
	}
	return true
}

func (m *later) take(s *laterState, st step) error {
	i := int(st.a)
	switch st.do {
	case laterBegin:
		o := s.ops.add(lop{xid: s.begin()})
		s.rows.add(laterRow{by: o.xid, xid: o.xid, id: s.begun + 1, at: m.at[s.begun], segment: s.active()})
		s.wanted.add(mark{by: o.xid, of: s.begun + 1})
		s.begun++
	case laterCommit, promoteCommit:
		o := s.ops.row[i]
		s.ops.remove(i)
		s.commit(o.xid, !o.promotes, !o.promotes)
	case laterRollback:
		var one xids
		one.add(s.ops.row[i].xid)
		s.ops.remove(i)
		s.rollBack(one)
	case promote:
		s.ops.add(lop{promotes: true, now: s.clock, saw: s.newest(s.snapshot())})
	case promoteLook:
		m.promoteLook(s, i)
	case promoteInsert:
		return m.promoteInsert(s, i)
	case clockGoesOn:
		s.clock++
	case clockStepsBack:
		s.back--
		s.clock--
	case rotateLater:
		s.rotations--
		x := s.begin()
		s.opened.add(mark{by: x, of: 3 - s.active()})
		s.commit(x, true, false)
	case reclaimLater:
		m.reclaimLater(s)
	case laterCrash:
		s.crashes--
		m.setBack(s, s.flushed)
	case laterFailover:
		s.failovers--
		m.setBack(s, st.a)
	}
	return nil
}

func (s *laterState) newest(at snapshot) (last promotionRow) {
	for _, p := range s.promotions.all() {
		if at.sees(p.by) && p.seq > last.seq {
			last = p
		}
	}
	return last
}

// promoteLook checks whether there is anything to do, gets an xid, and begins the statement.
func (m *later) promoteLook(s *laterState, i int) {
	o := &s.ops.row[i]
	at := s.snapshot()
	anything := !at.running.empty() && o.saw.to.at < o.now // otherwise it would read the rows in progress again and again
	for _, r := range s.rows.all() {
		if r.gone == 0 && at.sees(r.by) && (!o.saw.snap.sees(r.xid) || o.saw.to.before(r.point()) && r.at <= o.now) {
			anything = true
		}
	}
	if !anything {
		s.ops.remove(i)
		return
	}
	o.phase, o.xid = 1, s.begin()
	o.snap = s.snapshot()
}

// promoteInsert reads what is due, late or fresh, copies it into the log, and advances the cursor.
func (m *later) promoteInsert(s *laterState, i int) error {
	o := &s.ops.row[i]
	c := o.saw
	due := table[laterRow]{}
	for _, r := range s.rows.all() {
		if r.gone != 0 || !o.snap.sees(r.by) || r.at > o.now {
			continue
		}
		fresh := c.to.before(r.point())
		if !m.off.holds(pointID) {
			fresh = r.at > c.to.at
		}
		if fresh && !c.wasAhead(&r) || !fresh && !c.snap.sees(r.xid) && m.off.holds(latePromotion) {
			due.add(r)
		}
	}
	due.sort(func(r *laterRow) uint64 { return key(r.at, r.id, 0, 0) })
	next := promotionRow{by: o.xid, seq: c.seq + 1, reached: reached{point{o.now, lastID}, o.snap}}
	if int(due.n) >= m.limit {
		due.keep(func(r *laterRow) bool { return !due.row[m.limit-1].point().before(r.point()) })
		next.to = due.row[m.limit-1].point()
	}
	n := 0
	for _, a := range append([]reached{c.reached}, c.ahead[:]...) {
		if a == (reached{}) || !next.to.before(a.to) || !m.off.holds(aheadKept) {
			continue
		}
		if n == len(next.ahead) {
			panic(noRoom("too many older cursors"))
		}
		if !m.off.holds(aheadSnapshot) {
			a.snap = snapshot{max: 62}
		}
		next.ahead[n] = a
		n++
	}
	for _, k := range s.promotions.all() {
		if k.seq == next.seq { // the primary key
			s.drop(i)
			return nil
		}
	}
	for _, r := range due.all() {
		s.promoted.add(mark{by: o.xid, of: r.id})
	}
	s.promotions.add(next)
	o.phase = 2
	return nil
}

func (s *laterState) drop(i int) {
	var one xids
	one.add(s.ops.row[i].xid)
	s.ops.remove(i)
	s.rollBack(one)
}

// reclaimLater reclaims the closed segment: jobs that are not promoted yet are carried unchanged.
func (m *later) reclaimLater(s *laterState) {
	at, x := s.snapshot(), s.begin()
	c := s.newest(at)
	copies := table[laterRow]{}
	for k := range s.rows.all() {
		r := &s.rows.row[k]
		if r.gone != 0 || r.segment == s.active() {
			continue
		}
		waits := c.to.before(r.point()) || !c.snap.sees(r.xid) && m.off.holds(carryUnseen)
		if at.sees(r.by) && waits && !c.wasAhead(r) && m.off.holds(carryLater) {
			copies.add(*r)
		}
		r.gone = x
	}
	for _, r := range copies.all() {
		r.by, r.segment = x, s.active()
		s.rows.add(r)
	}
	s.commit(x, true, false)
}

func (m *later) setBack(s *laterState, n uint8) {
	s.rollBack(s.lose(n))
	s.ops = table[lop]{}
	s.next = 0
	s.eachXid(func(x *xid) { s.next = max(s.next, *x+1) }, func(x *xid) { s.next = max(s.next, *x) })
}

func (s *laterState) rollBack(lost xids) {
	s.open = s.open.without(lost)
	s.rows.keep(func(r *laterRow) bool { return !lost.has(r.by) })
	s.promotions.keep(func(r *promotionRow) bool { return !lost.has(r.by) })
	for _, t := range []*table[mark]{&s.opened, &s.wanted, &s.promoted} {
		t.keep(func(r *mark) bool { return !lost.has(r.by) })
	}
	for i := range s.rows.all() {
		restore(&s.rows.row[i].gone, lost)
	}
}
