package cluster

import (
	"sync/atomic"

	"github.com/weir-pg/weir/internal/hub"
)

// Role is how a hub gets ticks.
type Role uint8

// The roles. The package comment has the transitions.
const (
	Serving   Role = iota // reads for itself only
	Following             // receives the ticks that another hub reads
	Reading               // reads for all hubs
	left                  // only in a beat: the hub is stopping
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

// Stats holds counters since Start, and the current state.
type Stats struct {
	Role      Role
	Connected bool         // to NATS
	Reader    string       // the name of the hub that reads; "": unknown
	Hubs      int          // hubs heard recently, including this one
	Position  hub.Position // how far this hub has ticks
	Buckets   int          // how many of the 256 it subscribes to

	Polls     int64 // calls that poll the database for ticks: none while following
	Fallbacks int64 // reads from the database because parts did not arrive over NATS
	Takeovers int64 // times this hub became the reader

	PartsReceived int64 // parts of ticks received completely over NATS
	PartsSent     int64
	BytesReceived int64 // of all kinds of frames
	BytesSent     int64
	RelayReceived int64 // messages that are not logged
	RelaySent     int64

	Dropped  int64 // frames and parts dropped because a queue was full or NATS refused them
	Unknown  int64 // frames that have another version or are damaged
	Diverged int64 // heads that do not continue this hub's history; another database may be using the same name
}

type counters struct {
	polls, fallbacks, takeovers                                                  atomic.Int64
	partsReceived, partsSent, bytesReceived, bytesSent, relayReceived, relaySent atomic.Int64
	dropped, unknown, diverged                                                   atomic.Int64
}

// Stats returns the counters and the state.
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
