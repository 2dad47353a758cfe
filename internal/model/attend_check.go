package model

import (
	"errors"
	"fmt"
)

// isDue looks whether a fence was: nobody is fenced who attends, or who was heard of in time.
func (m *attendances) isDue(s *attendState, c *acall) error {
	w := &s.w
	switch {
	case !w.alive || w.frozen || w.stood || w.over:
		return nil
	case w.held && s.attached() != nil && !s.attached().cut:
		return errors.New("a worker is fenced that attends")
	case s.quiet < s.owed:
		return fmt.Errorf("a worker is fenced %d after it was last heard of, and %d are granted", s.quiet, s.owed)
	case c.forEnd && s.full:
		return errors.New("a worker is fenced for its session, while the server has no connection for it")
	}
	return nil
}

func (m *attendances) check(s *attendState) error {
	if s.w.alive && s.w.runs && !s.w.frozen && !s.w.stood && s.job == other {
		return errors.New("the job runs with another worker, and the first has not interrupted it")
	}
	if s.calls.n > 0 {
		return nil
	}
	t := *s
	return m.mend(&t)
}

// mend has everybody do what he has to, and nothing goes wrong any more: who lives comes back, in the same tick; rescuers look every tick. Then
// who is back is not fenced, and the job of one who is not soon runs with another.
func (m *attendances) mend(s *attendState) error {
	w := &s.w
	s.full = false
	// The end of a session that attended is known at once.
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
			s.calls.add(acall{kind: fencesSilent, saw: s.lastWord()})
			for s.calls.n > 0 {
				if err := m.fenceSilent(s, 0); err != nil {
					return fmt.Errorf("once all goes well: %w", err)
				}
			}
		}
		if s.fenced && s.job == worker {
			if s.job = nobody; prompt && tick > granted+1 {
				return fmt.Errorf("a killed worker that attended is fenced after %d", tick)
			}
		}
		if s.fenced && !was && w.alive && !w.frozen {
			return errors.New("a worker is fenced that is back")
		}
		m.pass(s)
		m.tidy(s)
	}
	if s.job == worker && !(w.alive && !w.frozen && !w.over) {
		return errors.New("the job runs with a worker that is gone, for ever")
	}
	return nil
}

// comesBack: the worker notices what it has to, attends, or beats where it can't.
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
		_ = m.goOn(s, 0) // of a result there is none
	}
}

// tidy gives states that differ in nothing that matters the same form.
func (m *attendances) tidy(s *attendState) {
	// Words that nobody will look at again.
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
