package worker

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/weir-pg/weir/internal/outage"
	"github.com/weir-pg/weir/internal/pulse"
)

// Reason is why a worker is not healthy; "": it is.
type Reason string

const (
	NotRunning  Reason = "not running"
	Starting    Reason = "starting"
	Stopping    Reason = "stopping"
	Fenced      Reason = "fenced"
	Unreachable Reason = "unreachable"
	Stuck       Reason = "stuck"
)

const (
	// A call that fails is made again within moments. So failures count once none of some kind of call has succeeded for a third of the lease,
	// and for patience at least: one slow or lost call is no news.
	patience = 2 * time.Second
	// Of a kind of call that has not been tried for so long nobody knows whether it would fail.
	untried = time.Minute
	// No step of a loop takes longer, whatever the database does: each call in it ends in time.
	stuckAfter = 3 * claimTimeout
)

// Health is how a worker does, by what the server has answered. The goroutines that work keep it; to read it takes no lock and no call, so
// nothing that goes wrong in them holds up who asks. The zero value is that of a worker that was not started.
type Health struct {
	phase    atomic.Pointer[phase] // nil: it works
	stopping atomic.Pointer[time.Time]
	heard    atomic.Pointer[time.Time] // when the last heartbeat that was answered was sent
	lease    atomic.Int64
	outage   atomic.Pointer[outage.Log] // nil: it was never started
	claims   pulse.Pulse                // of the fetcher
	results  pulse.Pulse                // of the completer
}

// phase is a time in which the worker does not work.
type phase struct {
	reason Reason
	since  time.Time
	err    error
}

// begin says that the worker is being started; it is stopping from when ctx ends until end is called, with what came of it.
func (h *Health) begin(ctx context.Context, lease time.Duration, o *outage.Log) (end func(error)) {
	h.stopping.Store(nil)
	h.heard.Store(nil)
	h.claims.Rest()
	h.results.Rest()
	h.lease.Store(int64(lease))
	h.outage.Store(o)
	h.enter(Starting, nil)
	release := context.AfterFunc(ctx, func() {
		now := time.Now()
		h.stopping.Store(&now)
	})
	return func(err error) {
		release()
		h.enter(NotRunning, err)
	}
}

// works says that the server knows the worker.
func (h *Health) works() { h.phase.Store(nil) }

func (h *Health) enter(reason Reason, err error) { h.phase.Store(&phase{reason, time.Now(), err}) }

// Ill says why the worker is not healthy, since when, and what was the last error, if there was one; "": it is healthy.
func (h *Health) Ill() (why Reason, since time.Time, err error) { return h.ill(time.Now(), stuckAfter) }

func (h *Health) ill(now time.Time, stuckAfter time.Duration) (why Reason, since time.Time, err error) {
	o := h.outage.Load()
	if o == nil {
		return NotRunning, time.Time{}, nil
	}
	p, stopping, grace := h.phase.Load(), h.stopping.Load(), max(time.Duration(h.lease.Load())/3, patience)
	if p != nil && p.reason == NotRunning {
		return p.reason, p.since, p.err
	}
	if stopping != nil {
		return Stopping, *stopping, nil
	}
	if err := errors.Join(h.claims.Stuck("claiming", stuckAfter), h.results.Stuck("recording results", stuckAfter)); err != nil {
		return Stuck, now.Add(-stuckAfter), err
	}
	// That it is out of reach explains a start, and a new start, that take long.
	var failed error
	for _, t := range o.Troubles() {
		failed = t.Err
		if t.Tries > 1 && now.Sub(t.Since) > grace && now.Sub(t.Last) < untried && (why == "" || t.Since.Before(since)) {
			why, since, err = Unreachable, t.Since, t.Err
		}
	}
	if why != "" {
		return why, since, err
	}
	if p != nil {
		return p.reason, p.since, p.err
	}
	lease := time.Duration(h.lease.Load())
	if heard := h.heard.Load(); heard != nil && now.Sub(*heard) > lease-lease/6 {
		return Unreachable, *heard, failed
	}
	return "", time.Time{}, nil
}
