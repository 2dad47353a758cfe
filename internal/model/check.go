package model

import "fmt"

// check looks for a broken promise: in the present state, and, if no call is in flight, in the state that results when everyone does what they must
// without further faults.
func (m *jobs) check(s *state) error {
	if err := s.promises(); err != nil {
		return err
	}
	if s.ops.n > 0 {
		return nil
	}
	t := *s
	if err := m.mend(&t); err != nil {
		return fmt.Errorf("after workers have reconciled, dead workers are settled and all jobs are worked, without further faults: %w", err)
	}
	return nil
}

func (s *state) promises() error {
	batches := s.batches.all()
	for i := range batches {
		b := &batches[i]
		if b.gone != 0 || !s.committed(b.by) {
			continue
		}
		for _, c := range b.ids {
			if c.id == 0 {
				continue
			}
			for k := range batches[:i] {
				o := &batches[k]
				if o.gone != 0 || !s.committed(o.by) {
					continue
				}
				for _, d := range o.ids {
					if c.tag == d.tag && c.attempt == d.attempt {
						return fmt.Errorf("attempt %d of job %d is in two batches, %d and %d", c.attempt, c.tag, o.cursor.seq, b.cursor.seq)
					}
				}
			}
		}
	}
	for i, j := range s.jobs.all() {
		if j.gone != 0 || !s.committed(j.by) || j.deleted != 0 && s.committed(j.deleted) {
			continue
		}
		for _, k := range s.jobs.all()[:i] {
			if k.gone == 0 && s.committed(k.by) && !(k.deleted != 0 && s.committed(k.deleted)) && j.tag == k.tag && j.attempt == k.attempt {
				return fmt.Errorf("attempt %d of job %d is in the log twice", j.attempt, j.tag)
			}
		}
	}
	for i, r := range s.results.all() {
		if !s.committed(r.by) {
			continue
		}
		for _, o := range s.results.all()[:i] {
			switch {
			case !s.committed(o.by) || r.tag != o.tag:
			case r.attempt == o.attempt && (r.seq != o.seq || r.number != o.number):
				return fmt.Errorf("attempt %d of job %d ended in two batches, %d and %d", r.attempt, r.tag, o.seq, r.seq)
			case r.attempt == o.attempt && r.outcome != o.outcome:
				return fmt.Errorf("attempt %d of job %d ended twice: %s and %s", r.attempt, r.tag, o.outcome, r.outcome)
			case r.attempt == o.attempt && !r.outcome.final():
				return fmt.Errorf("attempt %d of job %d was followed by two", r.attempt, r.tag)
			case r.attempt != o.attempt && r.outcome.final() && o.outcome.final():
				return fmt.Errorf("job %d was completed twice: attempts %d and %d", r.tag, o.attempt, r.attempt)
			}
		}
	}
	for i, e := range s.effects.all() {
		for _, o := range s.effects.all()[:i] {
			if e.of == o.of && s.committed(e.by) && s.committed(o.by) {
				return fmt.Errorf("the effect of job %d was committed twice", e.of)
			}
		}
		ended := false
		for _, r := range s.results.all() {
			ended = ended || r.tag == e.of && r.outcome.final()
		}
		if !ended && s.committed(e.by) {
			return fmt.Errorf("the effect of job %d was committed, but its completion was not", e.of)
		}
	}
	return nil
}

// mend lets everyone do what they must: workers reconcile, and end what they run; dead workers are fenced and their jobs rescued; a new worker claims
// the rest. Then every committed job must have ended.
func (m *jobs) mend(s *state) error {
	s.left = budget{Claims: 200, Reconciles: 200}
	if s.moved {
		if err := m.rebase(s); err != nil {
			return err
		}
	}
	m.tidy(s)
	fresh := len(s.process) - 1
	for range 4 {
		for i := range s.process {
			p := &s.process[i]
			if !p.alive || p.worker == 0 {
				continue
			}
			if p.doubt || m.off.holds(reconcileAgain) {
				if err := m.reconcile(s, i); err != nil {
					return err
				}
			}
			if err := m.endAll(s, i); err != nil {
				return err
			}
		}
		for _, w := range s.workers.all() {
			if !w.fenced && !s.fenced(s.snapshot(), w.id) && !s.lives(w.id) {
				m.fence(s, w.id)
			}
		}
		for _, w := range s.workers.all() {
			for _, _, found, _ := m.toSettle(s, w.id); w.fenced && found; _, _, found, _ = m.toSettle(s, w.id) {
				if err := m.settle(s, w.id); err != nil {
					return err
				}
				m.tidy(s)
			}
		}
		if !s.process[fresh].alive {
			m.workerStart(s, fresh)
		}
		for {
			m.tidy(s)
			before := s.batches.n
			if err := m.claim(s, step{claim, 0, uint8(255 - fresh)}); err != nil {
				return err
			}
			if s.ops.n == 0 {
				break
			}
			i := int(s.ops.n) - 1
			m.claimLane(s, i)
			m.claimBatch(s, i)
			if s.ops.n == 0 || s.batches.n == before {
				break
			}
			if err := m.commit(s, i); err != nil {
				return err
			}
			if err := m.endAll(s, fresh); err != nil {
				return err
			}
			s.batches.keep(func(b *batchRow) bool {
				return b.worker != s.process[fresh].worker || b.cursor.seq == s.newest(s.snapshot()).seq
			})
			s.jobs.keep(func(j *jobRow) bool { return !s.over(j.tag, j.attempt) })
		}
		if err := s.promises(); err != nil {
			return err
		}
	}
	for _, l := range s.logged.all() {
		ended := false
		for _, r := range s.results.all() {
			ended = ended || r.tag == l.of && r.outcome.final()
		}
		if ended {
			continue
		}
		for _, b := range s.batches.all() {
			for _, c := range b.ids {
				if b.gone == 0 && c.tag == l.of && s.ended(s.snapshot(), b.cursor.seq, b.number, c.id) == 0 {
					return fmt.Errorf("job %d is shown as running, but no worker runs it", l.of)
				}
			}
		}
		return fmt.Errorf("job %d was never claimed", l.of)
	}
	return nil
}

// over reports whether an attempt has a result.
func (s *state) over(tag, attempt uint8) bool {
	for _, r := range s.results.all() {
		if r.tag == tag && r.attempt == attempt {
			return true
		}
	}
	return false
}

// endAll makes a process complete everything that it holds.
func (m *jobs) endAll(s *state, i int) error {
	for range len(s.process[i].held) {
		if s.process[i].held[0] == (held{}) {
			return nil
		}
		if err := m.result(s, i, 0, recording); err != nil {
			return err
		}
		if s.ops.n == 0 {
			continue // refused
		}
		if err := m.insert(s, 0); err != nil {
			return err
		}
		if err := m.commit(s, 0); err != nil {
			return err
		}
		m.tidy(s)
	}
	return nil
}
