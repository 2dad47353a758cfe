package work

import (
	"slices"
	"time"

	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/store"
	"github.com/weir-pg/weir/internal/worker"
)

// queue is one queue: who wants jobs of it, and the jobs for which nobody is free.
type queue struct {
	name    string
	asked   time.Time      // when a session last asked for it
	credit  int            // how many more jobs sessions want now
	takers  []*Session     // with credit for it, in their turn; some may have none any more
	gone    int            // takers that do not want it any more
	waiting []*attempt     // claimed, but nobody is free for them
	kinds   map[string]int // how many sessions want these kinds of it
	all     int            // how many want all kinds
}

// A job for which nobody is free waits here for a moment, because a worker that takes one after the other asks again at once.
const (
	waitHere = time.Second
	maxHere  = 1000 // with so many waiting, no more are claimed
)

// queueOf returns the queue of a name; the caller holds mu.
func (d *Dispatcher) queueOf(name string) *queue {
	q := d.queues[name]
	if q == nil {
		q = &queue{name: name, kinds: map[string]int{}}
		d.queues[name] = q
	}
	return q
}

// forgetQueues forgets the queues that nobody has asked for of late; the caller holds mu.
func (d *Dispatcher) forgetQueues(now time.Time) {
	for name, q := range d.queues {
		if now.Sub(q.asked) > keepQueue && q.credit <= 0 && q.all == 0 && len(q.kinds) == 0 && len(q.waiting) == 0 {
			delete(d.queues, name)
		}
	}
}

// wanted reports whether any session takes a kind, be it free or not.
func (q *queue) wanted(kind string) bool { return q.all > 0 || q.kinds[kind] > 0 }

// free returns the session whose turn it is among those that are free for a kind; nil: none is.
func (q *queue) free(kind string) *Session {
	for range len(q.takers) {
		s := q.takers[0]
		q.takers = q.takers[1:]
		w := s.wants[q.name]
		if w == nil {
			q.gone--
			continue
		}
		if w.credit <= 0 {
			w.listed = false
			continue
		}
		if !s.takes(kind) {
			q.takers = append(q.takers, s)
			continue
		}
		if w.credit > 1 {
			q.takers = append(q.takers, s)
		} else {
			w.listed = false
		}
		return s
	}
	return nil
}

// forget takes a session's want away; the caller holds mu. The session stays among the takers until its turn comes, or too many there have gone.
func (q *queue) forget(w *want) {
	if !w.listed {
		return
	}
	if q.gone++; q.gone > 16 && q.gone > len(q.takers)/2 {
		q.takers = slices.DeleteFunc(q.takers, func(s *Session) bool { return s.wants[q.name] == nil })
		q.gone = 0
	}
}

// give adds to a session's credit, and gives it jobs that wait. It reports whether the queue had no credit before, so that nothing was claimed. The caller holds mu.
func (d *Dispatcher) give(s *Session, q *queue, n int) (first bool) {
	w := s.wants[q.name]
	first = q.credit <= 0 && w.credit+n > 0
	d.change(q, max(w.credit+n, 0)-max(w.credit, 0))
	w.credit += n
	if w.credit > 0 && !w.listed {
		w.listed = true
		q.takers = append(q.takers, s)
	}
	for i := 0; i < len(q.waiting) && w.credit > 0; {
		a := q.waiting[i]
		if !s.takes(a.task.Kind) {
			i++
			continue
		}
		q.waiting = slices.Delete(q.waiting, i, i+1)
		d.assign(a, s, q)
	}
	return first
}

// change adds to a queue's credit; the caller holds mu.
func (d *Dispatcher) change(q *queue, n int) {
	before := q.credit > 0
	q.credit += n
	if after := q.credit > 0; after && !before {
		d.wanting++
	} else if before && !after {
		d.wanting--
	}
}

// place gives an attempt that was claimed to a session that is free, or lets it wait for one; the caller holds mu.
func (d *Dispatcher) place(a *attempt) {
	q := d.queueOf(a.task.Queue)
	a.queue = q
	d.attempts[a.key] = a
	if d.quiet {
		a.finish(worker.Result{Outcome: store.Released})
		return
	}
	switch s := q.free(a.task.Kind); {
	case s != nil:
		d.assign(a, s, q)
	case !q.wanted(a.task.Kind):
		a.finish(unwanted(a))
	default:
		a.since = d.clock()
		q.waiting = append(q.waiting, a)
	}
}

// assign gives an attempt to a session; the caller holds mu.
func (d *Dispatcher) assign(a *attempt, s *Session, q *queue) {
	w := s.wants[q.name]
	w.credit--
	if w.credit >= 0 {
		d.change(q, -1)
	}
	a.session, a.since = s, d.clock()
	s.held[a.key] = a
	s.outbox = append(s.outbox, a)
	s.signal()
}

// longestUnwanted limits the pause before a job is claimed again for which no session has a handler; it doubles each time.
const longestUnwanted = 10 * time.Minute

// unwanted is the end of an attempt whose kind no session takes: it is left to others, as weir.take does.
func unwanted(a *attempt) worker.Result {
	after := sleep.Jitter(min(time.Second<<min(a.task.PutOff, 10), longestUnwanted))
	return worker.Result{Outcome: store.Released, Err: errKind(a.task.Kind), After: &after}
}

// nobodyFree is the end of an attempt for which nobody was free in time.
func nobodyFree(a *attempt) worker.Result {
	after := sleep.Jitter(250 * time.Millisecond << min(a.task.PutOff, 4))
	return worker.Result{Outcome: store.Released, After: &after}
}

type errKind string

func (e errKind) Error() string { return "no handler for kind " + string(e) }
