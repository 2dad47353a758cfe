package model

import "fmt"

// Unique jobs of one key: what enqueue_unique answers, and what claims make of jobs that did not see each other.

// keyed is a row of the log. Its number is never used again, as it comes from a sequence.
type keyed struct {
	by, claim, end xid
	no, id, lane   uint8
	again, excused bool // it is not the job's first row; it was dropped while another was unfinished
	how            outcome
	answers        bool // its claim is the first since a call was told that its job is a duplicate
	seen           snapshot
}

const (
	dropped  outcome = 20 + iota // by a claim: another of its key stands for it
	runAgain                     // by a claim, which logs it again
)

// uniqueOp is a call: a producer's transaction, a claim, or a transaction that ends an attempt.
type uniqueOp struct {
	claims bool
	phase  uint8
	lane   uint8
	xid    xid
	snap   snapshot // of a claim: which jobs it takes, and what its batch says it has seen
}

type uniques struct {
	uniqueScenario
	off off
}

type uniqueScenario struct {
	name                               string
	lanes                              []uint8 // for each transaction: the lane of its job
	started                            bool    // until started; false: until finished
	quota                              int
	claims, retries, releases, crashes uint8
	cancels                            uint8
}

type uniqueState struct {
	server
	claims, retries, releases, crashes, cancels uint8
	begun, nos                                  uint8
	owed                                        bool // a call was told that its job is a duplicate of one that is still to run
	rows                                        table[keyed]
	ops                                         table[uniqueOp]
}

const (
	uniqueEnqueue action = iota + 200
	uniqueCommit
	uniqueRollback
	uniqueClaim
	uniqueJudge
	uniqueComplete
	uniqueRetry
	uniqueRelease
	uniqueCancel
	uniqueCrash
)

func (m *uniques) machine() *machine[uniqueState] {
	s := uniqueState{server: server{next: longAgo + 1}, claims: m.claims, retries: m.retries, releases: m.releases, crashes: m.crashes, cancels: m.cancels}
	return &machine[uniqueState]{start: s, steps: m.steps, take: m.take, check: m.check, tidy: m.tidy, say: m.say}
}

func (m *uniques) steps(s *uniqueState, all []step) []step {
	can := func(do action, a int) { all = append(all, step{do, uint8(a), 0}) }
	if int(s.begun) < len(m.lanes) {
		can(uniqueEnqueue, 0)
	}
	judging, busy := 0, set{}
	for i, o := range s.ops.all() {
		switch {
		case !o.claims:
			can(uniqueCommit, i)
			can(uniqueRollback, i)
		case o.phase == 0:
			can(uniqueJudge, i)
		default:
			can(uniqueCommit, i)
		}
		if o.claims {
			judging++
			busy.add(o.lane)
		}
	}
	if s.claims > 0 && (judging == 0 || !m.off.holds(keyLock)) {
		for lane := range uint8(2) {
			if !busy.has(lane) {
				can(uniqueClaim, int(lane))
			}
		}
	}
	for i, r := range s.rows.all() {
		if s.cancels > 0 && r.claim == 0 && s.committed(r.by) {
			can(uniqueCancel, i)
		}
		if r.claim != 0 && s.committed(r.claim) && r.end == 0 {
			can(uniqueComplete, i)
			if s.retries > 0 {
				can(uniqueRetry, i)
			}
			if s.releases > 0 {
				can(uniqueRelease, i)
			}
		}
	}
	if s.crashes > 0 {
		can(uniqueCrash, 0)
	}
	return all
}

func (m *uniques) take(s *uniqueState, st step) error {
	i := int(st.a)
	switch st.do {
	case uniqueEnqueue:
		m.enqueue(s)
	case uniqueCommit:
		return m.commit(s, i)
	case uniqueRollback:
		s.drop(i)
	case uniqueClaim:
		s.claims--
		s.ops.add(uniqueOp{claims: true, lane: st.a, snap: s.snapshot()})
	case uniqueJudge:
		m.claimAndJudge(s, i)
	case uniqueComplete, uniqueRetry, uniqueRelease:
		m.end(s, &s.rows.row[i], st.do)
	case uniqueCancel:
		s.cancels--
		x, r := s.begin(), &s.rows.row[i]
		r.claim, r.end, r.how, s.owed = x, x, dropped, false
		s.server.commit(x, true, true)
		for k := range s.rows.all() { // what has been dropped for it is cancelled with it
			s.rows.row[k].excused = s.rows.row[k].how == dropped
		}
	case uniqueCrash:
		s.crashes--
		s.undo(s.lose(s.flushed))
		s.ops = table[uniqueOp]{}
		s.next = longAgo + 1
		s.eachXid(func(x *xid) { s.next = max(s.next, *x+1) }, func(at *snapshot) { s.next = max(s.next, at.max) })
	}
	return nil
}

// enqueue is a call of enqueue_unique in a transaction of its own.
func (m *uniques) enqueue(s *uniqueState) {
	lane := m.lanes[s.begun]
	s.begun++
	at := s.snapshot()
	if found := m.newest(s, at, 255, true); found != nil && (found.waits(at) || found.runs(at) && !m.started) {
		// Until finished, a claim in progress may be about to drop the job for one that has finished in the meantime: docs/unique.md excepts this.
		if m.started || !s.unfinished(at, 0) && !s.judging() {
			s.owed = true
		}
		return
	}
	o := s.ops.add(uniqueOp{xid: s.begin()})
	s.nos++
	s.rows.add(keyed{by: o.xid, no: s.nos, id: s.nos, lane: lane})
}

