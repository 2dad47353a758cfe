package worker

import (
	"context"
	"sync"
	"time"

	"github.com/weir-pg/weir/internal/clock"
)

const (
	// doubtFor is how long an answer may take that shows whether the lease is over.
	doubtFor = 3 * time.Second
	// lookEvery is how soon a worker notices that its machine was suspended.
	lookEvery = time.Second
)

// lease is the time during which nobody gives this session's jobs to others, as far as the session can know. It starts when the last
// heartbeat that arrived was sent, so it ends before the lease that the database counts. It counts as over at five sixths of its length.
// Then jobs are interrupted, while no other worker can have them yet, and none is claimed or started until a heartbeat arrives. If none
// arrives in time, the session is fenced, and others receive the jobs. After the attending session has ended, a worker is fenced sooner, so
// its lease ends sooner too.
//
// It may be over by one clock and not by the other, because the machine was suspended or the clock was set. Then a heartbeat is sent at once, and its answer decides: until it has arrived, no
// job starts, and if it takes long, the lease counts as over.
type lease struct {
	s     *session
	mu    sync.Mutex // never taken after session.mu
	timer *time.Timer
	asks  chan struct{} // signals the keeper to send a heartbeat; never closed
	sent  clock.Moment  // when the last heartbeat that arrived was sent
	soon  clock.Moment  // end of the lease unless a session attends again; zero: one attends, or none did
	doubt *doubt        // nil: the clocks agree
	over  chan struct{} // nil: the lease holds; closed when it holds again
	ended bool          // nobody needs it any more
}

// doubt lasts while it is not known whether the lease is over.
type doubt struct {
	since time.Time
	over  chan struct{} // closed when it is known
}

// begin starts the lease at the time of the call that registered the worker; stop ends it.
func (l *lease) begin(s *session, sent clock.Moment) {
	l.s, l.asks = s, make(chan struct{}, 1)
	s.Health.heard.Store(&sent.Steady)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent = sent
	l.timer = time.AfterFunc(0, l.look)
}

// until returns when the lease counts as over. The caller holds mu.
func (l *lease) until() clock.Moment {
	until := l.sent.Add(l.s.Lease - l.s.Lease/6)
	if !l.soon.Steady.IsZero() && l.soon.Steady.Before(until.Steady) {
		return l.soon
	}
	return until
}

// shorten ends the lease at soon, unless it ends earlier anyway, until a heartbeat arrives. A zero soon restores its normal end.
func (l *lease) shorten(soon clock.Moment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if soon.Steady.IsZero() || l.soon.Steady.IsZero() || soon.Steady.Before(l.soon.Steady) {
		l.soon = soon
	}
	l.watch()
}

func (l *lease) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.timer.Stop()
	l.settle()
}

// renew restarts the lease from when a heartbeat that arrived was sent.
func (l *lease) renew(sent clock.Moment) {
	l.s.Health.heard.Store(&sent.Steady)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent, l.soon = sent, clock.Moment{}
	if l.over != nil && clock.Now().IsWithin(sent, l.until()) {
		l.s.Log.Warn("weir: heartbeats arrive again in time: the worker continues", "worker", l.s.id)
		l.s.setLapsed(false)
		close(l.over)
		l.over = nil
	}
	l.watch()
}

func (l *lease) look() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watch()
}

// watch ends the lease if it is over, or doubts it, and looks again later: in steps, because timers stand still while a machine is suspended. The caller holds mu.
func (l *lease) watch() {
	if l.over != nil || l.ended {
		return
	}
	now, until := clock.Now(), l.until()
	left := until.Steady.Sub(now.Steady)
	why := "no heartbeat has arrived for nearly the whole lease"
	if !l.soon.Steady.IsZero() {
		why = "the worker's session has ended and could not be replaced"
	}
	switch {
	case now.IsWithin(l.sent, until):
		l.settle()
	case left > 0:
		if l.doubt == nil {
			l.doubt = &doubt{now.Steady, make(chan struct{})}
			select {
			case l.asks <- struct{}{}:
			default:
			}
		}
		if rest := doubtFor - now.Steady.Sub(l.doubt.since); rest < left {
			left, why = rest, "this machine was suspended, or its clock was set, and no heartbeat has arrived since"
		}
	}
	if left <= 0 {
		l.lapse(why)
		return
	}
	l.timer.Reset(min(left, lookEvery))
}

// settle ends the doubt, if there is one; the caller holds mu.
func (l *lease) settle() {
	if l.doubt != nil {
		close(l.doubt.over)
		l.doubt = nil
	}
}

// lapse notes that the lease is over; the caller holds mu.
func (l *lease) lapse(why string) {
	l.over = make(chan struct{})
	jobs := l.s.setLapsed(true)
	l.settle()
	l.s.Log.Warn("weir: "+why+": its jobs may soon be given to others, so they are interrupted, and no job is started until heartbeats arrive",
		"worker", l.s.id, "lease", l.s.Lease, "jobs", jobs)
}

// sure waits until it is known whether the lease is over, if there is any doubt.
func (l *lease) sure() {
	l.mu.Lock()
	if !clock.Now().IsWithin(l.sent, l.until()) {
		l.watch()
	}
	doubt := l.doubt
	l.mu.Unlock()
	if doubt != nil {
		<-doubt.over
	}
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
