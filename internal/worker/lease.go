package worker

import (
	"context"
	"sync"
	"time"
)

// lease is the time during which nobody gives this session's jobs to others, as far as the session can know. It starts when the last
// heartbeat that arrived was sent, so it ends before the lease that the database counts. It counts as over at five sixths of its length.
// Then jobs are interrupted, while no other worker can have them yet, and none is claimed or started until a heartbeat arrives. If none
// arrives in time, the session is fenced, and others receive the jobs. After the attending session has ended, a worker is fenced sooner, so
// its lease ends sooner too.
type lease struct {
	s     *session
	mu    sync.Mutex // never taken after session.mu
	timer *time.Timer
	sent  time.Time     // when the last heartbeat that arrived was sent
	soon  time.Time     // end of the lease unless a session attends again; zero: one attends, or none did
	over  chan struct{} // nil: the lease holds; closed when it holds again
}

// begin starts the lease at the time of the call that registered the worker; stop ends it.
func (l *lease) begin(s *session, sent time.Time) {
	l.s = s
	s.Health.heard.Store(&sent)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent = sent
	l.timer = time.AfterFunc(time.Until(l.until()), l.lapse)
}

// until returns when the lease counts as over. The caller holds mu.
func (l *lease) until() time.Time {
	until := l.sent.Add(l.s.Lease - l.s.Lease/6)
	if !l.soon.IsZero() && l.soon.Before(until) {
		return l.soon
	}
	return until
}

// shorten ends the lease at soon, unless it ends earlier anyway, until a heartbeat arrives. A zero soon restores its normal end.
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

// renew restarts the lease from when a heartbeat that arrived was sent.
func (l *lease) renew(sent time.Time) {
	l.s.Health.heard.Store(&sent)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent, l.soon = sent, time.Time{}
	l.timer.Reset(time.Until(l.until()))
	if l.over != nil {
		l.s.Log.Warn("weir: heartbeats arrive again in time: the worker continues", "worker", l.s.id)
		l.s.setLapsed(false)
		close(l.over)
		l.over = nil
	}
}

func (l *lease) lapse() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over != nil || time.Now().Before(l.until()) { // it has just been renewed
		return
	}
	l.over = make(chan struct{})
	jobs := l.s.setLapsed(true)
	why := "no heartbeat has arrived for nearly the whole lease"
	if !l.soon.IsZero() {
		why = "the worker's session has ended and could not be replaced"
	}
	l.s.Log.Warn("weir: "+why+": its jobs may soon be given to others, so they are interrupted, and no job is started until heartbeats arrive",
		"worker", l.s.id, "lease", l.s.Lease, "jobs", jobs)
}

// hold waits until the lease holds; false: ctx ended first.
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

// setLapsed records whether the lease is over. If it is, setLapsed interrupts running jobs, and returns their number.
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
