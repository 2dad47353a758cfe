package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/weir-pg/weir/internal/store"
)

// drainPatience is how long the end of one attempt may take to be recorded: a handler may leave the transaction open that completes its job.
const drainPatience = 10 * time.Second

// promoteMost is how many scheduled jobs are promoted in one call.
const promoteMost = 1000

// Drain works what there is, one attempt after the other, in the calling goroutine: for tests. It returns when nothing is left, when done, which
// is told of each attempt once its end is recorded, returns an error, or when ctx ends, from which the contexts of jobs derive. What is scheduled
// for no later than upto, a time that is not past, is worked as if its time had come; what comes due meanwhile is not, so that it is the same
// however long jobs take.
func (w *Worker) Drain(ctx context.Context, upto time.Time, done func(t *Task, r Result, recorded store.Outcome, why error) error) error {
	d := &drain{}
	handler := w.Handler
	w = New(w.Config)
	w.Handler = func(ctx context.Context, t *Task) Result {
		d.result = handler(ctx, t)
		d.told = make(chan recorded, 1)
		r, told := d.result, d.told
		r.Told = func(outcome store.Outcome, why error) {
			if d.result.Told != nil {
				d.result.Told(outcome, why)
			}
			told <- recorded{outcome, why}
		}
		return r
	}
	asked := time.Now()
	id, err := w.Store.StartWorker(ctx, w.Name, w.queues, w.Lease)
	if err != nil {
		return fmt.Errorf("start worker: %w", err)
	}
	d.session = newSession(w, id, asked)
	jobs, endJobs := context.WithCancel(ctx)
	d.timeouts = newTimeouts(jobs, jobs)
	live, die := context.WithCancel(context.WithoutCancel(ctx))
	var keeper sync.WaitGroup
	keeper.Go(func() { d.keep(live) })
	defer func() { // also when a handler ends this goroutine
		if d.unrecorded() > 0 {
			_, _ = d.record(live)
		}
		endJobs()
		die()
		keeper.Wait()
		d.completer.abandon()
		d.leave()
		d.lease.stop()
	}()
	for promoted := promoteMost; promoted == promoteMost; {
		if promoted, _, err = w.Store.PromoteUpto(ctx, promoteMost, upto); err != nil {
			return fmt.Errorf("promote what is scheduled: %w", err)
		}
	}
	for {
		t, err := d.next(ctx)
		if err != nil || t == nil {
			return err
		}
		q := d.byName[t.Queue]
		q.inFlight.Add(1)
		d.result, d.told = Result{Outcome: store.Cancelled}, nil // of one that is not to start
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
	told   chan recorded // gets how its end was recorded; nil: it did not start
}

// recorded is how the end of an attempt stands in the database, and why so if it is not what the handler said.
type recorded struct {
	outcome store.Outcome
	why     error
}

// next claims one attempt; nil: there is none.
func (d *drain) next(ctx context.Context) (found *Task, err error) {
	for i := range d.queues {
		limits := make([]int32, len(d.queues))
		limits[i] = 1
		err := d.Store.Claim(ctx, d.id, d.Worker.queues, limits, nil, nil, func(c store.Claim) {
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
	}
	return nil, nil
}

// record has the end of the one attempt recorded, and says how.
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
			return recorded{}, errors.New("it takes too long: has the handler left the transaction open that completes the job?")
		}
		if d.told == nil && d.unrecorded() == 0 {
			return recorded{outcome: d.result.Outcome}, nil
		}
	}
}
