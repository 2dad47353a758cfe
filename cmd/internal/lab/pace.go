package lab

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/weir-pg/weir/internal/sleep"
)

// pace says when requests arrive, whether or not earlier ones have been served: at a rate in each phase, one phase after another. A load that
// waits for its answers never shows a queue that grows.
type pace []phase

type phase struct {
	lasts time.Duration
	rate  float64 // per second
}

// at returns when request i, from 0, arrives. It is after the last phase if none of them has that many.
func (p pace) at(i int) time.Duration {
	var begun time.Duration
	before := 0.0
	for _, f := range p {
		all := f.rate * f.lasts.Seconds()
		if float64(i) < before+all {
			return begun + time.Duration((float64(i)-before)/f.rate*float64(time.Second))
		}
		before += all
		begun += f.lasts
	}
	return begun + time.Hour
}

// due returns how many requests have arrived after a time.
func (p pace) due(after time.Duration) int {
	sum := 0.0
	for _, f := range p {
		sum += f.rate * min(after, f.lasts).Seconds()
		if after -= f.lasts; after <= 0 {
			break
		}
	}
	return int(sum)
}

// arrivals hands out the requests of a pace to those who serve them, in order.
type arrivals struct {
	pace
	begun time.Time
	taken atomic.Int64
}

// next returns the number of the next request and when it arrived, after waiting for that if it must; false if until ended first.
func (a *arrivals) next(until context.Context) (i int, at time.Time, ok bool) {
	i = int(a.taken.Add(1)) - 1
	at = a.begun.Add(a.at(i))
	if wait := time.Until(at); wait > 0 && !sleep.For(until, wait) {
		return i, at, false
	}
	return i, at, until.Err() == nil
}

// queued returns how many requests have arrived and been taken by nobody.
func (a *arrivals) queued() int {
	return max(a.due(time.Since(a.begun))-int(a.taken.Load()), 0)
}
