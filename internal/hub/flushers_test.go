package hub

import (
	"fmt"
	"sync"
	"testing"
)

// stuck is a sink whose client does not read.
type stuck struct {
	begun   func()
	release <-chan struct{}
}

func (s stuck) Deliver([]Event) error {
	s.begun()
	<-s.release
	return nil
}

func (stuck) Close(error) {}

// TestManyStuckSubscribersHoldNobodyUp: clients that read receive everything, however many clients that do not read come before them.
func TestManyStuckSubscribersHoldNobodyUp(t *testing.T) {
	t.Parallel()
	h := New(Config{})
	close(h.ready)
	defer h.close()
	release := make(chan struct{})
	defer close(release)
	const n = 200 // of each kind: more than there are flushers
	var blocked sync.WaitGroup
	blocked.Add(n)
	var readers []*box
	for range n {
		s, err := h.Join(stuck{sync.OnceFunc(blocked.Done), release}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Subscribe(t.Context(), Channel("a")); err != nil {
			t.Fatal(err)
		}
		_, b := join(t, h, "a")
		readers = append(readers, b)
	}
	for i := range 10 {
		h.pass(Draft{Channel: "a", Payload: fmt.Append(nil, i)})
	}
	for i, b := range readers {
		got := b.texts(t, 10)
		for j := range 10 {
			if want := fmt.Sprintf("a=%d", j); got[j] != want {
				t.Fatalf("reader %d: event %d is %s, want %s", i, j, got[j], want)
			}
		}
	}
	blocked.Wait() // all of them have been tried
	h.flushers.mu.Lock()
	defer h.flushers.mu.Unlock()
	if waiting := len(h.flushers.queue) - h.flushers.head; waiting > 0 {
		t.Errorf("%d subscribers wait for a flusher", waiting)
	}
}

// TestFlushersEnd: once everything has been delivered, no flusher is left.
func TestFlushersEnd(t *testing.T) {
	t.Parallel()
	h := New(Config{})
	close(h.ready)
	defer h.close()
	var readers []*box
	for range 500 {
		_, b := join(t, h, "a")
		readers = append(readers, b)
	}
	h.pass(Draft{Channel: "a"})
	for _, b := range readers {
		b.texts(t, 1)
	}
	until(t, "the flushers have ended", func() bool {
		h.flushers.mu.Lock()
		defer h.flushers.mu.Unlock()
		return len(h.flushers.pool) == 0 && !h.flushers.watched
	})
}
