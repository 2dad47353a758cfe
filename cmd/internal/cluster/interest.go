package cluster

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weir-pg/weir/internal/hub"
)

// interest counts the filters that want each bucket. Cluster.mu guards it.
type interest struct {
	counts [buckets]int32
	wanted set
}

func (x *interest) count(f hub.Filter, by int32) {
	var of set
	of.addFilter(f)
	of.each(func(b byte) {
		x.counts[b] += by
		if x.counts[b] > 0 {
			x.wanted.add(b)
		} else {
			x.wanted.remove(b)
		}
	})
}

// flight represents parts on their way from Next to the hub's subscribers.
type flight struct {
	covers set
	landed chan struct{} // closed when they have been dispatched
}

// Want implements hub.Interested. Completeness does not depend on the subscriptions: once the filters are counted, no part is complete
// without their buckets. But parts taken before still have to be dispatched: a subscriber that resumes at a position before such a part
// would assume that it contains all of the subscriber's messages.
func (c *Cluster) Want(ctx context.Context, filters []hub.Filter) error {
	of, landing, hubDone := c.wants(filters)
	c.subscriptions.want(ctx, c, &of)
	if landing == nil {
		return nil
	}
	var err error
	select {
	case <-landing.landed:
		return nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-hubDone:
		err = hub.ErrClosed
	case <-c.closing:
		err = hub.ErrClosed
	}
	c.Unwant(filters)
	return err
}

// wants counts filters. It returns their buckets, and the parts that have to be dispatched before they can be relied on; nil: there are none.
func (c *Cluster) wants(filters []hub.Filter) (of set, landing *flight, hubDone <-chan struct{}) {
	for _, f := range filters {
		of.addFilter(f)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range filters {
		c.interest.count(f, 1)
	}
	if c.flight != nil && !c.flight.covers.contains(&of) {
		landing = c.flight
	}
	return of, landing, c.hubDone
}

// Unwant implements hub.Interested. The keeper drops subscriptions that are no longer wanted after a while.
func (c *Cluster) Unwant(filters []hub.Filter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range filters {
		c.interest.count(f, -1)
	}
}

// subscriptions are the NATS subscriptions to buckets. Its mutex may be held while NATS is slow.
type subscriptions struct {
	mu  sync.Mutex
	of  [buckets]*nats.Subscription
	set set
}

const (
	subscribeAtMost = 250 * time.Millisecond // wait for NATS to confirm; without confirmation, the first ticks are read from the database
	keepEvery       = time.Second
)

// want subscribes to the buckets that are not subscribed to yet, and waits until NATS has confirmed.
func (s *subscriptions) want(ctx context.Context, c *Cluster, of *set) {
	s.mu.Lock()
	subscribed := s.set.contains(of)
	if !subscribed {
		of.each(func(b byte) {
			if s.of[b] != nil {
				return
			}
			sub, err := c.conn.ChanSubscribe(c.subjects.bucket[b], c.frames)
			if err != nil {
				c.log.Warn("weir: NATS refused a subscription: this hub reads its ticks from the database", "bucket", b, "error", err)
				return
			}
			s.of[b] = sub
			s.set.add(b)
		})
	}
	s.mu.Unlock()
	if !subscribed && c.conn.IsConnected() {
		ctx, cancel := context.WithTimeout(ctx, subscribeAtMost)
		defer cancel()
		_ = c.conn.FlushWithContext(ctx)
	}
}

// keep drops subscriptions to buckets that were not wanted at two consecutive checks. It runs until Close.
func (c *Cluster) keep() {
	every := time.NewTicker(keepEvery)
	defer every.Stop()
	var before set
	for {
		select {
		case <-every.C:
		case <-c.closing:
			return
		}
		c.mu.Lock()
		wanted := c.interest.wanted
		c.mu.Unlock()
		c.subscriptions.drop(c, &before)
		before = wanted
	}
}

// drop drops subscriptions to buckets that are not wanted now, and were not at the previous check.
func (s *subscriptions) drop(c *Cluster, before *set) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Read while holding s.mu: Want counts a bucket first, and then calls subscriptions.want.
	c.mu.Lock()
	wanted := c.interest.wanted
	c.mu.Unlock()
	subscribed := s.set
	subscribed.each(func(b byte) {
		if wanted.has(b) || before.has(b) {
			return
		}
		if err := s.of[b].Unsubscribe(); err != nil {
			c.log.Debug("weir: unsubscribe from NATS", "bucket", b, "error", err)
		}
		s.of[b] = nil
		s.set.remove(b)
	})
}

func (s *subscriptions) count() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set.each(func(byte) { n++ })
	return n
}

// listen subscribes to the subjects that every hub receives.
func (c *Cluster) listen() error {
	for _, subject := range [...]string{c.subjects.head, c.subjects.beat} {
		if _, err := c.conn.ChanSubscribe(subject, c.frames); err != nil {
			return fmt.Errorf("subscribe to %s on NATS: %w", subject, err)
		}
	}
	return nil
}
