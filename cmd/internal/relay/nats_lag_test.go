package relay_test

import (
	"fmt"
	"net"
	"regexp"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/weirrelay"
	"github.com/weir-pg/weir/weirrelay/natsrelay"
)

// lagging connects to NATS so that whoever reads a stream is told that nothing more is pending, as by a server of its cluster that lags.
type lagging struct {
	pending *regexp.Regexp // the number in what the server sends
	changed atomic.Int32
}

// Dial implements nats.CustomDialer.
func (l *lagging) Dial(network, address string) (net.Conn, error) {
	conn, err := net.Dial(network, address)
	return &laggingConn{conn, l}, err
}

type laggingConn struct {
	net.Conn
	l *lagging
}

func (c *laggingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	for _, found := range c.l.pending.FindAllSubmatchIndex(b[:n], -1) {
		b[found[2]] = '0' // it has one digit
		c.l.changed.Add(1)
	}
	return n, err
}

// TestARelayKnowsTheEndOfAStreamAlthoughAServerLags: the one that reads the stream says that this is all when it begins, or with each message; the stream's leader knows better.
func TestARelayKnowsTheEndOfAStreamAlthoughAServerLags(t *testing.T) {
	t.Parallel()
	url := jetStream(t).ClientURL()
	nc, js := dial(t, url)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"shop.>"}, AllowDirect: true}); err != nil {
		t.Fatal(err)
	}
	var records []weirrelay.Record
	for n := range 9 {
		at := weir.Position(fmt.Sprintf("1.1.%d", n+1))
		records = append(records, weirrelay.Record{ID: "r/" + string(at), Position: at, Channel: "orders", Subject: "shop.orders"})
	}
	if err := begun(t, nc).Send(t.Context(), records); err != nil {
		t.Fatal(err)
	}
	for when, pending := range map[string]string{"when it begins": `"num_pending":(\d)\D`, "with each message": `\$JS\.ACK\.\S+\.(\d) \d+ \d+\r\n`} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			l := &lagging{pending: regexp.MustCompile(pending)}
			nc, err := nats.Connect(url, nats.SetCustomDialer(l))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(nc.Close)
			target, err := natsrelay.New(natsrelay.Config{Conn: nc, Name: "r", Stream: "ORDERS"})
			if err != nil {
				t.Fatal(err)
			}
			if at, err := target.Begin(t.Context(), ""); err != nil || at != "1.1.9" {
				t.Errorf("the target begins at %q, %v; want 1.1.9", at, err)
			}
			if l.changed.Load() == 0 {
				t.Error("no server has lagged")
			}
		})
	}
}
