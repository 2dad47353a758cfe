package model

import "fmt"

// check checks that the reader has received what the log contains from its last gap to its position, and that every committed message gets into
// exactly one tick.
func (m *messages) check(s *messageState) error {
	if err := s.complete(); err != nil {
		return err
	}
	if s.ops.n > 0 {
		return nil
	}
	t := *s
	for range 12 {
		t.ops.add(mop{cut: true, snap: t.snapshot(), last: t.newest(t.snapshot())})
		if m.cutInsert(&t, 0); t.ops.n == 0 {
			break
		}
		t.commit(t.ops.row[0].xid, true, false)
		t.ops.remove(0)
		m.tidy(&t)
	}
	for _, l := range t.logged.all() {
		n := 0
		for _, k := range t.ticks.all() {
			for _, tag := range k.holds {
				if tag == l.of {
					n++
				}
			}
		}
		if n != 1 {
			return fmt.Errorf("in the end message %d is in %d ticks", l.of, n)
		}
	}
	for newest := t.newest(t.snapshot()); t.reader.seq != newest.seq || t.reader.epoch != newest.epoch && m.off.holds(epochs); {
		if t.reader.next = (tickRow{}); true {
			m.tick(&t)
		}
		if t.reader.next.seq != 0 {
			if err := m.read(&t); err != nil {
				return err
			}
		}
	}
	if err := t.complete(); err != nil {
		return fmt.Errorf("after the reader has read the rest: %w", err)
	}
	return nil
}

// complete compares what the reader has received with the log, if its position is in this log.
func (s *messageState) complete() error {
	r := &s.reader
	n, here := uint8(0), r.seq == r.start
	for seq := r.start + 1; seq <= r.seq; seq++ {
		for _, t := range s.ticks.all() {
			if t.seq != seq || !s.committed(t.by) {
				continue
			}
			here = seq == r.seq && t.epoch == r.epoch
			for _, tag := range t.holds {
				if tag == 0 {
					continue
				}
				if n >= r.n || r.got[n] != tag {
					if s.isOf(r) {
						return fmt.Errorf("the reader is at tick %d.%d without a gap since tick %d, but it received %v, and message %d is in tick %d",
							r.epoch, r.seq, r.start, r.got[:r.n], tag, seq)
					}
					return nil
				}
				n++
			}
		}
	}
	if here && n != r.n {
		return fmt.Errorf("the reader received %v up to tick %d.%d, but the log has less", r.got[:r.n], r.epoch, r.seq)
	}
	return nil
}

// isOf reports whether the reader's position is in this log.
func (s *messageState) isOf(r *subscriber) bool {
	for _, t := range s.ticks.all() {
		if t.seq == r.seq && t.epoch == r.epoch && s.committed(t.by) {
			return true
		}
	}
	return false
}

func (s *messageState) eachXid(of, bound func(*xid)) {
	bound(&s.next)
	for i := range s.tail.all() {
		of(&s.tail.row[i].by)
	}
	for i := range s.messages.all() {
		r := &s.messages.row[i]
		of(&r.by)
		of(&r.gone)
		of(&r.xid)
	}
	for i := range s.ticks.all() {
		s.ticks.row[i].eachXid(of, bound)
	}
	s.reader.next.eachXid(of, bound)
	for _, t := range [...]*table[mark]{&s.floor, &s.logged} {
		for i := range t.all() {
			of(&t.row[i].by)
		}
	}
	for i := range s.ops.all() {
		o := &s.ops.row[i]
		of(&o.xid)
		bound(&o.snap.max)
		o.last.eachXid(of, bound)
	}
}

func (t *tickRow) eachXid(of, bound func(*xid)) {
	of(&t.by)
	bound(&t.from)
	bound(&t.snap.max)
}

// tidy is like that of jobs, but keeps ids of transactions, because ticks contain sets of them.
func (m *messages) tidy(s *messageState) {
	unsettled(&s.tail, &s.flushed, s.open, s.crashes, s.failovers)
	s.ticks.sort(func(t *tickRow) uint64 { return key(t.seq, t.by, 0, 0) })
	s.messages.sort(func(r *messageRow) uint64 { return key(r.id, r.by, 0, 0) })
	s.logged.sort(func(r *mark) uint64 { return key(r.of, 0, 0, 0) })
	s.ops.sort(func(o *mop) uint64 { return key(o.xid, o.snap.max, 0, 0) })
	if next := &s.reader.next; next.seq != 0 {
		*next = tickRow{seq: next.seq, epoch: next.epoch} // this is all that a reader keeps
	}
}

func (m *messages) say(s *messageState, st step) string {
	i := int(st.a)
	var x xid
	if i < int(s.ops.n) {
		x = s.ops.row[i].xid
	}
	switch st.do {
	case publish:
		return fmt.Sprintf("publish: transaction %d logs %d messages, from %d on", s.next, m.transactions[s.begun], s.tags+1)
	case publishCommit:
		return fmt.Sprintf("commit of transaction %d", x)
	case publishRollback:
		return fmt.Sprintf("rollback of transaction %d", x)
	case cut:
		return "cut reads the newest tick and takes its snapshot"
	case cutInsert:
		return fmt.Sprintf("cut inserts tick %d, if there is anything", s.ops.row[i].last.seq+1)
	case cutCommit:
		return fmt.Sprintf("the cut commits (transaction %d)", x)
	case tick:
		return fmt.Sprintf("the reader, at tick %d.%d, polls for the next tick", s.reader.epoch, s.reader.seq)
	case read:
		return fmt.Sprintf("the reader reads tick %d.%d", s.reader.next.epoch, s.reader.next.seq)
	case reclaimMessages:
		return fmt.Sprintf("reclaim_messages raises the floor to tick %d and truncates", i)
	case messageCrash:
		return fmt.Sprintf("the server crashes and starts again, without the last %d commits", s.tail.n-s.flushed)
	case messageFailover:
		return fmt.Sprintf("failover to a standby that lacks the last %d commits", s.tail.n-st.a)
	}
	return "?"
}
