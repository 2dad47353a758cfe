package model

// begin starts a producer's transaction, which gets its xid, and may read the active segment long before it writes there.
func (m *jobs) begin(s *state) {
	o := s.ops.add(op{call: producing, xid: s.begin(), segment: s.active(), left: m.transactions[s.begun]})
	s.begun++
	for !m.straggler && o.left > 0 {
		m.enqueue(s, int(s.ops.n)-1)
	}
}

// enqueue logs one job of a producer's transaction.
func (m *jobs) enqueue(s *state, i int) {
	o := &s.ops.row[i]
	s.ids++
	s.tags++
	s.jobs.add(jobRow{by: o.xid, xid: o.xid, id: s.ids, attempt: 1, segment: o.segment, tag: s.tags})
	s.logged.add(mark{o.xid, s.tags, s.ids})
	o.left--
	o.segment = s.active()
}

// commit commits a call's transaction and answers its client.
func (m *jobs) commit(s *state, i int) error {
	o := s.ops.row[i]
	s.ops.remove(i)
	var p *process
	if o.client != 0 {
		p = &s.process[o.client-1]
	}
	switch o.call {
	case producing:
		s.server.commit(o.xid, true, true)
	case claiming:
		s.server.commit(o.xid, false, false)
		if p == nil {
			break
		}
		first := true
		for _, b := range s.batches.all() {
			if b.by != o.xid {
				continue
			}
			if p.heard = max(p.heard, b.no); first {
				// A batch with the same number is one that was lost in a crash: this one replaces it.
				p.forget(func(h held) bool { return h.seq == b.cursor.seq && h.number == b.number })
			}
			first = false
			for _, c := range b.ids {
				if c.id != 0 {
					p.hold(held{b.cursor.seq, b.number, c.id, c.attempt, c.tag})
				}
			}
		}
	default: // results
		s.server.commit(o.xid, m.off.holds(flushResults), p != nil)
		if p != nil {
			p.forget(func(h held) bool { return h == o.what })
		}
	}
	return nil
}
