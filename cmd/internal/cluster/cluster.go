package cluster

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/weir-pg/weir/internal/hub"
)

// Cluster is a hub's source that shares the ticks that one hub reads with the others. Create it with Start.
type Cluster struct {
	source   hub.Source
	log      *slog.Logger
	name     string
	id       ident
	subjects subjects
	counters counters

	now     func() time.Time
	draw    func(time.Duration) time.Duration // a random time that is shorter
	publish func(subject string, frame []byte) error
	largest func() int64 // frame that NATS accepts; 0: it is not known

	server        *server.Server // embedded, or nil
	conn          *nats.Conn
	subscriptions subscriptions
	frames        chan *nats.Msg // from all subscriptions, to the receiver
	outbox        chan *hub.Part
	beats         chan struct{} // tells the announcer to send a heartbeat immediately
	news          chan struct{} // tells Next that the state has changed
	relayed       chan hub.Draft

	closing chan struct{}
	closed  sync.Once
	running sync.WaitGroup

	mu        sync.Mutex
	connected bool
	role      Role
	candidate time.Time     // while serving: some time after this it may become the reader,
	lot       time.Duration // which is as many times this as there are hubs, roughly
	heard     time.Time     // while following: when the reader was last heard
	reader    ident
	announced hub.Position // how far the reader has read, by its newest frame
	peers     map[ident]peer
	greets    bool         // a hub was heard for the first time, and is to learn of this one
	at        hub.Position // the hub's position: the argument of the last call of Next
	polling   time.Time    // when Next was last called, or the database last answered
	inbox     inbox
	interest  interest
	flight    *flight         // parts that Next has returned and the hub may not have dispatched yet; nil: none that lack a bucket
	warned    rarely          // limits warnings that a reader's history is not this hub's
	hubDone   <-chan struct{} // of the context of the last call of Next
}

// peer is another hub.
type peer struct {
	name string
	seen time.Time
}

const (
	beatEvery    = 100 * time.Millisecond  // heartbeats of a reader
	presentEvery = time.Second             // heartbeats of other hubs, and less often if there are many
	silence      = 400 * time.Millisecond  // a follower that hears no reader for this long serves itself
	candidacy    = 200 * time.Millisecond  // a serving hub becomes the reader after a random part of this
	stuckAfter   = time.Second             // a reader whose database has not answered for this long sends no more heartbeats
	gone         = 3500 * time.Millisecond // a hub not heard for this long is forgotten, and later if there are many
	frameQueue   = 1024
	outboxQueue  = 256
	relayQueue   = 4096
)

// Start connects to NATS and returns a source for hub.New. It fails for reasons that retrying can't fix, such as unreadable files or a port
// in use. While the NATS server can't be reached, it retries in the background, and the hub reads for itself. ctx bounds only the start.
func Start(ctx context.Context, config Config) (*Cluster, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	c := &Cluster{
		now: time.Now, draw: rand.N[time.Duration],
		source: config.Source, log: config.Logger, name: config.Name, subjects: subjectsOf(config.Database),
		frames: make(chan *nats.Msg, frameQueue), outbox: make(chan *hub.Part, outboxQueue), beats: make(chan struct{}, 1),
		news: make(chan struct{}, 1), relayed: make(chan hub.Draft, relayQueue), closing: make(chan struct{}),
		peers: map[ident]peer{}, inbox: newInbox(), candidate: time.Now().Add(silence + candidacy),
	}
	_, _ = crand.Read(c.id[:]) // never fails
	if err := c.connect(ctx, &config); err != nil {
		return nil, err
	}
	c.running.Go(c.receive)
	c.running.Go(c.announce)
	c.running.Go(c.keep)
	return c, nil
}

// Close tells the other hubs, disconnects from NATS and stops the embedded server. Call it after the hub's Run has returned.
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
		return nil // no hub would receive it
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	frame := appendDraft(newFrame(kindRelay, c.id, len(d.Channel)+len(d.Payload)+16), d)
	if err := c.send(c.subjects.bucket[bucketOf(d.Channel)], frame); err != nil {
		if errors.Is(err, nats.ErrMaxPayload) {
			return fmt.Errorf("pass a message of %d bytes to other hubs: the limit of NATS is %d: publish it through the log, or raise max_payload in NATS",
				len(d.Payload), c.largest())
		}
		return fmt.Errorf("pass a message to other hubs: %w", err)
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

// tell tells Next that the state has changed.
func (c *Cluster) tell() {
	select {
	case c.news <- struct{}{}:
	default:
	}
}
