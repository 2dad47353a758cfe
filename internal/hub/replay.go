package hub

import (
	"context"
	"errors"

	"github.com/weir-pg/weir/internal/sleep"
)

// Resume delivers the messages after the position that the filters select, and then new ones, each exactly once.
// Messages that are no longer in the log become a gap event. The subscriber must not have filters yet. Resume returns immediately; its
// work ends with the subscriber. While it reads history it waits for the sink, so a slow client is not ended as slow.
func (s *Subscriber) Resume(ctx context.Context, after Position, filters ...Filter) error {
	if err := checkWords(0, filters); err != nil {
		return err
	}
	if err := s.hub.want(ctx, filters); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.mu.Lock()
	err := s.ended
	if err == nil {
		s.busy, s.stopReplay, s.settled, s.at, s.delivered = true, cancel, make(chan struct{}), after, after
		s.hub.flows.Add(1) // replay continues as flush
	}
	s.mu.Unlock()
	if err != nil {
		cancel()
		s.hub.unwant(filters...)
		return err
	}
	go func() {
		defer cancel()
		s.replay(ctx, filters)
	}()
	return nil
}

// replay delivers history until the subscriber has caught up, then continues as its flush.
func (s *Subscriber) replay(ctx context.Context, filters []Filter) {
	r := replay{Subscriber: s, filters: filters, selected: selecting(filters), bounds: s.hub.bounds(filters)}
	err := s.hub.untilReady(ctx)
	for joined := false; err == nil && !joined; {
		joined, err = r.step(ctx)
	}
	if sink, ok := s.sink.(Resumer); ok && err == nil {
		sink.CaughtUp()
	}
	s.mu.Lock()
	s.stopReplay = nil
	close(s.settled)
	s.mu.Unlock()
	if err != nil {
		s.hub.unwant(filters...)
		s.end(err)
	}
	s.flush()
}

// replay is a subscriber that is catching up. Its position is s.at, which nothing else changes in the meantime.
type replay struct {
	*Subscriber
	filters  []Filter
	selected selection
	bounds   []int
	known    bool // the position was the end of the log when last read; this hub may not have reached it yet
	gaps     int  // the hub's gaps before that read: if it has changed since, known can't be relied on
}

// step delivers a part of history, or joins the live subscribers.
func (r *replay) step(ctx context.Context) (joined bool, err error) {
	parts, joined, err := r.inMemory()
	if joined || err != nil {
		return joined, err
	}
	if parts == nil {
		parts, err = r.read(ctx)
	}
	var truncated *TruncatedError
	var setBack *SetBackError
	switch {
	case errors.As(err, &truncated):
		return false, r.skip(ctx, truncated.From, Truncated)
	case errors.As(err, &setBack):
		return false, r.skip(ctx, setBack.To, Unknown)
	case ctx.Err() != nil:
		return false, ctx.Err()
	case err != nil || len(parts) == 0 && !r.known:
		// The database can't be reached, or this hub reads a standby that lags.
		sleep.For(ctx, retryAfter)
		return false, ctx.Err()
	}
	for _, p := range parts {
		var events []Event
		for _, m := range p.Messages {
			if r.at.Before(m.Position) && r.selected.has(m.Channel) {
				events = append(events, Event{Message: m})
			}
		}
		if err := r.deliver(ctx, events, p.After()); err != nil {
			return false, err
		}
	}
	return false, nil
}

// inMemory returns the next part from the ring. If everything left fits into the queue, it queues it and in the same step adds the subscriber
// to the index: joined is then true.
func (r *replay) inMemory() (parts []*Part, joined bool, err error) {
	h := r.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if !r.at.Before(h.newest) {
		if r.at != h.newest && !(r.known && r.gaps == h.gaps) {
			return nil, false, nil
		}
		// push drops messages up to the position.
		return nil, true, r.join()
	}
	found, ok := h.ring.behind(r.at, r.filters)
	if !ok {
		return nil, false, nil
	}
	if !r.fits(found) {
		return found[:1], false, nil // parts are immutable, so they can be read without the lock
	}
	if err := r.join(); err != nil {
		return nil, false, err
	}
	r.enqueue(found, h.newest)
	return nil, true, nil
}

// join adds the subscriber to the index. From then on it is a live subscriber. The caller holds Hub.mu.
func (r *replay) join() error {
	if err := r.attach(r.filters, r.bounds); err != nil {
		return err
	}
	r.mu.Lock()
	r.stopReplay = nil
	r.mu.Unlock()
	return nil
}

// fits reports whether the parts' messages fit into the queue.
func (r *replay) fits(parts []*Part) bool {
	bytes := 0
	for _, p := range parts {
		bytes += p.bytes()
		if bytes > r.limit {
			return false
		}
	}
	return true
}

// enqueue queues history. Nothing else can queue in the meantime: the caller holds Hub.mu.
func (r *replay) enqueue(parts []*Part, newest Position) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range parts {
		for _, m := range p.Messages {
			if r.at.Before(m.Position) && r.selected.has(m.Channel) {
				r.queue = append(r.queue, Event{Message: m})
				r.bytes += m.size()
			}
		}
	}
	r.at = newest
}

// read returns a part of history from the database, which checks whether the position belongs to its log.
func (r *replay) read(ctx context.Context) ([]*Part, error) {
	h := r.hub
	select {
	case h.reads <- struct{}{}:
		defer func() { <-h.reads }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	h.mu.RLock()
	newest, gaps := h.newest, h.gaps
	h.mu.RUnlock()
	parts, err := h.source.Read(ctx, r.at)
	r.known, r.gaps = err == nil && len(parts) == 0 && !r.at.Before(newest), gaps
	return parts, err
}

// skip delivers a gap and moves the subscriber past it.
func (r *replay) skip(ctx context.Context, to Position, reason Reason) error {
	return r.deliver(ctx, []Event{{Gap: &Gap{From: r.at, To: to, Reason: reason}}}, to)
}

// deliver passes events to the sink, waits while the subscriber is paused, and advances its position.
func (r *replay) deliver(ctx context.Context, events []Event, to Position) error {
	for len(events) > 0 {
		if err := r.untilContinued(ctx); err != nil {
			return err
		}
		n := min(len(events), maxEvents)
		if err := r.sink.Deliver(events[:n]); err != nil {
			return err
		}
		r.hub.stats.delivered.Add(int64(n))
		events = events[n:]
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at, r.delivered = to, to
	return r.ended
}

// untilContinued waits until the subscriber is not paused.
func (r *replay) untilContinued(ctx context.Context) error {
	for {
		r.mu.Lock()
		paused, err := r.paused, r.ended
		r.mu.Unlock()
		if paused == nil || err != nil {
			return err
		}
		select {
		case <-paused:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
