package hub

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-pg/weir/internal/pulse"
	"github.com/weir-pg/weir/internal/sleep"
)

// Config says how a hub works. Source alone is required.
type Config struct {
	Source Source
	Logger *slog.Logger // nil: slog.Default()

	// RingBytes is how much of the newest history is kept in memory, so that who resumes soon costs the database nothing. 0: 32 MiB.
	RingBytes int
}

// Hub gives messages to subscribers. Make it with New, and Run it.
type Hub struct {
	source Source
	log    *slog.Logger
	stats  stats
	reads  chan struct{} // slots for replays that read the database
	drafts chan draft    // to the goroutine that logs what is published here
	crew   crew          // flushes subscribers
	live   atomic.Bool   // newest is known, and Run keeps it up

	ticking    pulse.Pulse // Run's
	publishing pulse.Pulse // of the goroutine that logs

	flows sync.WaitGroup // goroutines at work for subscribers; each is counted with the Subscriber.mu held, while that has not ended

	dispatching sync.Mutex // held while a part or a message is dispatched
	serial      uint64     // of the run of messages being dispatched

	mu      sync.RWMutex
	index   index
	ring    ring
	newest  Position // everything before it has been dispatched
	gaps    int      // how often newest was moved without that
	members map[*Subscriber]struct{}
	closed  bool
	ready   chan struct{} // closed when newest is first known
	done    chan struct{} // closed when the hub closes
}

type stats struct {
	messages, delivered, skipped, slow, relayed, published atomic.Int64
	lastTick                                               atomic.Int64 // when the newest tick was dispatched, in ns since 1970
}

// Stats are counters since the hub was made, and its state now.
type Stats struct {
	Subscribers int
	Channels    int // with at least one subscriber; patterns are not counted
	Messages    int64
	Delivered   int64 // events handed to sinks
	Skipped     int64 // times that a slow subscriber was skipped ahead
	Slow        int64 // subscribers cut off
	Relayed     int64 // messages from other hubs, not logged
	Published   int64 // messages logged for clients of this hub
	RingBytes   int
	Position    Position
	Live        bool
}

const (
	replayReads   = 4                     // replays that read the database at once
	preloadTicks  = 1000                  // of history that a new hub reads into its ring,
	preloadAtMost = 2 * time.Second       // while its subscribers wait; what is large is left to who resumes
	retryAfter    = 50 * time.Millisecond // after a failure, at first
	retryAtMost   = 2 * time.Second       // and later
	publishAtMost = 500                   // drafts logged in one transaction
	publishBytes  = 4 << 20               // and their bytes
	defaultRing   = 32 << 20

	// A step of a loop takes no longer: its call of the database ends before.
	tickStuck    = readTimeout + callTimeout
	publishStuck = 3 * callTimeout
)

// New returns a hub that Run brings to life.
func New(c Config) *Hub {
	h := &Hub{
		source: c.Source, log: c.Logger, reads: make(chan struct{}, replayReads), drafts: make(chan draft, publishAtMost),
		index: index{channels: map[Channel]*members{}}, members: map[*Subscriber]struct{}{},
		ready: make(chan struct{}), done: make(chan struct{}),
	}
	h.ring.limit = c.RingBytes
	if h.ring.limit == 0 {
		h.ring.limit = defaultRing
	}
	if h.log == nil {
		h.log = slog.Default()
	}
	return h
}

// Run reads ticks and dispatches them until ctx ends. Then it ends all subscribers with ErrClosed, and returns when no sink is at work.
func (h *Hub) Run(ctx context.Context) {
	var others sync.WaitGroup
	others.Go(func() { h.publishDrafts(ctx) })
	if relay, ok := h.source.(Relay); ok {
		others.Go(func() { relay.Relayed(ctx, func(d Draft) { h.stats.relayed.Add(1); h.pass(d) }) })
	}
	wait := retryAfter
	for ctx.Err() == nil {
		h.ticking.Beat()
		err := h.follow(ctx, func() { wait = retryAfter })
		if ctx.Err() != nil {
			break
		}
		h.live.Store(false)
		h.log.Warn("weir: the hub can't read ticks, trying again", "error", err, "in", wait)
		h.ticking.Beat()
		sleep.For(ctx, sleep.Jitter(wait))
		wait = min(wait*2, retryAtMost)
	}
	h.ticking.Rest()
	others.Wait()
	h.close()
	h.flows.Wait()
}

