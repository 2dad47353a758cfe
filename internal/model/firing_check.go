package model

import "fmt"

// check lets promotion go on, if no call is in flight, until the last due time has passed, and then checks that each has fired.
func (m *firings) check(s *firingState) error {
	if s.ops.n > 0 {
		return nil
	}
	t := *s
	for t.clock = lastDue; t.clock < lastDue+6; t.clock++ {
		t.ops.add(firingOp{promotes: true, now: t.clock, saw: t.newestReached(t.snapshot())})
		if m.takeDue(&t, 0); t.ops.n == 0 {
			continue
		}
		if err := m.fire(&t, 0); err != nil {
			return err
		}
		t.commit(t.ops.row[0].xid, true, false)
		t.ops.remove(0)
		t.tail, t.flushed = table[commit]{}, 0
		m.tidy(&t)
	}
	if err := t.once(); err != nil {
		return err
	}
	at := t.snapshot()
	for due := uint8(1); due <= lastDue; due++ {
		if !t.wasFired(at, longAgo, due) {
			return fmt.Errorf("the due time %d was never fired", due)
		}
	}
	return nil
}

func (s *firingState) eachXid(of func(*xid), each func(*snapshot)) {
	for i := range s.tail.all() {
		of(&s.tail.row[i].by)
	}
	for i := range s.marks.all() {
		of(&s.marks.row[i].by)
	}
	for i := range s.reached.all() {
		of(&s.reached.row[i].by)
		each(&s.reached.row[i].snap)
	}
	for i := range s.declared.all() {
		of(&s.declared.row[i].by)
	}
	for i := range s.fired.all() {
		of(&s.fired.row[i].by)
	}
	for i := range s.ops.all() {
		o := &s.ops.row[i]
		of(&o.xid)
		of(&o.saw.by)
		each(&o.saw.snap)
		for k := range o.due.all() {
			of(&o.due.row[k].by)
		}
	}
}

func (m *firings) tidy(s *firingState) {
	lossy := unsettled(&s.tail, &s.flushed, s.open, s.crashes, s.failovers)
	oldest := uint8(0) // the last cursor from which a promotion may start, or has
	for _, r := range s.reached.all() {
		if !lossy.has(r.by) {
			oldest = max(oldest, r.seq)
		}
	}
	for _, o := range s.ops.all() {
		if o.promotes {
			oldest = min(oldest, o.saw.seq)
		}
	}
	s.reached.keep(func(r *reachedRow) bool { return r.seq >= oldest })
	old := func(x *xid) {
		if *x != 0 && !lossy.has(*x) {
			*x = longAgo
		}
	}
	passed := func(r *markRow) bool { // by every cursor that a promotion may start from
		all := true
		for _, c := range s.reached.all() {
			all = all && c.snap.sees(r.by) && r.at <= c.to.at
		}
		for _, o := range s.ops.all() {
			all = all && (!o.promotes || o.saw.snap.sees(r.by) && r.at <= o.saw.to.at)
		}
		return all
	}
	s.marks.keep(func(r *markRow) bool { return lossy.has(r.by) || !passed(r) })
	for i := range s.fired.all() {
		old(&s.fired.row[i].by)
	}
	for i := range s.declared.all() {
		old(&s.declared.row[i].by)
	}
	for i := range s.reached.all() {
		r := &s.reached.row[i]
		r.seq -= oldest - 1
		old(&r.by)
	}
	for i := range s.ops.all() {
		o := &s.ops.row[i]
		if o.saw.by = 0; o.promotes {
			o.saw.seq -= oldest - 1
		}
		for k := range o.due.all() {
			o.due.row[k].by = 0
		}
	}
	var used xids
	s.eachXid(func(x *xid) { used.add(*x) }, func(*snapshot) {})
	n := numberingOf(used)
	s.eachXid(n.of, n.ofSnapshot)
	n.ofSet(&s.open)
	s.next = n.next
	s.marks.sort(func(r *markRow) uint64 { return key(r.at, r.by, r.generation, r.due) })
	s.fired.sort(func(r *mark) uint64 { return key(r.of, r.by, 0, 0) })
	s.declared.sort(func(r *declaredRow) uint64 { return key(r.generation, r.by, 0, 0) })
	s.ops.sort(func(o *firingOp) uint64 { return key(bit(o.promotes), o.xid, o.phase, o.now) })
}

func (m *firings) say(s *firingState, st step) string {
	i := int(st.a)
	var x xid
	if i < int(s.ops.n) {
		x = s.ops.row[i].xid
	}
	switch st.do {
	case firePromote:
		return fmt.Sprintf("promote begins, at time %d, and reads the newest cursor", s.clock)
	case fireTake:
		return fmt.Sprintf("promote finds what is due, and advances the cursor (transaction %d)", s.next)
	case fireFire:
		return fmt.Sprintf("promote fires the schedule, and inserts the row of the next due time (transaction %d)", x)
	case fireCommit:
		return fmt.Sprintf("commit of transaction %d", x)
	case fireKill:
		return fmt.Sprintf("the session of the promotion is killed (transaction %d)", x)
	case fireChange:
		return fmt.Sprintf("set_schedule changes the schedule, at time %d (transaction %d)", s.clock, s.next)
	case fireRollback:
		return fmt.Sprintf("rollback of transaction %d", x)
	case fireClock:
		return fmt.Sprintf("the clock advances to %d", s.clock+1)
	case fireCrash:
		return fmt.Sprintf("the server crashes and starts again, without the last %d commits", s.tail.n-s.flushed)
	case fireFailover:
		return fmt.Sprintf("failover to a standby that lacks the last %d commits", s.tail.n-st.a)
	}
	return "?"
}
