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

// Config configures a hub. Only Source is required.
type Config struct {
	Source Source
	Logger *slog.Logger // nil: slog.Default()

	// RingBytes limits the newest history kept in memory, from which subscribers resume without a query. 0: 32 MiB.
	RingBytes int

	// MaxSubscribers returns how many subscribers a channel or a pattern may have at this hub; 0: any number. It may be called concurrently. nil: any number.
	MaxSubscribers func(Filter) int
}

// Hub delivers messages to subscribers. Create it with New, then call Run.
type Hub struct {
	source    Source
	log       *slog.Logger
	stats     stats
	reads     chan struct{}    // slots for replays that read the database
	looks     [2]looks         // look backs for history: in the ring, and in the log
	lookBytes int              // bound of a look back in the log
	lookFor   time.Duration    // of its time
	lookBacks int              // how often it is repeated
	most      func(Filter) int // Config.MaxSubscribers
	drafts    chan draft       // to the goroutine that logs messages published here
	flushers  flushers         // deliver what subscribers have queued
	live      atomic.Bool      // newest is known, and Run keeps it current

	ticking    pulse.Pulse // of Run
	publishing pulse.Pulse // of the goroutine that logs messages

	flows sync.WaitGroup // goroutines that work for a subscriber; each is added while Subscriber.mu is held and the subscriber has not ended

	dispatching sync.Mutex // held while a part or a message is dispatched
	serial      uint64     // of the run of messages being dispatched

	mu       sync.RWMutex
	index    index
	ring     ring
	newest   Position // everything before it has been dispatched
	gaps     int      // how often newest has moved past messages that were not dispatched
	members  map[*Subscriber]struct{}
	internal int // of these that belong to the hub
	closed   bool
	ready    chan struct{} // closed once newest is known
	done     chan struct{} // closed when the hub closes
}

type stats struct {
	messages, delivered, skipped, slow, relayed, published atomic.Int64
	lastTick                                               atomic.Int64 // when the newest tick was dispatched, in ns since 1970
}

// Stats holds counters since the hub was created, and its current state.
type Stats struct {
	Subscribers int
	Channels    int // with at least one subscriber; patterns are not counted
	Messages    int64
	Delivered   int64 // events passed to sinks
	Skipped     int64 // times a slow subscriber was skipped ahead
	Slow        int64 // subscribers ended for being slow
	Relayed     int64 // messages from other hubs, not logged
	Published   int64 // messages logged for clients of this hub
	RingBytes   int
	Position    Position
	Live        bool
}

const (
	replayReads   = 4                     // replays that read the database at once
	preloadTicks  = 1000                  // of history that a new hub reads into its ring
	preloadAtMost = 2 * time.Second       // for that, because subscribers wait in the meantime
	retryAfter    = 50 * time.Millisecond // first pause after a failure
	retryAtMost   = 2 * time.Second       // longest pause
	publishAtMost = 500                   // drafts logged in one transaction
	publishBytes  = 4 << 20               // of drafts logged in one transaction
	defaultRing   = 32 << 20
	lastAnswer    = 500 * time.Millisecond // for the last drafts to be logged, before subscribers are told that the hub closes

	// No step of these loops takes longer: its database call times out first.
	tickStuck    = readTimeout + callTimeout
	publishStuck = 3 * callTimeout
)

// New returns a hub. It does nothing until Run is called.
func New(c Config) *Hub {
	h := &Hub{
		source: c.Source, log: c.Logger, reads: make(chan struct{}, replayReads), drafts: make(chan draft, publishAtMost),
		index: index{channels: map[Channel]*members{}}, members: map[*Subscriber]struct{}{},
		looks: [2]looks{newLooks(), newLooks()}, lookBytes: lookBytes, lookFor: lookFor, lookBacks: lookBacks, most: c.MaxSubscribers, ready: make(chan struct{}), done: make(chan struct{}),
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

// Run reads ticks and dispatches them until ctx ends. Then it ends all subscribers with ErrClosed, and returns once no sink is in use.
func (h *Hub) Run(ctx context.Context) {
	var others sync.WaitGroup
	others.Go(func() { h.publishDrafts(ctx) })
	if relay, ok := h.source.(Relay); ok {
		others.Go(func() { relay.Relayed(ctx, func(d Draft) { h.stats.relayed.Add(1); h.pass(d) }) })
	}
	wait := retryAfter
	var o unread
	for ctx.Err() == nil {
		h.ticking.Beat()
		err := h.follow(ctx, func() {
			wait = retryAfter
			o.over(h.log)
		})
		if ctx.Err() != nil {
			break
		}
		h.live.Store(false)
		o.failed(h.log, err)
		h.ticking.Beat()
		sleep.For(ctx, sleep.Jitter(wait))
		wait = min(wait*2, retryAtMost)
	}
	h.ticking.Rest()
	done := make(chan struct{})
	go func() { // ends when the others have
		others.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(lastAnswer): // a database that is silent must not keep subscribers from being told
	}
	h.close()
	<-done
	h.flows.Wait()
}

// follow dispatches ticks until reading fails. It continues where an earlier call ended. It calls works after each successful read.
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
			h.log.Warn("weir: ticks were truncated before this hub read them: subscribers receive a gap", "from", at, "to", truncated.From)
			h.gap(Gap{From: at, To: truncated.From, Reason: Truncated})
			at = truncated.From
		case errors.As(err, &setBack):
			h.log.Warn("weir: the log of messages has been set back: subscribers receive a gap", "from", at, "to", setBack.To)
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

// preload fills the ring with the newest history, for clients that come from a hub that has just ended.
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
		h.ring.clear() // a standby lags, or the time was up
	}
	h.newest = newest
	h.mu.Unlock()
	close(h.ready)
	return nil
}

