package cluster

import (
	"sync/atomic"

	"github.com/weir-pg/weir/internal/hub"
)

// Role is what a hub does about ticks.
type Role uint8

// The roles; package comment.
const (
	Serving   Role = iota // reads for itself alone
	Following             // receives what another reads
	Reading               // reads for all
	left                  // in a beat: is about to end
)

func (r Role) String() string {
	switch r {
	case Following:
		return "following"
	case Reading:
		return "reading"
	case left:
		return "left"
	default:
		return "serving"
	}
}

// Stats are counters since Start, and the state now.
type Stats struct {
	Role      Role
	Connected bool         // to NATS
	Reader    string       // the name of the hub that reads; "" while none is known
	Hubs      int          // that can be heard, this one included
	Position  hub.Position // up to here this hub has ticks
	Buckets   int          // of the 256 that it subscribes to

	Polls     int64 // calls that look for ticks in the database: none while following
	Fallbacks int64 // stretches read from the database because NATS did not bring them
	Takeovers int64 // times that this hub became the reader

	PartsReceived int64 // parts of ticks that NATS brought whole
	PartsSent     int64
	BytesReceived int64 // of frames, all kinds
	BytesSent     int64
	RelayReceived int64 // messages that are not logged
	RelaySent     int64

	Dropped  int64 // frames and parts given up, because a queue was full or NATS did not take them
	Unknown  int64 // frames of another version, or damaged
	Diverged int64 // heads that do not go on from this hub's history: is another database under the same name?
}

type counters struct {
	polls, fallbacks, takeovers                                                  atomic.Int64
	partsReceived, partsSent, bytesReceived, bytesSent, relayReceived, relaySent atomic.Int64
	dropped, unknown, diverged                                                   atomic.Int64
}

// Stats returns counters and state.
func (c *Cluster) Stats() Stats {
	c.mu.Lock()
	s := Stats{
		Role: c.role, Connected: c.connected, Hubs: len(c.peers) + 1, Position: c.at,
	}
	switch c.role {
	case Reading:
		s.Reader = c.name
	case Following:
		s.Reader = c.peers[c.reader].name
	}
	c.mu.Unlock()
	s.Buckets = c.subscriptions.count()
	n := &c.counters
	s.Polls, s.Fallbacks, s.Takeovers = n.polls.Load(), n.fallbacks.Load(), n.takeovers.Load()
	s.PartsReceived, s.PartsSent = n.partsReceived.Load(), n.partsSent.Load()
	s.BytesReceived, s.BytesSent = n.bytesReceived.Load(), n.bytesSent.Load()
	s.RelayReceived, s.RelaySent = n.relayReceived.Load(), n.relaySent.Load()
	s.Dropped, s.Unknown, s.Diverged = n.dropped.Load(), n.unknown.Load(), n.diverged.Load()
	return s
}