// follow dispatches tick after tick until reading fails. It goes on where an earlier follow ended.
func (h *Hub) follow(ctx context.Context, works func()) error {
	h.mu.RLock()
	at := h.newest
	h.mu.RUnlock()
	if at.IsZero() {
		newest, err := h.source.Newest(ctx)
		if err != nil {
			return err
		}
		if err := h.preload(ctx, newest); err != nil {
			return err
		}
		at = newest
	}
	for {
		h.ticking.Beat()
		parts, err := h.source.Next(ctx, at)
		var truncated *TruncatedError
		var setBack *SetBackError
		switch {
		case errors.As(err, &truncated):
			h.log.Warn("weir: ticks were truncated before this hub read them: subscribers are told of a gap", "from", at, "to", truncated.From)
			h.gap(Gap{From: at, To: truncated.From, Reason: Truncated})
			at = truncated.From
		case errors.As(err, &setBack):
			h.log.Warn("weir: the log of messages has been set back: subscribers are told of a gap", "from", at, "to", setBack.To)
			h.gap(Gap{From: at, To: setBack.To, Reason: Unknown})
			at = setBack.To
		case err != nil:
			return err
		}
		for _, p := range parts {
			h.dispatch(p)
			at = p.After()
		}
		if len(parts) == 0 && int(h.ring.encoded.Load()) > h.ring.limit/2 {
			h.mu.Lock()
			h.ring.trim()
			h.mu.Unlock()
		}
		works()
		h.live.Store(true)
	}
}

// preload fills the ring with the newest history, for the clients of a hub that has just ended.
func (h *Hub) preload(ctx context.Context, newest Position) error {
	at := Position{Epoch: anyEpoch, Tick: max(newest.Tick-preloadTicks, 1)}
	for end := time.Now().Add(preloadAtMost); at.Before(newest) && time.Now().Before(end); {
		h.ticking.Beat()
		parts, err := h.source.Read(ctx, at)
		var truncated *TruncatedError
		if errors.As(err, &truncated) {
			at = truncated.From
			continue
		}
		if err != nil {
			return err
		}
		if len(parts) == 0 {
			break
		}
		h.mu.Lock()
		for _, p := range parts {
			if p.After().Before(newest) || p.After() == newest {
				h.ring.add(p, h.ring.open(p))
			}
			at = p.After()
		}
		h.mu.Unlock()
	}
	h.mu.Lock()
	if !h.ring.reaches(newest) {
		h.ring.clear() // a standby lags, or time was up
	}
	h.newest = newest
	h.mu.Unlock()
	close(h.ready)
	return nil
}

