package model

import "errors"

// crash restarts the server: everything that was not flushed is lost, and so is every call in flight.
func (m *jobs) crash(s *state) error {
	for i := s.flushed; i < s.tail.n; i++ {
		if s.tail.row[i].acked {
			return errors.New("an acknowledged commit was lost in a crash")
		}
	}
	m.setBack(s, s.flushed)
	return nil
}

// failover continues with a standby that has the first n commits.
func (m *jobs) failover(s *state, n uint8) {
	if m.setBack(s, n); m.off.holds(timelines) {
		s.timeline++
	}
}

func (m *jobs) setBack(s *state, n uint8) {
	s.rollBack(s.lose(n))
	s.ops = table[op]{}
	s.next = 0
	s.eachXid(func(x *xid) { s.next = max(s.next, *x+1) }, func(*xid) {})
	s.workerIDs, s.ids, s.nos = 0, 0, 0
	for _, b := range s.batches.all() {
		s.nos = max(s.nos, b.no)
	}
	for _, r := range s.settled.all() {
		if r.no < 31 {
			s.nos = max(s.nos, r.no)
		}
	}
	for _, w := range s.workers.all() {
		s.workerIDs = max(s.workerIDs, w.id)
	}
	for _, l := range s.logged.all() {
		s.ids = max(s.ids, l.id)
	}
	for i := range s.process {
		if p := &s.process[i]; p.alive && p.worker != 0 {
			p.doubt = true
		}
	}
}

// move restores the database from a dump into another cluster with low transaction ids.
func (m *jobs) move(s *state) {
	s.left.Moves--
	for s.ops.n > 0 {
		s.drop(int(s.ops.n) - 1)
	}
	s.tail, s.flushed = table[commit]{}, 0
	for i := range s.jobs.all() {
		s.jobs.row[i].by = 0
		s.jobs.row[i].xid += 30
	}
	for i := range s.batches.all() {
		b := &s.batches.row[i]
		b.by, b.from, b.to, b.cursor.pos.xid = 0, b.from+30, b.to+30, b.cursor.pos.xid+30
		for k := range b.cursor.pending {
			if w := &b.cursor.pending[k]; w.xid != 0 {
				w.xid += 30
			}
		}
	}
	for i := range s.results.all() {
		s.results.row[i].by = 0
	}
	for i := range s.workers.all() {
		s.workers.row[i].by = 0
	}
	for i := range s.settled.all() {
		s.settled.row[i].by = 0
	}
	for _, t := range []*table[mark]{&s.opened, &s.logged, &s.effects} {
		for i := range t.all() {
			t.row[i].by = 0
		}
	}
	s.next, s.moved = 1, true
}

// rebase logs unfinished jobs again with this cluster's transaction ids, and starts from a new position. It locks only the log, so no
// transaction in progress has rows there, but one may have its id already.
func (m *jobs) rebase(s *state) error {
	x := s.begin()
	at := s.snapshot()
	last := s.newest(at)
	c := cursor{seq: last.seq + 1, pos: position{x, 0}}
	n := 0
	for w := xid(1); w < x && m.off.holds(rebasePending); w++ {
		if at.running.has(w) {
			c.pending[n] = pending{w, 0}
			n++
		}
	}
	for _, w := range s.workers.all() {
		if !w.fenced && !s.fenced(at, w.id) {
			s.workers.add(workerRow{by: x, id: w.id, fenced: true})
		}
	}
	s.jobs.keep(func(j *jobRow) bool {
		for _, r := range s.results.all() {
			if r.tag == j.tag && r.attempt == j.attempt {
				return false // finished jobs: below every position
			}
		}
		j.by, j.xid, j.segment = x, x, s.active()
		return true
	})
	s.batches = table[batchRow]{}
	s.batches.add(batchRow{by: x, from: x, to: x, cursor: c, segment: s.active(), origin: s.active()})
	s.server.commit(x, true, false)
	s.moved = false
	return nil
}
