package worker

import (
	"context"
	"time"

	"github.com/weir-pg/weir/internal/store"
)

// runJobs is one runner: it ends when the fetcher has closed the queue.
func (s *session) runJobs(q *queue) {
	for t := range q.ready {
		q.taken.Add(1)
		started := time.Now()
		s.runJob(t)
		s.freed(q, time.Since(started))
	}
}

func (s *session) runJob(t *Task) {
	ctx, stop := context.WithCancelCause(s.jobs)
	defer stop(nil)
	mine, cancelled := s.startTask(t, stop)
	switch {
	case !mine:
	case cancelled:
		s.end(t, Result{Outcome: store.Cancelled})
	case s.stopping.Load():
		s.end(t, Result{Outcome: store.Released})
	default:
		s.end(t, s.Handler(ctx, t))
	}
}

// Settle corrects the result of a handler whose context ended under it, for a cause of this package's.
// A handler that succeeded all the same has succeeded.
func Settle(r Result, cause error) Result {
	if r.Outcome == store.Completed || cause == nil {
		return r
	}
	switch cause {
	case ErrCancelled:
		return Result{Outcome: store.Cancelled, Err: r.Err, Output: r.Output}
	case ErrStopping:
		return Result{Outcome: store.Released, Err: r.Err}
	}
	return r
}

// end takes down how a task ended, to be recorded.
func (s *session) end(t *Task, r Result) {
	s.mu.Lock()
	t.state = ended
	t.stop = nil
	lost := t.batch.lost
	s.mu.Unlock()
	if !lost {
		s.completer.add(t, r)
	}
}

// freed gives a runner's place back and tells the fetcher when that makes a claim worth its while.
func (s *session) freed(q *queue, took time.Duration) {
	q.finished(took)
	if q.worthwhile() {
		select {
		case s.room <- struct{}{}:
		default:
		}
	}
}
