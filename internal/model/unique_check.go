package model

import "fmt"

// check lets everyone do their work, if no call is in flight, and then checks that for every job that was committed there is a run: of the job itself,
// or one that was to see its commit, or, until finished, one that was unfinished when its turn came; and one for every call that was told of a duplicate.
func (m *uniques) check(s *uniqueState) error {
	if s.ops.n > 0 {
		return nil
	}
	t := *s
	for range 20 {
		did := false
		for i := range t.rows.all() {
			if r := &t.rows.row[i]; r.claim != 0 && r.end == 0 {
				m.end(&t, r, uniqueComplete)
				if err := m.commit(&t, 0); err != nil {
					return err
				}
				did = true
			}
		}
		for lane := range uint8(2) {
			t.ops.add(uniqueOp{claims: true, lane: lane, snap: t.snapshot()})
			if m.claimAndJudge(&t, 0); t.ops.n > 0 {
				if err := m.commit(&t, 0); err != nil {
					return err
				}
				did = true
			}
		}
		t.tail = table[commit]{}
		if !did {
			break
		}
	}
	if t.owed {
		return fmt.Errorf("a call was told that its job is a duplicate, and no job has run since")
	}
	for _, r := range t.rows.all() {
		switch {
		case r.claim == 0:
			return fmt.Errorf("job %d is never claimed", r.id)
		case r.how == dropped && !r.excused && !t.covered(r.by):
			return fmt.Errorf("job %d was dropped, and no job that started after its commit has run", r.id)
		}
	}
	return nil
}

// covered reports whether a run has started after the commit of a transaction.
func (s *uniqueState) covered(x xid) bool {
	for _, r := range s.rows.all() {
		if r.claim != 0 && (r.how == completed || r.how == retried) && r.seen.sees(x) {
			return true
		}
	}
	return false
}

func (s *uniqueState) eachXid(of func(*xid), each func(*snapshot)) {
	for i := range s.tail.all() {
		of(&s.tail.row[i].by)
	}
	for i := range s.rows.all() {
		r := &s.rows.row[i]
		of(&r.by)
		of(&r.claim)
		of(&r.end)
		each(&r.seen)
	}
	for i := range s.ops.all() {
		of(&s.ops.row[i].xid)
		each(&s.ops.row[i].snap)
	}
}

// tidy forgets what makes no difference any more: commits that no crash can undo, rows that nobody looks at, and ids of transactions that every
// snapshot sees.
func (m *uniques) tidy(s *uniqueState) {
	lossy := unsettled(&s.tail, &s.flushed, s.open, s.crashes, 0)
	old := func(x xid) bool {
		for _, o := range s.ops.all() {
			if o.claims && !o.snap.sees(x) {
				return false
			}
		}
		return x != 0 && !lossy.has(x)
	}
	s.rows.keep(func(r *keyed) bool {
		switch {
		case !old(r.end):
			return true
		case r.how == dropped:
			return !r.excused && !s.covered(r.by)
		}
		return r.how != released && r.how != runAgain || !m.off.holds(releasedNoRun)
	})
	for i := range s.rows.all() {
		r := &s.rows.row[i]
		if old(r.claim) {
			if r.claim = longAgo; r.how != dropped && r.how != runAgain {
				r.by = longAgo
			}
		}
		if old(r.end) {
			r.end = longAgo
		}
	}
	used := xids{}
	for i := range s.ops.all() {
		if o := &s.ops.row[i]; o.claims && o.phase > 0 {
			o.snap = snapshot{}
		}
	}
	s.eachXid(func(x *xid) { used.add(*x) }, func(*snapshot) {})
	n := numberingOf(used)
	s.eachXid(n.of, n.ofSnapshot)
	n.ofSet(&s.open)
	s.next = n.next
	s.rows.sort(func(r *keyed) uint64 { return key(r.by, r.no, 0, 0) })
	s.ops.sort(func(o *uniqueOp) uint64 { return key(bit(o.claims), o.xid, o.lane, 0) })
}

func (m *uniques) say(s *uniqueState, st step) string {
	i := int(st.a)
	var x xid
	if i < int(s.ops.n) {
		x = s.ops.row[i].xid
	}
	job := func() uint8 { return s.rows.row[i].id }
	switch st.do {
	case uniqueEnqueue:
		t := *s
		if m.enqueue(&t); t.rows.n == s.rows.n {
			return "enqueue_unique finds a duplicate"
		}
		return fmt.Sprintf("enqueue_unique: transaction %d logs job %d in lane %d", s.next, s.nos+1, m.lanes[s.begun])
	case uniqueCommit:
		return fmt.Sprintf("commit of transaction %d", x)
	case uniqueRollback:
		return fmt.Sprintf("rollback of transaction %d", x)
	case uniqueClaim:
		return fmt.Sprintf("a claim from lane %d has its locks, and takes its snapshot", i)
	case uniqueJudge:
		return fmt.Sprintf("the claim from lane %d picks jobs, and judges them", s.ops.row[i].lane)
	case uniqueComplete:
		return fmt.Sprintf("transaction %d completes job %d", s.next, job())
	case uniqueRetry:
		return fmt.Sprintf("transaction %d ends an attempt of job %d, and logs another", s.next, job())
	case uniqueRelease:
		return fmt.Sprintf("transaction %d hands job %d back, which has not run", s.next, job())
	case uniqueCancel:
		return fmt.Sprintf("job %d, which waits, is cancelled", job())
	case uniqueCrash:
		return fmt.Sprintf("the server crashes and starts again, without the last %d commits", s.tail.n-s.flushed)
	}
	return "?"
}
