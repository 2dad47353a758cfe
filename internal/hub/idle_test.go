package hub

import (
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// nowhere is a sink that discards events.
type nowhere struct{}

func (nowhere) Deliver([]Event) error { return nil }
func (nowhere) Close(error)           {}

// TestAMessageToAnIdleSubscriberMakesNothing: most of many subscribers receive a single message now and then. It neither allocates
// nor leaves a buffer behind.
func TestAMessageToAnIdleSubscriberMakesNothing(t *testing.T) {
	pgtest.Alone(t, "it counts what the whole process allocates")
	s, err := New(Config{}).Join(nowhere{}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	run := []*Message{{Channel: "a", Payload: []byte("a message")}}
	if made := testing.AllocsPerRun(100, func() {
		if start, _ := s.push(run); !start {
			t.Fatal("the subscriber was not idle")
		}
		s.flush()
	}); made > 0 {
		t.Errorf("a message caused %v allocations", made)
	}
	if s.one[0].Message != nil || cap(s.queue) > 1 {
		t.Errorf("afterwards the subscriber keeps %v, and capacity for %d events", s.one[0], cap(s.queue))
	}
}
