package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/weir-pg/weir"
)

// subscriptions are those that are open. Commands use it, which come one after the other.
type subscriptions struct {
	last int
	all  map[int]*weir.Subscription
}

func (d *driver) subscribe(ctx context.Context, c command) (object, error) {
	sub, err := weir.Subscribe(ctx, weir.SubscribeConfig{Hubs: []string{d.hub}, Channels: c.Channels, After: weir.Position(c.After)})
	if err != nil {
		return nil, &invalidError{err} // it waits for hubs that can't be reached
	}
	s := &d.subs
	if s.all == nil {
		s.all = map[int]*weir.Subscription{}
	}
	s.last++
	n := s.last
	s.all[n] = sub
	go func() { // ends with the subscription
		for e, err := range sub.All(ctx) {
			switch {
			case errors.Is(err, weir.ErrClosed):
			case err != nil:
				fmt.Fprintln(os.Stderr, err)
			case e.Gap != nil:
				d.say(object{"event": "gap", "subscription": n, "reason": e.Gap.Reason, "position": e.Gap.To})
			case e.Message.Binary:
				d.say(object{"event": "message", "subscription": n, "channel": e.Message.Channel, "payload_base64": e.Message.Payload, "position": e.Message.Position})
			default:
				d.say(object{"event": "message", "subscription": n, "channel": e.Message.Channel, "payload": string(e.Message.Payload), "position": e.Message.Position})
			}
		}
	}()
	return object{"subscription": n}, nil
}

func (s *subscriptions) end(n int) error {
	sub, ok := s.all[n]
	if !ok {
		return fmt.Errorf("subscription %d: %w", n, weir.ErrNotFound)
	}
	delete(s.all, n)
	sub.Close()
	return nil
}
