package model

// rotate opens the other segment.
func (m *jobs) rotate(s *state) {
	s.left.Rotations--
	x := s.begin()
	s.opened.add(mark{by: x, of: 3 - s.active()})
	s.server.commit(x, true, false)
}

// mayReclaim reports whether reclaim gets the SHARE lock: no transaction in flight has rows in the segment's log.
func (m *jobs) mayReclaim(s *state, segment uint8) bool {
	return !m.off.holds(shareLock) || !s.any(func(o *op) bool { return s.wrote(o.xid, segment) })
}

// reclaim begins its slow part: whether jobs wait here. Everything claimed here from now on is one of them.
func (m *jobs) reclaim(s *state) {
	s.left.Reclaims--
	o := op{call: reclaiming, segment: 3 - s.active()}
	o.lane = len(s.waiting(s.snapshot(), o.segment)) > 0
	s.ops.add(o)
}

// waiting returns the jobs of a segment that are in no batch yet: past the position, or of a pending transaction.
func (s *state) waiting(at snapshot, segment uint8) (all []jobRow) {
	last := s.newest(at)
	for _, j := range s.jobs.all() {
		if !j.seen(at) || j.segment != segment {
			continue
		}
		waits := last.pos.before(j.xid, j.id)
		for _, w := range last.pending {
			waits = waits || w.xid != 0 && w.xid == j.xid && j.id > w.after
		}
		if waits {
			all = append(all, j)
		}
	}
	return all
}

// reclaimLook continues: it finds the lane's state, and the batches here with unfinished jobs.
func (m *jobs) reclaimLook(s *state, i int) {
	o := &s.ops.row[i]
	at := s.snapshot()
	o.phase, o.saw.seq = 1, 255
	if newest := s.newest(at).seq; o.lane || s.holdsState(at, newest, o.segment) {
		o.saw.seq = newest
	}
	for i := range s.batches.all() {
		if b := &s.batches.row[i]; b.gone == 0 && at.sees(b.by) && b.segment == o.segment && len(s.unfinished(at, b)) > 0 {
			o.suspects.add(b.cursor.seq)
		}
	}
}

// holdsState reports whether the newest batch is in this segment alone.
func (s *state) holdsState(at snapshot, newest, segment uint8) bool {
	here := false
	for _, b := range s.batches.all() {
		if b.gone == 0 && at.sees(b.by) && b.cursor.seq == newest {
			if b.segment != segment {
				return false
			}
			here = true
		}
	}
	return here
}

// carryWaiting carries a waiting job, from the end, if too many wait: it is copied and deleted in one transaction, under the lane's lock.
func (m *jobs) carryWaiting(s *state, i int) {
	o := s.ops.row[i]
	s.ops.remove(i)
	all := s.waiting(s.snapshot(), o.segment)
	if len(all) == 0 {
		return
	}
	last := all[0]
	for _, j := range all {
		if (position{last.xid, last.id}).before(j.xid, j.id) {
			last = j
		}
	}
	x := s.begin()
	for k := range s.jobs.all() {
		if s.jobs.row[k] == last {
			s.jobs.row[k].deleted = x
		}
	}
	last.by, last.segment = x, s.active()
	s.jobs.add(last)
	s.server.commit(x, true, false)
}

// carryStates copies the state of an idle lane into the active segment, if there are too many such lanes.
func (m *jobs) carryStates(s *state, i int) {
	s.ops.remove(i)
	c := s.newest(s.snapshot())
	x := s.begin()
	s.batches.add(batchRow{by: x, cursor: c, segment: s.active()})
	s.server.commit(x, true, false)
}

func (s *state) unfinished(at snapshot, b *batchRow) (all []claimed) {
	for _, c := range b.ids {
		if c.id != 0 && s.ended(at, b.cursor.seq, b.number, c.id) == 0 {
			all = append(all, c)
		}
	}
	return all
}

