package model

// Who lives: a worker that attends, by a lock of its session, or beats; rescuers, who look; and time, in which sessions end, leases lapse, and
// now and then nobody looks. One worker is looked at, with the job it runs, and another that would run it. What is told of claims and results
// here is only what a fence has to do with them; the rest is the machine of jobs.

// Time goes in ticks of about a second: the lease is short, and all else as it is.
const (
	granted   = 3 // for a session that has ended to be followed by another
	hurry     = 2 // by then a worker that has none interrupts its jobs
	lease     = 4
	leaseOver = 3 // so does one whose heartbeats don't arrive
	beatEvery = 1
	patience  = 1 // for an answer to a heartbeat
	grace     = 2
	mostTime  = 2 // that one look adds to weir.watched
	mostOne   = 1 // and what the looks of a tick add while the worker is missed
	longTime  = 12
	never     = 255
)

// word is what weir.last_word holds: silent is how much weir.watched has moved on since.
type word struct {
	no, silent    uint8
	says          says
	open, flushed bool // its transaction has not ended; it is on disk
}

type says uint8

const (
	nothing says = iota
	beats
	attends
	missed
)

func (s says) String() string { return [...]string{"nothing", "beats", "attends", "missed"}[s] }

// line is a session of the worker's that holds its attendance lock.
type line struct {
	attached bool  // the process is at the other end
	cut      bool  // nothing that is sent arrives
	idle     uint8 // since its last call
}

type attendCall uint8

const (
	attending    attendCall = iota + 1 // attend
	beating                            // heartbeat, by a connection that does not attend
	renewing                           // heartbeat by the session that attends, where it writes
	claimsJob                          // claim
	recordsJob                         // record
	fencesSilent                       // rescue, as far as fence_silent
)

// acall is a call on its way through the server.
type acall struct {
	kind   attendCall
	phase  uint8
	client bool  // the worker waits for the answer
	age    uint8 // since it was sent
	no     uint8 // of its word
	saw    word  // fence_silent: the last word as it looked
	fences bool  // fence_silent: it has inserted a fence
	forEnd bool  // and that for a session that has ended
}

// keeper is the worker's process.
type keeper struct {
	alive, frozen, stood bool  // frozen: it stands still now; stood: it once did
	over                 bool  // it knows that it is fenced
	runs                 bool  // its handler runs the job
	held                 bool  // as far as it knows a session of its attends
	unsure               bool  // it has given up a call that may say so still
	deaf                 bool  // its session was cut before it ended: nobody tells it
	since                uint8 // since it sent the last heartbeat that arrived
	soon                 uint8 // since it lost its session, never: it has not
}

type attendState struct {
	w                          keeper
	words                      table[word]
	lines                      table[line]
	calls                      table[acall]
	nos                        uint8
	attended, fenced           bool  // weir.attendance, where it counts; weir.worker
	passed                     uint8 // since weir.watched was moved on
	life                       uint8 // how much it has moved on since the first look in this life of the server; never: there was none
	job                        holder
	full                       bool  // the server has no connection left
	down                       bool  // it has been down, which the worker has not noticed
	quiet, owed                uint8 // the model's own: since when nothing spoke for the worker, and how long it may be so
	ends, cuts, crashes        uint8
	restarts, failovers, kills uint8
	freezes, fills, late       uint8
}

// holder is who has the job.
type holder uint8

const (
	nobody holder = iota
	worker
	other
	ended
)

type attendances struct {
	attendScenario
	off off
}

type attendScenario struct {
	name                             string
	pooled                           bool // something lies between that may end a session behind the worker's back
	attends                          bool // from the beginning, and a heartbeat is on its way that has been given up
	slow                             bool // calls take as long as they like
	others                           bool // there are workers that do not attend, so weir.watched moves on
	works                            bool // it claims and records
	busy                             bool // heartbeats tell how many jobs run, which changes
	ends, cuts, crashes, restarts    uint8
	failovers, kills, freezes, fills uint8
	late                             uint8
}

