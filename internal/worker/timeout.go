package worker

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// timeouts provides attempts with contexts that have deadlines. With short jobs, a timer for each attempt would cost a worker half as much
// again. So attempts with the same timeout that start within 1/64 of it share a context with a single timer, which ends once all of them
// have had their time. However many jobs run, there are never more than 65 such contexts for a timeout.
type timeouts struct {
	mu     sync.Mutex
	none   context.Context // for attempts without a timeout; it never ends
	within context.Context // the parent of the others; it ends with the session, when no job runs
	newest map[time.Duration]*shared
}

// shared is the context of attempts that start before until.
type shared struct {
	context.Context
	until  time.Time
	cancel context.CancelFunc // not called: at the session's end, the end of within cancels all
}

const (
	timeoutParts = 64               // minimum
	timeoutPart  = time.Millisecond // at least
)

func newTimeouts(none, within context.Context) timeouts {
	return timeouts{none: none, within: within, newest: map[time.Duration]*shared{}}
}

// context returns the parent of the context of an attempt that starts at now.
func (t *timeouts) context(limit time.Duration, now time.Time) context.Context {
	if limit <= 0 {
		return t.none
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.newest[limit]
	if s == nil || now.After(s.until) {
		s = &shared{until: now.Add(max(limit/timeoutParts, timeoutPart))}
		s.Context, s.cancel = context.WithDeadlineCause(t.within, s.until.Add(limit), &TimedOut{limit})
		t.newest[limit] = s
	}
	return s.Context
}

// TimedOut is the cause of a job's context that ended because of its timeout.
type TimedOut struct{ After time.Duration }

func (e *TimedOut) Error() string {
	return fmt.Sprintf("weir: the attempt took longer than its timeout of %s", e.After)
}

func (*TimedOut) Unwrap() error { return context.DeadlineExceeded }
