package relay_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weir-pg/weir/cmd/internal/natstest"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirrelay"
	"github.com/weir-pg/weir/weirrelay/natsrelay"
)

const patience = time.Minute

// jetStream starts a NATS server with JetStream.
func jetStream(t testing.TB) *server.Server {
	t.Helper()
	return natstest.Start(t, &server.Options{JetStream: true, StoreDir: t.TempDir()})
}

func dial(t testing.TB, url string) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	nc, err := nats.Connect(url, nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return nc, js
}

// run runs a relay until stop is called, or the test ends.
func run(t *testing.T, c weirrelay.Config) (stop func()) {
	t.Helper()
	return relaying(t, func(ctx context.Context) error { return weirrelay.Run(ctx, c) })
}

// relaying runs a relay of any sort until stop is called, or the test ends.
func relaying(t testing.TB, relay func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- relay(ctx) }() // ends with ctx
	stop = sync.OnceFunc(func() {
		cancel()
		if err := pgtest.Receive(t, done, "the relay ends"); err != nil {
			t.Errorf("the relay ended: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// stored returns the payloads in a stream, in order, once there are n.
func stored(t *testing.T, js jetstream.JetStream, stream string, n int) (all []string) {
	t.Helper()
	ctx := t.Context()
	s, err := js.Stream(ctx, stream)
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Until(t, fmt.Sprintf("%d messages are in the stream", n), func() bool {
		info, err := s.Info(ctx)
		return err == nil && info.State.Msgs >= uint64(n)
	})
	c, err := s.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	info, err := s.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := c.Messages()
	if err != nil {
		t.Fatal(err)
	}
	defer messages.Stop()
	for range info.State.Msgs {
		m, err := messages.Next()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(m.Data()))
	}
	return all
}

// TestJetStreamGetsEveryMessageOnceInOrder: though the relay is stopped and started again and again.
func TestJetStreamGetsEveryMessageOnceInOrder(t *testing.T) {
	t.Parallel()
	for _, atomic := range []bool{true, false} {
		t.Run(fmt.Sprintf("atomic %t", atomic), func(t *testing.T) {
			t.Parallel()
			getsEveryMessageOnce(t, atomic)
		})
	}
}

func getsEveryMessageOnce(t *testing.T, atomic bool) {
	pool := pgtest.Pool(t, pgtest.Database(t))
	nc, js := dial(t, jetStream(t).ClientURL())
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"shop.>"}, Duplicates: time.Second, AllowAtomicPublish: atomic}); err != nil {
		t.Fatal(err)
	}
	var want []string
	publish := func(n int) {
		t.Helper()
		for range n {
			want = append(want, fmt.Sprintf(`{"n": %d}`, len(want)))
		}
		if _, err := pool.Exec(t.Context(), `SELECT weir.publish_many(array_fill('orders.made'::text, ARRAY[$1::integer]), $2)`, n, want[len(want)-n:]); err != nil {
			t.Fatal(err)
		}
		if _, err := pool.Exec(t.Context(), `SELECT weir.publish('others', 'x')`); err != nil {
			t.Fatal(err)
		}
	}
	target, err := natsrelay.New(natsrelay.Config{Conn: nc, Name: "orders", Stream: "ORDERS"})
	if err != nil {
		t.Fatal(err)
	}
	c := weirrelay.Config{Name: "orders", Pool: pool, Target: target, Since: time.Now().Add(-time.Hour),
		Routes: []weirrelay.Route{{Channels: "orders.>", Subject: "shop.{channel}", Headers: map[string]string{"N": "{payload.n}"}}}}
	for range 5 {
		publish(1000)
		stop := run(t, c)
		stored(t, js, "ORDERS", len(want)-500)
		stop()
	}
	run(t, c)
	if got := stored(t, js, "ORDERS", len(want)); !slices.Equal(got, want) {
		t.Errorf("got %d messages, want %d, in their order: %.200s …", len(got), len(want), strings.Join(got, " "))
	}
}