const (
	attend action = iota + 200
	heartbeat
	attendClaim
	attendRecord
	callGoesOn
	callGivenUp
	fenceSilent
	settleLost
	claimByOther
	handBack
	timePasses
	sessionEnds
	lineIsCut
	notices
	noticesDown
	givesUpLine
	interrupts
	attendKill
	standsStill
	goesOn
	serverFills
	serverEmpties
	attendCrash
	attendRestart
	attendFailover
)

func (m *attendances) machine() *machine[attendState] {
	s := attendState{ends: m.ends, cuts: m.cuts, crashes: m.crashes, restarts: m.restarts, failovers: m.failovers, kills: m.kills,
		freezes: m.freezes, fills: m.fills, late: m.late, job: worker, life: lease + grace + 1, nos: 1, owed: lease}
	s.w = keeper{alive: true, runs: true, soon: never}
	s.words.add(word{no: 1, says: beats, flushed: true}) // worker_start
	if m.attends {
		s.words.row[0].says, s.attended, s.w.held = attends, true, true
		s.lines.add(line{attached: true})
		s.calls.add(acall{kind: beating})
		s.owed = 0
	}
	return &machine[attendState]{start: s, steps: m.steps, take: m.take, check: m.check, tidy: m.tidy, say: m.say}
}

func (m *attendances) steps(s *attendState, all []step) []step {
	can := func(do action, a int) { all = append(all, step{do, uint8(a), 0}) }
	if m.mayPass(s) {
		can(timePasses, 0)
	}
	for i := range s.calls.all() {
		c := &s.calls.row[i]
		if m.mayGoOn(s, c) {
			can(callGoesOn, i)
		}
		if c.client && c.kind <= renewing && s.late > 0 {
			can(callGivenUp, i)
		}
	}
	if s.call(fencesSilent) == nil && !s.fenced {
		can(fenceSilent, 0)
	}
	if s.fenced && s.job == worker && s.call(claimsJob) == nil && s.call(recordsJob) == nil {
		can(settleLost, 0)
	}
	if s.job == nobody {
		can(claimByOther, 0)
	}
	for i, l := range s.lines.all() {
		if l.attached && s.ends > 0 || !l.attached && !l.cut || m.isEnded(&l) {
			can(sessionEnds, i)
		}
		if l.attached && s.w.held && !l.cut && s.cuts > 0 {
			can(lineIsCut, i)
		}
	}
	if s.w.alive && s.w.frozen {
		can(goesOn, 0)
	}
	if s.w.alive && !s.w.frozen {
		m.ofWorker(s, can)
	}
	if s.full {
		can(serverEmpties, 0)
	} else if s.fills > 0 && s.call(fencesSilent) == nil {
		can(serverFills, 0)
	}
	for _, f := range []struct {
		left uint8
		do   action
	}{{s.crashes, attendCrash}, {s.restarts, attendRestart}} {
		if f.left > 0 {
			can(f.do, 0)
		}
	}
	if s.failovers > 0 {
		for n := range int(s.words.n) + 1 {
			can(attendFailover, n)
		}
	}
	return all
}

// ofWorker lists what the process can do.
func (m *attendances) ofWorker(s *attendState, can func(action, int)) {
	w := &s.w
	if s.kills > 0 {
		can(attendKill, 0)
	}
	if s.freezes > 0 {
		can(standsStill, 0)
	}
	if w.over {
		return
	}
	if m.mayNotice(s) {
		can(notices, 0)
		if s.down {
			can(noticesDown, 0)
		}
		return
	}
	if m.mustInterrupt(s) {
		can(interrupts, 0)
	}
	l := s.attached()
	if w.held && l != nil && l.cut && w.since >= beatEvery+patience {
		can(givesUpLine, 0)
	}
	if !s.waits() {
		switch {
		case w.held && l != nil && !l.cut:
			if w.since > 0 {
				can(heartbeat, 0)
			}
		case !w.held:
			if w.since > 0 {
				can(heartbeat, 0)
			}
			if (!m.pooled || !m.off.holds(unbrokenLine)) && !s.full {
				can(attend, 0)
			}
		}
	}
	lapsed := w.lapsed()
	switch {
	case s.call(claimsJob) != nil || s.call(recordsJob) != nil:
	case w.runs:
		if m.works {
			can(attendRecord, 0)
		}
	case s.job == nobody && !lapsed && m.works:
		can(attendClaim, 0)
	case s.job == worker && !s.isFencing():
		can(handBack, 0)
	}
}

