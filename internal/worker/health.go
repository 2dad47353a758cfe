package worker

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/weir-pg/weir/internal/outage"
	"github.com/weir-pg/weir/internal/pulse"
)

// Reason is why a worker is not healthy; "": it is healthy.
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
	// A failed call is repeated within moments. So failures count only once no call of that kind has succeeded for a third of the lease, and
	// for at least patience: one slow or lost call is not worth reporting.
	patience = 2 * time.Second
	// After this time without a call of some kind, it is unknown whether such a call would fail.
	untried = time.Minute
	// No step of a loop takes longer than this, whatever the database does, since every call in it has a timeout.
	stuckAfter = 3 * claimTimeout
)

// Health is the state of a worker according to the server's answers. The working goroutines update it. Reading it takes no lock and makes
// no call, so that nothing that goes wrong in them can block the reader. The zero value is the health of a worker that was not started.
type Health struct {
	phase    atomic.Pointer[phase] // nil: it works
	stopping atomic.Pointer[time.Time]
	heard    atomic.Pointer[time.Time] // when the last answered heartbeat was sent
	lease    atomic.Int64
	outage   atomic.Pointer[outage.Log] // nil: it was never started
	claims   pulse.Pulse                // of the fetcher
	results  pulse.Pulse                // of the completer
}

// phase is a period in which the worker does not work.
type phase struct {
	reason Reason
	since  time.Time
	err    error
}

// begin records that the worker is starting. It counts as stopping from the end of ctx until the caller passes the result of Run to end.
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

// works records that the worker is registered in the database.
func (h *Health) works() { h.phase.Store(nil) }

func (h *Health) enter(reason Reason, err error) { h.phase.Store(&phase{reason, time.Now(), err}) }

// Ill returns why the worker is not healthy, since when, and the last error, if any; "": it is healthy.
func (h *Health) Ill() (why Reason, since time.Time, err error) {
	return h.ill(time.Now(), max(time.Duration(h.lease.Load())/3, patience), stuckAfter)
}

// IllSoon is Ill for who only shows it, and restarts nothing: failures count after patience, whatever the lease.
func (h *Health) IllSoon() (why Reason, since time.Time, err error) {
	return h.ill(time.Now(), patience, stuckAfter)
}

func (h *Health) ill(now time.Time, grace, stuckAfter time.Duration) (why Reason, since time.Time, err error) {
	o := h.outage.Load()
	if o == nil {
		return NotRunning, time.Time{}, nil
	}
	p, stopping := h.phase.Load(), h.stopping.Load()
	if p != nil && p.reason == NotRunning {
		return p.reason, p.since, p.err
	}
	if stopping != nil {
		return Stopping, *stopping, nil
	}
	if err := errors.Join(h.claims.Stuck("claiming", stuckAfter), h.results.Stuck("recording results", stuckAfter)); err != nil {
		return Stuck, now.Add(-stuckAfter), err
	}
	// An unreachable database comes first: it also explains a start or restart that takes long.
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
