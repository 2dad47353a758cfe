// Package outage says what goes wrong with the database in as few lines as it takes: once when calls begin to fail, with what waits for
// them, now and then while they go on failing, and once when it is over.
package outage

import (
	"context"
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
	remindFirst = time.Minute // what goes on failing is said again after so long, then after twice as long, and so on
	remindLast  = time.Hour
	stale       = time.Minute // a single failure as old as this has nothing to do with one of now
	choreTries  = 3           // a chore may fail so often in passing
)

// Log is the state that all callers of one worker share. It is safe for concurrent use.
type Log struct {
	log *slog.Logger

	mu     sync.Mutex
	waits  map[string]*trouble // calls that work waits for
	said   bool                // that they fail
	began  time.Time           // when the first of them did, once it was said
	remind reminder
	chores map[string]*trouble

	shown atomic.Pointer[[]Trouble] // waits, for who asks
}

// Trouble is a run of failures of one kind of call.
type Trouble struct {
	What        string    // waits for it
	Since, Last time.Time // when the first and the last failed
	Tries       int
	Err         error // the last
}

// Troubles lists the kinds of calls that work waits for and whose last has failed. It takes no lock.
func (l *Log) Troubles() []Trouble {
	if shown := l.shown.Load(); shown != nil {
		return *shown
	}
	return nil
}

// show has Troubles list what waits now. The caller holds mu.
func (l *Log) show() {
	all := make([]Trouble, 0, len(l.waits))
	for what, t := range l.waits {
		all = append(all, Trouble{what, t.since, t.last, t.tries, t.err})
	}
	l.shown.Store(&all)
}

// trouble is a run of failures.
type trouble struct {
	since, last time.Time
	tries       int
	err         error // the last, of a call that work waits for
	said        bool  // of a chore
	remind      reminder
}

// New returns a log without any trouble.
func New(log *slog.Logger) *Log {
	return &Log{log: log, waits: map[string]*trouble{}, chores: map[string]*trouble{}}
}

// Failed notes that a call failed and will be repeated; what waits for it, in the plural, such as claims. A failure that the next try
// cures is not worth a line: a connection was lost, and there is another.
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
	case !l.said && (tries > 1 || errors.Is(err, context.DeadlineExceeded)):
		l.said, l.began = true, now
		for _, t := range l.waits {
			if t.since.Before(l.began) {
				l.began = t.since
			}
		}
		l.remind.begin(now)
		l.log.Warn("weir: the database does not do what it is asked, which is tried again until it does", "waiting", l.waiting(), "error", err)
	case l.said && l.remind.due(now):
		l.log.Warn("weir: the database still does not do what it is asked", "for", round(now.Sub(l.began)), "waiting", l.waiting(), "error", err)
	}
}

// Worked notes that a call succeeded.
func (l *Log) Worked(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waits[what] != nil {
		delete(l.waits, what)
		l.show()
	}
	l.over()
}

// Anew notes that work begins anew: whatever waited waits no more.
func (l *Log) Anew() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.waits)
	l.show()
	l.over()
}

func (l *Log) over() {
	if l.said && len(l.waits) == 0 {
		l.said = false
		// How often a chore failed meanwhile says nothing about what it does from now on.
		maps.DeleteFunc(l.chores, func(_ string, t *trouble) bool { return !t.said })
		l.log.Warn("weir: the database does what it is asked again", "after", round(time.Since(l.began)))
	}
}

// Chore notes how a chore went, which nobody waits for and which will be repeated. While the database is out of reach, that is the news,
// not this.
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
		t.remind.begin(now)
		l.log.Warn("weir: maintenance failed, and is tried again until it succeeds", "step", step, "error", err)
	case t.remind.due(now):
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

// reminder tells when to say something again.
type reminder struct {
	at    time.Time
	pause time.Duration
}

func (r *reminder) begin(now time.Time) { r.at, r.pause = now.Add(remindFirst), remindFirst }

func (r *reminder) due(now time.Time) bool {
	if now.Before(r.at) {
		return false
	}
	r.pause = min(2*r.pause, remindLast)
	r.at = now.Add(r.pause)
	return true
}
