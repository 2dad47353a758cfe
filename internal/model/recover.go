package model

// workerStart gives a process its id.
func (m *jobs) workerStart(s *state, i int) {
	s.workerIDs++
	x := s.begin()
	s.workers.add(workerRow{by: x, id: s.workerIDs})
	s.server.commit(x, true, true)
	s.process[i] = process{alive: true, acted: true, worker: s.workerIDs}
}

// mayFence tells whether fence gets the worker's lock, alone: no claim or result of it is in flight.
func (m *jobs) mayFence(s *state, id uint8) bool {
	return !m.off.holds(workerLock) || !s.any(func(o *op) bool { return o.worker == id && o.phase > 0 && o.call != reclaiming })
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

// toRescue finds an unfinished attempt of a fenced worker.
func (s *state) toRescue() (b *batchRow, c claimed, found bool) {
	at := s.snapshot()
	for i := range s.batches.all() {
		b = &s.batches.row[i]
		if b.gone != 0 || !at.sees(b.by) || b.worker == 0 || !s.fenced(at, b.worker) {
			continue
		}
		for _, c := range b.ids {
			if c.id != 0 && s.ended(at, b.cursor.seq, b.number, c.id) == 0 {
				return b, c, true
			}
		}
	}
	return nil, claimed{}, false
}

// rescue logs one unfinished attempt of a fenced worker again. It is bounded, and repeated until there is none.
func (m *jobs) rescue(s *state) error {
	b, c, _ := s.toRescue()
	x := s.begin()
	err := s.endAttempt(x, s.snapshot(), b, c, lost)
	s.server.commit(x, true, false)
	return err
}

// mayReconcile tells whether reconcile gets its locks: no claim and no result of the worker is in flight.
func (m *jobs) mayReconcile(s *state, id uint8) bool {
	return !s.any(func(o *op) bool {
		switch {
		case o.worker != id || o.phase == 0:
			return false
		case o.call == claiming:
			return m.off.holds(reconcileClaims)
		}
		return m.off.holds(reconcileResults)
	})
}

// reconcile gives back what the server believes a worker to run, and the worker does not know.
func (m *jobs) reconcile(s *state, i int) error {
	p := &s.process[i]
	p.acted = true
	if s.fenced(s.snapshot(), p.worker) {
		p.ends()
		return nil
	}
	p.doubt = false
	return m.giveBack(s, p.worker, p.held, p.heard)
}

// reconcileLate is a call that sits in a socket, while its client has given it up; and, later, its beginning.
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

func (m *jobs) giveBack(s *state, worker uint8, known [4]held, heard uint8) error {
	at, x := s.snapshot(), xid(0)
	for i := range s.batches.all() {
		b := s.batches.row[i]
		if b.gone != 0 || !at.sees(b.by) || b.worker != worker || knows(known, &b) || !m.off.holds(reconcileAll) && b.cursor.seq <= heard && b.number <= s.timeline {
			continue
		}
		for _, c := range b.ids {
			if c.id == 0 || s.ended(at, b.cursor.seq, b.number, c.id) != 0 {
				continue
			}
			if x == 0 {
				x = s.begin()
			}
			if err := s.endAttempt(x, at, &b, c, released); err != nil {
				return err
			}
		}
	}
	if x != 0 {
		s.server.commit(x, true, false)
	}
	return nil
}

func knows(known [4]held, b *batchRow) bool {
	for _, h := range known {
		if h.seq == b.cursor.seq && h.number == b.number {
			return true
		}
	}
	return false
}
