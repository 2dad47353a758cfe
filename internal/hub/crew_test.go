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

// TestManyStuckSubscribersHoldNobodyUp: whoever reads gets everything, however many who do not read are served before.
func TestManyStuckSubscribersHoldNobodyUp(t *testing.T) {
	h := New(Config{})
	close(h.ready)
	defer h.close()
	release := make(chan struct{})
	defer close(release)
	const n = 200 // of each: more than a crew has hands
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
	h.crew.mu.Lock()
	defer h.crew.mu.Unlock()
	if waiting := len(h.crew.queue) - h.crew.head; waiting > 0 {
		t.Errorf("%d subscribers wait for a hand", waiting)
	}
}

// TestCrewGoesHome: when everything has been delivered no goroutine is left.
func TestCrewGoesHome(t *testing.T) {
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
	until(t, "the crew to go home", func() bool {
		h.crew.mu.Lock()
		defer h.crew.mu.Unlock()
		return len(h.crew.hands) == 0 && !h.crew.watched
	})
}
