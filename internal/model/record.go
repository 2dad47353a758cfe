package model

import "fmt"

// mayEnd reports whether a call that ends an attempt gets its locks: record has the worker's results to itself, and skips attempts that a handler's
// transaction completes; complete, in such a transaction, has its attempt to itself, and waits for a record in progress.
func (m *jobs) mayEnd(s *state, worker, id uint8, tx bool) bool {
	return !s.any(func(o *op) bool {
		switch {
		case o.phase == 0 || o.worker != worker:
			return false
		case o.call == recording || o.call == retrying:
			return m.off.holds(endsLock)
		}
		return o.call == completing && o.what.id == id && m.off.holds(attemptLock)
	})
}

// result begins to record how an attempt ended: it has the worker's lock, those above and the segment's, and checks whether the worker is fenced
// (WR001), whether the batch is the worker's ("lost", WR002), and whether the attempt has ended ("ended", WR002). The worker drops refused attempts.
func (m *jobs) result(s *state, i, k int, c call) error {
	p := &s.process[i]
	h := p.held[k]
	at := s.snapshot()
	if s.fenced(at, p.worker) {
		p.ends()
		return nil
	}
	b, _ := s.own(at, p.worker, h)
	if b == nil && m.off.holds(batchCheck) || m.off.holds(endedOnce) && s.ended(at, h.seq, h.number, h.id) != 0 {
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

// own returns the row of a worker's batch that contains an attempt.
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

// insert is the statement that inserts the result, with the handler's effect if both are in one transaction.
func (m *jobs) insert(s *state, i int) error {
	o := &s.ops.row[i]
	o.xid, o.phase = s.begin(), 2
	if o.call == completing {
		s.effects.add(mark{by: o.xid, of: o.what.tag})
	}
	b, c := s.own(o.snap, o.worker, o.what)
	ends := completed
	if o.call == retrying {
		ends = retried
	}
	switch {
	case b == nil && m.off.holds(batchCheck):
		return nil // there is nothing left: the batch was truncated in the meantime
	case b == nil:
		b, c = &batchRow{cursor: cursor{seq: o.what.seq}, number: o.what.number, segment: s.active()}, claimed{o.what.id, o.what.attempt, o.what.tag}
		ends = completed
	case c.tag != o.what.tag:
		return fmt.Errorf("the result of job %d (%d) was recorded for another job (%d) with the same id", o.what.id, o.what.tag, c.tag)
	}
	return s.endAttempt(o.xid, o.snap, b, c, ends)
}
