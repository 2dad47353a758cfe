package model

import "fmt"

// result begins to record how an attempt ended: it has the worker's lock, the attempt's and the segment's, and looks whether the worker is fenced
// (WR001), whether the batch is its own, and whether the attempt has ended otherwise (WR002). What is refused is dropped by its worker.
func (m *jobs) result(s *state, i, k int, c call) error {
	p := &s.process[i]
	h := p.held[k]
	at := s.snapshot()
	if s.fenced(at, p.worker) {
		p.ends()
		return nil
	}
	b, _ := s.own(at, p.worker, h)
	if b == nil && m.off.holds(batchCheck) {
		p.forget(func(o held) bool { return o.seq == h.seq && o.number == h.number })
		return nil
	}
	was := s.ended(at, h.seq, h.number, h.id)
	switch {
	case c == finishing && was != 0,
		c == completing && was != 0 && was != completed && m.off.holds(endedOnce),
		c == completingTx && was != 0 && was != completed && m.off.holds(endedOnce),
		c == completingTx && was == completed && m.off.holds(txAlone):
		p.forget(func(o held) bool { return o == h })
		return nil
	}
	o := op{call: c, phase: 1, client: uint8(i + 1), worker: p.worker, snap: at, what: h}
	if b != nil {
		o.segment = b.segment
	}
	s.ops.add(o)
	return nil
}

// own finds the row of a worker's batch that an attempt is in.
func (s *state) own(at snapshot, worker uint8, h held) (*batchRow, claimed) {
	for i := range s.batches.all() {
		b := &s.batches.row[i]
		if b.gone != 0 || !at.sees(b.by) || b.worker != worker || b.cursor.seq != h.seq || b.number != h.number {
			continue
		}
		for _, c := range b.ids {
			if c.id == h.id {
				return b, c
			}
		}
	}
	return nil, claimed{}
}

// record is the statement that inserts the result, and the effect of the handler where it is one transaction with that.
func (m *jobs) record(s *state, i int) error {
	o := &s.ops.row[i]
	o.xid, o.phase = s.begin(), 2
	if o.call == completingTx {
		s.effects.add(mark{by: o.xid, of: o.what.tag})
	}
	b, c := s.own(o.snap, o.worker, o.what)
	ends := completed
	if o.call == finishing {
		ends = retried
	}
	switch {
	case b == nil && m.off.holds(batchCheck):
		return nil // nothing is there to name: the batch was truncated meanwhile
	case b == nil:
		b, c = &batchRow{cursor: cursor{seq: o.what.seq}, number: o.what.number, segment: s.active()}, claimed{o.what.id, o.what.attempt, o.what.tag}
		ends = completed
	case c.tag != o.what.tag:
		return fmt.Errorf("the result of job %d (%d) is recorded as that of another job (%d) which got its id", o.what.id, o.what.tag, c.tag)
	case s.ended(o.snap, o.what.seq, o.what.number, o.what.id) == ends:
		return nil // the call is repeated
	}
	return s.endAttempt(o.xid, o.snap, b, c, ends)
}
