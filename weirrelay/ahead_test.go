package weirrelay

import (
	"context"
	"testing"
	"time"

	"github.com/weir-pg/weir"
)

// TestWhatIsReadAheadIsBounded: by its bytes, too, while a target stands still.
func TestWhatIsReadAheadIsBounded(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond) // for that it waits in vain
	defer cancel()
	a, n := newAhead(1000, 10_000), 0
	of := item{Event: weir.Event{Message: &weir.Message{Payload: make([]byte, 1000)}}}
	for a.put(ctx, of) {
		n++
	}
	if n != 10 {
		t.Errorf("%d messages of 1000 bytes are read ahead, want 10", n)
	}
	for range n {
		a.took(<-a.items)
	}
	if !a.put(t.Context(), of) {
		t.Error("there is no room for more, although all were taken")
	}
}