// untilReady waits until the hub knows where the log ends: what is published from then on is dispatched.
func (h *Hub) untilReady(ctx context.Context) error {
	select {
	case <-h.ready:
		return nil
	case <-h.done:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// dispatch queues a part's messages with their subscribers, then starts those that were idle: so that what a tick brings a
// subscriber goes out together.
func (h *Hub) dispatch(p *Part) {
	h.dispatching.Lock()
	var started, slow []*Subscriber
	h.mu.Lock() // for all of it: a replay that joins between the giving and the new position would miss the part
	account := h.ring.open(p)
	for run := range runs(p.Messages) {
		started, slow = h.give(run, started, slow)
	}
	h.ring.add(p, account)
	h.newest = p.After()
	h.mu.Unlock()
	h.dispatching.Unlock()
	h.stats.messages.Add(int64(len(p.Messages)))
	h.stats.lastTick.Store(time.Now().UnixNano())
	h.start(started, slow)
}

// pass gives subscribers a message that is not in the log.
func (h *Hub) pass(d Draft) {
	h.dispatching.Lock()
	h.mu.RLock()
	started, slow := h.give([]*Message{{Channel: d.Channel, Payload: d.Payload, Binary: d.Binary}}, nil, nil)
	h.mu.RUnlock()
	h.dispatching.Unlock()
	h.stats.messages.Add(1)
	h.start(started, slow)
}

// runs divides messages into stretches on one channel, whose subscribers are gone through once.
func runs(messages []*Message) iter.Seq[[]*Message] {
	return func(yield func([]*Message) bool) {
		for len(messages) > 0 {
			n := 1
			for n < len(messages) && messages[n].Channel == messages[0].Channel {
				n++
			}
			if !yield(messages[:n]) {
				return
			}
			messages = messages[n:]
		}
	}
}

// give queues messages on one channel with its subscribers. The caller holds dispatching, and mu at least for reading.
func (h *Hub) give(run []*Message, started, slow []*Subscriber) ([]*Subscriber, []*Subscriber) {
	h.serial++
	h.index.each(run[0].Channel, func(members *members) {
		for _, s := range members.list {
			if s.marked == h.serial {
				continue
			}
			s.marked = h.serial
			start, full := s.push(run)
			if start {
				started = append(started, s)
			}
			if full {
				slow = append(slow, s)
			}
		}
	})
	return started, slow
}

func (h *Hub) start(started, slow []*Subscriber) {
	h.crew.flush(started)
	for _, s := range slow {
		h.stats.slow.Add(1)
		go func() { defer h.flows.Done(); s.end(ErrSlow) }() // Close may take its time
	}
}

// gap tells everybody of a gap.
func (h *Hub) gap(g Gap) {
	h.dispatching.Lock()
	h.mu.Lock()
	h.newest = g.To
	h.gaps++
	h.ring.clear()
	var started []*Subscriber
	for s := range h.members {
		if s.pushGap(g) {
			started = append(started, s)
		}
	}
	h.mu.Unlock()
	h.dispatching.Unlock()
	h.start(started, nil)
}

// Join makes a subscriber, without filters yet. After the hub has closed it returns ErrClosed.
func (h *Hub) Join(sink Sink, o Options) (*Subscriber, error) {
	s := &Subscriber{hub: h, sink: sink, limit: o.MaxBytes, policy: o.Slow}
	if s.limit == 0 {
		s.limit = defaultMaxBytes
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, ErrClosed
	}
	h.members[s] = struct{}{}
	return s, nil
}

func (h *Hub) drop(s *Subscriber) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for m := range s.places {
		h.index.leave(s, m)
		h.unwant(m.filter)
	}
	delete(h.members, s)
}

func (h *Hub) close() {
	h.mu.Lock()
	h.closed = true
	h.live.Store(false)
	close(h.done)
	all := make([]*Subscriber, 0, len(h.members))
	for s := range h.members {
		all = append(all, s)
	}
	h.mu.Unlock()
	var ends sync.WaitGroup
	for _, s := range all {
		ends.Go(func() { s.end(ErrClosed) })
	}
	ends.Wait()
}

// want tells a source that brings only what is wanted; unwant takes filters of it back.
func (h *Hub) want(ctx context.Context, filters []Filter) error {
	if source, ok := h.source.(Interested); ok {
		return source.Want(ctx, filters)
	}
	return nil
}

func (h *Hub) unwant(filters ...Filter) {
	if source, ok := h.source.(Interested); ok {
		source.Unwant(filters)
	}
}

// Position is where the hub stands: everything before it has been dispatched.
func (h *Hub) Position() Position {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.newest
}

// Live tells whether the hub reads ticks: false before the first look and while the database can't be reached.
func (h *Hub) Live() bool { return h.live.Load() }

// Stuck says which part of the hub stands still; nil while all move on. Like Live it takes no lock, so that whoever asks is answered.
func (h *Hub) Stuck() error {
	return errors.Join(h.ticking.Stuck("the reading of ticks", tickStuck), h.publishing.Stuck("the logging of what is published", publishStuck))
}

// Stats returns counters and state.
func (h *Hub) Stats() Stats {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return Stats{
		Subscribers: len(h.members), Channels: len(h.index.channels), RingBytes: h.ring.size(), Position: h.newest, Live: h.live.Load(),
		Messages: h.stats.messages.Load(), Delivered: h.stats.delivered.Load(), Skipped: h.stats.skipped.Load(), Slow: h.stats.slow.Load(),
		Relayed: h.stats.relayed.Load(), Published: h.stats.published.Load(),
	}
}
