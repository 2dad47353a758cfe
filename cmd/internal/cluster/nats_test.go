package cluster

import (
	"fmt"
	"net"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/weir-pg/weir/cmd/internal/natstest"
	"github.com/weir-pg/weir/internal/hub"
)

// TestWithoutNATSEveryHubServesItself: when NATS stops and comes back while messages flow, subscribers miss nothing, also at a hub that starts
// in between.
func TestWithoutNATSEveryHubServesItself(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	first := natstest.Start(t, nil)
	url := first.ClientURL()
	nodes := s.cluster(url, 2)
	var boxes []*box
	listen := func(n *node) {
		_, b := subscribe(t, n, hub.Position{Tick: 1}, ">")
		boxes = append(boxes, b)
	}
	for _, n := range nodes {
		listen(n)
	}
	publish := func(what string) {
		for i := range 50 {
			s.publish("c", fmt.Sprint(what, i))
		}
		for _, b := range boxes {
			s.wait(b, filters(t, ">")...)
		}
	}
	publish("with")
	port := first.Addr().(*net.TCPAddr).Port
	first.Shutdown()
	first.WaitForShutdown()
	for _, n := range nodes {
		until(t, "the hub notices", func() bool { s := n.cluster.Stats(); return !s.Connected && s.Role == Serving })
	}
	nodes = append(nodes, s.join(Config{URL: url}))
	listen(nodes[2])
	publish("without")

	_ = natstest.Start(t, &server.Options{Port: port})
	settle(t, nodes...)
	_, followers := settle(t, nodes...)
	before := followers[0].cluster.Stats().PartsReceived
	publish("again")
	if followers[0].cluster.Stats().PartsReceived == before {
		t.Error("after NATS came back, followers still read for themselves")
	}
	want := s.wait(boxes[0], filters(t, ">")...)
	for i, b := range boxes {
		same(t, fmt.Sprint("hub ", i), b.messages(), want)
	}
}
