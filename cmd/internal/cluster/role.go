package cluster

import (
	"bytes"
	"math/rand/v2"
	"time"

	"github.com/weir-pg/weir/internal/hub"
)

// behindMost is how many ticks a reader may be behind a hub that reads itself, for that hub to follow it. Two that read at once are never
// quite level; one that stays behind is found out by its followers.
const behindMost = 1000

// hear takes note of a reader. The caller holds mu.
func (c *Cluster) hear(from ident, at hub.Position, now time.Time) {
	switch c.role {
	case Following:
		// One that is behind can't be followed: it may be reading another history.
		if at.Before(c.at) {
			return
		}
	case Reading:
		if bytes.Compare(from[:], c.id[:]) > 0 || at.Tick+behindMost < c.at.Tick {
			return // it will hear this hub and follow it
		}
		c.log.Info("weir: another hub reads ticks, too, and goes on with it", "reader", c.peers[from].name)
	case Serving:
		if at.Tick+behindMost < c.at.Tick {
			return
		}
	}
	c.role, c.reader, c.heard = Following, from, now
	c.announced = at
	c.tell()
}

// lost takes note that a hub reads no more. The caller holds mu.
func (c *Cluster) lost(from ident) {
	if c.role == Following && c.reader == from {
		c.serve(time.Now().Add(rand.N(candidacy)))
	}
}

// serve makes the hub serve itself, and a reader after a time unless another is heard before. The caller holds mu.
func (c *Cluster) serve(candidate time.Time) {
	c.role, c.candidate, c.announced = Serving, candidate, hub.Position{}
	c.tell()
}

// mayRead makes a hub that serves itself the reader when its time has come. It is called when the database has just answered.
func (c *Cluster) mayRead(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.role != Serving || !c.connected || now.Before(c.candidate) {
		return
	}
	c.role = Reading
	c.counters.takeovers.Add(1)
	c.log.Info("weir: this hub reads ticks for all", "hub", c.name, "hubs", len(c.peers)+1)
	c.beatNow()
}

// resign lets others read, after a failure of the database here.
func (c *Cluster) resign() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.role == Reading {
		c.serve(time.Now().Add(silence + rand.N(candidacy)))
		c.beatNow()
	}
}

// beatNow makes the announcer beat at once.
func (c *Cluster) beatNow() {
	select {
	case c.beats <- struct{}{}:
	default:
	}
}

// setConnected takes note of NATS' being there or not.
func (c *Cluster) setConnected(connected bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.connected = connected
	if connected {
		// Whoever reads has a while to be heard.
		if c.role != Following {
			c.serve(time.Now().Add(silence + rand.N(candidacy)))
		}
		c.beatNow()
		return
	}
	clear(c.peers)
	c.serve(time.Now().Add(silence))
}
