package rate

import (
	"fmt"
	"testing"
	"time"
)

// TestARateIsKeptOnAverageAndABurstAtOnce: what a limiter allows in any time is at most the burst and the rate's worth of that time; who keeps to
// the rate is never refused; and who waits as long as it was told is allowed.
func TestARateIsKeptOnAverageAndABurstAtOnce(t *testing.T) {
	t.Parallel()
	l := Limit{PerSecond: 10, Burst: 5}
	var c Cell
	now := time.Hour
	allowed := 0
	for range 1000 { // as fast as it can for ten seconds
		if c.take(l, 1, now) == 0 {
			allowed++
		}
		now += 10 * time.Millisecond
	}
	if allowed < 104 || allowed > 105 {
		t.Errorf("%d uses in 10 s at 10/s with a burst of 5", allowed)
	}
	for range 100 {
		if now += 101 * time.Millisecond; c.take(l, 1, now) > 0 {
			t.Fatal("a client that keeps to the rate is refused")
		}
	}
	for c.take(l, 1, now) == 0 {
	}
	wait := c.take(l, 3, now)
	if wait <= 0 || c.take(l, 3, now+wait-time.Millisecond) == 0 {
		t.Errorf("three uses are allowed before the wait of %v", wait)
	}
	if again := c.take(l, 3, now+wait); again > 0 {
		t.Errorf("after waiting for %v as told, wait for another %v", wait, again)
	}
}

// TestALimiterIsBounded: however many clients come, it remembers no more than it may, and still limits those that come often.
func TestALimiterIsBounded(t *testing.T) {
	t.Parallel()
	l := New(Limit{PerSecond: 0.001, Burst: 2}, 100)
	for i := range 1000 {
		l.Take(fmt.Sprint("stranger ", i), 1)
		if len(l.cells) > 100 {
			t.Fatalf("it remembers %d clients", len(l.cells))
		}
	}
	for range 2 {
		if wait := l.Take("often", 1); wait > 0 {
			t.Fatalf("a burst is refused: wait %v", wait)
		}
	}
	if l.Take("often", 1) == 0 || l.Take("other", 1) > 0 {
		t.Error("the limit is not kept for each client on its own")
	}
	var none *Limiter
	if none.Take("x", 1e6) > 0 || New(Limit{}, 1) != nil {
		t.Error("no limit refuses")
	}
}