// untilReady waits until the hub knows the end of the log: messages published after that are dispatched.
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

// dispatch queues a part's messages for their subscribers, and only then wakes the idle ones, so that a subscriber's messages of one
// tick are delivered together.
func (h *Hub) dispatch(p *Part) {
	h.dispatching.Lock()
	var started, slow []*Subscriber
	h.mu.Lock() // throughout: a replay that joined between queueing and the new position would miss the part
	account := h.ring.open(p)
	for run := range runs(p.Messages) {
		started, slow = h.queue(run, started, slow)
	}
	h.ring.add(p, account)
	h.newest = p.After()
	h.mu.Unlock()
	h.dispatching.Unlock()
	h.stats.messages.Add(int64(len(p.Messages)))
	h.stats.lastTick.Store(time.Now().UnixNano())
	h.start(started, slow)
}

// pass queues a message that is not in the log for its subscribers.
func (h *Hub) pass(d Draft) {
	h.dispatching.Lock()
	h.mu.RLock()
	started, slow := h.queue([]*Message{{Channel: d.Channel, Payload: d.Payload, Binary: d.Binary}}, nil, nil)
	h.mu.RUnlock()
	h.dispatching.Unlock()
	h.stats.messages.Add(1)
	h.start(started, slow)
}

// runs splits messages into runs on the same channel, so that the channel's subscribers are visited once per run.
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

// queue queues messages on one channel for its subscribers. The caller holds dispatching, and mu at least for reading.
func (h *Hub) queue(run []*Message, started, slow []*Subscriber) ([]*Subscriber, []*Subscriber) {
	h.serial++
	h.index.each(run[0].Channel, func(members *members) {
		if members.recent != nil && !run[0].Position.IsZero() { // then mu is held for writing
			h.index.recents.add(members.recent, run)
		}
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
	h.flushers.flush(started)
	for _, s := range slow {
		h.stats.slow.Add(1)
		go func() { defer h.flows.Done(); s.end(ErrSlow) }() // the sink's Close may be slow
	}
}

// gap sends a gap to all subscribers.
func (h *Hub) gap(g Gap) {
	h.dispatching.Lock()
	h.mu.Lock()
	h.newest = g.To
	h.gaps++
	h.ring.clear()
	h.index.recents.clear()
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

// Join adds a subscriber, which has no filters yet. After the hub has closed it returns ErrClosed.
func (h *Hub) Join(sink Sink, o Options) (*Subscriber, error) {
	s := &Subscriber{hub: h, sink: sink, limit: o.MaxBytes, policy: o.Slow, internal: o.Internal}
	if s.limit == 0 {
		s.limit = defaultMaxBytes
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, ErrClosed
	}
	h.members[s] = struct{}{}
	if s.internal {
		h.internal++
	}
	return s, nil
}

func (h *Hub) drop(s *Subscriber) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for m := range s.places {
		h.index.leave(s, m)
		h.unwant(m.filter)
	}
	if _, here := h.members[s]; here && s.internal {
		h.internal--
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

// want tells an Interested source which filters are needed; unwant takes filters back.
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

// Position returns the hub's position in the log: every message before it has been dispatched.
func (h *Hub) Position() Position {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.newest
}

// Live reports whether the hub reads ticks. It is false before the first read and while the database can't be reached.
func (h *Hub) Live() bool { return h.live.Load() }

// Stuck returns an error that names the loop that makes no progress, or nil. Like Live it takes no lock, so it always answers.
func (h *Hub) Stuck() error {
	return errors.Join(h.ticking.Stuck("reading ticks", tickStuck), h.publishing.Stuck("logging messages", publishStuck))
}

// Stats returns counters and state.
func (h *Hub) Stats() Stats {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return Stats{
		Subscribers: len(h.members) - h.internal, Channels: len(h.index.channels) - h.index.internal, RingBytes: h.ring.size(), Position: h.newest, Live: h.live.Load(),
		Messages: h.stats.messages.Load(), Delivered: h.stats.delivered.Load(), Skipped: h.stats.skipped.Load(), Slow: h.stats.slow.Load(),
		Relayed: h.stats.relayed.Load(), Published: h.stats.published.Load(),
	}
}
