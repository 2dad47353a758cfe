package model

import "fmt"

// check checks that no job is promoted twice, and, if no call is in flight, that all committed jobs are promoted once their time has come.
func (m *later) check(s *laterState) error {
	if err := s.once(); err != nil {
		return err
	}
	if s.ops.n > 0 {
		return nil
	}
	t := *s
	t.clock = lastTime
	for range 8 {
		t.ops.add(lop{promotes: true, now: t.clock, saw: t.newest(t.snapshot())})
		if m.promoteLook(&t, 0); t.ops.n == 0 {
			break
		}
		if err := m.promoteInsert(&t, 0); err != nil {
			return err
		}
		t.commit(t.ops.row[0].xid, true, false)
		t.ops.remove(0)
		t.promotions.keep(func(p *promotionRow) bool { return p.seq == t.newest(t.snapshot()).seq })
		t.tail = table[commit]{}
	}
	if err := t.once(); err != nil {
		return fmt.Errorf("once its time has come: %w", err)
	}
	for _, w := range t.wanted.all() {
		if n := t.times(w.of); n == 0 {
			return fmt.Errorf("job %d was never promoted", w.of)
		}
	}
	return nil
}

func (s *laterState) once() error {
	for _, w := range s.wanted.all() {
		if n := s.times(w.of); n > 1 {
			return fmt.Errorf("job %d was promoted %d times", w.of, n)
		}
	}
	return nil
}

// times returns how often a job was promoted.
func (s *laterState) times(id uint8) (n int) {
	for _, p := range s.promoted.all() {
		if p.of == id && s.committed(p.by) {
			n++
		}
	}
	return n
}

func (s *laterState) eachXid(of, bound func(*xid)) {
	bound(&s.next)
	for i := range s.tail.all() {
		of(&s.tail.row[i].by)
	}
	for i := range s.rows.all() {
		r := &s.rows.row[i]
		of(&r.by)
		of(&r.gone)
		of(&r.xid)
	}
	for i := range s.promotions.all() {
		s.promotions.row[i].eachXid(of, bound)
	}
	for _, t := range [...]*table[mark]{&s.opened, &s.wanted, &s.promoted} {
		for i := range t.all() {
			of(&t.row[i].by)
		}
	}
}

func (p *promotionRow) eachXid(of, bound func(*xid)) {
	of(&p.by)
	bound(&p.snap.max)
	for i := range p.ahead {
		bound(&p.ahead[i].snap.max)
	}
}

// tidy is like that of messages: cursors contain sets of transactions, so ids are kept.
func (m *later) tidy(s *laterState) {
	lossy := unsettled(&s.tail, &s.flushed, s.open, s.crashes, s.failovers)
	s.rows.keep(func(r *laterRow) bool { return r.gone == 0 || lossy.has(r.gone) })
	newest := uint8(0)
	for _, p := range s.promotions.all() {
		if !lossy.has(p.by) {
			newest = max(newest, p.seq)
		}
	}
	s.promotions.keep(func(p *promotionRow) bool { return p.seq >= newest })
	for s.opened.n > 1 && !lossy.has(s.opened.row[1].by) {
		s.opened.remove(0)
	}
	s.rows.sort(func(r *laterRow) uint64 { return key(r.id, r.segment, r.by, 0) })
	s.promotions.sort(func(p *promotionRow) uint64 { return key(p.seq, p.by, 0, 0) })
	s.promoted.sort(func(p *mark) uint64 { return key(p.of, p.by, 0, 0) })
	s.wanted.sort(func(p *mark) uint64 { return key(p.of, p.by, 0, 0) })
	s.ops.sort(func(o *lop) uint64 { return key(o.xid, o.phase, o.saw.seq, o.now) })
}

func (m *later) say(s *laterState, st step) string {
	i := int(st.a)
	var x xid
	if i < int(s.ops.n) {
		x = s.ops.row[i].xid
	}
	switch st.do {
	case laterBegin:
		return fmt.Sprintf("enqueue: transaction %d logs job %d for time %d, in segment %d", s.next, s.begun+1, m.at[s.begun], s.active())
	case laterCommit:
		return fmt.Sprintf("commit of transaction %d", x)
	case laterRollback:
		return fmt.Sprintf("rollback of transaction %d", x)
	case promote:
		return fmt.Sprintf("promote begins, at time %d, and reads the newest cursor", s.clock)
	case promoteLook:
		return "promote checks whether there is anything to do, and takes the snapshot of its statement"
	case promoteInsert:
		return fmt.Sprintf("promote copies what is due, and advances the cursor (transaction %d)", x)
	case promoteCommit:
		return fmt.Sprintf("the promotion commits (transaction %d), without a flush", x)
	case clockGoesOn:
		return fmt.Sprintf("the clock advances to %d", s.clock+1)
	case clockStepsBack:
		return fmt.Sprintf("the clock steps back to %d", s.clock-1)
	case rotateLater:
		return fmt.Sprintf("rotate_later opens segment %d", 3-s.active())
	case reclaimLater:
		return fmt.Sprintf("rotate_later carries what waits in segment %d, and truncates it", 3-s.active())
	case laterCrash:
		return fmt.Sprintf("the server crashes and starts again, without the last %d commits", s.tail.n-s.flushed)
	case laterFailover:
		return fmt.Sprintf("failover to a standby that lacks the last %d commits", s.tail.n-st.a)
	}
	return "?"
}
