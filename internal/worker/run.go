package worker

import (
	"context"
	"errors"
	"time"

	"github.com/weir-pg/weir/internal/store"
)

// startRunner starts one runner.
func (s *session) startRunner(q *queue) {
	s.runners.Go(func() {
		returned := false
		defer func() {
			if !returned {
				s.startRunner(q) // replaces a runner whose goroutine was ended by a handler
			}
		}()
		for t := q.take(); t != nil; t = q.take() {
			s.runJob(q, t)
		}
		returned = true
	})
}

func (s *session) runJob(q *queue, t *Task) {
	s.lease.sure()
	started := time.Now()
	defer func() { s.freed(q, time.Since(started)) }()
	ctx, stop := context.WithCancelCause(s.timeouts.context(s.timeout(t.Kind), started))
	defer stop(nil)
	mine, dropped := s.startTask(t, ctx, stop, started)
	switch {
	case !mine:
	case dropped != nil:
		s.end(t, droppedFor(*dropped))
	case s.stopping.Load() || ctx.Err() != nil: // it must not start any more
		s.end(t, Result{Outcome: store.Released})
	default:
		var result Result
		defer func() { s.end(t, result) }() // even if the handler ends this goroutine
		s.Handler(ctx, t, &result)
	}
}

// droppedFor returns the result of a task that must not run, for a reason, which may be empty.
func droppedFor(reason string) Result {
	r := Result{Outcome: store.Cancelled}
	if reason != "" {
		r.Err = errors.New(reason)
	}
	return r
}

// timeout returns the timeout of an attempt at a job of a kind; 0 or less: none.
func (s *session) timeout(kind string) time.Duration {
	if s.Timeout == nil {
		return 0
	}
	return s.Timeout(kind)
}

// Settle corrects the result of a handler whose context was ended by this package. A handler that succeeded nevertheless has succeeded.
func Settle(r Result, cause error) Result {
	if r.Outcome == store.Completed || cause == nil {
		return r
	}
	switch cause {
	case ErrCancelled:
		return Result{Outcome: store.Cancelled, Err: r.Err, Output: r.Output, InTx: r.InTx}
	case ErrStopping, ErrLapsed:
		return Result{Outcome: store.Released, Err: r.Err, InTx: r.InTx}
	}
	return r
}

// end passes a task's result to the completer.
func (s *session) end(t *Task, r Result) {
	s.mu.Lock()
	t.state = ended
	t.stop, t.ctx = nil, nil
	lost, overdue := t.batch.lost, t.overdue
	s.mu.Unlock()
	if !lost {
		s.completer.add(t, r)
	} else if r.Told != nil {
		r.Told(asLost(nil))
	}
	if overdue {
		s.logReturned(t, r)
	}
}

// freed frees a runner's place, and signals the fetcher if a claim is now worthwhile.
func (s *session) freed(q *queue, took time.Duration) {
	q.finished(took)
	if q.worthwhile() {
		s.tellRoom()
	}
}

func (s *session) tellRoom() {
	select {
	case s.room <- struct{}{}:
	default:
	}
}
