package hub

import (
	"context"
	"errors"
	"sync"
)

// Sink receives one subscriber's events. The hub never calls Deliver concurrently.
type Sink interface {
	// Deliver writes events in order, with one write if possible. It may block for as long as the client needs: only this
	// subscriber waits. An error ends the subscriber. Deliver must not keep the slice.
	Deliver(events []Event) error
	// Close is called once, when the hub ends the subscriber: with ErrSlow, ErrClosed, or Deliver's error. It must make a
	// blocked Deliver return, and may be called during one.
	Close(err error)
}

// Resumer is a Sink that wants to know when a Resume has caught up.
type Resumer interface {
	Sink
	// CaughtUp is called once the subscriber receives what is published on its filters, also messages that are not logged: it missed these until now. No Deliver is in
	// progress.
	CaughtUp()
}

// Reasons for which the hub ends a subscriber.
var (
	ErrSlow   = errors.New("the subscriber is too slow: its queue has reached its limit")
	ErrClosed = errors.New("the hub is closing")
	errLeft   = errors.New("the subscriber has left")
)

// Policy decides what happens to a subscriber that is too slow.
type Policy uint8

const (
	CutOff    Policy = iota // it is ended, and may resume from its position
	SkipAhead               // its queue is dropped, and replaced by a gap
)

// Options are a subscriber's options.
type Options struct {
	MaxBytes int    // limit of its queue, in bytes; 0: 1 MiB
	Slow     Policy // what happens beyond the limit; the default is CutOff
	Internal bool   // it belongs to the hub, and is not counted as a subscriber
}

const defaultMaxBytes = 1 << 20

// Subscriber is one client of the hub. Its methods may be called at any time, even by its own sink.
type Subscriber struct {
	hub    *Hub
	sink   Sink
	limit  int
	policy Policy

	internal bool

	words  int                // in all its patterns; guarded by Hub.mu
	places map[*members]int32 // its place in each list of the index; guarded by Hub.mu
	marked uint64             // the last run of messages queued for it, so that two filters queue it once; guarded by Hub.dispatching

	mu         sync.Mutex
	queue      []Event
	one        [1]Event // backs the queue while messages arrive one at a time, which avoids an allocation
	bytes      int
	at         Position      // everything up to here has been queued, or is not for it; duplicates are dropped
	delivered  Position      // Deliver has returned for everything up to here
	busy       bool          // a goroutine delivers or replays
	cutOff     bool          // it is being ended as slow
	paused     chan struct{} // nil: it is not; Continue closes it
	ended      error
	stopReplay context.CancelFunc // nil: no replay is in progress
	settled    chan struct{}      // closed when the replay has ended; nil: there was none
}

// Subscribe adds filters. Every message they select that is published after it returns will be delivered. It waits for a Resume to catch up.
func (s *Subscriber) Subscribe(ctx context.Context, filters ...Filter) error {
	s.hub.mu.RLock()
	words := s.words
	s.hub.mu.RUnlock()
	if err := checkWords(words, filters); err != nil {
		return err
	}
	if err := s.hub.untilReady(ctx); err != nil {
		return err
	}
	if err := s.Settle(ctx); err != nil {
		return err
	}
	if err := s.hub.want(ctx, filters); err != nil {
		return err
	}
	bounds := s.hub.bounds(filters)
	s.hub.mu.Lock()
	err := s.attach(filters, bounds)
	s.hub.mu.Unlock()
	if err != nil {
		s.hub.unwant(filters...)
	}
	return err
}

// attach adds the subscriber to the index, for filters passed to want before: to all or, if one has no place for it, to none. The caller holds Hub.mu.
func (s *Subscriber) attach(filters []Filter, bounds []int) error {
	if err := s.Err(); err != nil {
		return err
	}
	if err := s.hub.crowded(s, filters, bounds); err != nil {
		return err
	}
	for _, f := range filters {
		if !s.hub.index.add(s, f) {
			s.hub.unwant(f) // it is counted already
		}
	}
	return nil
}

