package worker

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// timeouts give attempts contexts with deadlines. A timer for each attempt costs a worker half as much again, where jobs are short; so
// attempts with the same timeout that start within a sixty-fourth of it share a context that ends, with one timer, once all of them have had
// their time: there are never more than 65 of these for a timeout, however many jobs run.
type timeouts struct {
	mu     sync.Mutex
	none   context.Context // of attempts without a timeout: it never ends
	within context.Context // the others are derived from it; it ends with the session, once no job runs
	newest map[time.Duration]*shared
}

// shared is the context of attempts that start before until.
type shared struct {
	context.Context
	until  time.Time
	cancel context.CancelFunc // at the session's end within's does for all
}

const (
	timeoutParts = 64
	timeoutPart  = time.Millisecond // at least
)

func newTimeouts(none, within context.Context) timeouts {
	return timeouts{none: none, within: within, newest: map[time.Duration]*shared{}}
}

// context is what the context of an attempt that starts now is to be derived from.
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

// TimedOut is the cause of a job's context that has ended for its timeout.
type TimedOut struct{ After time.Duration }

func (e *TimedOut) Error() string {
	return fmt.Sprintf("weir: the attempt took longer than its timeout of %s", e.After)
}

func (*TimedOut) Unwrap() error { return context.DeadlineExceeded }