func (r *keyed) waits(at snapshot) bool { return r.claim == 0 || !at.sees(r.claim) }
func (r *keyed) ended(at snapshot) bool { return r.end != 0 && at.sees(r.end) }
func (r *keyed) runs(at snapshot) bool  { return !r.waits(at) && !r.ended(at) }

// unfinished reports whether a job runs, or waits to be tried again, apart from one.
func (s *uniqueState) unfinished(at snapshot, but uint8) bool {
	for _, r := range s.rows.all() {
		if r.id != but && at.sees(r.by) && (r.runs(at) || r.waits(at) && r.again) {
			return true
		}
	}
	return false
}

// judging reports whether a claim has judged jobs and not committed yet.
func (s *uniqueState) judging() bool {
	for _, o := range s.ops.all() {
		if o.claims && o.phase > 0 {
			return true
		}
	}
	return false
}

// newest is weir._newest_of_key.
func (m *uniques) newest(s *uniqueState, at snapshot, below uint8, fresh bool) (found *keyed) {
	for i := range s.rows.all() {
		r := &s.rows.row[i]
		if !at.sees(r.by) || r.no >= below || found != nil && r.no < found.no {
			continue
		}
		switch {
		case r.ended(at) && (r.how == dropped || (r.how == released || r.how == runAgain) && m.off.holds(releasedNoRun)):
			continue
		case r.waits(at) && !fresh && !r.again:
			continue
		case r.waits(at) && fresh && m.off.holds(doomedNotCounted):
			if m.judge(s, at, r, nil) == dropped {
				continue
			}
		}
		found = r
	}
	return found
}

// judge is weir._judge, for one job: completed means that it runs. chosen is the one of the same claim that runs.
func (m *uniques) judge(s *uniqueState, at snapshot, j, chosen *keyed) outcome {
	if chosen != nil {
		return dropped
	}
	other := m.newest(s, at, 255, false)
	for other != nil && other.no == j.no {
		other = m.newest(s, at, other.no, false)
	}
	switch {
	case other == nil || other.id == j.id:
		return completed
	case other.waits(at), other.runs(at) && !m.started, !m.off.holds(seenByRun), other.seen.sees(j.by):
		return dropped
	case other.no > j.no && m.off.holds(numberedAgain):
		return runAgain
	}
	return completed
}

// claimAndJudge takes the jobs that the claim's snapshot shows; the statement's snapshot, which is newer, decides what becomes of them.
func (m *uniques) claimAndJudge(s *uniqueState, i int) {
	o := &s.ops.row[i]
	at := s.snapshot()
	var picked [4]uint8
	n := 0
	for k, r := range s.rows.all() { // in the order of xid
		if n < m.quota && r.claim == 0 && r.lane == o.lane && o.snap.sees(r.by) {
			picked[n] = uint8(k)
			n++
		}
	}
	if n == 0 {
		s.ops.remove(i)
		return
	}
	o.phase, o.xid = 1, s.begin()
	before := *s
	var chosen *keyed
	for _, k := range picked[:n] {
		r := &s.rows.row[k]
		fate := m.judge(&before, at, &before.rows.row[k], chosen)
		r.claim = o.xid
		switch fate {
		case completed:
			r.seen, chosen = o.snap, r
		case dropped:
			r.end, r.how = o.xid, dropped
			r.excused = !m.started && before.unfinished(at, r.id)
		default:
			r.end, r.how = o.xid, runAgain
			s.again(o.xid, r)
			chosen = r
		}
	}
}

// again logs a job again, with another number.
func (s *uniqueState) again(x xid, r *keyed) {
	s.nos++
	s.rows.add(keyed{by: x, no: s.nos, id: r.id, lane: r.lane, again: true})
}

func (m *uniques) end(s *uniqueState, r *keyed, by action) {
	o := s.ops.add(uniqueOp{xid: s.begin()})
	switch r.end = o.xid; by {
	case uniqueRetry:
		s.retries--
		r.how = retried
		s.again(o.xid, r)
	case uniqueRelease:
		s.releases--
		r.how = released
		s.again(o.xid, r)
	default:
		r.how = completed
	}
}

func (m *uniques) commit(s *uniqueState, i int) error {
	o := s.ops.row[i]
	s.ops.remove(i)
	s.commitOf(o)
	running := 0
	for k := range s.rows.all() {
		r := &s.rows.row[k]
		if o.claims && r.claim == o.xid && r.end == 0 && s.owed {
			s.owed, r.answers = false, true
		}
		if r.end == o.xid && r.how == released && r.answers {
			s.owed = true
		}
		if r.claim != 0 && s.committed(r.claim) && (r.end == 0 || !s.committed(r.end)) {
			running++
		}
	}
	if running > 1 && !m.started {
		return fmt.Errorf("%d jobs of a key run at the same time", running)
	}
	return nil
}

func (s *uniqueState) commitOf(o uniqueOp) { s.server.commit(o.xid, !o.claims, !o.claims) }

func (s *uniqueState) drop(i int) {
	var one xids
	one.add(s.ops.row[i].xid)
	s.ops.remove(i)
	s.undo(one)
}

func (s *uniqueState) undo(lost xids) {
	s.open = s.open.without(lost)
	s.rows.keep(func(r *keyed) bool { return !lost.has(r.by) })
	for i := range s.rows.all() {
		r := &s.rows.row[i]
		if r.end != 0 && lost.has(r.end) {
			r.end, r.how, r.excused = 0, 0, false
		}
		if r.claim != 0 && lost.has(r.claim) {
			s.owed = s.owed || r.answers
			r.claim, r.answers, r.seen = 0, false, snapshot{}
		}
	}
}
