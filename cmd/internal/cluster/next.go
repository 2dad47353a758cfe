package cluster

import (
	"context"
	"errors"
	"math/rand/v2"
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
	until := time.Now().Add(nextAtMost)
	var expected time.Time // when a tick after the position was first known to exist
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
			expected = time.Time{}
		case expected.IsZero():
			expected, wait = now, missing
		case now.Sub(expected) < missing:
			wait = missing - now.Sub(expected)
		default:
			parts, err := c.fallBack(ctx, after)
			if len(parts) > 0 || err != nil {
				return parts, err
			}
			expected, wait = now, missing
		}
		if err := c.await(ctx, wait); err != nil {
			return nil, err
		}
	}
	return nil, nil
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
	c.at, c.hubDone, c.polling = after, ctx.Done(), time.Now()
	c.inbox.drop(after)
}

// serves reports whether the hub has to read for itself.
func (c *Cluster) serves(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.role == Following && now.Sub(c.heard) > silence {
		c.log.Info("weir: the hub that reads ticks is silent: this one reads for itself", "hub", c.name, "reader", c.peers[c.reader].name)
		c.serve(now.Add(rand.N(candidacy)))
	}
	return c.role != Following
}

// poll reads the next parts from the database, and passes them to the announcer if this hub is the reader.
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
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(parts) == 0 {
		c.announced = hub.Position{} // wait for the next announcement
	}
	return parts, err
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
