package worker

import (
	"context"
	"sync"
	"time"
)

// lease is the time for which nobody gives this session's jobs to others, as the session itself can know it: it runs from when the last
// heartbeat that arrived was sent, so the database's own count ends later. A sixth before its end it counts as over: then jobs are
// interrupted while they are nobody else's yet, and none is claimed or started until a heartbeat arrives. If none does in time, the
// session is fenced, and others have the jobs. A worker that attended and no longer does is fenced sooner: then so does its lease end.
type lease struct {
	s     *session
	mu    sync.Mutex // never taken after session.mu
	timer *time.Timer
	sent  time.Time     // when the last heartbeat that arrived was
	soon  time.Time     // when it is over if nobody attends again; zero: somebody does, or nobody did
	over  chan struct{} // nil: it holds; closed when it holds again
}

// begin starts the count at the call that registered the worker; stop ends it.
func (l *lease) begin(s *session, sent time.Time) {
	l.s = s
	s.Health.heard.Store(&sent)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent = sent
	l.timer = time.AfterFunc(time.Until(l.until()), l.lapse)
}

// until is when the lease counts as over. The caller holds mu.
func (l *lease) until() time.Time {
	until := l.sent.Add(l.s.Lease - l.s.Lease/6)
	if !l.soon.IsZero() && l.soon.Before(until) {
		return l.soon
	}
	return until
}

// shorten has the lease end at soon, or sooner if it does already, until a heartbeat arrives; at its own time again for zero.
func (l *lease) shorten(soon time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if soon.IsZero() || l.soon.IsZero() || soon.Before(l.soon) {
		l.soon = soon
	}
	l.timer.Reset(time.Until(l.until()))
}

func (l *lease) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer.Stop()
}

// renew counts anew from when a heartbeat that arrived was sent.
func (l *lease) renew(sent time.Time) {
	l.s.Health.heard.Store(&sent)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent, l.soon = sent, time.Time{}
	l.timer.Reset(time.Until(l.until()))
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
	if l.over != nil || time.Now().Before(l.until()) { // it was renewed in this moment
		return
	}
	l.over = make(chan struct{})
	jobs := l.s.setLapsed(true)
	why := "no heartbeat has arrived for nearly the whole lease"
	if !l.soon.IsZero() {
		why = "the worker's session has ended and no other could be had in its place"
	}
	l.s.Log.Warn("weir: "+why+", and others may soon be given the jobs: they are interrupted here, and none is started until heartbeats arrive",
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
