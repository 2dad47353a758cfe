package hub

import (
	"context"
	"errors"
	"sync"
)

// Sink is where one subscriber's events go. The hub never calls a sink twice at once.
type Sink interface {
	// Deliver writes events out, in order, with one write if it can. It may block for as long as the client takes: only this
	// subscriber waits. An error ends the subscriber. The slice is the hub's again when Deliver returns.
	Deliver(events []Event) error
	// Close is called once, when the hub ends the subscriber: with ErrSlow, ErrClosed, or what Deliver returned. It must make a
	// Deliver that blocks return, and may come while one does.
	Close(err error)
}

// Why the hub ends a subscriber.
var (
	ErrSlow   = errors.New("the subscriber did not keep up: more is queued for it than its limit")
	ErrClosed = errors.New("the hub is closing")
	errLeft   = errors.New("the subscriber has left")
)

// Policy is what happens to a subscriber that does not keep up.
type Policy uint8

const (
	CutOff    Policy = iota // it is ended, and may resume where it was
	SkipAhead               // what is queued is dropped, and a gap tells of it
)

// Options are a subscriber's.
type Options struct {
	MaxBytes int    // what may be queued for it; 0: 1 MiB
	Slow     Policy // what happens past that; the default is CutOff
}

const defaultMaxBytes = 1 << 20

// Subscriber is one connection's place at the hub. Its methods may be called at any time, also by its own sink.
type Subscriber struct {
	hub    *Hub
	sink   Sink
	limit  int
	policy Policy

	words  int                // of its patterns together; guarded by Hub.mu
	places map[*members]int32 // where it stands in each list of the index; guarded by Hub.mu
	marked uint64             // the last run of messages given to it, so that two filters give it once; guarded by Hub.dispatching

	mu         sync.Mutex
	queue      []Event
	one        [1]Event // holds the queue while one message comes at a time, as to most: nothing is made for it
	bytes      int
	at         Position      // up to here everything has been queued or is not for it: what comes again is dropped
	delivered  Position      // up to here Deliver has returned
	busy       bool          // a goroutine delivers, or replays
	cutOff     bool          // it is being ended as slow
	paused     chan struct{} // nil: it is not; Continue closes it
	ended      error
	stopReplay context.CancelFunc // nil: no replay is under way
	settled    chan struct{}      // closed when the replay has ended; nil: there was none
}

// Subscribe adds filters. Every message on them that is published after it returns will be delivered. It waits for a Resume to settle.
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
	s.hub.mu.Lock()
	err := s.attach(filters)
	s.hub.mu.Unlock()
	if err != nil {
		s.hub.unwant(filters...)
	}
	return err
}

// attach enters the subscriber into the lists of filters that the source has been asked for. The caller holds Hub.mu.
func (s *Subscriber) attach(filters []Filter) error {
	if err := s.Err(); err != nil {
		return err
	}
	for _, f := range filters {
		if !s.hub.index.add(s, f) {
			s.hub.unwant(f) // it is counted already
		}
	}
	return nil
}

// Settle waits until a Resume that is under way has reached the present: until then its filters stand.
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

// Unsubscribe takes filters away; those it does not have are no error. What is queued already is still delivered. Settle first.
func (s *Subscriber) Unsubscribe(filters ...Filter) {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	for _, f := range filters {
		if s.hub.index.remove(s, f) {
			s.hub.unwant(f)
		}
	}
}

// Pause holds deliveries back until Continue: what comes meanwhile is queued, within the limit. A Deliver that has begun goes on.
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
		close(s.paused) // for a replay, which waits where it is
		s.paused = nil
	}
	start := s.wake()
	s.mu.Unlock()
	if start {
		go s.flush()
	}
}

// Position is where the subscriber stands: of its channels, everything up to it has been delivered, and Deliver has returned.
// Who resumes there misses nothing.
func (s *Subscriber) Position() Position {
	s.hub.mu.RLock() // throughout: a gap may set the hub back, and its old position must not count after that
	defer s.hub.mu.RUnlock()
	newest := s.hub.newest
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopReplay == nil && !s.busy && len(s.queue) == 0 && s.ended == nil && !s.cutOff {
		s.delivered = later(s.delivered, later(s.at, newest))
	}
	return s.delivered
}

// Err is why the subscriber has ended; nil while it lives.
func (s *Subscriber) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// Leave ends the subscriber. Its sink is not closed; a Deliver may be under way when Leave returns.
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

// push queues messages, and tells whether flush must be started and whether the subscriber has to be ended as slow. A logged message at or
// before the subscriber's position is dropped: it has had it.
func (s *Subscriber) push(run []*Message) (start, slow bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil || s.cutOff {
		return false, false
	}
	if s.queue == nil && !s.busy { // else it may be with the sink
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
			s.hub.flows.Add(1) // for who ends it
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

// skip replaces what is queued, and m, by a gap.
func (s *Subscriber) skip(m *Message) {
	gap := &Gap{From: s.at, To: m.Position, Reason: Slow}
	if gap.To.IsZero() {
		gap.To = s.at
	}
	for _, e := range s.queue { // from before the first that has a place in the log
		if e.Message == nil {
			gap.From, gap.Reason = e.Gap.From, e.Gap.Reason // a gap follows a gap: one that spans both
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
	// A replay meets the gap itself, and has still to deliver what lies before it.
	if s.ended != nil || s.stopReplay != nil {
		return false
	}
	// A log that was set back concerns everybody.
	if !gap.To.Before(gap.From) && !s.at.Before(gap.To) {
		return false
	}
	s.queue = append(s.queue, Event{Gap: &gap})
	s.at = gap.To
	return s.wake()
}

// wake tells whether the caller must start flush. The caller holds mu.
func (s *Subscriber) wake() bool {
	if s.busy || s.paused != nil || s.ended != nil || len(s.queue) == 0 {
		return false
	}
	s.busy = true
	s.hub.flows.Add(1)
	return true
}

// most events are handed to a sink at a time, so that what it makes of them stays of a bounded size.
const most = 512

// flush hands over what is queued until nothing is. Who set busy, and counted it in Hub.flows, runs it, in a goroutine that ends by itself.
func (s *Subscriber) flush() {
	defer s.hub.flows.Done()
	var events []Event
	var delivered Position // zero: unchanged
	for {
		s.mu.Lock()
		if !delivered.IsZero() {
			s.delivered = delivered // not before what it was, unless a gap said so
		}
		if s.ended != nil || s.paused != nil || len(s.queue) == 0 {
			s.busy = false
			if len(s.queue) == 0 {
				s.queue = nil
			}
			s.mu.Unlock()
			return
		}
		if len(s.queue) <= most {
			events, s.queue = s.queue, events[:0]
			s.bytes = 0
		} else {
			events = append(events[:0], s.queue[:most]...)
			for _, e := range events {
				if e.Message != nil {
					s.bytes -= e.Message.size()
				}
			}
			s.queue = append(s.queue[:0], s.queue[most:]...)
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
