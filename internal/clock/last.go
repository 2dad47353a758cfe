package clock

import (
	"math"
	"sync/atomic"
	"time"
)

var began = time.Now()

// Last is when something happened last, by the monotonic clock: setting the other one makes nothing earlier or later. Its zero value is that it never has. It is safe for concurrent use.
type Last struct{ after atomic.Int64 } // ns after began, and at least 1

// Now says that it happens now.
func (l *Last) Now() { l.after.Store(max(int64(time.Since(began)), 1)) }

// Ago returns how long ago it happened.
func (l *Last) Ago() time.Duration {
	at := l.after.Load()
	if at == 0 {
		return math.MaxInt64
	}
	return time.Since(began) - time.Duration(at)
}
