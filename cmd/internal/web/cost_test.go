package web

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/internal/pgtest"
)

// rawStream opens a stream over a bare connection, which costs this process as little as possible, and reads until it has subscribed.
func rawStream(t testing.TB, address, transport, channel string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(generous)); err != nil {
		t.Fatal(err)
	}
	if transport == "sse" {
		fmt.Fprintf(conn, "GET /v1/events?channel=%s HTTP/1.1\r\nHost: x\r\nUser-Agent: cost\r\nAccept: text/event-stream\r\n\r\n", channel)
	} else {
		fmt.Fprintf(conn, "GET /v1/ws HTTP/1.1\r\nHost: x\r\nUser-Agent: cost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
			"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
		request := fmt.Sprintf(`{"type":"subscribe","channels":[%q]}`, channel)
		if _, err := conn.Write(append([]byte{0x81, 0x80 | byte(len(request)), 0, 0, 0, 0}, request...)); err != nil { // masked with zeros
			t.Fatal(err)
		}
	}
	var got []byte
	for some := make([]byte, 512); !strings.Contains(string(got), "subscribed\",\"position"); {
		n, err := conn.Read(some)
		if err != nil {
			t.Fatalf("%v after %q", err, got)
		}
		got = append(got, some[:n]...)
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	return conn
}

func TestIdleStreamsAreCheap(t *testing.T) {
	pgtest.Alone(t, "it measures the memory of the whole process")
	if raceDetector {
		t.Skip("the race detector uses additional memory")
	}
	const n, limit = 2000, 12 << 10
	for _, transport := range []string{"websocket", "sse"} {
		t.Run(transport, func(t *testing.T) {
			r := newRig(t, newMemory(), nil)
			memory := func() uint64 {
				for range 3 { // the first frees memory, the others shrink stacks and empty pools
					runtime.GC()
				}
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				return m.HeapInuse + m.StackInuse
			}
			address := r.server.Listener.Addr().String()
			rawStream(t, address, transport, "warm")
			before, goroutines := memory(), runtime.NumGoroutine()
			var all sync.WaitGroup
			var opened atomic.Int32
			for range 8 {
				all.Go(func() {
					for i := opened.Add(1); i <= n; i = opened.Add(1) {
						rawStream(t, address, transport, fmt.Sprintf("channel.%d", i))
					}
				})
			}
			all.Wait()
			each := (int64(memory()) - int64(before)) / n
			t.Logf("%d bytes and %.2f goroutines for each idle stream, including the client's side", each, float64(runtime.NumGoroutine()-goroutines)/n)
			if each > limit {
				t.Errorf("an idle stream takes %d bytes, more than %d", each, limit)
			}
		})
	}
}

// BenchmarkFanout publishes to many streams on one channel, all in this process, and counts deliveries received.
func BenchmarkFanout(b *testing.B) {
	for _, transport := range []string{"websocket", "sse"} {
		b.Run(transport, func(b *testing.B) {
			const streams = 1000
			r := newRig(b, newMemory(), func(c *Config) { c.Limits.QueueBytes = 64 << 20 })
			address := r.server.Listener.Addr().String()
			payload := strings.Repeat("x", 100)
			marker := []byte(payload[:90])
			var received atomic.Int64
			for range streams {
				conn := rawStream(b, address, transport, "a")
				go func() {
					for in := bufio.NewReaderSize(conn, 64<<10); ; {
						if _, err := in.Peek(1); err != nil {
							return
						}
						chunk, _ := in.Peek(in.Buffered())
						received.Add(int64(countMarkers(chunk, marker)))
						_, _ = in.Discard(len(chunk))
					}
				}()
			}
			const perTick = 10
			ticks := max(b.N/streams/perTick, 1)
			want := int64(ticks) * perTick * streams
			b.ResetTimer()
			for range ticks {
				drafts := make([]hub.Draft, perTick)
				for i := range drafts {
					drafts[i] = hub.Draft{Channel: "a", Payload: []byte(payload)}
				}
				if err := r.source.Publish(b.Context(), drafts); err != nil {
					b.Fatal(err)
				}
			}
			eventually(b, func() error {
				if n := received.Load(); n < want*99/100 { // a marker split between two reads is not counted
					return fmt.Errorf("received %d of %d", n, want)
				}
				return nil
			})
			b.ReportMetric(float64(want)/b.Elapsed().Seconds(), "deliveries/s")
		})
	}
}

func countMarkers(b, marker []byte) int { return strings.Count(string(b), string(marker)) }

// BenchmarkPublish publishes over HTTP from many clients at once.
func BenchmarkPublish(b *testing.B) {
	r := newRig(b, newMemory(), nil)
	r.server.Client().Transport.(*http.Transport).MaxIdleConnsPerHost = 100
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			response, err := r.server.Client().Post(r.server.URL+"/v1/publish?channel=a", "text/plain", strings.NewReader("x"))
			if err != nil {
				b.Error(err)
				return
			}
			_, _ = io.Copy(io.Discard, response.Body)
			response.Body.Close()
		}
	})
}
