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

// SubscribeConfig says what to subscribe to, and where. Channels are required, and either Hubs or Client.
type SubscribeConfig struct {
	// Channels are names of channels, or patterns of words with dots between them, in which * stands for any one word, and > at the end
	// for one or more: orders.*, orders.>.
	Channels []string

	// Hubs are the HTTP addresses of hubs, such as http://127.0.0.1:8080. Any of them will do: when one can't be reached, or is lost,
	// the next is tried, and the subscription goes on where it was.
	Hubs []string
	// Token, where set, is asked for the token that a hub is shown, each time that one is connected to.
	Token func(ctx context.Context) (string, error)
	// HTTP is used for hubs; nil: a client of its own without a timeout.
	HTTP *http.Client

	// Client, where there is no hub, reads the database itself. It costs the database what a hub does: good for a few processes.
	Client *Client

	// After is the position to go on from; "": what is published from now on. Take it from an event, or from Subscription.Position.
	After Position
	// Logger; default slog.Default().
	Logger *slog.Logger
}

// Position is a place in the log of messages: behind a certain message. It is opaque. It may be kept, and a subscription go on from it, at any hub,
// as long as the database keeps the messages behind it (the setting message_retention, one hour by default).
type Position string

// Message is a message of a channel.
type Message struct {
	Channel  string
	Payload  []byte
	Binary   bool     // Payload is not text
	Position Position // "": the message was not logged, only passed on by a hub
}

// Gap says that messages may be missing.
type Gap struct {
	From, To Position // behind From, up to To
	Reason   string   // truncated: the database no longer has them; unknown: From is not of this log, which was set back or is another
}

// Event is a message or a gap: the other is nil.
type Event struct {
	Message *Message
	Gap     *Gap
}

// Subscription gets events until it is closed. Its methods may be called from several goroutines; each event goes to one caller of Next.
type Subscription struct {
	events chan placed
	cancel context.CancelFunc
	done   chan struct{} // closed when the goroutine that feeds events has ended

	given  Position // behind what was handed over; only the goroutine that feeds events uses it
	serial uint64   // of what it handed over

	mu  sync.Mutex
	at  place
	err error
}

// place is where the subscription stood after its serial-th event.
type place struct {
	position Position
	serial   uint64
}

type placed struct {
	Event
	place
}

// ErrClosed: the subscription was closed.
var ErrClosed = errors.New("weir: the subscription is closed")

// Subscribe subscribes, and returns once it has: you receive everything published from then on. After a lost connection it connects again, with
// jitter, and continues where it was: nothing is missing and nothing comes twice, or a Gap says so. ctx bounds the call, not the
// subscription, which you must close. It fails where the configuration is wrong, or the hub or the database refuses the subscriber; a hub or a
// database that can't be reached is waited for, until ctx ends.
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
	if c.After != "" && c.Client != nil { // a hub judges by itself
		if _, err := hub.ParsePosition(string(c.After)); err != nil {
			return nil, fmt.Errorf("weir: subscribe: SubscribeConfig.After: %w", err)
		}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	var follow follower
	switch {
	case len(c.Hubs) > 0 && c.Client != nil:
		return nil, errors.New("weir: subscribe: SubscribeConfig has both Hubs and Client: give one of them")
	case len(c.Hubs) > 0:
		f, err := newHubFollower(c)
		if err != nil {
			return nil, fmt.Errorf("weir: subscribe: %w", err)
		}
		follow = f
	case c.Client != nil:
		follow = &databaseFollower{SubscribeConfig: c, filters: filters}
	default:
		return nil, errors.New("weir: subscribe: SubscribeConfig has neither Hubs nor Client: say where to subscribe")
	}

	// What is started here outlives ctx.
	lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &Subscription{events: make(chan placed), cancel: cancel, done: make(chan struct{}), given: c.After, at: place{position: c.After}}
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

// follower feeds a subscription until ctx ends or something fails that waiting cannot cure. It calls ready when it has subscribed.
type follower interface {
	run(ctx context.Context, s *Subscription, ready func()) error
}

// Next returns the next event. It waits until there is one, ctx ends, or the subscription does: closed, or refused by the hub.
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

// All ranges over the events; an error is the last pair.
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

// Position is where the subscription stands: everything up to it has been returned by Next. It moves on while nothing comes, so keep
// the newest one to go on from.
func (s *Subscription) Position() Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at.position
}

// Close ends the subscription and waits for what it has started.
func (s *Subscription) Close() {
	s.cancel()
	<-s.done
}

// give hands an event to Next.
func (s *Subscription) give(ctx context.Context, e Event) error {
	at := s.given
	switch {
	case e.Gap != nil:
		at = e.Gap.To
	case e.Message.Position != "":
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

// move says that there is nothing for the subscription up to a position.
func (s *Subscription) move(at Position) {
	s.serial++
	s.given = at
	s.reached(place{at, s.serial})
}

// reached notes where the subscription stands. An event may still be on its way through Next when the position moves beyond it.
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
