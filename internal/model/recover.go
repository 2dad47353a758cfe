package model

// workerStart gives a process its id.
func (m *jobs) workerStart(s *state, i int) {
	s.workerIDs++
	x := s.begin()
	s.workers.add(workerRow{by: x, id: s.workerIDs})
	s.server.commit(x, true, true)
	s.process[i] = process{alive: true, acted: true, worker: s.workerIDs}
}

// mayFence reports whether fence gets the worker's lock exclusively: no claim or record of the worker is in flight. A completion in a handler's
// transaction may be: settle skips its attempt.
func (m *jobs) mayFence(s *state, id uint8) bool {
	return !m.off.holds(workerLock) || !s.any(func(o *op) bool {
		return o.worker == id && o.phase > 0 && o.call != reclaiming && o.call != completing
	})
}

// completing reports whether an open handler's transaction completes an attempt of the worker.
func (m *jobs) completing(s *state, worker, id uint8) bool {
	return m.off.holds(attemptLock) && s.any(func(o *op) bool {
		return o.call == completing && o.phase > 0 && o.worker == worker && o.what.id == id
	})
}

// fence ends a worker.
func (m *jobs) fence(s *state, id uint8) {
	if s.lives(id) {
		s.left.Fences--
	}
	x := s.begin()
	s.workers.add(workerRow{by: x, id: id, fenced: true})
	s.server.commit(x, true, false)
}

// settledTo returns the number up to which all batches of a worker have ended, with the exceptions.
func (s *state) settledTo(at snapshot, worker uint8) (r settledRow) {
	for _, k := range s.settled.all() {
		if k.worker == worker && at.sees(k.by) && k.no > r.no {
			r = k
		}
	}
	return r
}

// toSettle returns an unfinished attempt of a fenced worker that is not being completed. waits: there is one that is being completed.
func (m *jobs) toSettle(s *state, worker uint8) (b *batchRow, c claimed, found, waits bool) {
	at := s.snapshot()
	if !s.fenced(at, worker) {
		return nil, claimed{}, false, false
	}
	for i := range s.batches.all() {
		b = &s.batches.row[i]
		if b.gone != 0 || !at.sees(b.by) || b.worker != worker {
			continue
		}
		if to := s.settledTo(at, b.worker); b.no <= to.no && !to.open.has(b.no) {
			continue
		}
		for _, c := range b.ids {
			switch {
			case c.id == 0 || s.ended(at, b.cursor.seq, b.number, c.id) != 0:
			case m.completing(s, worker, c.id):
				waits = true
			default:
				return b, c, true, waits
			}
		}
	}
	return nil, claimed{}, false, waits
}

// settle logs unfinished attempts of a fenced worker again: one, or as many as the scenario allows. Rescue repeats it until there are none
// left.
func (m *jobs) settle(s *state, worker uint8) error {
	x, at := s.begin(), s.snapshot()
	b, c, more, waits := m.toSettle(s, worker)
	for n := 0; more && n < max(m.settles, 1); n++ {
		if err := s.endAttempt(x, at, b, c, lost); err != nil {
			return err
		}
		s.open.drop(x) // so that the next snapshot sees it
		b, c, more, waits = m.toSettle(s, worker)
		s.open.add(x)
	}
	if !more && !waits {
		s.settled.add(settledRow{by: x, worker: worker, no: 31})
	}
	s.server.commit(x, true, false)
	return nil
}

// mayReconcile reports whether reconcile gets its locks: no claim of the worker is in progress, nor, if there is something to log, a record.
func (m *jobs) mayReconcile(s *state, worker uint8, known [4]held) bool {
	logs := false
	m.look(s, worker, known, func(*batchRow, claimed) { logs = true })
	return !s.any(func(o *op) bool {
		switch {
		case o.worker != worker || o.phase == 0:
			return false
		case o.call == claiming:
			return m.off.holds(reconcileClaims)
		case o.call == recording || o.call == retrying:
			return logs && m.off.holds(endsLock)
		}
		return false
	})
}

// look calls f for the attempts that the server assigns to a worker, that the worker does not hold, and that no open transaction completes. It returns
// up to where everything was examined, with the exceptions.
func (m *jobs) look(s *state, worker uint8, known [4]held, f func(*batchRow, claimed)) (to settledRow, moved bool) {
	at := s.snapshot()
	last := s.settledTo(at, worker)
	to = settledRow{worker: worker, no: last.no}
	for _, b := range s.batches.all() {
		if b.gone != 0 || !at.sees(b.by) || b.worker != worker || b.no <= last.no && !last.open.has(b.no) {
			continue
		}
		moved = moved || b.no > to.no
		to.no = max(to.no, b.no)
		for _, c := range b.ids {
			if c.id == 0 || s.ended(at, b.cursor.seq, b.number, c.id) != 0 {
				continue
			}
			if !m.completing(s, worker, c.id) && !knows(known, &b, c) {
				f(&b, c)
			} else if m.off.holds(settledOpen) {
				to.open.add(b.no)
			}
		}
	}
	return to, moved
}

func knows(known [4]held, b *batchRow, c claimed) bool {
	for _, h := range known {
		if h.seq == b.cursor.seq && h.number == b.number && h.id == c.id {
			return true
		}
	}
	return false
}

// reconcile releases the attempts that the server assigns to a worker and the worker does not hold.
func (m *jobs) reconcile(s *state, i int) error {
	p := &s.process[i]
	p.acted = true
	if s.fenced(s.snapshot(), p.worker) {
		p.ends()
		return nil
	}
	if !p.doubt {
		s.left.Reconciles--
	}
	p.doubt = false
	return m.giveBack(s, p.worker, p.held, p.heard)
}

// reconcileLate is a call that is delayed on the network after its client has given it up, and later its arrival.
func (m *jobs) reconcileLate(s *state, i int) error {
	if i < 128 {
		o := s.ops.row[i]
		s.ops.remove(i)
		if s.fenced(s.snapshot(), o.worker) {
			return nil
		}
		return m.giveBack(s, o.worker, o.known, o.left)
	}
	s.left.Late--
	p := &s.process[255-i]
	p.doubt = true
	s.ops.add(op{call: reconciling, worker: p.worker, known: p.held, left: p.heard})
	return nil
}

// giveBack releases in steps: first the exceptions, then what was claimed since.
func (m *jobs) giveBack(s *state, worker uint8, known [4]held, heard uint8) (err error) {
	last := s.settledTo(s.snapshot(), worker)
	for old := true; err == nil; old = false {
		at, x := s.snapshot(), xid(0)
		to, moved := m.look(s, worker, known, func(b *batchRow, c claimed) {
			if !m.off.holds(reconcileAll) && b.no <= heard || err != nil || old != (b.no <= last.no) {
				return
			}
			if x == 0 {
				x = s.begin()
			}
			err = s.endAttempt(x, at, b, c, released)
		})
		if !old && moved && err == nil {
			if x == 0 {
				x = s.begin()
			}
			to.by = x
			s.settled.add(to)
		}
		if x != 0 {
			s.server.commit(x, true, false)
		}
		if !old {
			break
		}
	}
	return err
}
