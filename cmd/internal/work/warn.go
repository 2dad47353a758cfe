package work

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/weir-pg/weir/internal/sleep"
)

// A worker is warned of what it can't see: it gets no job of a queue whose name is misspelt, and none of a kind that it has not named. It is warned of its own queues alone, once of each thing.

const (
	maxWarnings  = 20 // of a session: anyone who enqueues can invent kinds
	lookUpEvery  = time.Second
	lookUpWithin = 5 * time.Second
)

// warn warns a session of something, unless it was warned of that before; the caller holds mu.
func (s *Session) warn(of, text string) {
	if s.warned[of] || len(s.warned) >= maxWarnings {
		return
	}
	if s.warned == nil {
		s.warned = map[string]bool{}
	}
	s.warned[of] = true
	s.warnings = append(s.warnings, text)
	if s.call != nil && s.call.Standing { // a call of take goes on: its worker may be one that does not say who it is, and would be warned in each
		s.signal()
	}
}

// warningsNow returns what the session is to be warned of; the caller holds mu.
func (s *Session) warningsNow() (all []string) {
	all, s.warnings = s.warnings, nil
	return all
}

// warnings returns what the session of a call that is closed is to be warned of.
func (c *Call) warnings() []string {
	c.Session.d.mu.Lock()
	defer c.Session.d.mu.Unlock()
	return c.Session.warningsNow()
}

// warnOfKind warns a worker that nobody takes a job, as its own log would say if it had got it: the one that has come last, because that is to be deployed with what the job needs, or any, if
// that has left. The caller holds mu.
func (d *Dispatcher) warnOfKind(a *attempt) {
	q, kind := a.queue, a.task.Kind
	if q.newest == nil {
		for _, s := range d.sessions {
			if q.newest = s.wants[q.name]; q.newest != nil {
				break
			}
		}
	}
	if q.newest != nil {
		q.newest.session.warn("kind "+kind+" of "+q.name, fmt.Sprintf("no worker of queue %q at this hub has a handler for kind %q: its jobs, such as %d, are left to others", q.name, kind, a.id))
	}
}

// looksNamesUp warns new sessions of queues whose names may be misspelt, until ctx ends. It asks the database for all of them together.
func (d *Dispatcher) looksNamesUp(ctx context.Context) {
	for sleep.For(ctx, lookUpEvery) {
		begun, names := d.newSessions()
		if len(names) == 0 {
			continue
		}
		soon, cancel := context.WithTimeout(ctx, lookUpWithin)
		unused, _ := d.Calls.NeverUsed(soon, names) // an error is one that claims have, too
		cancel()
		d.warnOfNames(begun, unused)
	}
}

// newSessions returns the sessions that have begun since, and the names of their queues.
func (d *Dispatcher) newSessions() (begun []*Session, names []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	begun, d.begun = d.begun, nil
	all := map[string]bool{}
	for _, s := range begun {
		for name := range s.wants {
			all[name] = true
		}
	}
	return begun, slices.Sorted(maps.Keys(all))
}

// warnOfNames warns those of the sessions that want queues which were never used.
func (d *Dispatcher) warnOfNames(sessions []*Session, unused []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range sessions {
		for _, name := range unused {
			if s.wants[name] != nil {
				s.warn("queue "+name, fmt.Sprintf("no job was ever enqueued to queue %q: check its name, unless its first jobs are still to come", name))
			}
		}
	}
}
