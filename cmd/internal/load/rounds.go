package load

import (
	"errors"
	"sync"
	"time"
)

// Rounds is the result of rounds in which many clients repeated the same step. The zero value has none.
type Rounds struct {
	Done  int64
	Took  time.Duration
	Rates []float64 // of each round
	H     Histogram // of the steps
}

// Run runs one round: clients repeat their step for a time. The last steps are waited for and counted. An error ends its client.
func (r *Rounds) Run(clients int, d time.Duration, step func(client int) error) error {
	if r.H.IsZero() {
		r.H = NewHistogram()
	}
	var running sync.WaitGroup
	var mu sync.Mutex
	var failed error
	done := int64(0)
	began := time.Now()
	for i := range clients {
		running.Go(func() {
			h, n := NewHistogram(), int64(0)
			var err error
			for now := began; err == nil && now.Sub(began) < d; {
				if err = step(i); err == nil {
					n++
					next := time.Now()
					h.Add(next.Sub(now))
					now = next
				}
			}
			mu.Lock()
			defer mu.Unlock()
			r.H.Merge(h)
			done += n
			failed = errors.Join(failed, err)
		})
	}
	running.Wait()
	took := time.Since(began)
	r.Done += done
	r.Took += took
	r.Rates = append(r.Rates, float64(done)/took.Seconds())
	return failed
}
