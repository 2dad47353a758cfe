package relay_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirrelay"
)

// BenchmarkFanOutOfJetStream has a relay pass on messages that wait for it, while so many consumers, each with its own connection and place, get them all. It measures the CPU time of the relay,
// the NATS server and the consumers, which are one process: go test ./cmd/internal/relay -run '^$' -bench FanOut -benchtime 20000x.
func BenchmarkFanOutOfJetStream(b *testing.B) {
	for _, consumers := range []int{1, 10, 100} {
		b.Run(fmt.Sprintf("%dConsumers", consumers), func(b *testing.B) { fanOut(b, consumers) })
	}
}

func fanOut(b *testing.B, consumers int) {
	nc, pool := stream(b), pgtest.Pool(b, postgres(b))
	var delivered atomic.Int64
	var all sync.WaitGroup
	for range consumers {
		own, js := dial(b, nc.ConnectedUrl())
		b.Cleanup(own.Close)
		consumer, err := js.OrderedConsumer(b.Context(), "S", jetstream.OrderedConsumerConfig{})
		if err != nil {
			b.Fatal(err)
		}
		all.Add(1)
		left := b.N
		consuming, err := consumer.Consume(func(jetstream.Msg) {
			delivered.Add(1)
			if left--; left == 0 {
				all.Done()
			}
		})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(consuming.Stop)
	}
	for left := b.N; left > 0; left -= 1000 {
		if _, err := pool.Exec(b.Context(), `SELECT weir.publish_many(array_fill('c'::text, ARRAY[$1::integer]), array_fill(repeat('x', 100), ARRAY[$1]), true)`, min(left, 1000)); err != nil {
			b.Fatal(err)
		}
	}
	b.ResetTimer()
	used := cpuTime(b)
	relaying(b, func(ctx context.Context) error {
		return weirrelay.Run(ctx, weirrelay.Config{Name: "bench", Pool: pool, Target: target(b, nc), Since: time.Now().Add(-time.Hour), Routes: []weirrelay.Route{{Channels: "c", Subject: "s.{channel}"}}})
	})
	all.Wait()
	b.StopTimer()
	n := float64(delivered.Load())
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
	b.ReportMetric(n/b.Elapsed().Seconds(), "deliveries/s")
	b.ReportMetric(float64((cpuTime(b)-used).Microseconds())/n, "cpu-µs/delivery")
}

// cpuTime is what this process has used.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