// Settle waits until a Resume in progress has caught up: until then its filters can't change.
func (s *Subscriber) Settle(ctx context.Context) error {
	s.mu.Lock()
	settled := s.settled
	s.mu.Unlock()
	if settled == nil {
		return nil
	}
	select {
	case <-settled:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Unsubscribe removes filters; it ignores those the subscriber does not have. Messages already queued are still delivered. Call Settle first.
func (s *Subscriber) Unsubscribe(filters ...Filter) {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	for _, f := range filters {
		if s.hub.index.remove(s, f) {
			s.hub.unwant(f)
		}
	}
}

// Pause stops deliveries until Continue. Messages that arrive in between are queued, up to the limit. A Deliver in progress continues.
func (s *Subscriber) Pause() {
	s.mu.Lock()
	if s.paused == nil {
		s.paused = make(chan struct{})
	}
	s.mu.Unlock()
}

// Continue ends a Pause.
func (s *Subscriber) Continue() {
	s.mu.Lock()
	if s.paused != nil {
		close(s.paused) // for a replay, which waits on it
		s.paused = nil
	}
	start := s.wake()
	s.mu.Unlock()
	if start {
		go s.flush()
	}
}

// Position returns the subscriber's position: everything it subscribed to up to there has been delivered, and Deliver has returned.
// A client that resumes there misses nothing.
func (s *Subscriber) Position() Position {
	s.hub.mu.RLock() // throughout: a gap may set the hub back, and its old position must not be used after that
	defer s.hub.mu.RUnlock()
	at, _ := s.settle(s.hub.newest)
	return at
}

// Quiet returns the position, and whether nothing is queued for the subscriber or being delivered: then the position is that of the hub.
func (s *Subscriber) Quiet() (at Position, ok bool) {
	s.hub.mu.RLock()
	defer s.hub.mu.RUnlock()
	return s.settle(s.hub.newest)
}

// settle returns the position, which is newest or later if nothing is queued or being delivered. The caller holds Hub.mu.
func (s *Subscriber) settle(newest Position) (at Position, quiet bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	quiet = s.stopReplay == nil && !s.busy && len(s.queue) == 0 && s.ended == nil && !s.cutOff
	if quiet {
		s.delivered = later(s.delivered, later(s.at, newest))
	}
	return s.delivered, quiet
}

// Err returns why the subscriber has ended; nil while it is active.
func (s *Subscriber) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// Leave ends the subscriber. Its sink is not closed, and a Deliver may still be in progress when Leave returns.
func (s *Subscriber) Leave() { s.end(errLeft) }

func (s *Subscriber) end(reason error) {
	s.mu.Lock()
	if s.ended != nil {
		s.mu.Unlock()
		return
	}
	s.ended = reason
	s.queue, s.bytes = nil, 0
	stop := s.stopReplay
	s.mu.Unlock()
	if stop != nil {
		stop()
	}
	s.hub.drop(s)
	if reason != errLeft {
		s.sink.Close(reason)
	}
}

// push queues messages. It reports whether flush must be started, and whether the subscriber must be ended as slow. It drops a logged message
// at or before the subscriber's position, which has been queued before.
func (s *Subscriber) push(run []*Message) (start, slow bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil || s.cutOff {
		return false, false
	}
	if s.queue == nil && !s.busy { // otherwise the sink may be using it
		s.queue = s.one[:0]
	}
	for _, m := range run {
		logged := !m.Position.IsZero()
		if logged && !s.at.Before(m.Position) {
			continue
		}
		size := m.size()
		switch {
		case len(s.queue) == 0 || s.bytes+size <= s.limit:
			s.queue = append(s.queue, Event{Message: m})
			s.bytes += size
		case s.policy == CutOff:
			s.cutOff = true
			s.hub.flows.Add(1) // for the goroutine that ends it
			return s.wake(), true
		default:
			s.skip(m)
		}
		if logged {
			s.at = m.Position
		}
	}
	return s.wake(), false
}

// skip replaces the queue and m with a gap.
func (s *Subscriber) skip(m *Message) {
	gap := &Gap{From: s.at, To: m.Position, Reason: Slow}
	if gap.To.IsZero() {
		gap.To = s.at
	}
	for _, e := range s.queue { // the gap starts before the first event that has a position
		if e.Message == nil {
			gap.From, gap.Reason = e.Gap.From, e.Gap.Reason // one gap that covers both
			break
		}
		if at := e.Message.Position; !at.IsZero() {
			gap.From = Position{Epoch: at.Epoch, Tick: at.Tick, Index: at.Index - 1}
			break
		}
	}
	clear(s.queue)
	s.queue = append(s.queue[:0], Event{Gap: gap})
	s.bytes = 0
	s.hub.stats.skipped.Add(1)
}

// pushGap queues a gap.
func (s *Subscriber) pushGap(gap Gap) (start bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A replay finds the gap itself, and still has to deliver the messages before it.
	if s.ended != nil || s.stopReplay != nil {
		return false
	}
	// A gap backwards, of a log that was set back, concerns every subscriber.
	if !gap.To.Before(gap.From) && !s.at.Before(gap.To) {
		return false
	}
	s.queue = append(s.queue, Event{Gap: &gap})
	s.at = gap.To
	return s.wake()
}

// wake reports whether the caller must start flush. The caller holds mu.
func (s *Subscriber) wake() bool {
	if s.busy || s.paused != nil || s.ended != nil || len(s.queue) == 0 {
		return false
	}
	s.busy = true
	s.hub.flows.Add(1)
	return true
}

// maxEvents is passed to a sink at a time, which bounds what it writes at once.
const maxEvents = 512

// flush delivers until the queue is empty. The caller has set busy and counted it in Hub.flows (see wake).
func (s *Subscriber) flush() {
	defer s.hub.flows.Done()
	var events []Event
	var delivered Position // zero: unchanged
	for {
		s.mu.Lock()
		if !delivered.IsZero() {
			s.delivered = delivered // moves backwards only after a gap
		}
		if s.ended != nil || s.paused != nil || len(s.queue) == 0 {
			s.busy = false
			if len(s.queue) == 0 {
				s.queue = nil
			}
			s.mu.Unlock()
			return
		}
		if len(s.queue) <= maxEvents {
			events, s.queue = s.queue, events[:0]
			s.bytes = 0
		} else {
			events = append(events[:0], s.queue[:maxEvents]...)
			for _, e := range events {
				if e.Message != nil {
					s.bytes -= e.Message.size()
				}
			}
			s.queue = append(s.queue[:0], s.queue[maxEvents:]...)
		}
		s.mu.Unlock()
		if err := s.sink.Deliver(events); err != nil {
			s.end(err)
			continue
		}
		s.hub.stats.delivered.Add(int64(len(events)))
		for _, e := range events {
			if at := e.Position(); !at.IsZero() {
				delivered = at
			}
		}
		clear(events)
	}
}
