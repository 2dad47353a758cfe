package hub

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/store"
)

// TestNoChannelHasMoreSubscribersThanItMay: however many come at the same time, and in whatever way they subscribe. A place that becomes free is taken again, who is a
// subscriber already is not refused, and who is refused gets none of the other channels.
func TestNoChannelHasMoreSubscribersThanItMay(t *testing.T) {
	t.Parallel()
	const most, come = 5, 60
	h, _ := run(t, Config{Source: NewLog(store.New(pgtest.Pool(t, pgtest.Database(t)), 0), nil), MaxSubscribers: func(f Filter) int {
		if f == Filter(Channel("full")) || f == Filter(Pattern("full.*")) {
			return most
		}
		return 0
	}})
	if err := h.untilReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, filter := range []Filter{Channel("full"), Pattern("full.*")} {
		var in, refused atomic.Int32
		var subs sync.Map
		var all sync.WaitGroup
		for i := range come {
			all.Go(func() {
				k := &ending{ended: make(chan error, 1)}
				s, err := h.Join(k, Options{})
				if err != nil {
					t.Error(err)
					return
				}
				other := Channel(fmt.Sprint("other ", i))
				switch i % 3 {
				case 0:
					err = s.Subscribe(t.Context(), filter, other)
				case 1:
					_, err = s.SubscribeLast(t.Context(), []int{1, 1}, filter, other)
					s.Continue()
				default:
					if err = s.Resume(t.Context(), h.Position(), filter, other); err == nil {
						err = s.Settle(t.Context())
						h.mu.RLock()
						joined := len(s.places) > 0
						h.mu.RUnlock()
						if err == nil && !joined {
							err = <-k.ended
						}
					}
				}
				var limit *LimitError
				switch {
				case err == nil:
					in.Add(1)
					subs.Store(s, true)
				case errors.As(err, &limit):
					refused.Add(1)
					s.Leave()
				default:
					t.Errorf("subscriber %d: %v", i, err)
				}
			})
		}
		all.Wait()
		if in.Load() != most || refused.Load() != come-most {
			t.Errorf("%s has %d subscribers, and %d were refused; it may have %d of %d", filter, in.Load(), refused.Load(), most, come)
		}
		if n := h.Stats().Subscribers; n != most {
			t.Errorf("the hub has %d subscribers, want %d", n, most)
		}
		again := true
		subs.Range(func(s, _ any) bool {
			if err := s.(*Subscriber).Subscribe(t.Context(), filter); again && err != nil {
				t.Errorf("a subscriber of %s is refused when it asks again: %v", filter, err)
			}
			again = false
			s.(*Subscriber).Leave()
			return true
		})
		if err := h.Full([]Filter{filter}); err != nil {
			t.Errorf("after all have left: %v", err)
		}
	}
	if n := h.Stats().Channels; n != 0 {
		t.Errorf("%d channels have subscribers after all have left", n)
	}
}

// ending is a sink that wants nothing but to be told when it ends.
type ending struct{ ended chan error }

func (*ending) Deliver([]Event) error { return nil }
func (e *ending) Close(err error)     { e.ended <- err }
