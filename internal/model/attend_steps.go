package model

import (
	"errors"
	"fmt"
)

func (m *attendances) take(s *attendState, st step) error {
	i, w := int(st.a), &s.w
	switch st.do {
	case timePasses:
		m.pass(s)
	case attend:
		return m.send(s, attending)
	case heartbeat:
		return m.heartbeat(s)
	case attendClaim:
		return m.send(s, claimsJob)
	case attendRecord:
		return m.send(s, recordsJob)
	case callGoesOn:
		return m.goOn(s, i)
	case callGivenUp:
		m.giveUp(s, i)
	case fenceSilent:
		s.calls.add(acall{kind: fencesSilent, saw: s.lastWord()})
	case settleLost, handBack:
		s.job = nobody
	case claimByOther:
		s.job = other
	case sessionEnds:
		m.sessionEnds(s, i)
	case lineIsCut:
		s.cuts--
		s.lines.row[i].cut = true
	case notices:
		w.held, w.deaf, w.soon, s.down = false, false, 0, false
	case noticesDown: // all locks went with the server
		w.held, w.deaf, w.soon, s.down = false, false, never, false
	case givesUpLine:
		m.isUnsure(s)
	case interrupts:
		w.runs = false
	case attendKill:
		s.kills--
		*w = keeper{soon: never}
		s.leave()
	case standsStill:
		s.freezes--
		w.frozen, w.stood = true, true
	case goesOn:
		w.frozen = false
	case serverFills:
		s.fills--
		s.full = true
	case serverEmpties:
		s.full = false
	case attendCrash:
		s.crashes--
		m.serverEnds(s, !m.off.holds(unloggedAttendance))
		s.words.keep(func(w *word) bool { return w.flushed })
	case attendRestart:
		s.restarts--
		m.serverEnds(s, !m.off.holds(attendanceStart))
		for k := range s.words.all() {
			s.words.row[k].flushed = true
		}
	case attendFailover:
		s.failovers--
		m.failOver(s, i)
	default:
		return fmt.Errorf("no such step: %d", st.do)
	}
	return nil
}

func older(age *uint8, most uint8) {
	if *age < most {
		*age++
	}
}

func (m *attendances) pass(s *attendState) {
	older(&s.w.since, lease)
	if s.w.soon != never {
		older(&s.w.soon, granted)
	}
	most := uint8(mostTime)
	if !m.off.holds(watchedBound) {
		most = longTime
	}
	older(&s.passed, most)
	older(&s.quiet, lease)
	for i := range s.lines.all() {
		older(&s.lines.row[i].idle, lease)
	}
	for i := range s.calls.all() {
		older(&s.calls.row[i].age, lease)
	}
	for i := range s.words.all() { // what is not flushed with others is flushed by itself, within half a second
		s.words.row[i].flushed = !s.words.row[i].open
	}
}

// send puts a call on its way. Where none arrives late it has its locks at once, or waits for them.
func (m *attendances) send(s *attendState, kind attendCall) error {
	c := s.calls.add(acall{kind: kind, client: true})
	if m.late == 0 && m.mayGoOn(s, c) {
		return m.goOn(s, int(s.calls.n)-1)
	}
	return nil
}

// heartbeat: by the session that attends it writes only what is new.
func (m *attendances) heartbeat(s *attendState) error {
	switch {
	case !s.w.held:
		return m.send(s, beating)
	case m.busy || m.off.holds(attendsAgain) && s.lastWord().says != attends:
		return m.send(s, renewing)
	case s.fenced:
		s.learns()
	default:
		s.attached().idle = 0
		s.w.since, s.w.soon = 0, never
	}
	return nil
}

// learns: the worker hears that it is fenced.
func (s *attendState) learns() {
	s.w = keeper{alive: true, over: true, soon: never}
	s.leave()
}

// mayGoOn tells whether a call gets its locks.
func (m *attendances) mayGoOn(s *attendState, c *acall) bool {
	if c.phase > 0 {
		return true
	}
	rescuer := s.call(fencesSilent)
	switch c.kind {
	case attending, beating, renewing:
		return rescuer == nil || rescuer.phase < 3 || !m.off.holds(wordLock)
	case claimsJob, recordsJob:
		return !s.isFencing()
	}
	return true
}

// goOn takes a call further.
func (m *attendances) goOn(s *attendState, i int) error {
	c := &s.calls.row[i]
	if c.kind == fencesSilent {
		return m.fenceSilent(s, i)
	}
	if c.phase == 0 && s.fenced { // WR001
		if c.client {
			s.learns()
		}
		s.drop(i)
		return nil
	}
	if c.phase == 0 {
		c.phase = 1
		switch c.kind {
		case attending:
			c.no = s.say(attends)
			s.lines.add(line{attached: c.client}) // the lock: before the commit, and for the session
		case beating:
			c.no = s.say(beats)
		case renewing:
			c.no = s.say(attends)
		}
		return nil
	}
	done := *c
	s.calls.remove(i)
	for k := range s.words.all() {
		if w := &s.words.row[k]; w.no == done.no {
			w.open = false
		}
	}
	w := &s.w
	switch done.kind {
	case attending:
		s.attended = true
		if done.client {
			w.held = true
			w.since, w.soon = min(w.since, done.age), never // a heartbeat follows at once
		}
	case renewing:
		if done.client && !s.attached().cut {
			s.attached().idle = 0
			w.since, w.soon = done.age, never
		}
	case beating:
		if done.client {
			w.since, w.soon, s.quiet, s.owed = done.age, never, done.age, lease
			if w.unsure {
				w.soon, s.owed = min(done.age, granted), granted
			}
		}
	case claimsJob:
		if s.job != nobody {
			break // somebody else was faster
		}
		s.job, w.runs = worker, done.client && !w.lapsed()
	case recordsJob:
		if s.job != worker {
			return errors.New("a result of the worker's is recorded for a job that it does not have any more")
		}
		s.job, w.runs = ended, false
	}
	return nil
}

