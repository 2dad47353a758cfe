package push

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/weir-pg/weir/cmd/internal/work"
	"github.com/weir-pg/weir/internal/sleep"
)

// Reasons for which a request is given up.
var (
	errCancelled = errors.New("the job was cancelled")
	errLost      = errors.New("the attempt is not this hub's any more")
)

const (
	openAgain  = time.Second      // after the dispatcher has refused a session
	recordFor  = 30 * time.Second // how long one try to record an end may take
	recordSoon = 500 * time.Millisecond
)

// endpoint pushes jobs to one endpoint.
type endpoint struct {
	p    *Pusher
	name string
	id   string         // of its session; "": it has none yet
	all  sync.WaitGroup // its requests

	mu       sync.Mutex
	target   *target // as it is in the file
	left     bool    // it is not in the file any more
	ended    bool    // its run has ended: another takes its place
	stale    bool    // the session has other queues or kinds than the target
	wake     context.CancelFunc
	attempts map[string]*attempt // by their tokens
}

// attempt is a job that was sent, or is being sent, and has no end yet.
type attempt struct {
	token    string
	cancel   context.CancelCauseFunc // gives up the request
	accepted bool                    // the endpoint will report it
	over     bool                    // its end is known
	late     *time.Timer             // when it has waited too long for the report; nil: it does not wait
}

func newEndpoint(p *Pusher, t *target) *endpoint {
	return &endpoint{p: p, name: t.name, target: t, wake: func() {}, attempts: map[string]*attempt{}}
}

// update replaces the target; nil: it is not in the file any more. It returns false if the endpoint has ended.
func (e *endpoint) update(t *target) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.ended:
		return false
	case t == nil && e.left, t != nil && !e.left && t.equal(e.target):
		return true
	case t == nil:
		e.left, e.stale = true, true
	default:
		e.stale = e.stale || e.left || !t.works(e.target)
		e.target, e.left = t, false
	}
	if e.stale {
		e.wake()
	}
	return true
}

// current returns the target as it is now.
func (e *endpoint) current() *target {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.target
}

// run pushes jobs until ctx ends, or the endpoint was taken out of the file and has no jobs any more.
func (e *endpoint) run(ctx context.Context) {
	defer e.p.gone(e)
	defer e.all.Wait()
	defer e.giveUp()
	complained := false
	for ctx.Err() == nil {
		opening, gone := e.opening()
		if gone {
			if e.id != "" {
				e.p.Dispatcher.End(ctx, e.id)
			}
			return
		}
		call, err := e.p.Dispatcher.Open(ctx, opening, true)
		if err != nil {
			if !complained {
				e.p.Log.Error("weir: no jobs can be pushed to an endpoint", "endpoint", e.name, "error", err)
			}
			complained = true
			sleep.For(ctx, sleep.Jitter(openAgain))
			continue
		}
		complained = false
		e.id = call.ID()
		e.interrupt(ctx, call.Lost)
		if err := e.serve(ctx, call); err != nil {
			sleep.For(ctx, sleep.Jitter(recordSoon)) // it was ended, because it was not heard of, for example
		}
	}
}

// opening returns what the endpoint wants now; gone: nothing any more, and it has no jobs.
func (e *endpoint) opening() (o work.Opening, gone bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	o = work.Opening{Worker: e.id, Name: "push " + e.name, Queues: map[string]int{}, Kinds: e.target.kinds}
	for queue, n := range e.target.queues {
		if o.Queues[queue] = n; e.left {
			o.Queues[queue] = 0
		}
	}
	for token := range e.attempts {
		o.Held = append(o.Held, token)
	}
	slices.Sort(o.Held)
	e.stale = false
	e.ended = e.left && len(e.attempts) == 0
	return o, e.ended
}

// serve starts what the call brings. It returns nil if the endpoint needs another call, and an error if this one has ended.
func (e *endpoint) serve(ctx context.Context, call *work.Call) error {
	every := e.p.Lease / 6
	for heard := time.Now(); ; {
		call.Heard()
		if time.Since(heard) >= every {
			e.prune()
			heard = time.Now()
		}
		waits, cancel := context.WithTimeout(ctx, every)
		e.mu.Lock()
		e.wake = cancel
		again := e.stale || e.left && len(e.attempts) == 0
		e.mu.Unlock()
		var news work.News
		var err error
		if !again {
			news, err = call.Wait(waits)
		}
		cancel()
		for _, job := range news.Jobs {
			e.start(ctx, job)
		}
		e.interrupt(ctx, news.Interrupted)
		for _, warning := range news.Warnings {
			e.p.Log.Warn("weir: an endpoint may miss jobs", "endpoint", e.name, "why", warning)
		}
		if again || err != nil || ctx.Err() != nil {
			return err
		}
	}
}

// message is what an endpoint gets.
type message struct {
	work.Job
	Callback string `json:"callback,omitempty"` // where it reports, if it answers 202
}

