package guard

import (
	"sync"
	"time"
)

const (
	leastPause   = time.Minute
	longestPause = time.Hour
)

// Turns is what guards of several databases of one running server share: they act one after the other, and the limits on signals are those of the server. The zero
// value is ready to use.
type Turns struct {
	mu      sync.Mutex
	caution caution // guarded by mu
}

// caution limits the rate of signals. After a signal that did not help, it pauses; the pause doubles each time. The zero value is ready to
// use.
type caution struct {
	signals []time.Time // of the last minute
	pause   time.Duration
	until   time.Time
}

// wait returns how long the next signal must wait, or 0.
func (c *caution) wait(now time.Time, perMinute int) time.Duration {
	for len(c.signals) > 0 && now.Sub(c.signals[0]) >= time.Minute {
		c.signals = c.signals[1:]
	}
	wait := c.until.Sub(now)
	if len(c.signals) >= perMinute {
		wait = max(wait, c.signals[len(c.signals)-perMinute].Add(time.Minute).Sub(now))
	}
	return max(0, wait)
}

func (c *caution) signalled(now time.Time) { c.signals = append(c.signals, now) }

func (c *caution) helped() { c.pause, c.until = 0, time.Time{} }

func (c *caution) failed(now time.Time) {
	c.pause = min(max(leastPause, 2*c.pause), longestPause)
	c.until = now.Add(c.pause)
}
