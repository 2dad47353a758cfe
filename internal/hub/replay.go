package hub

import (
	"context"
	"errors"

	"github.com/weir-pg/weir/internal/sleep"
)

// Resume delivers, of the filters, what is behind the position, and from there on what comes, with nothing missing and nothing twice.
// What is no longer in the log becomes a gap event. It is for a subscriber that has no filters yet. It returns at once; what it starts
// ends with the subscriber. While it reads history it waits for the sink, so a client may take as long as it takes.
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
		s.hub.flows.Add(1) // replay goes on as flush
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

// replay brings the subscriber up to the present, then goes on as its flush.
func (s *Subscriber) replay(ctx context.Context, filters []Filter) {
	r := replay{Subscriber: s, filters: filters}
	err := s.hub.untilReady(ctx)
	for joined := false; err == nil && !joined; {
		joined, err = r.step(ctx)
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

// replay is a subscriber on its way to the present. Its position is s.at, which nobody else moves meanwhile.
type replay struct {
	*Subscriber
	filters []Filter
	known   bool // the position is where the log ended at a look, perhaps ahead of this hub: another hub is ahead
	gaps    int  // of the hub's, before that look: since another it is not to be relied on
}

// step delivers a stretch of history, or joins the present.
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
			if r.at.Before(m.Position) && match(r.filters, m.Channel) {
				events = append(events, Event{Message: m})
			}
		}
		if err := r.deliver(ctx, events, p.After()); err != nil {
			return false, err
		}
	}
	return false, nil
}

// inMemory returns the next part that is in the ring. When all that is left fits into the queue, it queues it, enters the subscriber
// into the index in the same moment, and says that it has joined.
func (r *replay) inMemory() (parts []*Part, joined bool, err error) {
	h := r.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if !r.at.Before(h.newest) {
		if r.at != h.newest && !(r.known && r.gaps == h.gaps) {
			return nil, false, nil
		}
		// What comes up to the position is dropped by push.
		return nil, true, r.join()
	}
	found, ok := h.ring.behind(r.at, r.filters)
	if !ok {
		return nil, false, nil
	}
	if !r.fits(found) {
		return found[:1], false, nil // parts are not changed: they may be read without the lock
	}
	if err := r.join(); err != nil {
		return nil, false, err
	}
	r.enqueue(found, h.newest)
	return nil, true, nil
}

// join enters the subscriber into the index: from now on it is like others. The caller holds Hub.mu.
func (r *replay) join() error {
	if err := r.attach(r.filters); err != nil {
		return err
	}
	r.mu.Lock()
	r.stopReplay = nil
	r.mu.Unlock()
	return nil
}

// fits tells whether the parts' messages fit into the queue.
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

// enqueue queues history. Nobody else queues meanwhile: the caller holds Hub.mu.
func (r *replay) enqueue(parts []*Part, newest Position) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range parts {
		for _, m := range p.Messages {
			if r.at.Before(m.Position) && match(r.filters, m.Channel) {
				r.queue = append(r.queue, Event{Message: m})
				r.bytes += m.size()
			}
		}
	}
	r.at = newest
}

// read returns a stretch of history from the database, which knows whether the position is of its log.
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

// skip tells the subscriber of a gap, and moves it behind that.
func (r *replay) skip(ctx context.Context, to Position, reason Reason) error {
	return r.deliver(ctx, []Event{{Gap: &Gap{From: r.at, To: to, Reason: reason}}}, to)
}

// deliver hands events to the sink, waiting while the subscriber is paused, and moves it on.
func (r *replay) deliver(ctx context.Context, events []Event, to Position) error {
	for len(events) > 0 {
		if err := r.untilContinued(ctx); err != nil {
			return err
		}
		n := min(len(events), most)
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
