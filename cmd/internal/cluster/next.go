package cluster

import (
	"context"
	"errors"
	"time"

	"github.com/weir-pg/weir/internal/hub"
)

const (
	nextAtMost = time.Second           // how long Next waits for ticks
	missing    = 20 * time.Millisecond // how long after its announcement a part counts as missing
	partsLimit = 64                    // parts that Next returns at once
)

// Next implements hub.Source. Only the hub's Run calls it, one call at a time.
func (c *Cluster) Next(ctx context.Context, after hub.Position) ([]*hub.Part, error) {
	c.enter(ctx, after)
	t := turns{after: after, until: c.now().Add(nextAtMost)}
	for {
		switch do, parts, wait := c.turn(&t); do {
		case returns:
			return parts, nil
		case polls:
			return c.poll(ctx, after)
		case fallsBack:
			parts, err := c.fallBack(ctx, after)
			if len(parts) > 0 || err != nil {
				return parts, err
			}
			t.expected = c.now()
		case waits:
			if err := c.await(ctx, wait); err != nil {
				return nil, err
			}
		}
	}
}

// turns is the state of a call of Next.
type turns struct {
	after    hub.Position
	until    time.Time
	expected time.Time // when a tick after the position was first known to exist
}

// doing is what Next does in a turn.
type doing uint8

const (
	returns doing = iota
	polls
	fallsBack
	waits
)

// turn decides what Next does now: it returns parts, polls the database, reads from it what NATS has not delivered, or waits for news.
func (c *Cluster) turn(t *turns) (do doing, parts []*hub.Part, wait time.Duration) {
	now := c.now()
	if !now.Before(t.until) {
		return returns, nil, 0
	}
	if c.serves(now) {
		return polls, nil, 0
	}
	if parts := c.take(t.after); len(parts) > 0 {
		return returns, parts, 0
	}
	wait = min(t.until.Sub(now), silence/4)
	switch {
	case !c.expects(t.after):
		t.expected = time.Time{}
	case t.expected.IsZero():
		t.expected, wait = now, missing
	case now.Sub(t.expected) < missing:
		wait = missing - now.Sub(t.expected)
	default:
		return fallsBack, nil, 0
	}
	return waits, nil, wait
}

// await waits for news, for at most atMost.
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

// enter records the hub's position: the parts that Next returned before have been dispatched.
func (c *Cluster) enter(ctx context.Context, after hub.Position) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.flight != nil {
		close(c.flight.landed)
		c.flight = nil
	}
	c.at, c.hubDone, c.polling = after, ctx.Done(), c.now()
	c.inbox.drop(after)
}

// serves reports whether the hub has to read for itself.
func (c *Cluster) serves(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.role == Following && now.Sub(c.heard) > silence {
		c.log.Info("weir: the hub that reads ticks is silent: this one reads for itself", "hub", c.name, "reader", c.peers[c.reader].name)
		c.serve(now)
	}
	return c.role != Following
}

// poll reads the next parts from the database, and passes them to the announcer if this hub is the reader.
func (c *Cluster) poll(ctx context.Context, after hub.Position) ([]*hub.Part, error) {
	c.counters.polls.Add(1)
	parts, err := c.source.Next(ctx, after)
	return c.polled(parts, err)
}

// polled is called with what the database has answered.
func (c *Cluster) polled(parts []*hub.Part, err error) ([]*hub.Part, error) {
	if err != nil && !isHistory(err) {
		c.resign()
		return nil, err
	}
	now := c.now()
	c.mayRead(now)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.polling = now
	for _, p := range parts {
		if c.role == Reading {
			select {
			case c.outbox <- p:
			default:
				c.counters.dropped.Add(1) // followers notice the gap when a later part arrives, and read this one
			}
		}
	}
	return parts, err
}

// isHistory reports whether an error concerns the position's history, while the database itself works.
func isHistory(err error) bool {
	var truncated *hub.TruncatedError
	var setBack *hub.SetBackError
	return errors.As(err, &truncated) || errors.As(err, &setBack)
}

// fallBack reads parts from the database that have not arrived over NATS.
func (c *Cluster) fallBack(ctx context.Context, after hub.Position) ([]*hub.Part, error) {
	c.counters.fallbacks.Add(1)
	parts, err := c.source.Read(ctx, after) // it fails if this hub's history is not the database's
	c.fellBack(parts)
	return parts, err
}

// fellBack is called with what the database has of what NATS has not delivered.
func (c *Cluster) fellBack(parts []*hub.Part) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(parts) == 0 {
		c.announced = hub.Position{} // wait for the next announcement
	}
}

// expects reports whether a tick after the position is known to exist.
func (c *Cluster) expects(after hub.Position) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inbox.parted(after) {
		c.counters.diverged.Add(1)
		if c.warned.now() {
			c.log.Warn("weir: a tick does not continue this hub's history: this hub reads it from the database; check that all hubs use the same primary",
				"hub", c.name, "position", after, "reader", c.peers[c.reader].name)
		}
	}
	return after.Before(c.announced) || c.inbox.hasHead(after)
}

// take returns the next parts from the inbox that are complete for the buckets that this hub wants.
func (c *Cluster) take(after hub.Position) (parts []*hub.Part) {
	arrived, wanted := c.pick(after)
	for _, a := range arrived {
		p, err := a.part(&wanted)
		if err != nil {
			c.mu.Lock()
			a.head.absent = true
			c.mu.Unlock()
			c.counters.unknown.Add(1)
			c.log.Warn("weir: a part of a tick arrived damaged over NATS: this hub reads it from the database", "tick", a.head.tick, "error", err)
			break
		}
		parts = append(parts, p)
	}
	c.counters.partsReceived.Add(int64(len(parts)))
	return parts
}

// pick returns the next complete parts, and the buckets wanted of them. From then on they are in flight: a subscriber that wants more buckets has
// to wait until the hub has dispatched them.
func (c *Cluster) pick(after hub.Position) (arrived []*arriving, wanted set) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wanted = c.interest.wanted
	for at := after; len(arrived) < partsLimit; {
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
