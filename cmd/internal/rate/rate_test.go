package rate

import (
	"fmt"
	"net/netip"
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

// TestARateMayBeTiny: of however few uses a second, the burst is allowed, and nothing more.
func TestARateMayBeTiny(t *testing.T) {
	t.Parallel()
	for _, perSecond := range []float64{1e-300, 1e-10, 1e-5} {
		for _, burst := range []int{0, 3, 1 << 40} {
			l := Limit{PerSecond: perSecond, Burst: burst}
			var c Cell
			now := time.Hour
			if wait := c.take(l, l.AtOnce(), now); wait > 0 {
				t.Errorf("%v a second: a burst of %d is refused for %v", perSecond, l.AtOnce(), wait)
			}
			for range 3 {
				if now += time.Second; c.take(l, 1, now) <= 0 {
					t.Errorf("%v a second: one more than %d is allowed", perSecond, l.AtOnce())
				}
			}
		}
	}
	if l := (Limit{PerSecond: 1e300}); l.AtOnce() < 1000 {
		t.Errorf("of 1e300 a second, %d are allowed at once", l.AtOnce())
	}
}

// TestAnIPv6HostIsCountedAsOne: whichever of the addresses of its network it uses.
func TestAnIPv6HostIsCountedAsOne(t *testing.T) {
	t.Parallel()
	for _, s := range []struct {
		a, b string
		same bool
	}{
		{"2001:db8::1", "2001:db8::ffff:1:2:3", true}, {"2001:db8::1", "2001:db8:0:1::1", false}, {"fe80::1%eth0", "fe80::2%eth1", true},
		{"192.0.2.1", "192.0.2.2", false}, {"::ffff:192.0.2.1", "192.0.2.1", true},
	} {
		if a, b := Origin(netip.MustParseAddr(s.a)), Origin(netip.MustParseAddr(s.b)); (a == b) != s.same {
			t.Errorf("%s and %s are counted as %v and %v", s.a, s.b, a, b)
		}
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
