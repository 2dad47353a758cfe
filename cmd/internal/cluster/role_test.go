package cluster

import (
	"encoding/binary"
	"testing"
	"time"
)

// TestOfManyHubsFewBecomeReadersAtOnce: when no reader is heard, all hubs read for themselves, and the first whose time has come reads for all. In a large cluster they wait for longer, on average, so that not a
// third of them becomes the reader before it hears of the first.
func TestOfManyHubsFewBecomeReadersAtOnce(t *testing.T) {
	t.Parallel()
	for hubs, wait := range map[int]time.Duration{2: candidacy / 2, 50: candidacy / 2, 1000: 20 * candidacy / 2} {
		now := time.Now()
		c := &Cluster{log: logger(t), connected: true, inbox: newInbox(), peers: map[ident]peer{}, news: make(chan struct{}, 1), beats: make(chan struct{}, 1),
			now: func() time.Time { return now }, draw: func(below time.Duration) time.Duration { return below / 2 }}
		for n := range uint64(hubs) {
			var id ident
			binary.BigEndian.PutUint64(id[:], n)
			c.peers[id] = peer{seen: now}
		}
		c.serve(now)
		if c.mayRead(now.Add(wait - 1)); c.role != Serving {
			t.Errorf("beside %d hubs it is %s after %s", hubs, c.role, wait-1)
		}
		if c.mayRead(now.Add(wait)); c.role != Reading {
			t.Errorf("beside %d hubs it is %s after %s", hubs, c.role, wait)
		}
	}
}
