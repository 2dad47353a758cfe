package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/store"
)

// drainPatience limits the time to record the end of one attempt: a handler may leave open the transaction that completes its job.
const drainPatience = 10 * time.Second

// maxPromoted is the maximum number of scheduled jobs promoted in one call.
const maxPromoted = 1000

// Drain works all available jobs, one attempt at a time, in the calling goroutine. It is for tests. It calls done for each attempt, once
// its end is recorded. It returns when no jobs are left, done returns an error, or ctx ends, from which the jobs' contexts derive. Jobs
// scheduled for upto or before are worked as if their time had come; upto must not be in the past. Jobs that become due during the drain
// are not worked, so that the outcome does not depend on how long jobs take.
func (w *Worker) Drain(ctx context.Context, upto time.Time, done func(t *Task, r Result, recorded store.Outcome, why error) error) error {
	d := &drain{}
	handler := w.Handler
	w = New(w.Config)
	w.Handler = func(ctx context.Context, t *Task, r *Result) {
		defer func() {
			d.result = *r
			d.told = make(chan recorded, 1)
			next, told := r.Told, d.told
			r.Told = func(outcome store.Outcome, why error) {
				defer func() { told <- recorded{outcome, why} }()
				if next != nil {
					next(outcome, why)
				}
			}
		}()
		handler(ctx, t, r)
	}
	asked := time.Now()
	id, err := w.Store.StartWorker(ctx, w.Name, w.queues, nil, w.Lease)
	if err != nil {
		return fmt.Errorf("start worker: %w", err)
	}
	d.session = newSession(w, id, asked)
	jobs, endJobs := context.WithCancel(ctx)
	d.timeouts = newTimeouts(jobs, jobs)
	live, die := context.WithCancel(context.WithoutCancel(ctx))
	var keeper sync.WaitGroup
	keeper.Go(func() { d.keep(live) })
	defer func() { // even if a handler ends this goroutine
		if d.unrecorded() > 0 {
			_, _ = d.record(live)
		}
		endJobs()
		die()
		keeper.Wait()
		d.completer.abandon()
		d.leave(time.Now().Add(d.StopTimeout + stopGrace))
		d.lease.stop()
	}()
	for promoted := maxPromoted; promoted == maxPromoted; {
		if promoted, _, err = w.Store.PromoteUpto(ctx, maxPromoted, upto); err != nil {
			return fmt.Errorf("promote scheduled jobs: %w", err)
		}
	}
	for {
		t, err := d.next(ctx)
		if err == nil && t == nil {
			var more bool
			if more, err = d.fold(ctx); err == nil && more {
				continue
			}
		}
		if err != nil || t == nil {
			return err
		}
		q := d.byName[t.Queue]
		q.flies(1)
		d.result, d.told = Result{Outcome: store.Cancelled}, nil // the result of a task that does not start
		if t.Dropped != nil {
			d.result = droppedFor(*t.Dropped)
		}
		d.runJob(q, t)
		end, err := d.record(live)
		if err != nil {
			return fmt.Errorf("record the end of job %d of kind %s: %w", t.ID, t.Kind, err)
		}
		if err := done(t, d.result, end.outcome, end.why); err != nil {
			return err
		}
	}
}

// drain is a session whose jobs are run by one goroutine.
type drain struct {
	*session
	result Result        // of the last attempt
	told   chan recorded // receives how the end was recorded; nil: the attempt did not start
}

// recorded is the outcome of an attempt in the database, and the reason if it is not what the handler returned.
type recorded struct {
	outcome store.Outcome
	why     error
}

// next claims one attempt; nil: there is none.
func (d *drain) next(ctx context.Context) (found *Task, err error) {
	for i := range d.queues {
		limits := make([]int32, len(d.queues))
		limits[i] = 1
		for again := true; again; {
			more, withheld, err := d.Store.Claim(ctx, d.id, d.Worker.queues, limits, nil, nil, func(c store.Claim) {
				b := &batch{key: c.Batch, left: 1}
				found = &Task{Claim: c, Worker: d.id, batch: b}
				b.tasks = []*Task{found}
				d.add(b)
			})
			if err != nil {
				return nil, fmt.Errorf("claim: %w", err)
			}
			if found != nil {
				return found, nil
			}
			again = more
			for _, w := range withheld {
				if w.For == nil || *w.For > drainPatience {
					return nil, fmt.Errorf("the limits of queue %s allow none of its jobs now: clear them for this test", w.Queue)
				}
				again = sleep.For(ctx, *w.For)
			}
		}
	}
	return nil, nil
}

// record waits until the end of the attempt is recorded, and returns the recorded outcome.
func (d *drain) record(ctx context.Context) (recorded, error) {
	ctx, cancel := context.WithTimeout(ctx, drainPatience)
	defer cancel()
	for {
		select {
		case <-d.completer.more:
			d.completer.flush(ctx)
		case end := <-d.told:
			return end, nil
		case <-ctx.Done():
			return recorded{}, errors.New("it takes too long: check that the handler ends the transaction that completes the job")
		}
		if d.told == nil && d.unrecorded() == 0 {
			return recorded{outcome: d.result.Outcome}, nil
		}
	}
}

// fold counts what has arrived at flows, and reports whether that may have enqueued jobs: callbacks and tasks.
func (d *drain) fold(ctx context.Context) (more bool, err error) {
	const pause = 5 * time.Millisecond
	for {
		ended, busy, again, _, err := d.Store.Fold(ctx)
		more = more || ended > 0 || again
		if err != nil {
			return false, fmt.Errorf("count what has arrived at flows: %w", err)
		}
		if !again && (!busy || !sleep.For(ctx, pause)) {
			return more, ctx.Err()
		}
	}
}
