package model

// mayClaim reports whether a claim gets the exclusive lock of its worker's claims.
func (s *state) mayClaim(worker uint8) bool {
	return !s.any(func(o *op) bool { return o.call == claiming && o.phase > 0 && o.worker == worker })
}

// sendClaim sends a claim that arrives later.
func (m *jobs) sendClaim(s *state, p *process) *op {
	s.left.Claims--
	return s.ops.add(op{call: claiming, worker: p.worker})
}

// claim begins a claim: it has the shared claims' lock, and its worker's claims; it checks whether the worker is fenced (WR001), and whether any job is
// ready, without the lane's lock.
func (m *jobs) claim(s *state, st step) error {
	i := int(st.b)
	if st.b > 128 {
		p := &s.process[255-st.b]
		p.acted = true
		m.sendClaim(s, p).client = 255 - st.b + 1
		i = int(s.ops.n) - 1
	}
	o := &s.ops.row[i]
	at := s.snapshot()
	saw := s.newest(at)
	if s.fenced(at, o.worker) {
		if o.client != 0 {
			s.process[o.client-1].ends()
		}
		s.ops.remove(i)
	} else if ready, _ := m.pick(s, &saw, at); len(ready) == 0 {
		s.ops.remove(i)
	} else if o.phase = 1; !m.off.holds(newestAfterLock) {
		o.saw = saw
	}
	return nil
}

// claimLane has the lane's lock, reads the newest batch, and takes the snapshot of the next statement.
func (m *jobs) claimLane(s *state, i int) {
	o := &s.ops.row[i]
	o.phase, o.snap = 2, s.snapshot()
	if m.off.holds(newestAfterLock) {
		o.saw = s.newest(o.snap)
	}
}

// pick returns what a claim would return: late rows, then fresh ones. late is the number of late rows.
func (m *jobs) pick(s *state, last *cursor, at snapshot) (picked []jobRow, late int) {
	rows := s.inOrder(at)
	for _, w := range last.pending {
		for _, j := range rows {
			if w.xid != 0 && j.xid == w.xid && j.id > w.after && len(picked) < m.quota {
				picked = append(picked, j)
			}
		}
	}
	late = len(picked)
	for _, j := range rows {
		if last.pos.before(j.xid, j.id) && len(picked) < m.quota {
			picked = append(picked, j)
		}
	}
	return picked, late
}

// claimBatch is a single statement: it reads late rows, then fresh ones, under its snapshot, and inserts their batch. It reads what the tables contain
// now, because TRUNCATE removes rows for older snapshots too. In the model readers take no locks on tables, so that nothing depends on which
// partitions a plan happens to lock.
func (m *jobs) claimBatch(s *state, i int) {
	o := &s.ops.row[i]
	last := o.saw
	picked, late := m.pick(s, &last, o.snap)
	if len(picked) == 0 {
		s.ops.remove(i)
		return
	}
	end := picked[len(picked)-1]
	full := late == m.quota // there may be more rows of the same transaction
	c := cursor{seq: last.seq + 1, pos: last.pos}
	if late < len(picked) {
		c.pos = position{end.xid, end.id}
	}
	at := o.snap
	if !m.off.holds(oneSnapshot) {
		at = s.snapshot()
	}
	n := 0
	wait := func(x xid, after uint8) {
		if !m.off.holds(pendingList) {
			return
		}
		if n == len(c.pending) {
			panic(noRoom("too many pending transactions"))
		}
		c.pending[n] = pending{x, after}
		n++
	}
	unread := false // set from the transaction on that filled the batch
	for _, w := range last.pending {
		if w.xid == 0 {
			break
		}
		if full && w.xid == end.xid {
			w.after = end.id
			unread = true
		}
		if !at.sees(w.xid) || unread {
			wait(w.xid, w.after)
		}
	}
	for x := last.pos.xid + 1; x < c.pos.xid; x++ {
		if at.running.has(x) {
			wait(x, 0)
		}
	}
	// The primary key prevents two batches with the same number, as long as their jobs are in one segment.
	for _, j := range picked {
		for _, b := range s.batches.all() {
			if b.gone == 0 && b.cursor.seq == c.seq && b.segment == j.segment && b.origin == j.segment {
				s.ops.remove(i)
				return
			}
		}
	}
	o.xid, o.phase = s.begin(), 3
	s.nos++
	for segment := uint8(1); segment <= 2; segment++ {
		b := batchRow{by: o.xid, from: picked[0].xid, to: end.xid, cursor: c, worker: o.worker, number: s.timeline, no: s.nos, segment: segment, origin: segment}
		n := 0
		for _, j := range picked {
			if j.segment == segment {
				b.ids[n] = claimed{j.id, j.attempt, j.tag}
				n++
			}
		}
		if n > 0 {
			s.batches.add(b)
		}
	}
}

// inOrder returns the jobs that a snapshot sees, in the order of (xid, id).
func (s *state) inOrder(at snapshot) []jobRow {
	t := table[jobRow]{}
	for _, j := range s.jobs.all() {
		if j.seen(at) {
			t.add(j)
		}
	}
	t.sort(func(j *jobRow) uint64 { return uint64(j.xid)<<8 | uint64(j.id) })
	return t.row[:t.n]
}
