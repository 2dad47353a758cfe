package cluster

import (
	"errors"
	"time"

	"github.com/weir-pg/weir/internal/hub"
)

// receive processes the frames of other hubs until Close.
func (c *Cluster) receive() {
	forget := time.NewTicker(presentEvery)
	defer forget.Stop()
	for {
		select {
		case m := <-c.frames:
			c.counters.bytesReceived.Add(int64(len(m.Data)))
			if err := c.takeFrame(m.Data, time.Now()); err != nil {
				c.counters.unknown.Add(1)
				if !errors.Is(err, errVersion) {
					c.log.Debug("weir: a frame on NATS is not valid", "subject", m.Subject, "error", err)
				}
			}
		case now := <-forget.C:
			c.forget(now)
		case <-c.closing:
			return
		}
	}
}

// takeFrame processes one frame.
func (c *Cluster) takeFrame(b []byte, now time.Time) error {
	kind, from, rest, err := openFrame(b)
	if err != nil {
		return err
	}
	switch kind {
	case kindBeat:
		return c.takeBeat(from, rest, now)
	case kindHead:
		return c.takeHead(from, rest, now)
	case kindData:
		return c.takeData(from, rest, now)
	case kindRelay:
		return c.takeRelay(rest)
	default:
		return errFrame
	}
}

func (c *Cluster) takeBeat(from ident, rest cursor, now time.Time) error {
	m, err := readBeat(rest)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.role == left {
		c.lost(from)
		delete(c.peers, from)
		return nil
	}
	if _, known := c.peers[from]; !known {
		if len(c.peers) >= maxPeers {
			return nil
		}
		c.greets = true // so that the new hub soon learns of this one, too
	}
	c.peers[from] = peer{name: m.name, seen: now}
	if m.role == Reading {
		c.hear(from, m.at, now)
	} else {
		c.lost(from)
	}
	return nil
}

// maxPeers limits the hubs that a hub remembers; further ones are not counted.
const maxPeers = 10000

func (c *Cluster) takeHead(from ident, rest cursor, now time.Time) error {
	h, err := readHead(rest)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !h.from().Before(c.at) && !c.inbox.addHead(from, h) {
		c.counters.dropped.Add(1)
	}
	c.hear(from, h.to(), now)
	return nil
}

func (c *Cluster) takeData(from ident, rest cursor, now time.Time) error {
	d, err := readData(rest)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.role == Following && c.reader == from && !d.at.Before(c.at) {
		c.heard = now // it is sending something large
	}
	if !d.at.Before(c.at) && !c.inbox.addData(from, d) {
		c.counters.dropped.Add(1)
	}
	return nil
}

func (c *Cluster) takeRelay(rest cursor) error {
	d, err := readDraft(&rest)
	if err == nil {
		err = hub.CheckChannel(d.Channel)
	}
	if err != nil {
		return err
	}
	select {
	case c.relayed <- d:
		c.counters.relayReceived.Add(1)
	default:
		c.counters.dropped.Add(1)
	}
	return nil
}

// forget removes hubs that have not been heard recently.
func (c *Cluster) forget(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	long := gone * crowd(len(c.peers))
	for id, p := range c.peers {
		if now.Sub(p.seen) > long {
			delete(c.peers, id)
		}
	}
}