// mayCarry reports whether reclaim gets the locks of its short step: the claims' lock and the segment's lock, both exclusively, and TRUNCATE's own,
// with which writers' locks on the tables conflict.
func (m *jobs) mayCarry(s *state, segment uint8) bool {
	return !s.any(func(o *op) bool {
		switch {
		case o.call == claiming && o.phase > 0 && m.off.holds(claimsLock):
			return true
		case (o.call == recording || o.call == retrying || o.call == completing) && o.phase > 0 && o.segment == segment && m.off.holds(segmentLock):
			return true
		case o.xid == 0 || o.call == reclaiming:
			return false
		}
		if s.wrote(o.xid, segment) {
			return true
		}
		for _, b := range s.batches.all() {
			if b.by == o.xid && b.segment == segment {
				return true
			}
		}
		for _, r := range s.results.all() {
			if r.by == o.xid && r.segment == segment {
				return true
			}
		}
		return false
	})
}

// reclaimCarry copies unclaimed and running jobs, unchanged, into the active segment, and truncates.
func (m *jobs) reclaimCarry(s *state, i int) error {
	o := s.ops.row[i]
	s.ops.remove(i)
	at, x, active := s.snapshot(), s.begin(), s.active()
	last := s.newest(at)
	copies := table[jobRow]{}
	if o.lane {
		for _, j := range s.waiting(at, o.segment) {
			copies.add(j)
		}
	}
	for k := range s.batches.all() {
		b := s.batches.row[k]
		if b.gone != 0 || !at.sees(b.by) || b.segment != o.segment || !o.suspects.has(b.cursor.seq) && b.cursor.seq < o.saw.seq {
			continue
		}
		running := s.unfinished(at, &b)
		if !m.off.holds(carryRunning) {
			running = nil
		}
		if len(running) == 0 && !(b.cursor.seq == last.seq && s.holdsState(at, last.seq, o.segment)) {
			continue
		}
		for _, c := range running {
			j, err := s.find(at, &b, c)
			if err != nil {
				return err
			}
			copies.add(j)
		}
		b.by, b.segment, b.ids = x, active, [2]claimed{}
		copy(b.ids[:], running)
		s.batches.add(b)
	}
	for k := range s.jobs.all() {
		if j := &s.jobs.row[k]; j.gone == 0 && j.segment == o.segment {
			j.gone = x
		}
	}
	for k := range s.batches.all() {
		if b := &s.batches.row[k]; b.gone == 0 && b.segment == o.segment {
			b.gone = x
		}
	}
	for k := range s.results.all() {
		if r := &s.results.row[k]; r.gone == 0 && r.segment == o.segment {
			r.gone = x
		}
	}
	for _, j := range copies.all() {
		j.by, j.segment = x, active
		s.jobs.add(j)
	}
	s.server.commit(x, true, false) // a transaction that truncates flushes
	return nil
}

// mayForget reports whether forget_ended gets the lane's lock.
func (m *jobs) mayForget(s *state) bool {
	return !m.off.holds(forgetLane) || !s.any(func(o *op) bool { return o.call == claiming && o.phase >= 2 })
}

// kept returns the lane's state without the pending transactions that have ended and left nothing to read; fewer: there are any.
func (m *jobs) kept(s *state, at snapshot) (c cursor, fewer bool) {
	last := s.newest(at)
	c = last
	c.pending = [8]pending{}
	n := 0
	for _, w := range last.pending {
		keeps := w.xid != 0 && !at.sees(w.xid)
		for _, j := range s.jobs.all() {
			keeps = keeps || m.off.holds(forgetUnread) && w.xid != 0 && j.xid == w.xid && j.id > w.after && j.seen(at)
		}
		if keeps {
			c.pending[n] = w
			n++
		} else if w.xid != 0 {
			fewer = true
		}
	}
	return c, fewer
}

// forgetEnded makes an idle lane forget these, by a batch without a worker and without jobs.
func (m *jobs) forgetEnded(s *state) {
	c, _ := m.kept(s, s.snapshot())
	c.seq++
	x := s.begin()
	s.batches.add(batchRow{by: x, cursor: c, segment: s.active()})
	s.server.commit(x, false, false)
}