// start sends a job.
func (e *endpoint) start(ctx context.Context, job work.Job) {
	asks, cancel := context.WithCancelCause(ctx)
	a := &attempt{token: job.Token, cancel: cancel}
	e.mu.Lock()
	if e.attempts[a.token] != nil { // it was told twice
		e.mu.Unlock()
		cancel(nil)
		return
	}
	e.attempts[a.token] = a
	e.mu.Unlock()
	t := e.current()
	e.all.Go(func() {
		defer cancel(nil)
		// It is that of the job, whichever attempt this is, and of no other: after a failover that lost jobs, others get their ids.
		id := fmt.Sprintf("job_%d_%d", job.ID, job.EnqueuedAt.UnixMicro())
		m := message{Job: job, Callback: t.callback}
		m.Token = e.p.bound(e.name, job.Token)
		body, err := json.Marshal(m)
		var f fate
		if err != nil {
			f = failed("the job can't be encoded: %s", err)
		} else {
			began := time.Now()
			f = deliver(asks, e.p.client, t, id, body)
			e.p.metrics.delivered(e.name, f, time.Since(began))
		}
		switch cause := context.Cause(asks); {
		case cause == errCancelled && f.outcome == "completed": // it was done nevertheless
		case cause == errCancelled:
			f = fate{outcome: "cancelled"}
		case cause != nil: // the hub is stopping, or the attempt is lost: others get it
			e.drop(a)
			return
		case f.outcome == "":
			e.accept(ctx, asks, a, t)
			return
		}
		e.finish(ctx, a, f)
	})
}

// accept has an attempt wait for its report.
func (e *endpoint) accept(ctx, asks context.Context, a *attempt, t *target) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case a.over:
		return // it was reported before the request was answered
	case context.Cause(asks) == errCancelled: // meanwhile; from now on, interrupt sees that it is accepted
		e.all.Go(func() { e.finish(ctx, a, fate{outcome: "cancelled"}) })
		return
	}
	a.accepted = true
	a.late = time.AfterFunc(t.accepted, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if !a.over && !e.ended {
			e.all.Go(func() {
				e.finish(ctx, a, failed("%s has accepted it, but has not reported its end within %v", e.name, t.accepted))
			})
		}
	})
}

// finish records the end of an attempt, and repeats that until it is known to be recorded, or lost.
func (e *endpoint) finish(ctx context.Context, a *attempt, f fate) {
	defer e.drop(a)
	end := work.End{Token: a.token, Outcome: f.outcome, Final: f.final}
	if f.reason != "" {
		end.Error = &f.reason
	}
	if f.output != "" {
		end.Output, _ = json.Marshal(f.output)
	}
	if f.deferred {
		end.Delay = new(f.delay.Seconds())
	}
	for {
		bounded, cancel := context.WithTimeout(ctx, recordFor)
		r := e.p.Dispatcher.Record(bounded, []work.End{end}, false)[0]
		cancel()
		switch {
		case r.Recorded, r.Refusal == "ended", r.Refusal == "lost":
			return
		case r.Refusal == "invalid":
			e.p.Log.Error("weir: the end of a pushed job was refused", "endpoint", e.name, "error", r.Detail)
			return
		}
		e.mu.Lock()
		over := a.over
		e.mu.Unlock()
		if over || !sleep.For(ctx, sleep.Jitter(recordSoon)) {
			return
		}
	}
}

// drop forgets an attempt whose end is known.
func (e *endpoint) drop(a *attempt) {
	e.mu.Lock()
	defer e.mu.Unlock()
	a.over = true
	if a.late != nil {
		a.late.Stop()
	}
	if e.attempts[a.token] == a {
		delete(e.attempts, a.token)
	}
	if e.left && len(e.attempts) == 0 {
		e.wake()
	}
}

// reported forgets an attempt whose end the endpoint has reported.
func (e *endpoint) reported(token string) {
	e.mu.Lock()
	a := e.attempts[token]
	e.mu.Unlock()
	if a != nil {
		e.drop(a)
	}
}

// interrupt gives up attempts.
func (e *endpoint) interrupt(ctx context.Context, some []work.Interrupted) {
	for _, i := range some {
		e.mu.Lock()
		a := e.attempts[i.Token]
		accepted := a != nil && a.accepted
		if a != nil && !accepted && i.Reason != work.Lost {
			a.cancel(errCancelled) // under mu, so that accept either sees it, or was before
		}
		e.mu.Unlock()
		switch {
		case a == nil:
		case i.Reason == work.Lost:
			a.cancel(errLost)
			e.drop(a)
		case accepted:
			e.all.Go(func() { e.finish(ctx, a, fate{outcome: "cancelled"}) })
		}
	}
}

// prune forgets attempts that have ended elsewhere: their reports have reached other hubs.
func (e *endpoint) prune() {
	e.mu.Lock()
	some := make([]*attempt, 0, len(e.attempts))
	for _, a := range e.attempts {
		if a.accepted {
			some = append(some, a)
		}
	}
	e.mu.Unlock()
	for _, a := range some {
		if !e.p.Dispatcher.Holds(a.token) {
			e.drop(a)
		}
	}
}

// giveUp lets go of what waits for a report: this hub is stopping.
func (e *endpoint) giveUp() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended = true
	for _, a := range e.attempts {
		if a.late != nil {
			a.late.Stop()
		}
	}
}

// counts returns how many requests are under way, and how many jobs wait for their reports.
func (e *endpoint) counts() (requests, accepted int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range e.attempts {
		if a.accepted {
			accepted++
		} else {
			requests++
		}
	}
	return requests, accepted
}
