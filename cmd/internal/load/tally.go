package load

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Histogram is a histogram of durations.
type Histogram struct{ h *hdrhistogram.Histogram }

func NewHistogram() Histogram {
	return Histogram{hdrhistogram.New(1, time.Hour.Microseconds(), 3)}
}

// Add counts anything below a microsecond as one: a handler may start before its enqueuer's commit has returned.
func (h Histogram) Add(d time.Duration) { _ = h.h.RecordValue(max(d.Microseconds(), 1)) }

func (h Histogram) Merge(other Histogram) { h.h.Merge(other.h) }

// IsZero reports whether h was not created by NewHistogram.
func (h Histogram) IsZero() bool { return h.h == nil }

// At returns a percentile in milliseconds; nil if nothing was added.
func (h Histogram) At(percent float64) *float64 {
	if h.h.TotalCount() == 0 {
		return nil
	}
	ms := float64(h.h.ValueAtPercentile(percent)) / 1000
	return &ms
}

// Times returns percentiles; nil if nothing was added.
func (h Histogram) Times() *Times {
	if h.h.TotalCount() == 0 {
		return nil
	}
	return &Times{Count: h.h.TotalCount(), P50: *h.At(50), P99: *h.At(99), Max: *h.At(100)}
}

// Tally counts operations and their times. It may be used by several goroutines at the same time.
type Tally struct {
	mu   sync.Mutex
	done int64
	took Histogram
}

// NewTally returns an empty tally.
func NewTally() *Tally { return &Tally{took: NewHistogram()} }

// Did counts n operations done by one step that took a time.
func (t *Tally) Did(n int, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done += int64(n)
	t.took.Add(took)
}

// Count counts operations without a time.
func (t *Tally) Count(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done += int64(n)
}

// Cut returns what was counted since the last call.
func (t *Tally) Cut() (done int64, took Histogram) {
	t.mu.Lock()
	defer t.mu.Unlock()
	done, took = t.done, t.took
	t.done, t.took = 0, NewHistogram()
	return done, took
}
