package load

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Histogram of durations.
type Histogram struct{ h *hdrhistogram.Histogram }

func NewHistogram() Histogram {
	return Histogram{hdrhistogram.New(1, time.Hour.Microseconds(), 3)}
}

// Add takes anything below a microsecond for one: a handler may start before its enqueue's commit has
// returned to the one who asked for it.
func (h Histogram) Add(d time.Duration) { _ = h.h.RecordValue(max(d.Microseconds(), 1)) }

func (h Histogram) Merge(other Histogram) { h.h.Merge(other.h) }

// IsZero tells whether it was never made, by NewHistogram.
func (h Histogram) IsZero() bool { return h.h == nil }

// At returns a percentile in milliseconds; nil if nothing was added.
func (h Histogram) At(percent float64) *float64 {
	if h.h.TotalCount() == 0 {
		return nil
	}
	ms := float64(h.h.ValueAtPercentile(percent)) / 1000
	return &ms
}

// Tally counts what is done, and how long each time. Any goroutine may use it.
type Tally struct {
	mu   sync.Mutex
	done int64
	took Histogram
}

// NewTally returns one that has counted nothing.
func NewTally() *Tally { return &Tally{took: NewHistogram()} }

// Did counts n things done, by one step that took so long.
func (t *Tally) Did(n int, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done += int64(n)
	t.took.Add(took)
}

// Count counts things done by no step of their own.
func (t *Tally) Count(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done += int64(n)
}

// Cut returns what was counted since the last cut.
func (t *Tally) Cut() (done int64, took Histogram) {
	t.mu.Lock()
	defer t.mu.Unlock()
	done, took = t.done, t.took
	t.done, t.took = 0, NewHistogram()
	return done, took
}
