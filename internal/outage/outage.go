// Package outage logs failures of database calls in as few lines as possible: one when calls begin to fail, naming what is waiting,
// reminders while they keep failing, and one when the outage is over.
package outage

import (
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	remindFirst = time.Minute // pause before the first reminder; it doubles each time
	remindLast  = time.Hour
	stale       = time.Minute // a single failure older than this is unrelated to a new one
	choreTries  = 3           // failures of a chore until it is logged, if they may be transient
)

// Log is the state that all callers of one worker share. It is safe for concurrent use.
type Log struct {
	log  *slog.Logger
	what string // fails, in the plural

	mu     sync.Mutex
	waits  map[string]*trouble // failing calls that work waits for
	said   bool                // the outage was logged
	began  time.Time           // when the first of the calls failed, once the outage was logged
	remind Reminder
	chores map[string]*trouble

	shown atomic.Pointer[[]Trouble] // a copy of waits, for Troubles
}

// Trouble is a series of failures of one kind of call.
type Trouble struct {
	What        string    // the work that waits for the call
	Since, Last time.Time // times of the first and the last failure
	Tries       int
	Err         error // the last error
}

// Troubles lists the kinds of calls that work waits for and whose last call failed. It takes no lock.
func (l *Log) Troubles() []Trouble {
	if shown := l.shown.Load(); shown != nil {
		return *shown
	}
	return nil
}

// show updates the list that Troubles returns. The caller holds mu.
func (l *Log) show() {
	all := make([]Trouble, 0, len(l.waits))
	for what, t := range l.waits {
		all = append(all, Trouble{what, t.since, t.last, t.tries, t.err})
	}
	l.shown.Store(&all)
}

// trouble is a series of failures.
type trouble struct {
	since, last time.Time
	tries       int
	err         error // the last error, of a call that work waits for
	said        bool  // logged, of a chore
	remind      Reminder
}

// New returns a Log without any failures, of calls of the database.
func New(log *slog.Logger) *Log { return Of(log, "calls of the database") }

// Of is New for calls of something else, named in the plural.
func Of(log *slog.Logger, what string) *Log {
	return &Log{log: log, what: what, waits: map[string]*trouble{}, chores: map[string]*trouble{}}
}

// Failed records that a call failed and will be repeated. what names the work that waits for it, in the plural, such as claims. If the next
// try succeeds, nothing is logged: a connection was lost and replaced.
func (l *Log) Failed(what string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if !l.said {
		maps.DeleteFunc(l.waits, func(_ string, t *trouble) bool { return now.Sub(t.last) > stale })
	}
	t := failed(l.waits, what, now)
	t.err = err
	tries := t.tries
	l.show()
	switch {
	case !l.said && (tries > 1 || isUnanswered(err)):
		l.said, l.began = true, now
		for _, t := range l.waits {
			if t.since.Before(l.began) {
				l.began = t.since
			}
		}
		l.remind.Begin(now)
		l.log.Warn("weir: "+l.what+" fail, retrying until they succeed", "waiting", l.waiting(), "error", err)
	case l.said && l.remind.Due(now):
		l.log.Warn("weir: "+l.what+" still fail", "for", round(now.Sub(l.began)), "waiting", l.waiting(), "error", err)
	}
}

// isUnanswered reports whether a time limit was exceeded: the caller's, or that of a client for calls on its connections.
func isUnanswered(err error) bool {
	var limit interface{ Timeout() bool }
	return errors.As(err, &limit) && limit.Timeout()
}

// Worked records that a call succeeded.
func (l *Log) Worked(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waits[what] != nil {
		delete(l.waits, what)
		l.show()
	}
	l.over()
}

// Reset records that work starts over: nothing waits any more.
func (l *Log) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.waits)
	l.show()
	l.over()
}

func (l *Log) over() {
	if l.said && len(l.waits) == 0 {
		l.said = false
		// Failures of a chore during the outage say nothing about its next tries.
		maps.DeleteFunc(l.chores, func(_ string, t *trouble) bool { return !t.said })
		l.log.Warn("weir: "+l.what+" succeed again", "after", round(time.Since(l.began)))
	}
}

// Chore records the result of a chore, which nothing waits for and which will be repeated. During an outage, only the outage is logged.
func (l *Log) Chore(step string, err error, passing bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if err == nil {
		if t := l.chores[step]; t != nil {
			delete(l.chores, step)
			if t.said {
				l.log.Warn("weir: maintenance works again", "step", step, "after", round(now.Sub(t.since)))
			}
		}
		return
	}
	t := failed(l.chores, step, now)
	switch {
	case l.said || passing && t.tries < choreTries:
	case !t.said:
		t.said = true
		t.remind.Begin(now)
		l.log.Warn("weir: maintenance failed, retrying until it succeeds", "step", step, "error", err)
	case t.remind.Due(now):
		l.log.Warn("weir: maintenance still fails", "step", step, "for", round(now.Sub(t.since)), "tries", t.tries, "error", err)
	}
}

func failed(all map[string]*trouble, name string, now time.Time) *trouble {
	t := all[name]
	if t == nil {
		t = &trouble{since: now}
		all[name] = t
	}
	t.last = now
	t.tries++
	return t
}

func (l *Log) waiting() string { return strings.Join(slices.Sorted(maps.Keys(l.waits)), ", ") }

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

// Reminder decides when to log again what lasts: a minute after its begin, and then after pauses that double, up to an hour.
type Reminder struct {
	at    time.Time
	pause time.Duration
}

// Begin starts the first pause.
func (r *Reminder) Begin(now time.Time) { r.at, r.pause = now.Add(remindFirst), remindFirst }

// Due reports whether the pause is over, and starts the next.
func (r *Reminder) Due(now time.Time) bool {
	if now.Before(r.at) {
		return false
	}
	r.pause = min(2*r.pause, remindLast)
	r.at = now.Add(r.pause)
	return true
}
