package cluster

import (
	"bytes"
	"time"

	"github.com/weir-pg/weir/internal/hub"
)

// maxLag is how many ticks a reader may be behind a hub that reads for itself, for that hub to follow it. Two hubs that read at once never have
// exactly the same position; a reader that stays behind is abandoned by its followers.
const maxLag = 1000

// hear records a frame from a reader. The caller holds mu.
func (c *Cluster) hear(from ident, at hub.Position, now time.Time) {
	switch c.role {
	case Following:
		// A reader that is behind is not followed: it may be reading another history.
		if at.Before(c.at) {
			return
		}
	case Reading:
		if bytes.Compare(from[:], c.id[:]) > 0 || at.Tick+maxLag < c.at.Tick {
			return // it will hear this hub and follow it
		}
		c.log.Info("weir: another hub also reads ticks for all: this one follows it", "reader", c.peers[from].name)
	case Serving:
		if at.Tick+maxLag < c.at.Tick {
			return
		}
	}
	c.role, c.reader, c.heard = Following, from, now
	c.announced = at
	c.tell()
}

// lost records that a hub is not the reader, or no longer. The caller holds mu.
func (c *Cluster) lost(from ident) {
	if c.role == Following && c.reader == from {
		c.serve(c.now())
	}
}

// serve makes the hub serve itself; some time after candidate it may become the reader, unless it hears another before. The caller holds mu.
func (c *Cluster) serve(candidate time.Time) {
	c.role, c.candidate, c.lot, c.announced = Serving, candidate, c.draw(candidacy), hub.Position{}
	c.tell()
}

// mayRead makes a hub that serves itself the reader if its time has come. It is called when the database has just answered. The more hubs there are, the longer each waits: the first of
// them comes soon all the same, and few become readers beside it before they hear it.
func (c *Cluster) mayRead(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.role != Serving || !c.connected || now.Before(c.candidate.Add(c.lot*crowd(len(c.peers)))) {
		return
	}
	c.role = Reading
	c.counters.takeovers.Add(1)
	c.log.Info("weir: this hub now reads ticks for all", "hub", c.name, "hubs", len(c.peers)+1)
	c.beatNow()
}

// resign lets another hub read, after this hub's database has failed.
func (c *Cluster) resign() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.role == Reading {
		c.serve(c.now().Add(silence))
		c.beatNow()
	}
}

// beatNow makes the announcer send a heartbeat immediately.
func (c *Cluster) beatNow() {
	select {
	case c.beats <- struct{}{}:
	default:
	}
}

// setConnected records whether NATS is connected.
func (c *Cluster) setConnected(connected bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.connected = connected
	if connected {
		// Give the current reader time to be heard.
		if c.role != Following {
			c.serve(c.now().Add(silence))
		}
		c.beatNow()
		return
	}
	clear(c.peers)
	c.serve(c.now().Add(silence))
}
