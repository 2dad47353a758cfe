package load

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Meter counts completed jobs.
type Meter struct {
	Done  atomic.Int64
	began atomic.Int64 // Unix nanoseconds of the first activity
	ended atomic.Int64 // and of the last one
}

// Begin records the start of the work, unless it has been recorded.
func (m *Meter) Begin(at time.Time) { m.began.CompareAndSwap(0, at.UnixNano()) }

// Start is Begin for the start of a handler, for engines that do not report claims.
func (m *Meter) Start() {
	if m.began.Load() == 0 {
		m.Begin(time.Now())
	}
}

func (m *Meter) Add(n int) {
	m.ended.Store(time.Now().UnixNano())
	m.Done.Add(int64(n))
}

// Took returns the time from the first activity to the last.
func (m *Meter) Took() time.Duration { return time.Duration(m.ended.Load() - m.began.Load()) }

// Reach waits until n jobs are done. It returns an error if the work fails, or makes no progress for a minute.
func (m *Meter) Reach(ctx context.Context, n int64, failed <-chan error) error {
	const patience = time.Minute
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	last, at := m.Done.Load(), time.Now()
	for m.Done.Load() < n {
		select {
		case <-tick.C:
		case err := <-failed:
			return fmt.Errorf("bench: the worker ended early: %w", err)
		case <-ctx.Done():
			return ctx.Err()
		}
		if now := m.Done.Load(); now != last {
			last, at = now, time.Now()
		} else if time.Since(at) > patience {
			return fmt.Errorf("bench: %d of %d jobs are done, and none in the last %s", last, n, patience)
		}
	}
	return nil
}

// SampleRate returns the rate of a counter in each interval until ctx ends, without the last, incomplete interval.
func SampleRate(ctx context.Context, every time.Duration, n *atomic.Int64) (rates []float64) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	last, at := n.Load(), time.Now()
	for {
		select {
		case <-tick.C:
			now, then := n.Load(), time.Now()
			rates = append(rates, float64(now-last)/then.Sub(at).Seconds())
			last, at = now, then
		case <-ctx.Done():
			return rates
		}
	}
}

// SampleEvery returns how often to sample a rate that is measured for a time.
func SampleEvery(d time.Duration) time.Duration {
	return max(min(d/10, time.Second), 10*time.Millisecond)
}

// During samples while f runs.
func (m *Meter) During(every time.Duration, f func() error) (rates []float64, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { // ends with f
		rates = SampleRate(ctx, every, &m.Done)
		close(done)
	}()
	err = f()
	cancel()
	<-done
	return rates, err
}

// Start runs a worker in the background. stop ends it, waits for it and returns its error. failed receives the error if it ends on its own.
func Start(ctx context.Context, c Client, w Work) (stop func() error, failed <-chan error) {
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

// Stamps record when numbered jobs were committed and when they started.
type Stamps struct {
	base               time.Time
	committed, started []atomic.Int64 // nanoseconds since base
}

func NewStamps(n int) *Stamps {
	return &Stamps{base: time.Now(), committed: make([]atomic.Int64, n+1), started: make([]atomic.Int64, n+1)}
}

func (s *Stamps) Commit(number int64) { s.committed[number].Store(int64(time.Since(s.base))) }

// Start ignores the numbers of jobs from other runs.
func (s *Stamps) Start(_ context.Context, number int64) {
	if 0 < number && number < int64(len(s.started)) {
		s.started[number].CompareAndSwap(0, int64(time.Since(s.base)))
	}
}

// Latencies returns the latencies of the jobs with numbers in [from, to).
func (s *Stamps) Latencies(from, to int64) Histogram { return s.LatenciesOf(from, to, 1) }

// LatenciesOf returns the latencies of every step-th job.
func (s *Stamps) LatenciesOf(from, to, step int64) Histogram {
	h := NewHistogram()
	for i := from; i < to; i += step {
		committed, started := s.committed[i].Load(), s.started[i].Load()
		if committed > 0 && started > 0 {
			h.Add(time.Duration(started - committed))
		}
	}
	return h
}
