package model

import (
	"errors"
	"fmt"
)

// isDue checks that a fence was justified: no worker is fenced that attends, or that was heard of in time.
func (m *attendances) isDue(s *attendState, c *acall) error {
	w := &s.w
	switch {
	case !w.alive || w.frozen || w.stood || w.over:
		return nil
	case w.held && s.attached() != nil && !s.attached().cut:
		return errors.New("a worker that attends was fenced")
	case s.quiet < s.owed:
		return fmt.Errorf("a worker was fenced %d ticks after it was last heard of, but it has %d", s.quiet, s.owed)
	case c.forEnd && s.full:
		return errors.New("a worker was fenced for its session although the server had no free connection")
	}
	return nil
}

func (m *attendances) check(s *attendState) error {
	if s.w.alive && s.w.runs && !s.w.frozen && !s.w.stood && s.job == other {
		return errors.New("another worker runs the job, but the first has not interrupted it")
	}
	if s.calls.n > 0 {
		return nil
	}
	t := *s
	return m.mend(&t)
}

// mend lets everyone do what they must, without further faults: live workers reconnect in the same tick, and rescuers check every tick. Then a worker
// that is back must not be fenced, and the job of one that is not must soon run on another.
func (m *attendances) mend(s *attendState) error {
	w := &s.w
	s.full = false
	// The end of an attending session is noticed at once.
	prompt := !w.alive && !s.fenced && s.lines.n == 0 && s.attended && (s.lastWord().says == attends || s.lastWord().says == missed)
	was := s.fenced
	for tick := range uint8(3 * lease) {
		if w.alive && !w.frozen && !w.over {
			m.comesBack(s)
		}
		for i := int(s.lines.n) - 1; i >= 0; i-- {
			if l := &s.lines.row[i]; !l.attached && !l.cut || m.isEnded(l) {
				s.ends++
				m.sessionEnds(s, i)
			}
		}
		if !s.fenced {
			s.look()
			for s.calls.n > 0 {
				if err := m.fenceSilent(s, 0); err != nil {
					return fmt.Errorf("without further faults: %w", err)
				}
			}
		}
		if s.fenced && s.job == worker {
			if s.job = nobody; prompt && tick > granted+1 {
				return fmt.Errorf("a killed worker that attended was fenced only after %d ticks", tick)
			}
		}
		if s.fenced && !was && w.alive && !w.frozen {
			return errors.New("a worker that is back was fenced")
		}
		m.pass(s)
		m.tidy(s)
	}
	if s.job == worker && !(w.alive && !w.frozen && !w.over) {
		return errors.New("the job is held forever by a worker that has ended")
	}
	return nil
}

// comesBack lets the worker notice what it must, and attend, or send a heartbeat if it can't.
func (m *attendances) comesBack(s *attendState) {
	w := &s.w
	if s.hasLost() {
		w.held, w.soon = false, 0
	}
	if l := s.attached(); w.held && l.cut {
		w.held, l.attached = false, false
	}
	if !w.held && !(m.pooled && m.off.holds(unbrokenLine)) {
		s.calls.add(acall{kind: attending, client: true})
	} else {
		_ = m.heartbeat(s)
	}
	for s.calls.n > 0 {
		_ = m.goOn(s, 0) // there is no error without a result
	}
}

// tidy gives equivalent states the same form.
func (m *attendances) tidy(s *attendState) {
	// Words that will not be read again.
	newest := uint8(0)
	for _, w := range s.words.all() {
		if !w.open && (w.flushed || s.crashes == 0) {
			newest = max(newest, w.no)
		}
	}
	kept := 0
	for i := int(s.words.n) - 1; i >= 0; i-- {
		if w := s.words.row[i]; !w.open && w.no < newest {
			if kept++; s.failovers == 0 || kept > 2 {
				s.words.remove(i)
			}
		}
	}
	var nos [64]uint8
	for _, w := range s.words.all() {
		nos[w.no] = 1
	}
	for _, c := range s.calls.all() {
		nos[c.saw.no] = 1
	}
	n := uint8(0)
	for i := range nos {
		if nos[i] == 1 && i > 0 {
			n++
			nos[i] = n
		}
	}
	for i := range s.words.all() {
		s.words.row[i].no = nos[s.words.row[i].no]
		s.words.row[i].flushed = s.words.row[i].flushed && s.crashes > 0
	}
	for i := range s.calls.all() {
		c := &s.calls.row[i]
		c.no, c.saw.no = nos[c.no], nos[c.saw.no]
		if c.kind > beating && c.kind != renewing || !c.client {
			c.age = 0
		}
	}
	s.nos = n
	s.words.sort(func(w *word) uint64 { return uint64(w.no) })
	s.lines.sort(func(l *line) uint64 { return key(bit(l.attached), bit(l.cut), l.idle, 0) })
	s.calls.sort(func(c *acall) uint64 { return key(uint8(c.kind), bit(c.client), c.phase, c.no) })
	w := &s.w
	switch {
	case !w.alive || w.over:
		*w = keeper{alive: w.alive, over: w.over, soon: never, held: w.held && w.alive}
		s.quiet, s.owed, s.down = 0, 0, false
	case w.held && s.attached() != nil:
		s.quiet, s.owed = 0, 0
	}
	if s.fenced {
		s.quiet, s.owed, s.life, s.passed, s.attended = 0, 0, never, 0, false
	}
}

func bit(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}
