package work

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/weir-pg/weir/internal/store"
	"github.com/weir-pg/weir/internal/worker"
)

// Session is one remote worker. Dispatcher.mu guards it.
type Session struct {
	d      *Dispatcher
	id     string
	name   string
	seen   time.Time       // when it was last heard of
	newest int64           // the highest number of its calls
	kinds  map[string]bool // that it has handlers for; nil: all
	wants  map[string]*want
	held   map[key]*attempt // given to it, and without an end
	// What it has to be told.
	outbox    []*attempt      // jobs
	tellOf    []Interrupted   // attempts to interrupt
	toldQuiet bool            // that the hub is stopping
	trouble   error           // why the hub can't work jobs now; nil: it can, or has said so
	troubled  time.Time       // when it has said so last
	warnings  []string        // what may be wrong with what it has asked for
	warned    map[string]bool // of what
	wake      chan struct{}   // signals that it has to be told something; never closed
	call      *Call           // what it is connected by; nil: nothing
}

// want is what a session wants of one queue.
type want struct {
	session  *Session
	slots    int     // with a standing call: how many jobs it may have at once
	credit   int     // how many more it wants now
	turn     int64   // since when it waits for its turn
	unlisted []*line // those of its lines in which it has no place
	gone     bool    // the session does not want the queue any more, or has other kinds
}

func (s *Session) takes(kind string) bool { return s.kinds == nil || s.kinds[kind] }

// signal wakes whoever tells the session.
func (s *Session) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// want replaces the queues and kinds that the session wants; the caller holds mu.
func (s *Session) want(queues []string, kinds []string) {
	same := s.hasKinds(kinds)
	for name, w := range s.wants {
		if !same || !slices.Contains(queues, name) {
			q := s.d.queueOf(name)
			s.d.give(s, q, -max(w.credit, 0))
			q.leave(w)
			delete(s.wants, name)
		}
	}
	if !same {
		s.kinds = nil
		if kinds != nil {
			s.kinds = make(map[string]bool, len(kinds))
			for _, k := range kinds {
				s.kinds[k] = true
			}
		}
	}
	for _, name := range queues {
		q := s.d.queueOf(name)
		if q.asked = s.d.clock(); s.wants[name] == nil {
			s.wants[name] = q.join(s)
		}
	}
}

// hasKinds reports whether the session has handlers for these kinds, and no others.
func (s *Session) hasKinds(kinds []string) bool {
	if kinds == nil || s.kinds == nil {
		return kinds == nil && s.kinds == nil
	}
	named := make(map[string]bool, len(kinds))
	for _, k := range kinds {
		named[k] = true
	}
	return maps.Equal(named, s.kinds)
}

// credit sets the session's credit for a queue, and reports whether more are to be claimed than before; the caller holds mu.
func (s *Session) credit(name string, n int) (more bool) {
	return s.d.give(s, s.d.queueOf(name), n-s.wants[name].credit)
}

// hold renews the attempts that the session says it holds, and puts the others that it was given into its outbox again: their answer was lost. It returns those that it does not have any
// more, and those that other hubs have given it. The caller holds mu.
func (s *Session) hold(tokens []string) (lost []Interrupted, elsewhere []key) {
	now := s.d.clock()
	named := make(map[key]bool, len(tokens))
	for _, token := range tokens {
		k, err := s.d.tokens.parse(token)
		a := s.d.attempts[k]
		switch {
		case err != nil:
			lost = append(lost, Interrupted{token, Lost})
		case a != nil && a.over && a.reason == Lost: // which an earlier call may not have told it
			lost = append(lost, Interrupted{token, Lost})
		case a != nil:
			named[k] = true
			if a.session != s { // it has another name now
				if a.session != nil {
					delete(a.session.held, k)
				}
				a.session = s
				if !a.over {
					s.held[k] = a
				}
			}
			a.since, a.unnamed = now, false
		case s.d.ours[k.worker]:
			lost = append(lost, Interrupted{token, Lost})
		default:
			elsewhere = append(elsewhere, k)
		}
	}
	s.outbox = s.outbox[:0]
	for k, a := range s.held {
		switch {
		case named[k]:
		case a.reason == "" && a.answers >= tellings:
			a.unnamed = true // it is not told again, and its lease ends
		case a.reason == "":
			s.outbox, a.unnamed = append(s.outbox, a), false
		case a.finish(worker.Result{Outcome: store.Cancelled}): // it never got it, and is not to
			s.d.freed(a)
		}
	}
	slices.SortFunc(s.outbox, func(a, b *attempt) int { return cmp.Compare(a.id, b.id) })
	return lost, elsewhere
}

// leave takes a session away, and releases what it holds; the caller holds mu.
func (s *Session) leave() {
	if s.d.sessions[s.id] != s {
		return // it has left
	}
	s.want(nil, nil)
	for _, a := range s.held {
		if a.finish(worker.Result{Outcome: store.Released}) {
			s.d.freed(a)
		}
	}
	delete(s.d.sessions, s.id)
	if s.call != nil {
		s.call.end(errEnded)
	}
}

// freed takes an attempt that has ended from its session, and gives its call another for it: a standing one has its slot again, and one of take was to be told it. The caller holds mu.
func (d *Dispatcher) freed(a *attempt) {
	s := a.session
	if s == nil {
		return
	}
	delete(s.held, a.key)
	if s.wants[a.queue.name] == nil || s.call == nil || !s.call.Standing && !slices.Contains(s.outbox, a) {
		return
	}
	if d.give(s, d.queueOf(a.queue.name), 1) { // which was forgotten meanwhile, if nobody asked for it for long
		d.more()
	}
}

// interrupted returns what the session holds and is to interrupt; the caller holds mu.
func (s *Session) interrupted() (all []Interrupted) {
	for _, a := range inOrder(maps.Values(s.held)) {
		if a.reason != "" {
			all = append(all, Interrupted{a.token, a.reason})
		}
	}
	return all
}
