package worker

import (
	"sync/atomic"
	"testing"
	"time"
)

func TestOneTriesAgainSoonAndAFleetIsSpreadOut(t *testing.T) {
	t.Parallel()
	longest := func(fleet int32) (limit time.Duration) {
		var n atomic.Int32
		n.Store(fleet)
		b := backoff{fleet: &n}
		for range 500 {
			limit = max(limit, b.next())
		}
		return limit
	}
	if limit := longest(1); limit > 251*time.Millisecond {
		t.Errorf("a single worker waits up to %s", limit)
	}
	// After 1,000 workers have lost their server, no more than 250 of them try to reconnect per second.
	if limit := longest(1000); limit < 8*time.Second || limit > 11*time.Second {
		t.Errorf("one of a thousand workers waits up to %s", limit)
	}
}

// TestAnIdleWorkerLooksLessAndLessOften: shortly after a job, a worker polls as often as usual; the longer it is idle, the less often, down
// to a limit.
func TestAnIdleWorkerLooksLessAndLessOften(t *testing.T) {
	t.Parallel()
	const pause = 4 * time.Millisecond
	if got := drowsy(pause, 100*time.Millisecond); got > pause+pause/20 {
		t.Errorf("a tenth of a second after a job it polls every %v, want about %v", got, pause)
	}
	last := pause
	for idle := time.Second; idle < time.Minute; idle += time.Second {
		got := drowsy(pause, idle)
		if got < last || got > 3*pause {
			t.Errorf("after %v without a job it polls every %v, before that every %v", idle, got, last)
		}
		last = got
	}
	if last != 3*pause {
		t.Errorf("after a minute without a job it polls every %v, want %v", last, 3*pause)
	}
}
