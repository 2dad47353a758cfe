package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/weir-pg/weir/internal/hub"
)

// Cluster is a hub's source that shares with other hubs what one of them reads. Start makes it.
type Cluster struct {
	source   hub.Source
	log      *slog.Logger
	name     string
	id       ident
	subjects subjects
	counters counters

	server        *server.Server // embedded, or nil
	conn          *nats.Conn
	subscriptions subscriptions
	frames        chan *nats.Msg // from all subscriptions, to the receiver
	outbox        chan *hub.Part
	beats         chan struct{} // tells the announcer to beat at once
	news          chan struct{} // tells Next that there is something to see
	relayed       chan hub.Draft

	closing chan struct{}
	closed  sync.Once
	running sync.WaitGroup

	mu        sync.Mutex
	connected bool
	role      Role
	candidate time.Time // while serving: when it offers itself as reader
	heard     time.Time // while following: when the reader was last heard
	reader    ident
	announced hub.Position // up to here the reader has read, by what was last heard
	peers     map[ident]peer
	at        hub.Position // where the hub stands: Next was last asked for what is behind it
	polling   time.Time    // when the database last showed signs of life: Next called, or returned
	inbox     inbox
	interest  interest
	flight    *flight         // parts that Next has returned and the hub may not have dispatched yet; nil: none that lack a bucket
	warned    rarely          // that a reader's history is not this hub's
	hubDone   <-chan struct{} // of the context that Next was last called with
}

// peer is another hub.
type peer struct {
	name string
	seen time.Time
}

const (
	beatEvery    = 100 * time.Millisecond // of a reader
	presentEvery = time.Second            // and of others
	silence      = 400 * time.Millisecond // for so long a follower hears no reader, and serves itself
	candidacy    = 200 * time.Millisecond // a server offers itself as reader after a random part of it
	stuckAfter   = time.Second            // a reader whose database has not answered for so long is none any more
	gone         = 3500 * time.Millisecond
	frameQueue   = 1024
	outboxQueue  = 256
	relayQueue   = 4096
)

// Start connects to NATS and returns a source for hub.New. It fails for what waiting won't mend, such as files that can't be read or a port
// that is taken; a NATS server that can't be reached is tried again and again, and the hub reads for itself meanwhile. ctx bounds the
// start alone.
func Start(ctx context.Context, config Config) (*Cluster, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	c := &Cluster{
		source: config.Source, log: config.Logger, name: config.Name, subjects: subjectsOf(config.Database),
		frames: make(chan *nats.Msg, frameQueue), outbox: make(chan *hub.Part, outboxQueue), beats: make(chan struct{}, 1),
		news: make(chan struct{}, 1), relayed: make(chan hub.Draft, relayQueue), closing: make(chan struct{}),
		peers: map[ident]peer{}, inbox: newInbox(), candidate: time.Now().Add(silence + candidacy),
	}
	_, _ = rand.Read(c.id[:]) // never fails
	if err := c.connect(ctx, &config); err != nil {
		return nil, err
	}
	c.running.Go(c.receive)
	c.running.Go(c.announce)
	c.running.Go(c.keep)
	return c, nil
}

// Close tells the other hubs, leaves NATS and stops the embedded server. Call it when the hub's Run has returned.
func (c *Cluster) Close() {
	c.closed.Do(func() {
		close(c.closing)
		c.running.Wait()
		c.disconnect()
	})
}

// Newest implements hub.Source.
func (c *Cluster) Newest(ctx context.Context) (hub.Position, error) { return c.source.Newest(ctx) }

// Read implements hub.Source: history is read from the database.
func (c *Cluster) Read(ctx context.Context, after hub.Position) ([]*hub.Part, error) {
	return c.source.Read(ctx, after)
}

// Publish implements hub.Source.
func (c *Cluster) Publish(ctx context.Context, drafts []hub.Draft) error {
	return c.source.Publish(ctx, drafts)
}

// Relay implements hub.Relay.
func (c *Cluster) Relay(ctx context.Context, d hub.Draft) error {
	c.mu.Lock()
	send := c.connected && len(c.peers) > 0
	c.mu.Unlock()
	if !send {
		return nil // nobody to hear it
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	frame := appendDraft(newFrame(kindRelay, c.id, len(d.Channel)+len(d.Payload)+16), d)
	if err := c.send(c.subjects.bucket[bucketOf(d.Channel)], frame); err != nil {
		if errors.Is(err, nats.ErrMaxPayload) {
			return fmt.Errorf("pass a message of %d bytes on to other hubs: NATS takes at most %d: publish it, or raise max_payload there",
				len(d.Payload), c.conn.MaxPayload())
		}
		return fmt.Errorf("pass a message on to other hubs: %w", err)
	}
	c.counters.relaySent.Add(1)
	return nil
}

// Relayed implements hub.Relay.
func (c *Cluster) Relayed(ctx context.Context, f func(hub.Draft)) {
	for {
		select {
		case d := <-c.relayed:
			f(d)
		case <-ctx.Done():
			return
		}
	}
}

// tell tells Next that there is something to see.
func (c *Cluster) tell() {
	select {
	case c.news <- struct{}{}:
	default:
	}
}
