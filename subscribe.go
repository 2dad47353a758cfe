package weir

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"sync"

	"github.com/weir-pg/weir/internal/hub"
)

// SubscribeConfig specifies what to subscribe to, and where. Channels are required, and either Hubs or Client.
type SubscribeConfig struct {
	// Channels are names of channels, or patterns: words separated by dots, in which * stands for any one word, and > at the end for one or
	// more words, such as orders.* and orders.>.
	Channels []string

	// Hubs are the HTTP addresses of hubs, such as http://127.0.0.1:8080. The subscription uses one of them at a time; if that hub is lost
	// or unreachable, it continues at the next.
	Hubs []string
	// Token, if set, returns the token for each connection to a hub.
	Token func(ctx context.Context) (string, error)
	// HTTP is the client for requests to hubs; nil means a client without a timeout.
	HTTP *http.Client

	// Client reads the database directly, without a hub. Each such subscription costs the database as much as a hub, so use it in a few
	// processes only.
	Client *Client

	// After is the position to continue from: that of a message or a gap, or Subscription.Position. "" means messages published from now
	// on. A hub may deliver what was committed in the milliseconds before as well; and so may a Client whose role may only subscribe what was
	// committed while no hub ran.
	After Position

	// Last is with how many of the last messages of each channel and pattern to begin, as far as the database still keeps them: see
	// Subscription.History. 0 means none; the most is 1,000. It can't be combined with After, which continues a subscription.
	Last int

	// Presence adds events that report who joins and leaves the channels, as far as a channels file gives them presence. It needs Hubs: who is on
	// a channel is known to hubs alone, and a Client that reads the database can't be told.
	Presence bool

	// Logger is the log's destination; default slog.Default().
	Logger *slog.Logger
}

// Position is a position in the log of messages, just after some message. It is opaque. You may store it, and continue a subscription from
// it at any hub, as long as the database keeps the messages that follow it (setting message_retention, one hour by default).
type Position string

// Message is a message published to a channel.
type Message struct {
	Channel  string
	Payload  []byte
	Binary   bool     // the payload was published as bytes, not text
	Position Position // "": the message is not in the log, because a hub relayed it without logging
}

// Gap reports that messages may be missing.
type Gap struct {
	From, To Position // messages after From, up to To, may be missing
	Reason   string   // truncated: the database no longer has them; unknown: From is not in this log, which was restored or replaced
}

// Event is either a message, a gap, or, with SubscribeConfig.Presence, a change of who is on a channel; the other fields are nil.
type Event struct {
	Message  *Message
	Gap      *Gap
	Presence *PresenceChange
}

// History is what was published last on a subscription's channels before it began.
type History struct {
	Messages []Message // in the order of the log, each once
	Complete bool      // there are as many as SubscribeConfig.Last asked for, of each channel and pattern, or the log has no older ones
}

// Subscription receives events until it is closed. Its methods may be called from several goroutines; each event goes to one caller of
// Next.
type Subscription struct {
	events chan placed
	cancel context.CancelFunc
	done   chan struct{} // closed when the goroutine that feeds events has ended

	history History      // set before the subscription is returned
	members *hubFollower // who is on a channel is asked there; nil: nowhere

	given  Position // position after the last event passed to Next; used only by the goroutine that feeds events
	serial uint64   // number of that event

	mu  sync.Mutex
	at  place
	err error
}

// place is the position of the subscription after the event with that serial number.
type place struct {
	position Position
	serial   uint64
}

type placed struct {
	Event
	place
}

// ErrClosed means that the subscription was closed.
var ErrClosed = errors.New("weir: the subscription is closed")

