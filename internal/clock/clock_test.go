package clock_test

import (
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/clock"
)

// TestATimeIsOverByEitherClock: one stands still while the machine is suspended, and the other may be set.
func TestATimeIsOverByEitherClock(t *testing.T) {
	t.Parallel()
	now := clock.Now()
	for _, c := range []struct {
		steady, wall time.Duration // ago
		want         bool
	}{{0, 0, true}, {time.Minute, time.Minute, false}, {0, time.Minute, false}, {time.Minute, 0, false}, {0, -time.Minute, false}} {
		from := clock.Moment{Steady: now.Steady.Add(-c.steady), Wall: now.Wall.Add(-c.wall)}
		if got := now.IsWithin(from, from.Add(10*time.Second)); got != c.want {
			t.Errorf("%v ago by the one and %v by the other: %v", c.steady, c.wall, got)
		}
	}
}
