// Package rate limits how often many clients may do something. A limiter keeps one number for each client that has recently used it, and its size
// is bounded. It is the generic cell rate algorithm (ATM Forum, 1996), which is a token bucket that needs no timer.
package rate

import (
	"sync"
	"time"
)

// Limit is a rate. The zero value is no limit.
type Limit struct {
	PerSecond float64 // on average; 0: no limit
	Burst     int     // at once, after a pause; 0: one second's worth, at least 1
}

// AtOnce returns how many uses are allowed at once after a pause.
func (l Limit) AtOnce() int {
	if l.Burst > 0 {
		return l.Burst
	}
	return int(max(1, min(l.PerSecond, 1e9)))
}

// forever is longer than any limit makes a client wait. Sums of three don't overflow.
const forever = 90 * 365 * 24 * time.Hour

// of is how long n uses take at the highest steady rate.
func (l Limit) of(n int) time.Duration {
	return time.Duration(min(float64(n)*float64(time.Second)/l.PerSecond, float64(forever)))
}

// Cell is the state of one client. The zero value has not been used.
type Cell struct{ until time.Duration } // when the cell is as if it had never been used, since start

var start = time.Now()

// take counts n uses at once, or returns how long to wait before they are allowed.
func (c *Cell) take(l Limit, n int, now time.Duration) (wait time.Duration) {
	until := max(c.until, now) + l.of(n)
	if wait = until - now - l.of(l.AtOnce()); wait > 0 {
		return wait
	}
	c.until = until
	return 0
}

// Take counts n uses at once, or, if the limit does not allow them, returns how long to wait. It is for a client whose state its owner keeps.
func (c *Cell) Take(l Limit, n int) (wait time.Duration) {
	if l.PerSecond <= 0 {
		return 0
	}
	return c.take(l, n, time.Since(start))
}

// Limiter limits clients by a key, such as a user. Its methods may be called concurrently. A nil Limiter allows everything.
type Limiter struct {
	limit Limit
	most  int

	mu    sync.Mutex
	cells map[string]Cell
}

// NewVarious returns a limiter for TakeAt, that remembers up to most clients.
func NewVarious(most int) *Limiter { return &Limiter{most: most, cells: map[string]Cell{}} }

// New returns a limiter that remembers up to most clients; nil if there is no limit. Beyond most, it forgets those that have kept to the limit, and, if that is not enough,
// all.
func New(l Limit, most int) *Limiter {
	if l.PerSecond <= 0 {
		return nil
	}
	return &Limiter{limit: l, most: most, cells: map[string]Cell{}}
}

// Take counts n uses at once by the client with the key, or, if the limit does not allow them, returns how long the client should wait.
func (l *Limiter) Take(key string, n int) (wait time.Duration) {
	if l == nil {
		return 0
	}
	return l.TakeAt(l.limit, key, n)
}

// TakeAt is Take with a limit for this client alone.
func (l *Limiter) TakeAt(limit Limit, key string, n int) (wait time.Duration) {
	if limit.PerSecond <= 0 {
		return 0
	}
	now := time.Since(start)
	l.mu.Lock()
	defer l.mu.Unlock()
	c, known := l.cells[key]
	if !known && len(l.cells) >= l.most {
		l.forget(now)
	}
	wait = c.take(limit, n, now)
	l.cells[key] = c
	return wait
}

// forget forgets clients whose cells are as if they had never been used.
func (l *Limiter) forget(now time.Duration) {
	for key, c := range l.cells {
		if c.until <= now {
			delete(l.cells, key)
		}
	}
	if len(l.cells) > l.most/4*3 {
		clear(l.cells) // otherwise every new client would cost a pass
	}
}

// Burst returns how many uses are allowed at once after a pause; 0: any number.
func (l *Limiter) Burst() int {
	if l == nil {
		return 0
	}
	return l.limit.AtOnce()
}
