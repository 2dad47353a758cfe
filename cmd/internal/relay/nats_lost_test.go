package relay_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirrelay"
	"github.com/weir-pg/weir/weirrelay/natsrelay"
)

// losing connects to NATS so that the next answer which says that something was stored is lost, with the connection, once lose is set.
type losing struct {
	mu   sync.Mutex
	lose func() // is called when it is lost
}

func (l *losing) set(lose func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lose = lose
}

// Dial implements nats.CustomDialer.
func (l *losing) Dial(network, address string) (net.Conn, error) {
	conn, err := net.Dial(network, address)
	return &losingConn{conn, l}, err
}

type losingConn struct {
	net.Conn
	l *losing
}

func (c *losingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	if c.l.lose == nil || !bytes.Contains(b[:n], []byte(`"seq":`)) {
		return n, err
	}
	c.l.lose()
	c.l.lose = nil
	c.Conn.Close()
	return 0, io.EOF
}

// TestWhatNATSHasIsNotSentAgainAfterItsWindow: the answer to a batch is lost, and NATS is away for longer than its stream knows which messages it has; then the same is sent again.
func TestWhatNATSHasIsNotSentAgainAfterItsWindow(t *testing.T) {
	t.Parallel()
	for _, atomic := range []bool{true, false} {
		t.Run(fmt.Sprintf("atomic %t", atomic), func(t *testing.T) {
			t.Parallel()
			url := jetStream(t).ClientURL()
			_, js := dial(t, url)
			if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"shop.>"}, Duplicates: 100 * time.Millisecond, AllowAtomicPublish: atomic}); err != nil {
				t.Fatal(err)
			}
			dialer := &losing{}
			nc, err := nats.Connect(url, nats.SetCustomDialer(dialer), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond), nats.ReconnectBufSize(-1))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(nc.Close)
			target, err := natsrelay.New(natsrelay.Config{Conn: nc, Name: "r", Stream: "ORDERS"})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := target.Begin(t.Context(), ""); err != nil {
				t.Fatal(err)
			}
			var records []weirrelay.Record
			var want []string
			for n := range 10 {
				at := weir.Position(fmt.Sprintf("1.1.%d", n+1))
				want = append(want, fmt.Sprint(n))
				records = append(records, weirrelay.Record{ID: "r/" + string(at), Position: at, Channel: "orders", Subject: "shop.orders", Payload: []byte(want[n])})
			}
			if err := target.Send(t.Context(), records[:3]); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			dialer.set(cancel) // rather than that the client waits for the answer for seconds
			if err := target.Send(ctx, records[3:8]); err == nil || ctx.Err() == nil {
				t.Fatalf("no answer was lost: %v", err)
			}
			stored(t, js, "ORDERS", 8)
			pgtest.Until(t, "the stream does not know any more which messages it has", func() bool {
				ack, err := js.Publish(t.Context(), "shop.probe", []byte("probe"), jetstream.WithMsgID("probe"))
				return err == nil && !ack.Duplicate && ack.Sequence > 9
			})
			for _, some := range [][]weirrelay.Record{records[3:8], records[8:]} {
				pgtest.Until(t, "it is sent", func() bool { return target.Send(t.Context(), some) == nil })
			}
			got := slices.DeleteFunc(stored(t, js, "ORDERS", 12), func(payload string) bool { return payload == "probe" })
			if !slices.Equal(got, want) {
				t.Errorf("the stream has %s, want %s", strings.Join(got, " "), strings.Join(want, " "))
			}
		})
	}
}
