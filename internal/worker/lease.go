package worker

import (
	"context"
	"sync"
	"time"
)

// lease is the time for which nobody gives this session's jobs to others, as the session itself can know it: it runs from when the last
// heartbeat that arrived was sent, so the database's own count ends later. A sixth before its end it counts as over: then jobs are
// interrupted while they are nobody else's yet, and none is claimed or started until a heartbeat arrives. If none does in time, the
// session is fenced, and others have the jobs.
type lease struct {
	s     *session
	mu    sync.Mutex // never taken after session.mu
	timer *time.Timer
	until time.Time     // when it counts as over
	over  chan struct{} // nil: it holds; closed when it holds again
}

// begin starts the count at the call that registered the worker; stop ends it.
func (l *lease) begin(s *session, sent time.Time) {
	l.s = s
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = sent.Add(s.Lease - s.Lease/6)
	l.timer = time.AfterFunc(time.Until(l.until), l.lapse)
}

func (l *lease) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer.Stop()
}

// renew counts anew from when a heartbeat that arrived was sent.
func (l *lease) renew(sent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = sent.Add(l.s.Lease - l.s.Lease/6)
	l.timer.Reset(time.Until(l.until))
	if l.over != nil {
		l.s.Log.Warn("weir: heartbeats arrive again in time: the worker goes on", "worker", l.s.id)
		l.s.setLapsed(false)
		close(l.over)
		l.over = nil
	}
}

func (l *lease) lapse() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over != nil || time.Now().Before(l.until) { // it was renewed in this moment
		return
	}
	l.over = make(chan struct{})
	jobs := l.s.setLapsed(true)
	l.s.Log.Warn("weir: no heartbeat has arrived for nearly the whole lease, and others may soon be given the jobs: they are interrupted here, and none is started until heartbeats arrive",
		"worker", l.s.id, "lease", l.s.Lease, "jobs", jobs)
}

// hold waits until the lease holds; false when ctx ends first.
func (l *lease) hold(ctx context.Context) bool {
	l.mu.Lock()
	over := l.over
	l.mu.Unlock()
	if over == nil {
		return true
	}
	select {
	case <-over:
		return true
	case <-ctx.Done():
		return false
	}
}

// setLapsed notes whether the lease is over, and interrupts the jobs that run if it is; it returns how many.
func (s *session) setLapsed(lapsed bool) (interrupted int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lapsed = lapsed
	if !lapsed {
		return 0
	}
	for _, b := range s.batches {
		for _, t := range b.tasks {
			if t.stop != nil {
				t.stop(ErrLapsed)
				interrupted++
			}
		}
	}
	return interrupted
}
