package pgwire_test

import (
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/weir-pg/weir/cmd/internal/pgwire"
	"github.com/weir-pg/weir/internal/hub"
)

// Round trips from NOTIFY to its notification on another connection, next to idle listeners on their own channels.
func BenchmarkNotify(b *testing.B) {
	for _, idle := range []int{0, 1000} {
		b.Run(fmt.Sprintf("idle=%d", idle), func(b *testing.B) {
			e := start(b, pgwire.Config{})
			for i := range idle {
				r, _ := e.session(nil)
				r.asks(fmt.Sprintf("LISTEN idle_%d", i), "LISTEN /I")
			}
			listener, _ := e.session(nil)
			listener.asks("LISTEN a", "LISTEN /I")
			sender, _ := e.session(nil)
			_ = listener.net.SetDeadline(time.Time{})
			_ = sender.net.SetDeadline(time.Time{})
			notify := &pgproto3.Query{String: "NOTIFY a, 'payload'"}
			for b.Loop() {
				sender.send(notify)
				listener.expect("!a payload")
				sender.expect("NOTIFY")
				sender.expect("/I")
			}
		})
	}
}

// One channel with many listeners: deliveries a second, the clients' reading included.
func BenchmarkFanout(b *testing.B) {
	const listeners, burst = 1000, 20
	e := start(b, pgwire.Config{MaxBytes: 16 << 20})
	size := len("A....pid.a\x00") + 1 + 100
	payload := make([]byte, 100)
	for i := range payload {
		payload[i] = 'x'
	}
	var all sync.WaitGroup
	conns := make([]*raw, listeners)
	for i := range conns {
		conns[i], _ = e.session(nil)
		conns[i].asks("LISTEN a", "LISTEN /I")
		_ = conns[i].net.SetDeadline(time.Time{})
	}
	for b.Loop() {
		for _, r := range conns {
			all.Go(func() {
				if _, err := io.CopyN(io.Discard, r.net, int64(burst*size)); err != nil {
					b.Error(err)
				}
			})
		}
		for range burst {
			if err := e.hub.Pass(b.Context(), hub.Draft{Channel: "a", Payload: payload}); err != nil {
				b.Fatal(err)
			}
		}
		all.Wait()
	}
	b.ReportMetric(float64(b.N*burst*listeners)/b.Elapsed().Seconds(), "deliveries/s")
}

// Many clients connect, authenticate and listen at the same instant.
func BenchmarkStorm(b *testing.B) {
	const clients = 2000
	e := start(b, pgwire.Config{Auth: usersFile(b, "someone secret\n")})
	for b.Loop() {
		var all sync.WaitGroup
		for range clients {
			all.Go(func() {
				r := e.dial()
				r.login("someone", "secret")
				r.asks("LISTEN a", "LISTEN /I")
				r.net.Close()
			})
		}
		all.Wait()
	}
	b.ReportMetric(float64(b.N*clients)/b.Elapsed().Seconds(), "clients/s")
}
