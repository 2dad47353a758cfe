package weir

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/internal/store"
)

// databaseFollower is a hub with one subscriber.
type databaseFollower struct {
	SubscribeConfig
	filters []hub.Filter
}

// ringBytes is enough for one subscriber: when it falls behind, it reads history from the database.
const ringBytes = 1 << 20

func (f *databaseFollower) run(ctx context.Context, s *Subscription, ready func()) error {
	// Return an error that waiting cannot fix at once.
	if _, err := f.Client.store.NewestTick(ctx); store.IsRefused(err) && !store.IsMoved(err) {
		return explain(err, "weir_subscribe")
	}
	log := hub.NewLog(f.Client.store, nil)
	may, err := f.Client.store.MayTick(ctx)
	if err != nil && store.IsRefused(err) {
		return explain(err, "weir_subscribe")
	}
	if log.ReadOnly = err == nil && !may; log.ReadOnly {
		f.Logger.Info("weir: this role may subscribe but not write ticks, so messages arrive only while a hub runs", "fix", "GRANT weir_hub to this role, or run a hub")
	}
	h := hub.New(hub.Config{Source: log, Logger: f.Logger, RingBytes: ringBytes})
	var running sync.WaitGroup
	hubCtx, stop := context.WithCancel(ctx)
	running.Go(func() { h.Run(hubCtx) })
	defer running.Wait()
	defer stop()
	for {
		k := &sink{s: s, ended: make(chan error, 1)}
		k.ctx, k.stop = context.WithCancel(ctx)
		sub, err := h.Join(k, hub.Options{})
		if err == nil {
			err = f.follow(ctx, sub, s)
		}
		if err != nil {
			k.stop()
			return err
		}
		ready()
		err = k.wait(ctx, sub)
		sub.Leave()
		k.settle()
		if !errors.Is(err, hub.ErrSlow) {
			return err
		}
		// The reader is slow: read the queued messages from the database again, at the reader's speed.
	}
}

// follow subscribes from the subscription's position.
func (f *databaseFollower) follow(ctx context.Context, sub *hub.Subscriber, s *Subscription) error {
	at := s.given
	if at == "" && f.Last > 0 {
		return f.followLast(ctx, sub, s)
	}
	if at == "" {
		if err := sub.Subscribe(ctx); err != nil { // waits until the hub knows the end of the log
			return err
		}
		at = Position(sub.Position().String())
		s.move(at)
	}
	after, err := hub.ParsePosition(string(at))
	if err != nil {
		return err
	}
	return sub.Resume(ctx, after, f.filters...)
}

// followLast subscribes from now on, and finds what was published last.
func (f *databaseFollower) followLast(ctx context.Context, sub *hub.Subscriber, s *Subscription) error {
	filters := slices.Compact(slices.SortedFunc(slices.Values(f.filters), func(a, b hub.Filter) int { return strings.Compare(a.String(), b.String()) }))
	defer sub.Continue()
	found, err := sub.SubscribeLast(ctx, slices.Repeat([]int{f.Last}, len(filters)), filters...)
	if err != nil {
		return err
	}
	s.history = History{Messages: make([]Message, len(found.Messages)), Complete: found.Complete}
	for i, m := range found.Messages {
		s.history.Messages[i] = publicMessage(m)
	}
	s.move(Position(found.At.String()))
	return nil
}

// sink passes a hub's events to a subscription, one at a time, as fast as its reader takes them.
type sink struct {
	s          *Subscription
	ctx        context.Context
	stop       context.CancelFunc // ends a Deliver that waits for the subscription's reader
	ended      chan error
	once       sync.Once
	delivering sync.Mutex
}

// Deliver implements hub.Sink.
func (k *sink) Deliver(events []hub.Event) error {
	k.delivering.Lock()
	defer k.delivering.Unlock()
	for _, e := range events {
		if err := k.ctx.Err(); err != nil {
			return err
		}
		if err := k.s.give(k.ctx, publicEvent(e)); err != nil {
			return err
		}
	}
	return nil
}

// Close implements hub.Sink.
func (k *sink) Close(err error) {
	k.once.Do(func() {
		k.stop()
		k.ended <- err
	})
}

// noteEvery is the pause between notes of where a subscription is for which there are no events.
const noteEvery = time.Second

// wait returns why the sink has ended, or ctx. Until then, the subscription's position follows the log.
func (k *sink) wait(ctx context.Context, sub *hub.Subscriber) error {
	notes := time.NewTicker(noteEvery)
	defer notes.Stop()
	for {
		select {
		case err := <-k.ended:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-notes.C:
			k.note(sub)
		}
	}
}

// note moves the subscription to where the hub is, if it has no event for it: whoever stores the position goes on from there, and not from
// the last event, which may not be kept for as long.
func (k *sink) note(sub *hub.Subscriber) {
	if !k.delivering.TryLock() {
		return // an event is being passed on, and has its position
	}
	defer k.delivering.Unlock()
	if at, ok := sub.Quiet(); ok && !at.IsZero() && k.s.given != Position(at.String()) {
		k.s.move(Position(at.String()))
	}
}

// settle returns when no more events will be passed on: the subscription's position no longer changes, and following may continue from it.
func (k *sink) settle() {
	k.stop()
	k.delivering.Lock()
	defer k.delivering.Unlock()
}

func publicEvent(e hub.Event) Event {
	if e.Message == nil {
		return Event{Gap: &Gap{From: Position(e.Gap.From.String()), To: Position(e.Gap.To.String()), Reason: string(e.Gap.Reason)}}
	}
	m := publicMessage(e.Message)
	return Event{Message: &m}
}

func publicMessage(from *hub.Message) Message {
	m := Message{Channel: from.Channel, Payload: from.Payload, Binary: from.Binary}
	if !from.Position.IsZero() {
		m.Position = Position(from.Position.String())
	}
	return m
}
