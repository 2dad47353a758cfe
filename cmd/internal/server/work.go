package server

import (
	"context"
	"sync"

	"github.com/weir-pg/weir/cmd/internal/work"
	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/internal/store"
)

// dispatcher returns the dispatcher of jobs to workers without a database.
func (s *Server) dispatcher(ctx context.Context, calls *store.Store) (*work.Dispatcher, error) {
	pool, err := s.pool(ctx, s.config.Database, 1, "weir hub worker") // of which only the configuration is used
	if err != nil {
		return nil, err
	}
	return work.New(work.Config{
		Pool: pool, Calls: calls, Name: s.config.Name, Secret: s.secret, Hubs: bus{s.hub}, Lease: s.config.JobsLease, Log: s.log,
	}), nil
}

// bus implements work.Hubs on the log of messages, which all hubs of a database read.
type bus struct{ hub *hub.Hub }

func (b bus) Publish(ctx context.Context, channel string, payload []byte) error {
	return b.hub.Publish(ctx, hub.Draft{Channel: channel, Payload: payload, Binary: true})
}

func (b bus) Hear(ctx context.Context, channel string, f func([]byte)) error {
	e := &ear{f: f, over: make(chan struct{})}
	sub, err := b.hub.Join(e, hub.Options{Slow: hub.SkipAhead})
	if err != nil {
		return err
	}
	defer sub.Leave()
	if err := sub.Subscribe(ctx, hub.Channel(channel)); err != nil {
		return err
	}
	select {
	case <-e.over:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// ear is a sink that passes payloads on.
type ear struct {
	f    func([]byte)
	once sync.Once
	over chan struct{}
}

func (e *ear) Deliver(events []hub.Event) error {
	for _, event := range events {
		if event.Message != nil {
			e.f(event.Message.Payload)
		}
	}
	return nil
}

func (e *ear) Close(error) { e.once.Do(func() { close(e.over) }) }
