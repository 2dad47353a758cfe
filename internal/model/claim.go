package model

// sendClaim puts a claim on its way.
func (m *jobs) sendClaim(s *state, p *process) *op {
	s.left.Claims--
	return s.ops.add(op{call: claiming, worker: p.worker})
}

// claim begins: it has the claims' lock and the worker's, shared, and looks whether the worker is fenced.
func (m *jobs) claim(s *state, st step) error {
	var o *op
	if st.b > 128 {
		p := &s.process[255-st.b]
		p.acted = true
		o = m.sendClaim(s, p)
		o.client = 255 - st.b + 1
	} else {
		o = &s.ops.row[st.b]
	}
	if s.fenced(s.snapshot(), o.worker) { // WR001
		if o.client != 0 {
			s.process[o.client-1].ends()
		}
		for i := range s.ops.all() {
			if &s.ops.row[i] == o {
				s.ops.remove(i)
				break
			}
		}
		return nil
	}
	o.phase = 1
	if !m.off.holds(newestAfterLock) {
		o.saw = s.newest(s.snapshot())
	}
	return nil
}

// claimLane has the lane's lock, reads the newest batch, and takes the snapshot of the statement that follows.
func (m *jobs) claimLane(s *state, i int) {
	o := &s.ops.row[i]
	o.phase, o.snap = 2, s.snapshot()
	if m.off.holds(newestAfterLock) {
		o.saw = s.newest(o.snap)
	}
}

// claimBatch is the one statement: late rows or else fresh ones under its snapshot, and the batch of them. What it reads is what the tables
// hold now: TRUNCATE takes rows from older snapshots too. The model gives readers no locks on tables, so that nothing rests on which
// partitions a plan happens to lock.
func (m *jobs) claimBatch(s *state, i int) {
	o := &s.ops.row[i]
	var picked []jobRow
	last := o.saw
	full, fullAt := false, 0 // late rows filled the batch, the last of them from this entry of pending
	for k, w := range last.pending {
		if w.xid == 0 || len(picked) == m.quota {
			break
		}
		for _, j := range s.inOrder(o.snap) {
			if j.xid == w.xid && j.id > w.after && len(picked) < m.quota {
				picked = append(picked, j)
				fullAt = k
			}
		}
	}
	late := len(picked) > 0
	full = len(picked) == m.quota
	c := cursor{seq: last.seq + 1, pos: last.pos}
	if !late {
		for _, j := range s.inOrder(o.snap) {
			if last.pos.before(j.xid, j.id) && len(picked) < m.quota {
				picked = append(picked, j)
				c.pos = position{j.xid, j.id}
			}
		}
	}
	if len(picked) == 0 {
		s.ops.remove(i)
		return
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
			panic("model: too many pending transactions")
		}
		c.pending[n] = pending{x, after}
		n++
	}
	for k, w := range last.pending {
		if w.xid == 0 {
			break
		}
		if full && late && k == fullAt {
			w.after = picked[len(picked)-1].id
		}
		if !at.sees(w.xid) || full && late && k >= fullAt {
			wait(w.xid, w.after)
		}
	}
	for x := last.pos.xid + 1; x < c.pos.xid; x++ {
		if at.running.has(x) {
			wait(x, 0)
		}
	}
	// The primary key keeps two batches of one number apart, as long as their jobs lie in one segment.
	for _, j := range picked {
		for _, b := range s.batches.all() {
			if b.gone == 0 && b.cursor.seq == c.seq && b.segment == j.segment && b.origin == j.segment {
				s.ops.remove(i)
				return
			}
		}
	}
	o.xid, o.phase = s.begin(), 3
	for segment := uint8(1); segment <= 2; segment++ {
		b := batchRow{by: o.xid, from: picked[0].xid, to: picked[len(picked)-1].xid, cursor: c, worker: o.worker, number: s.timeline, segment: segment, origin: segment}
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

// inOrder returns the jobs that a snapshot sees, by (xid, id).
func (s *state) inOrder(at snapshot) []jobRow {
	t := table[jobRow]{}
	for _, j := range s.jobs.all() {
		if j.gone == 0 && at.sees(j.by) {
			t.add(j)
		}
	}
	t.sort(func(j *jobRow) uint64 { return uint64(j.xid)<<8 | uint64(j.id) })
	return t.row[:t.n]
}
