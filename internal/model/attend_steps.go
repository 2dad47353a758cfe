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
		s.look()
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
	case noticesDown: // all locks ended with the server
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
		return fmt.Errorf("unknown step %d", st.do)
	}
	return nil
}

func older(age *uint8, limit uint8) {
	if *age < limit {
		*age++
	}
}

func (m *attendances) pass(s *attendState) {
	older(&s.w.since, lease)
	if s.w.soon != never {
		older(&s.w.soon, granted)
	}
	limit := uint8(maxTime)
	if !m.off.holds(watchedBound) {
		limit = longTime
	}
	older(&s.passed, limit)
	older(&s.quiet, lease)
	for i := range s.lines.all() {
		older(&s.lines.row[i].idle, lease)
	}
	for i := range s.calls.all() {
		older(&s.calls.row[i].age, lease)
	}
	for i := range s.words.all() { // what is not flushed with other commits is flushed within half a second
		s.words.row[i].flushed = !s.words.row[i].open
	}
}

// send starts a call. If calls do not arrive late, it has its locks at once, or waits for them.
func (m *attendances) send(s *attendState, kind attendCall) error {
	c := s.calls.add(acall{kind: kind, client: true})
	if m.late == 0 && m.mayGoOn(s, c) {
		return m.goOn(s, int(s.calls.n)-1)
	}
	return nil
}

// heartbeat sends a heartbeat. On the session that attends, it writes only changes.
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

// learns records that the worker was told that it is fenced.
func (s *attendState) learns() {
	s.w = keeper{alive: true, over: true, soon: never}
	s.leave()
}

// mayGoOn reports whether a call gets its locks.
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

// goOn takes a call one step further.
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
			s.lines.add(line{attached: c.client}) // the lock is taken before the commit, and for the session
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
			w.since, w.soon = min(w.since, done.age), never // a heartbeat follows immediately
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
			break // another call was faster
		}
		s.job, w.runs = worker, done.client && !w.lapsed()
	case recordsJob:
		if s.job != worker {
			return errors.New("a result of the worker was recorded for a job that it no longer holds")
		}
		s.job, w.runs = ended, false
	}
	return nil
}

// giveUp makes the worker stop waiting for an answer, while the call is still in progress.
func (m *attendances) giveUp(s *attendState, i int) {
	s.late--
	c := &s.calls.row[i]
	c.client = false
	if c.kind != beating {
		m.isUnsure(s)
	}
}

// isUnsure records that the worker has given up a session that attends, or may still do so, and whose end may be taken for its own.
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

// leave disconnects the worker from all its sessions.
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

// serverEnds ends all sessions and what they had begun. counts says whether weir.attendance counts afterwards.
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

// failOver continues with a standby that has the first n words, and the value of weir.watched at that time.
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

// look begins fence_silent, which takes its snapshot.
func (s *attendState) look() {
	last := s.lastWord()
	s.calls.add(acall{kind: fencesSilent, saw: last, awaits: last.says == missed && s.attended})
}

// fenceSilent takes the next step: having its snapshot, it reads the locks and advances weir.watched | having the last word's lock, it checks again,
// and writes | it commits.
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
		if c.awaits && m.off.holds(watchedBound) {
			passed = min(passed, maxOne)
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
			s.calls.remove(i) // the worker may be alive, and is checked again later
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

// watch advances weir.watched.
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

// judge reports whether there is something to do: record that the worker is missed, or fence it.
func (m *attendances) judge(s *attendState, c *acall) bool {
	says, silent, awaits := c.saw.says, c.saw.silent, c.awaits
	limit := uint8(lease + grace)
	if !m.off.holds(leaseGrace) {
		limit = lease
	}
	quiet := silent
	if m.off.holds(leaseOfLife) {
		quiet = min(quiet, s.life)
	}
	if says == attends || says == nothing {
		if m.off.holds(twoLooks) {
			return true
		}
		awaits = s.attended
	}
	switch {
	case quiet > limit:
		c.fences = true
	case awaits && silent >= granted && !(s.full && m.off.holds(crowded)):
		c.fences, c.forEnd = true, true
	}
	return c.fences
}
