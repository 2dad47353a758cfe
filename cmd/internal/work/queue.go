package work

import (
	"container/heap"
	"slices"
	"time"

	"github.com/weir-pg/weir/internal/store"
	"github.com/weir-pg/weir/internal/worker"
)

// queue is one queue: who wants jobs of it, and the jobs for which nobody is free.
type queue struct {
	name    string
	asked   time.Time             // when a session last asked for it
	credit  int                   // how many more jobs sessions want now
	turns   int64                 // that sessions have had
	all     line                  // sessions that have handlers for all kinds
	kinds   map[string]*line      // the others, by the kinds that they have handlers for
	waiting map[string][]*attempt // claimed, but nobody is free for them: by kind, in the order in which they were claimed
	here    int                   // how many wait
	claimed int64                 // how many have waited, ever
	newest  *want                 // of the session that has come last; nil: it has left
	took    time.Duration         // from giving a job to a session until its end came, of late
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
		q = &queue{name: name, kinds: map[string]*line{}, waiting: map[string][]*attempt{}, took: waitHere}
		d.queues[name] = q
	}
	return q
}

// forgetQueues forgets the queues that nobody has asked for of late; the caller holds mu.
func (d *Dispatcher) forgetQueues(now time.Time) {
	for name, q := range d.queues {
		if now.Sub(q.asked) > keepQueue && q.idle() {
			delete(d.queues, name)
		}
	}
}

// wanted reports whether any session takes a kind, be it free or not.
func (q *queue) wanted(kind string) bool { return q.all.wanting > 0 || q.kinds[kind] != nil }

// idle reports whether nobody wants the queue's jobs, and none waits.
func (q *queue) idle() bool {
	return q.credit <= 0 && q.all.wanting == 0 && len(q.kinds) == 0 && q.here == 0
}

// turn returns the next turn.
func (q *queue) turn() int64 {
	q.turns++
	return q.turns
}

// join returns what a session wants of the queue, with its lines; none yet.
func (q *queue) join(s *Session) *want {
	w := &want{session: s}
	q.newest = w
	if s.kinds == nil {
		q.all.wanting++
		w.unlisted = []*line{&q.all}
		return w
	}
	w.unlisted = make([]*line, 0, len(s.kinds))
	for kind := range s.kinds {
		l := q.kinds[kind]
		if l == nil {
			l = &line{}
			q.kinds[kind] = l
		}
		l.wanting++
		w.unlisted = append(w.unlisted, l)
	}
	return w
}

// leave takes a session's want away.
func (q *queue) leave(w *want) {
	if w.gone, w.unlisted = true, nil; q.newest == w {
		q.newest = nil
	}
	if w.session.kinds == nil {
		q.all.wanting--
		q.all.leave()
		return
	}
	for kind := range w.session.kinds {
		l := q.kinds[kind]
		if l.leave(); l.wanting == 1 {
			delete(q.kinds, kind)
		}
		l.wanting--
	}
}

// free returns the session whose turn it is among those that are free for a kind; nil: none is.
func (q *queue) free(kind string) *Session {
	w, other := q.kinds[kind].first(), q.all.first()
	if w == nil || other != nil && other.turn < w.turn {
		w = other
	}
	if w == nil {
		return nil
	}
	w.turn = q.turn()
	return w.session
}

// wait lets a job wait here until somebody is free for it.
func (q *queue) wait(a *attempt) {
	q.claimed++
	a.place = q.claimed
	q.waiting[a.task.Kind] = append(q.waiting[a.task.Kind], a)
	q.here++
}

// oldest returns the job that has waited longest among those that a session takes, or among all (nil); nil: there is none.
func (q *queue) oldest(s *Session) (first *attempt) {
	older := func(kind string) {
		if some := q.waiting[kind]; len(some) > 0 && (first == nil || some[0].place < first.place) {
			first = some[0]
		}
	}
	if s != nil && s.kinds != nil && len(s.kinds) < len(q.waiting) {
		for kind := range s.kinds {
			older(kind)
		}
		return first
	}
	for kind := range q.waiting {
		if s == nil || s.takes(kind) {
			older(kind)
		}
	}
	return first
}

// drop takes a job from those that wait, if it does.
func (q *queue) drop(a *attempt) {
	some := q.waiting[a.task.Kind]
	i := slices.Index(some, a)
	switch {
	case i < 0:
		return
	case len(some) == 1:
		delete(q.waiting, a.task.Kind)
	case i == 0:
		some[0] = nil
		q.waiting[a.task.Kind] = some[1:]
	default:
		q.waiting[a.task.Kind] = slices.Delete(some, i, i+1)
	}
	q.here--
}

// give adds to a session's credit, and gives it jobs that wait. It reports whether more are to be claimed than before: the queue had no credit, or jobs that were claimed ahead are taken. The caller holds mu.
func (d *Dispatcher) give(s *Session, q *queue, n int) (more bool) {
	w := s.wants[q.name]
	more = q.credit <= 0 && w.credit+n > 0
	d.change(q, max(w.credit+n, 0)-max(w.credit, 0))
	if w.credit <= 0 {
		w.turn = q.turn()
	}
	if w.credit += n; w.credit > 0 {
		for _, l := range w.unlisted {
			heap.Push(l, place{w.turn, w})
		}
		w.unlisted = w.unlisted[:0]
	}
	for w.credit > 0 && q.here > 0 {
		a := q.oldest(s)
		if a == nil {
			break
		}
		q.drop(a)
		d.assign(a, s, q)
		more = more || q.took < aheadBelow
	}
	return more
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
	if before := d.attempts[a.key]; before != nil { // it goes on, and its end is that of both
		before.again = append(before.again, a)
		return
	}
	if d.lost[a.key] { // its session would take it for what it has, or is told is lost: it comes back under another key
		delete(d.lost, a.key)
		a.finish(worker.Result{Outcome: store.Released})
		return
	}
	d.attempts[a.key] = a
	if d.quiet {
		a.finish(worker.Result{Outcome: store.Released})
		return
	}
	switch s := q.free(a.task.Kind); {
	case s != nil:
		d.assign(a, s, q)
	case !q.wanted(a.task.Kind):
		a.finish(d.unwanted(a))
	default:
		a.since = d.clock()
		q.wait(a)
	}
}

// assign gives an attempt to a session; the caller holds mu.
func (d *Dispatcher) assign(a *attempt, s *Session, q *queue) {
	w := s.wants[q.name]
	w.credit--
	if w.credit >= 0 {
		d.change(q, -1)
	}
	a.session, a.given = s, d.clock()
	a.since = a.given
	s.held[a.key] = a
	s.outbox = append(s.outbox, a)
	s.signal()
}

// longestUnwanted limits the pause before a job is claimed again for which no session has a handler; it doubles each time.
const longestUnwanted = 10 * time.Minute

// unwanted is the end of an attempt whose kind no session takes: it is left to others, as weir.take does.
func (d *Dispatcher) unwanted(a *attempt) worker.Result {
	d.warnOfKind(a)
	after := d.jitter(min(time.Second<<min(a.task.PutOff, 10), longestUnwanted))
	return worker.Result{Outcome: store.Released, Err: errKind(a.task.Kind), After: &after}
}

// nobodyFree is the end of an attempt for which nobody was free in time.
func (d *Dispatcher) nobodyFree(a *attempt) worker.Result {
	after := d.jitter(250 * time.Millisecond << min(a.task.PutOff, 4))
	return worker.Result{Outcome: store.Released, After: &after}
}

type errKind string

func (e errKind) Error() string { return "no handler for kind " + string(e) }
