package weir

import (
	"context"
	"errors"
	"sync"

	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/internal/store"
)

// databaseFollower is a hub of one subscriber.
type databaseFollower struct {
	SubscribeConfig
	filters []hub.Filter
}

// ringBytes are enough for one subscriber, who reads history from the database when it falls behind.
const ringBytes = 1 << 20

func (f *databaseFollower) run(ctx context.Context, s *Subscription, ready func()) error {
	// What waiting cannot cure is told at once.
	if _, err := f.Client.store.NewestTick(ctx); store.IsRefused(err) && !store.IsMoved(err) {
		return explain(err, "weir_subscribe")
	}
	log := hub.NewLog(f.Client.store, nil)
	may, err := f.Client.store.MayTick(ctx)
	if err != nil && store.IsRefused(err) {
		return explain(err, "weir_subscribe")
	}
	if log.ReadOnly = err == nil && !may; log.ReadOnly {
		f.Logger.Info("weir: this role may subscribe and no more, so messages come while a hub runs", "cure", "GRANT weir_hub, where none does")
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
		select {
		case err = <-k.ended:
		case <-ctx.Done():
			err = ctx.Err()
		}
		sub.Leave()
		k.settle()
		if !errors.Is(err, hub.ErrSlow) {
			return err
		}
		// It reads slowly: what was queued comes from the database once more, as fast as it reads.
	}
}

// follow subscribes from where the subscription stands.
func (f *databaseFollower) follow(ctx context.Context, sub *hub.Subscriber, s *Subscription) error {
	at := s.given
	if at == "" {
		if err := sub.Subscribe(ctx); err != nil { // waits until the hub knows where the log ends
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

// sink hands a hub's events to a subscription, one after the other, as fast as it takes them.
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

// settle returns when nothing more is given: then the subscription's place is settled, to go on from.
func (k *sink) settle() {
	k.stop()
	k.delivering.Lock()
	defer k.delivering.Unlock()
}

func publicEvent(e hub.Event) Event {
	if e.Message == nil {
		return Event{Gap: &Gap{From: Position(e.Gap.From.String()), To: Position(e.Gap.To.String()), Reason: string(e.Gap.Reason)}}
	}
	m := &Message{Channel: e.Message.Channel, Payload: e.Message.Payload, Binary: e.Message.Binary}
	if !e.Message.Position.IsZero() {
		m.Position = Position(e.Message.Position.String())
	}
	return Event{Message: m}
}