// giveUp: the worker waits for no answer any more, and the call is still on its way.
func (m *attendances) giveUp(s *attendState, i int) {
	s.late--
	c := &s.calls.row[i]
	c.client = false
	if c.kind != beating {
		m.isUnsure(s)
	}
}

// isUnsure: the worker has given up a session that attends, or may do so still, and whose end may be taken for its own.
func (m *attendances) isUnsure(s *attendState) {
	w := &s.w
	if w.held {
		w.held, w.soon = false, 0
		s.quiet, s.owed = w.since, granted
	}
	if m.off.holds(unsureLapse) {
		if w.unsure = true; w.soon == never {
			w.soon = 0
		}
		s.owed = min(s.owed, granted)
	}
	for i := range s.calls.all() {
		if c := &s.calls.row[i]; c.kind == attending || c.kind == renewing {
			c.client = false
		}
	}
	if l := s.attached(); l != nil {
		l.attached = false
	}
}

// leave: nobody is at the other end of the worker's connections any more.
func (s *attendState) leave() {
	for i := range s.calls.all() {
		s.calls.row[i].client = false
	}
	for i := range s.lines.all() {
		s.lines.row[i].attached = false
	}
}

func (m *attendances) sessionEnds(s *attendState, i int) {
	l := s.lines.row[i]
	s.lines.remove(i)
	if !l.attached {
		return
	}
	if !m.isEnded(&l) {
		s.ends--
	}
	for k := int(s.calls.n) - 1; k >= 0; k-- {
		if c := s.calls.row[k]; c.client && (c.kind == attending && c.phase > 0 || c.kind == renewing) {
			s.drop(k)
		}
	}
	if s.w.held {
		s.quiet, s.owed, s.w.deaf = 0, granted, l.cut
	}
}

// serverEnds: with the server go all sessions, and what they had begun. counts tells whether weir.attendance counts afterwards.
func (m *attendances) serverEnds(s *attendState, counts bool) {
	if s.w.held && s.attached() != nil {
		s.quiet, s.owed, s.down = 0, lease, true
	}
	s.calls = table[acall]{}
	s.lines = table[line]{}
	s.words.keep(func(w *word) bool { return !w.open })
	s.attended = s.attended && counts
	s.full, s.life = false, never
}

// failOver goes on with a standby that had the first n words, and what weir.watched was then.
func (m *attendances) failOver(s *attendState, n int) {
	m.serverEnds(s, false)
	if n >= int(s.words.n) {
		return
	}
	lost := s.words.row[n]
	s.words.keep(func(w *word) bool { return w.no < lost.no })
	for i := range s.words.all() {
		s.words.row[i].silent -= min(lost.silent, s.words.row[i].silent)
	}
}

// fenceSilent goes on: it has its snapshot, and reads the locks and moves weir.watched on | has the last word's lock, looks again, and writes
// | commits.
func (m *attendances) fenceSilent(s *attendState, i int) error {
	c := &s.calls.row[i]
	c.phase++
	switch c.phase {
	case 1:
		if s.lines.n > 0 || s.fenced {
			if m.others {
				s.watch(s.passed)
			}
			s.calls.remove(i)
			return nil
		}
		passed := s.passed
		if c.saw.says == missed && m.off.holds(watchedBound) {
			passed = min(passed, mostOne)
		}
		s.watch(passed)
		c.saw.silent = min(c.saw.silent+passed, lease+grace+1)
		if !m.judge(s, c) {
			s.calls.remove(i)
		}
	case 2:
		if m.off.holds(wordLock) {
			for _, o := range s.calls.all() {
				if o.kind <= renewing && o.phase > 0 {
					s.calls.remove(i)
					return nil
				}
			}
		}
		if m.off.holds(wordAgain) && s.lastWord().no != c.saw.no {
			s.calls.remove(i)
			return nil
		}
		c.phase = 3
		if !c.fences {
			c.no = s.say(missed)
		} else if s.call(claimsJob) != nil && s.call(claimsJob).phase > 0 || s.call(recordsJob) != nil && s.call(recordsJob).phase > 0 {
			s.calls.remove(i) // its worker is alive enough to be asked again later
		}
	default:
		done := *c
		s.calls.remove(i)
		for k := range s.words.all() {
			s.words.row[k].open = s.words.row[k].open && s.words.row[k].no != done.no
		}
		if done.fences {
			s.fenced = true
			return m.isDue(s, &done)
		}
	}
	return nil
}

// watch moves weir.watched on.
func (s *attendState) watch(passed uint8) {
	for i := range s.words.all() {
		s.words.row[i].silent = min(s.words.row[i].silent+passed, lease+grace+1)
	}
	if s.life == never {
		s.life = 0
	} else {
		s.life = min(s.life+passed, lease+grace+1)
	}
	s.passed = 0
}

// judge tells whether there is something to be done: to note that the worker is missed, or to fence it.
func (m *attendances) judge(s *attendState, c *acall) bool {
	says, silent := c.saw.says, c.saw.silent
	most := uint8(lease + grace)
	if !m.off.holds(leaseGrace) {
		most = lease
	}
	quiet := silent
	if m.off.holds(leaseOfLife) {
		quiet = min(quiet, s.life)
	}
	if says == attends || says == nothing {
		if m.off.holds(twoLooks) {
			return true
		}
		says = missed
	}
	switch {
	case quiet > most:
		c.fences = true
	case says == missed && s.attended && silent >= granted && !(s.full && m.off.holds(crowded)):
		c.fences, c.forEnd = true, true
	}
	return c.fences
}
