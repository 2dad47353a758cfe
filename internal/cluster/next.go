package cluster

import (
	"context"
	"errors"
	"time"

	"github.com/weir-pg/weir/internal/hub"
)

const (
	nextAtMost = time.Second           // a Next that nothing comes for
	missing    = 20 * time.Millisecond // after word of it, what has not come is missing
	partsTaken = 64                    // at once
)

// Next implements hub.Source. Only the hub's Run calls it, one call at a time.
func (c *Cluster) Next(ctx context.Context, after hub.Position) ([]*hub.Part, error) {
	c.enter(ctx, after)
	until := time.Now().Add(nextAtMost)
	var known time.Time // since when there is known to be something behind the position
	for now := time.Now(); now.Before(until); now = time.Now() {
		if c.serves(now) {
			return c.poll(ctx, after)
		}
		if parts := c.take(after); len(parts) > 0 {
			return parts, nil
		}
		wait := min(until.Sub(now), silence/4)
		switch {
		case !c.expects(after):
			known = time.Time{}
		case known.IsZero():
			known, wait = now, missing
		case now.Sub(known) < missing:
			wait = missing - now.Sub(known)
		default:
			parts, err := c.fallBack(ctx, after)
			if len(parts) > 0 || err != nil {
				return parts, err
			}
			known, wait = now, missing
		}
		if err := c.await(ctx, wait); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// await waits for news, but not for long.
func (c *Cluster) await(ctx context.Context, atMost time.Duration) error {
	t := time.NewTimer(atMost)
	defer t.Stop()
	select {
	case <-c.news:
	case <-t.C:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// enter takes note of where the hub stands: what Next returned before has been dispatched.
func (c *Cluster) enter(ctx context.Context, after hub.Position) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.flight != nil {
		close(c.flight.landed)
		c.flight = nil
	}
	c.at, c.hubDone, c.polling = after, ctx.Done(), time.Now()
	c.inbox.drop(after)
}

// serves tells whether the hub is to read for itself.
func (c *Cluster) serves(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.role == Following && now.Sub(c.heard) > silence {
		c.log.Info("weir: the hub that reads ticks is silent: this one reads for itself", "hub", c.name, "reader", c.peers[c.reader].name)
		c.serve(now.Add(randomly(candidacy)))
	}
	return c.role != Following
}

// poll reads from the database what comes next, and hands it on if this hub is the reader.
func (c *Cluster) poll(ctx context.Context, after hub.Position) ([]*hub.Part, error) {
	c.counters.polls.Add(1)
	parts, err := c.source.Next(ctx, after)
	if err != nil && !isHistory(err) {
		c.resign()
		return nil, err
	}
	c.mayRead(time.Now())
	c.mu.Lock()
	defer c.mu.Unlock()
	c.polling = time.Now()
	for _, p := range parts {
		if c.role == Reading {
			select {
			case c.outbox <- announcement{part: p, before: c.before(p.Tick)}:
			default:
				c.counters.dropped.Add(1) // followers hear of later ones, and read this one
			}
		}
		c.note(p)
	}
	return parts, err
}

// isHistory tells whether an error is what a database in good order says of a position.
func isHistory(err error) bool {
	var truncated *hub.TruncatedError
	var ahead *hub.AheadError
	return errors.As(err, &truncated) || errors.As(err, &ahead)
}

// fallBack reads from the database what NATS has not brought.
func (c *Cluster) fallBack(ctx context.Context, after hub.Position) ([]*hub.Part, error) {
	c.counters.fallbacks.Add(1)
	if err := c.confirm(ctx, after); err != nil {
		return nil, err
	}
	parts, err := c.source.Read(ctx, after)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range parts {
		c.note(p)
	}
	if len(parts) == 0 {
		c.announced = hub.Position{} // wait for the next word of it
	}
	return parts, err
}

// confirm looks, where a reader's history is not this hub's, which of them the database has. If it is not this hub's, the log was set
// back and has grown past the position since: nobody can tell what was missed.
func (c *Cluster) confirm(ctx context.Context, after hub.Position) error {
	c.mu.Lock()
	doubt, last := c.doubt, c.last
	c.doubt = false
	c.mu.Unlock()
	if !doubt {
		return nil
	}
	parts, err := c.source.Read(ctx, hub.Position{Tick: last.tick})
	if err != nil || len(parts) == 0 || parts[0].Tick == last.tick && parts[0].At.UnixMicro() == last.at {
		return err
	}
	newest, err := c.source.Newest(ctx)
	if err != nil || !after.Before(newest) {
		return err
	}
	c.mu.Lock()
	c.last = cut{}
	c.mu.Unlock()
	return &hub.AheadError{End: newest}
}

// expects tells whether there is known to be something behind the position.
func (c *Cluster) expects(after hub.Position) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return after.Before(c.announced) || c.inbox.hasHead(after)
}

// take takes parts from the inbox that are whole, as far as this hub wants them.
func (c *Cluster) take(after hub.Position) (parts []*hub.Part) {
	arrived, wanted := c.pick(after)
	for _, a := range arrived {
		p, err := a.part(&wanted)
		c.mu.Lock()
		if err != nil {
			a.head.absent = true
			c.mu.Unlock()
			c.counters.unknown.Add(1)
			c.log.Warn("weir: a part of a tick came damaged over NATS, reading it from the database", "tick", a.head.tick, "error", err)
			break
		}
		c.note(p)
		c.mu.Unlock()
		parts = append(parts, p)
	}
	c.counters.partsReceived.Add(int64(len(parts)))
	return parts
}

// pick finds parts that are whole, and what is wanted of them. From this moment on they are in flight: whoever wants more must wait
// until the hub has dispatched them.
func (c *Cluster) pick(after hub.Position) (arrived []*arriving, wanted set) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wanted = c.interest.wanted
	last := c.last
	for at := after; len(arrived) < partsTaken; {
		a := c.inbox.find(at, &wanted)
		if a == nil {
			break
		}
		h := a.head
		if h.before != 0 && last.tick == h.tick-1 && last.at != h.before {
			h.absent, c.doubt = true, true
			c.counters.diverged.Add(1)
			if c.warned.now() {
				c.log.Warn("weir: a tick does not go on from this hub's history, reading it from the database: do all hubs use the same primary?",
					"tick", h.tick, "from", c.peers[a.sender].name)
			}
			break
		}
		arrived = append(arrived, a)
		if at = h.to(); h.end {
			last = cut{h.tick, h.cut}
		}
	}
	if len(arrived) > 0 && c.flight == nil {
		c.flight = &flight{covers: wanted, landed: make(chan struct{})}
	}
	return arrived, wanted
}

// note takes note of the last tick that the hub gets. The caller holds mu.
func (c *Cluster) note(p *hub.Part) {
	if p.End {
		c.last = cut{p.Tick, p.At.UnixMicro()}
	}
}

// before says when the tick before was cut, 0 if that is not known. The caller holds mu.
func (c *Cluster) before(tick int64) int64 {
	if c.last.tick == tick-1 {
		return c.last.at
	}
	return 0
}

// behind is the position behind a part.
func behind(p *hub.Part) hub.Position {
	if p.End {
		return hub.Position{Tick: p.Tick + 1}
	}
	return hub.Position{Tick: p.Tick, Index: p.Last}
}