// attached is the session that the process is at the other end of.
func (s *attendState) attached() *line {
	for i := range s.lines.all() {
		if s.lines.row[i].attached {
			return &s.lines.row[i]
		}
	}
	return nil
}

// hasLost tells that the session by which the worker attends has ended, and it has not noticed.
func (s *attendState) hasLost() bool { return s.w.held && s.attached() == nil }

// mayNotice: and it can. Behind a pooler, and where nothing arrives, a heartbeat without an answer tells.
func (m *attendances) mayNotice(s *attendState) bool {
	return s.hasLost() && (!s.w.deaf || s.w.since >= beatEvery+patience) && (!m.pooled || s.w.since >= beatEvery)
}

func (s *attendState) call(kind attendCall) *acall {
	for i := range s.calls.all() {
		if s.calls.row[i].kind == kind {
			return &s.calls.row[i]
		}
	}
	return nil
}

// waits tells whether the keeper waits for an answer.
func (s *attendState) waits() bool {
	for _, c := range s.calls.all() {
		if c.client && c.kind <= renewing {
			return true
		}
	}
	return false
}

func (s *attendState) isFencing() bool {
	c := s.call(fencesSilent)
	return c != nil && c.fences
}

// lapsed: the worker counts its lease as over.
func (w *keeper) lapsed() bool { return w.since >= leaseOver || w.soon != never && w.soon >= hurry }

// mustInterrupt: it is time for the worker to interrupt its job.
func (m *attendances) mustInterrupt(s *attendState) bool {
	return s.w.runs && (s.w.since >= leaseOver && m.off.holds(leaseLapse) || s.w.soon != never && s.w.soon >= hurry && m.off.holds(sessionLapse))
}

// isEnded: the server ends a session that has been idle for the lease, and no sooner gives up a line that says nothing.
func (m *attendances) isEnded(l *line) bool {
	return l.idle >= lease && m.off.holds(idleTimeout) || l.cut && !m.off.holds(quietLine)
}

// mayPass: what is done at once is done before time passes.
func (m *attendances) mayPass(s *attendState) bool {
	for _, l := range s.lines.all() {
		if l.idle >= lease && m.off.holds(idleTimeout) {
			return false
		}
	}
	for _, c := range s.calls.all() {
		if c.kind == fencesSilent && c.phase == 0 || !m.slow && (c.client || c.kind == fencesSilent || c.phase > 0) {
			return false
		}
	}
	w := &s.w
	if !w.alive || w.frozen || w.over {
		return true
	}
	if m.mayNotice(s) || m.mustInterrupt(s) {
		return false
	}
	if l := s.attached(); w.held && l != nil {
		return w.since < beatEvery || l.cut && w.since < beatEvery+patience || s.waits()
	}
	return true
}

// lastWord is the last that is committed.
func (s *attendState) lastWord() (last word) {
	for _, w := range s.words.all() {
		if !w.open && w.no > last.no {
			last = w
		}
	}
	return last
}

func (s *attendState) say(says says) uint8 {
	s.nos++
	s.words.add(word{no: s.nos, says: says, open: true})
	return s.nos
}

// drop ends a call and takes back what it did.
func (s *attendState) drop(i int) {
	no := s.calls.row[i].no
	s.words.keep(func(w *word) bool { return w.no != no || !w.open })
	s.calls.remove(i)
}