// Subscribe subscribes, and returns once it has: you receive everything published from then on. After a lost connection it reconnects, with
// jitter, and continues where it was: no message is missing and none is delivered twice, or a Gap reports it. ctx limits the call, not the
// subscription, which you must close. Subscribe returns an error if the configuration is wrong, or if the hub or the database refuses the
// subscriber. It waits for a hub or a database that is unreachable, until ctx ends.
//
//	sub, err := weir.Subscribe(ctx, weir.SubscribeConfig{Hubs: []string{"http://127.0.0.1:8080"}, Channels: []string{"orders.*"}})
//	...
//	defer sub.Close()
//	for event, err := range sub.All(ctx) {
func Subscribe(ctx context.Context, c SubscribeConfig) (*Subscription, error) {
	filters := make([]hub.Filter, len(c.Channels))
	for i, name := range c.Channels {
		var err error
		if filters[i], err = hub.ParseFilter(name); err != nil {
			return nil, fmt.Errorf("weir: subscribe: %w", err)
		}
	}
	if len(filters) == 0 {
		return nil, errors.New("weir: subscribe: SubscribeConfig.Channels is empty: name at least one channel or pattern")
	}
	if c.After != "" && c.Client != nil { // a hub checks it itself
		if _, err := hub.ParsePosition(string(c.After)); err != nil {
			return nil, fmt.Errorf("weir: subscribe: SubscribeConfig.After: %w", err)
		}
	}
	switch {
	case c.Last < 0 || c.Last > maxLast:
		return nil, fmt.Errorf("weir: subscribe: SubscribeConfig.Last is %d: it must be from 0 to %d", c.Last, maxLast)
	case c.Last > 0 && c.After != "":
		return nil, errors.New("weir: subscribe: SubscribeConfig has both After and Last: After continues a subscription, and Last begins one, so set only one of them")
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	var follow follower
	var members *hubFollower
	switch {
	case len(c.Hubs) > 0 && c.Client != nil:
		return nil, errors.New("weir: subscribe: SubscribeConfig has both Hubs and Client: set only one of them")
	case len(c.Hubs) > 0:
		f, err := newHubFollower(c)
		if err != nil {
			return nil, fmt.Errorf("weir: subscribe: %w", err)
		}
		follow, members = f, f
	case c.Client != nil && c.Presence:
		return nil, errors.New("weir: subscribe: SubscribeConfig.Presence needs Hubs: only hubs know who is on a channel")
	case c.Client != nil:
		follow = &databaseFollower{SubscribeConfig: c, filters: filters}
	default:
		return nil, errors.New("weir: subscribe: SubscribeConfig has neither Hubs nor Client: set one of them")
	}

	// The subscription outlives ctx.
	lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &Subscription{events: make(chan placed), cancel: cancel, done: make(chan struct{}), members: members, given: c.After, at: place{position: c.After}}
	ready := make(chan struct{})
	go func() { // ends with lasting
		defer close(s.done)
		s.end(follow.run(lasting, s, sync.OnceFunc(func() { close(ready) })))
	}()
	select {
	case <-ready:
		return s, nil
	case <-s.done:
		return nil, fmt.Errorf("weir: subscribe: %w", s.failure())
	case <-ctx.Done():
		s.Close()
		return nil, fmt.Errorf("weir: subscribe: %w", ctx.Err())
	}
}

// maxLast is the largest SubscribeConfig.Last: as many as a hub returns.
const maxLast = 1000

// follower feeds a subscription until ctx ends, or until an error that waiting cannot fix. It calls ready when it has subscribed.
type follower interface {
	run(ctx context.Context, s *Subscription, ready func()) error
}

// Next returns the next event. It waits until there is one, ctx ends, or the subscription is closed or refused by the hub.
func (s *Subscription) Next(ctx context.Context) (Event, error) {
	select {
	case e := <-s.events:
		s.reached(e.place)
		return e.Event, nil
	case <-s.done:
		return Event{}, s.failure()
	case <-ctx.Done():
		return Event{}, ctx.Err()
	}
}

// All iterates over the events. When Next fails, its error is the last pair.
func (s *Subscription) All(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for {
			e, err := s.Next(ctx)
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// History returns the last messages that SubscribeConfig.Last asked for. They were published before the subscription began, and Next returns
// everything later: nothing is missing between the two, and nothing is returned twice.
func (s *Subscription) History() History { return s.history }

// Position returns the current position of the subscription: Next has returned all events up to it. It advances even without events, so
// store the latest position to continue from.
func (s *Subscription) Position() Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at.position
}

// Close ends the subscription, and waits for its goroutines.
func (s *Subscription) Close() {
	s.cancel()
	<-s.done
}

// give passes an event to Next.
func (s *Subscription) give(ctx context.Context, e Event) error {
	at := s.given
	switch {
	case e.Gap != nil:
		at = e.Gap.To
	case e.Message != nil && e.Message.Position != "":
		at = e.Message.Position
	}
	select {
	case s.events <- placed{e, place{at, s.serial + 1}}:
	case <-ctx.Done():
		return ctx.Err()
	}
	s.serial++
	s.given = at
	return nil
}

// move records that there are no events for the subscription up to a position.
func (s *Subscription) move(at Position) {
	s.serial++
	s.given = at
	s.reached(place{at, s.serial})
}

// reached updates the position of the subscription. Calls of Next may arrive here out of order, and after move, so only a later place
// counts.
func (s *Subscription) reached(p place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.serial > s.at.serial {
		s.at = p
	}
}

func (s *Subscription) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *Subscription) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil || errors.Is(s.err, context.Canceled) {
		return ErrClosed
	}
	return s.err
}
