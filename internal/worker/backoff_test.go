package worker

import (
	"sync/atomic"
	"testing"
	"time"
)

func TestOneTriesAgainSoonAndAFleetIsSpreadOut(t *testing.T) {
	longest := func(fleet int32) (most time.Duration) {
		var n atomic.Int32
		n.Store(fleet)
		b := backoff{fleet: &n}
		for range 500 {
			most = max(most, b.next())
		}
		return most
	}
	if most := longest(1); most > 251*time.Millisecond {
		t.Errorf("a lone worker waits up to %s", most)
	}
	// Of 1,000 workers that lost their server, each tries so rarely that no more than 250 come in a second.
	if most := longest(1000); most < 8*time.Second || most > 11*time.Second {
		t.Errorf("one of a thousand waits up to %s", most)
	}
}
