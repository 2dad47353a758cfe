package cluster

import (
	"context"
	"errors"
	"math/rand/v2"
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
		c.serve(now.Add(rand.N(candidacy)))
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
			case c.outbox <- p:
			default:
				c.counters.dropped.Add(1) // followers hear of later ones, and read this one
			}
		}
	}
	return parts, err
}

// isHistory tells whether an error is what a database in good order says of a position.
func isHistory(err error) bool {
	var truncated *hub.TruncatedError
	var setBack *hub.SetBackError
	return errors.As(err, &truncated) || errors.As(err, &setBack)
}

// fallBack reads from the database what NATS has not brought.
func (c *Cluster) fallBack(ctx context.Context, after hub.Position) ([]*hub.Part, error) {
	c.counters.fallbacks.Add(1)
	parts, err := c.source.Read(ctx, after) // which says so if this hub's history is not the database's
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(parts) == 0 {
		c.announced = hub.Position{} // wait for the next word of it
	}
	return parts, err
}

// expects tells whether there is known to be something behind the position.
func (c *Cluster) expects(after hub.Position) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inbox.parted(after) {
		c.counters.diverged.Add(1)
		if c.warned.now() {
			c.log.Warn("weir: a tick does not go on from this hub's history, reading the database: do all hubs use the same primary?",
				"hub", c.name, "position", after, "reader", c.peers[c.reader].name)
		}
	}
	return after.Before(c.announced) || c.inbox.hasHead(after)
}

// take takes parts from the inbox that are whole, as far as this hub wants them.
func (c *Cluster) take(after hub.Position) (parts []*hub.Part) {
	arrived, wanted := c.pick(after)
	for _, a := range arrived {
		p, err := a.part(&wanted)
		if err != nil {
			c.mu.Lock()
			a.head.absent = true
			c.mu.Unlock()
			c.counters.unknown.Add(1)
			c.log.Warn("weir: a part of a tick came damaged over NATS, reading it from the database", "tick", a.head.tick, "error", err)
			break
		}
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
	for at := after; len(arrived) < partsTaken; {
		a := c.inbox.find(at, &wanted)
		if a == nil {
			break
		}
		arrived = append(arrived, a)
		at = a.head.to()
	}
	if len(arrived) > 0 && c.flight == nil {
		c.flight = &flight{covers: wanted, landed: make(chan struct{})}
	}
	return arrived, wanted
}
