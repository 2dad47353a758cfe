package hub

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/weir-pg/weir/cmd/internal/load"
)

// BareSpec specifies what a bare loop writes.
type BareSpec struct {
	Count    int // connections
	Payload  int // bytes of each message
	Messages int // messages per write
}

// bare writes the same notifications to all connections, as fast as they are received, without a hub: this is the maximum of the machine.
type bare struct {
	listener net.Listener
	writing  sync.WaitGroup
	mu       sync.Mutex
	conns    []net.Conn
}

// Bare starts a bare loop and returns its address. It writes from when all are connected until the process ends.
func (e exported) Bare(spec BareSpec, at *string) (err error) {
	if e.c.bare != nil {
		return errors.New("a bare loop is already running")
	}
	var said []byte
	for i := range spec.Messages {
		n := pgproto3.NotificationResponse{PID: 1, Channel: fanoutChannel, Payload: fmt.Sprintf("%07d%s", i, strings.Repeat(".", max(spec.Payload-8, 1)))}
		if said, err = n.Encode(said); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
	}
	b := &bare{}
	if b.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	e.c.bare, *at = b, b.listener.Addr().String()
	b.writing.Go(func() { b.run(spec.Count, said) }) // until close
	return nil
}

func (b *bare) run(count int, said []byte) {
	for range count {
		conn, err := b.listener.Accept()
		if err != nil {
			return
		}
		b.mu.Lock()
		b.conns = append(b.conns, conn)
		b.mu.Unlock()
	}
	writers := runtime.GOMAXPROCS(0)
	for i := range writers {
		mine := b.conns[i*count/writers : (i+1)*count/writers]
		b.writing.Go(func() {
			for len(mine) > 0 {
				for _, conn := range mine {
					if _, err := conn.Write(said); err != nil {
						return // closed
					}
				}
			}
		})
	}
}

func (b *bare) close() {
	_ = b.listener.Close()
	b.mu.Lock()
	for _, conn := range b.conns {
		_ = conn.Close()
	}
	b.mu.Unlock()
	b.writing.Wait()
}

// limit measures how many deliveries a bare loop makes: the same bytes, to as many sockets, read by the same crowd, without a hub.
func (f *fanout) limit(ctx context.Context) (*load.Way, error) {
	p, err := spawn(ctx, f.Database, f.config.Spawn)
	if err != nil {
		return nil, err
	}
	defer p.close()
	var at string
	if err := p.client.Call("Child.Bare", BareSpec{Count: f.config.Subscribers, Payload: f.config.Payload, Messages: f.shape.together()}, &at); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	var received atomic.Int64
	crowd := &crowd{frames: pgFrame, heard: func(int64) { received.Add(1) }, failed: make(chan error, 1)}
	if err := crowd.poller.open(crowd); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	defer crowd.leave()
	var dialer net.Dialer
	for range f.config.Subscribers {
		conn, err := dialer.DialContext(ctx, "tcp", at)
		if err == nil {
			err = crowd.poller.add(subscriber{conn: conn})
		}
		if err != nil {
			return nil, fmt.Errorf("bench: %w", err)
		}
	}
	sampling, cancel := context.WithTimeout(ctx, f.config.Duration)
	defer cancel()
	began := time.Now()
	rates := load.SampleRate(sampling, time.Second, &received)
	way := &load.Way{Way: f.shape.name + ": a bare loop", Clients: f.config.Subscribers, Unit: "deliveries", Done: received.Load(), PerSecond: load.SpreadOf(rates)}
	if way.PerSecond == nil {
		way.PerSecond = load.SpreadOf([]float64{float64(way.Done) / time.Since(began).Seconds()})
	}
	f.Say("fanout, %s: %.0f deliveries/s at most, by a bare loop", f.shape.name, way.PerSecond.Median)
	return way, nil
}

// together returns the minimum number of messages that a subscriber gets with one write.
func (s fanoutShape) together() int {
	if s.own {
		return 1
	}
	return s.batch
}
