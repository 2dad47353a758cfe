package model

// Who is alive: a worker that attends, by a lock of its session, or sends heartbeats; rescuers, who check; and time, in which sessions end, leases
// lapse, and sometimes nobody checks. The model has one worker with the job that it runs, and another worker that would run it. Of claims and
// results, it has only what matters to a fence; the rest is in the machine of jobs.

// Time passes in ticks of about a second. The lease is short; all other times are as in reality.
const (
	granted   = 3 // ticks to replace a session that has ended
	hurry     = 2 // ticks after which a worker without a session interrupts its jobs
	lease     = 4
	leaseOver = 3 // ticks after which a worker without answers to its heartbeats does so
	beatEvery = 1
	patience  = 1 // ticks to wait for the answer to a heartbeat
	grace     = 2
	maxTime   = 2 // maximum that one check adds to weir.watched
	maxOne    = 1 // maximum that the checks of a tick add while the worker may still replace its session
	longTime  = 12
	never     = 255
)

// word is a row of weir.last_word: silent is how much weir.watched has advanced since.
type word struct {
	no, silent    uint8
	says          says
	open, flushed bool // open: its transaction has not ended; flushed: it is on disk
}

type says uint8

const (
	nothing says = iota
	beats
	attends
	missed
)

func (s says) String() string { return [...]string{"nothing", "beats", "attends", "missed"}[s] }

// line is a session of the worker that holds its attendance lock.
type line struct {
	attached bool  // the process is still connected to it
	cut      bool  // nothing sent through it arrives
	idle     uint8 // since its last call
}

type attendCall uint8

const (
	attending    attendCall = iota + 1 // attend
	beating                            // heartbeat, by a connection that does not attend
	renewing                           // heartbeat by the session that attends, where it writes
	claimsJob                          // a claim
	recordsJob                         // record
	fencesSilent                       // rescue, as far as fence_silent
)

// acall is a call in progress.
type acall struct {
	kind   attendCall
	phase  uint8
	client bool  // true while the worker waits for the answer
	age    uint8 // ticks since it was sent
	no     uint8 // number of its word
	saw    word  // fence_silent: the last word as it was read
	awaits bool  // fence_silent: the worker was missed then, and had attended in this life of the server
	fences bool  // fence_silent: it has inserted a fence
	forEnd bool  // the fence is for a session that has ended
}

// keeper is the process of the worker.
type keeper struct {
	alive, frozen, stood bool  // frozen: it is suspended; stood: it was suspended at some time
	over                 bool  // it knows that it is fenced
	runs                 bool  // its handler runs the job
	held                 bool  // it believes that one of its sessions attends
	unsure               bool  // it has given up a call that may still make a session attend
	deaf                 bool  // its session was cut before it ended, so it is not notified
	since                uint8 // ticks since it sent the last heartbeat that arrived
	soon                 uint8 // ticks since it lost its session; never: it has not
}

type attendState struct {
	w                          keeper
	words                      table[word]
	lines                      table[line]
	calls                      table[acall]
	nos                        uint8
	attended, fenced           bool  // weir.attendance, if it counts; weir.worker
	passed                     uint8 // ticks since weir.watched was advanced
	life                       uint8 // how much it has advanced since the first check in this life of the server; never: there was none
	job                        holder
	full                       bool  // the server has no free connection
	down                       bool  // it was down, which the worker has not noticed
	quiet, owed                uint8 // known only to the model: how long the worker was silent, and how long it may be
	ends, cuts, crashes        uint8
	restarts, failovers, kills uint8
	freezes, fills, late       uint8
}

// holder tells which worker has the job.
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
	pooled                           bool // there is a pooler, which may end a session without the worker's knowledge
	attends                          bool // it attends from the beginning, while a heartbeat that it has given up is in progress
	slow                             bool // calls may take any time
	others                           bool // there are workers that do not attend, so weir.watched advances
	works                            bool // the worker claims and records
	busy                             bool // the number of running jobs in heartbeats changes
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

// ofWorker lists the possible steps of the process.
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

// attached returns the session to which the process is connected.
func (s *attendState) attached() *line {
	for i := range s.lines.all() {
		if s.lines.row[i].attached {
			return &s.lines.row[i]
		}
	}
	return nil
}

// hasLost reports whether the session that attends has ended, which the worker has not noticed.
func (s *attendState) hasLost() bool { return s.w.held && s.attached() == nil }

// mayNotice reports whether the worker can notice that. Behind a pooler, or if nothing arrives, it notices by a heartbeat without an answer.
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

// waits reports whether the keeper waits for an answer.
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

// lapsed reports whether the worker counts its lease as over.
func (w *keeper) lapsed() bool { return w.since >= leaseOver || w.soon != never && w.soon >= hurry }

// mustInterrupt reports whether the worker must interrupt its job now.
func (m *attendances) mustInterrupt(s *attendState) bool {
	return s.w.runs && (s.w.since >= leaseOver && m.off.holds(leaseLapse) || s.w.soon != never && s.w.soon >= hurry && m.off.holds(sessionLapse))
}

// isEnded reports whether the server ends the session: after it was idle for the lease, and not earlier because of a silent connection.
func (m *attendances) isEnded(l *line) bool {
	return l.idle >= lease && m.off.holds(idleTimeout) || l.cut && !m.off.holds(quietLine)
}

// mayPass reports whether time may pass: steps that happen at once come first.
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

// lastWord returns the last committed word.
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

// drop ends a call and undoes its effects.
func (s *attendState) drop(i int) {
	no := s.calls.row[i].no
	s.words.keep(func(w *word) bool { return w.no != no || !w.open })
	s.calls.remove(i)
}
