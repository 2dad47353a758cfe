package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// meter counts jobs as they are done.
type meter struct {
	done  atomic.Int64
	began atomic.Int64 // unix nanoseconds of the first sign of work
	ended atomic.Int64 // and of the last
}

// begin takes down when work began, if it has not yet.
func (m *meter) begin(at time.Time) { m.began.CompareAndSwap(0, at.UnixNano()) }

// start is begin for a handler that starts, where the engine doesn't tell of claims.
func (m *meter) start() {
	if m.began.Load() == 0 {
		m.begin(time.Now())
	}
}

func (m *meter) add(n int) {
	m.ended.Store(time.Now().UnixNano())
	m.done.Add(int64(n))
}

// reach waits until n jobs are done; an error of the work, or no progress for a minute, ends the wait.
func (m *meter) reach(ctx context.Context, n int64, failed <-chan error) error {
	const patience = time.Minute
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	last, at := m.done.Load(), time.Now()
	for m.done.Load() < n {
		select {
		case <-tick.C:
		case err := <-failed:
			return fmt.Errorf("bench: the worker ended early: %w", err)
		case <-ctx.Done():
			return ctx.Err()
		}
		if now := m.done.Load(); now != last {
			last, at = now, time.Now()
		} else if time.Since(at) > patience {
			return fmt.Errorf("bench: %d of %d jobs were done, and none in the last %s", last, n, patience)
		}
	}
	return nil
}

// sample returns the rates of done over intervals, until ctx ends. The last, incomplete interval is left out.
func (m *meter) sample(ctx context.Context, every time.Duration) (rates []float64) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	last, at := m.done.Load(), time.Now()
	for {
		select {
		case <-tick.C:
			n, now := m.done.Load(), time.Now()
			rates = append(rates, float64(n-last)/now.Sub(at).Seconds())
			last, at = n, now
		case <-ctx.Done():
			return rates
		}
	}
}

// during samples while f runs.
func (m *meter) during(every time.Duration, f func() error) (rates []float64, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { // ends with f
		rates = m.sample(ctx, every)
		close(done)
	}()
	err = f()
	cancel()
	<-done
	return rates, err
}

// work runs a worker in the background. stop ends it, waits for it and returns its error; failed hears of
// an end that nobody asked for.
func work(ctx context.Context, c Client, w Work) (stop func() error, failed <-chan error) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	early := make(chan error, 1)
	go func() { // ends with ctx, or when the worker fails
		err := c.Work(ctx, w)
		if ctx.Err() == nil {
			early <- err
		}
		ended <- err
	}()
	return sync.OnceValue(func() error {
		cancel()
		return <-ended
	}), early
}

// histogram of durations.
type histogram struct{ h *hdrhistogram.Histogram }

func newHistogram() histogram {
	return histogram{hdrhistogram.New(1, time.Hour.Microseconds(), 3)}
}

// add takes anything below a microsecond for one: a handler may start before its enqueue's commit has
// returned to the one who asked for it.
func (h histogram) add(d time.Duration) { _ = h.h.RecordValue(max(d.Microseconds(), 1)) }

func (h histogram) merge(other histogram) { h.h.Merge(other.h) }

// at returns a percentile in milliseconds; nil if nothing was added.
func (h histogram) at(percent float64) *float64 {
	if h.h.TotalCount() == 0 {
		return nil
	}
	ms := float64(h.h.ValueAtPercentile(percent)) / 1000
	return &ms
}

// claims collects the durations of claims.
type claims struct {
	mu sync.Mutex
	h  histogram
}

func newClaims() *claims { return &claims{h: newHistogram()} }

func (c *claims) add(_ int, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.h.add(took)
}

// cut returns what was collected since the last cut.
func (c *claims) cut() histogram {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.h
	c.h = newHistogram()
	return h
}

// stamps hold when numbered jobs were committed and when they started.
type stamps struct {
	base               time.Time
	committed, started []atomic.Int64 // nanoseconds since base
}

func newStamps(n int) *stamps {
	return &stamps{base: time.Now(), committed: make([]atomic.Int64, n+1), started: make([]atomic.Int64, n+1)}
}

func (s *stamps) commit(number int64) { s.committed[number].Store(int64(time.Since(s.base))) }

// start ignores numbers of jobs that are not this run's.
func (s *stamps) start(_ context.Context, number int64) {
	if 0 < number && number < int64(len(s.started)) {
		s.started[number].CompareAndSwap(0, int64(time.Since(s.base)))
	}
}

// latencies of the jobs numbered from and up to, but not including, to.
func (s *stamps) latencies(from, to int64) histogram { return s.latenciesOf(from, to, 1) }

// latenciesOf is latencies of each step-th job only.
func (s *stamps) latenciesOf(from, to, step int64) histogram {
	h := newHistogram()
	for i := from; i < to; i += step {
		committed, started := s.committed[i].Load(), s.started[i].Load()
		if committed > 0 && started > 0 {
			h.add(time.Duration(started - committed))
		}
	}
	return h
}
