package weir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weir-pg/weir/internal/store"
)

// JobFilter selects jobs for CancelWhere, RetryWhere, DeleteWhere and MoveWhere: those for which every condition that is set holds. The zero value is
// refused. To select all jobs, set EnqueuedBefore to now. A field that is empty or zero is not set: before you set one from a variable, such as a
// tenant's key, make sure that it is not empty.
type JobFilter struct {
	Queue          string    // "": all queues
	Kinds          []string  // up to 1,000; none: all kinds
	Meta           any       // jobs whose meta contains this, any value that encodes to a JSON object; nil: all jobs
	Priority       int       // 1 to 4; 0: all priorities
	EnqueuedAfter  time.Time // enqueued then or later; zero: all jobs
	EnqueuedBefore time.Time // zero: all jobs
	Key            string    // jobs with this key; "": all jobs

	// Only for RetryWhere and DeleteWhere:
	Error          string    // jobs whose last error contains this text; "": all jobs
	Shape          string    // jobs whose last error has this shape, as FailureGroup.Shape; "": all jobs
	FinishedAfter  time.Time // jobs that failed (or completed, or were cancelled) then or later; zero: all jobs
	FinishedBefore time.Time // zero: all jobs

	States []State // only for RetryWhere: StateFailed, StateCancelled, StateCompleted; none: StateFailed. Alone, it is no filter
}

// CancelWhere cancels all unfinished jobs that the filter selects, whatever their number: it writes one row, and counts nothing. From then on none of
// them starts, and all that wait are shown as cancelled; the workers of running ones are notified, and end their contexts. It applies to all jobs
// that were enqueued before it, even by transactions that have not committed yet, and to none enqueued later. It returns ErrNotFound if the
// queue does not exist.
func (c *Client) CancelWhere(ctx context.Context, f JobFilter) error {
	where, err := f.where("cancel")
	if err == nil {
		var no *int64
		no, err = c.store.CancelWhere(ctx, where)
		err = orNotFound(no != nil, err, "queue", f.Queue)
	}
	return wrap("cancel jobs", err, "weir_operate")
}

// CancelWhereTx is CancelWhere in your transaction: it takes effect when you commit.
func (c *Client) CancelWhereTx(ctx context.Context, tx Tx, f JobFilter) error {
	where, err := f.where("cancel")
	if err == nil {
		var no *int64
		no, err = store.CancelWhereTx(ctx, tx, where)
		err = orNotFound(no != nil, err, "queue", f.Queue)
	}
	return wrap("cancel jobs", err, "weir_operate")
}

// RetryWhere retries all jobs in a final state that the filter selects, as RetryJob does, each at most once, and returns how many. It works in
// steps of at most 500 jobs, each in a transaction of its own, and calls progress after each with the number so far, unless it is nil. If it is
// interrupted, what it has reported is done, and another call does the rest. Calls at the same time do not get in each other's way. It returns
// ErrNotFound if the queue does not exist.
func (c *Client) RetryWhere(ctx context.Context, f JobFilter, progress func(retried int64)) (int64, error) {
	where, err := f.where("retry")
	if err != nil {
		return 0, wrap("retry jobs", err, "weir_operate")
	}
	return c.steps(ctx, "retry jobs", where, c.store.RetryWhere, progress)
}

// DeleteWhere deletes all failed jobs that the filter selects, in steps as RetryWhere does, and returns how many. A deleted job is unknown from
// then on, and cannot be retried; its data leaves the disk when its retention is over.
func (c *Client) DeleteWhere(ctx context.Context, f JobFilter, progress func(deleted int64)) (int64, error) {
	where, err := f.where("delete")
	if err != nil {
		return 0, wrap("delete jobs", err, "weir_operate")
	}
	return c.steps(ctx, "delete jobs", where, c.store.DeleteWhere, progress)
}

// MoveTo is where MoveWhere moves jobs. One of the fields must be set.
type MoveTo struct {
	Queue    string // created if it does not exist; "": the job's own
	Priority int    // 1 to 4; 0: the job's own
}

// MoveWhere moves all available and scheduled jobs that the filter selects to another queue or priority, in steps as RetryWhere does, and returns how
// many. A moved job keeps its id, attempt and arguments, and comes behind the jobs that wait there. A job that has started is not moved; none
// runs twice or is lost, whatever workers do meanwhile.
func (c *Client) MoveWhere(ctx context.Context, f JobFilter, to MoveTo, progress func(moved int64)) (int64, error) {
	where, err := f.where("move")
	if err != nil {
		return 0, wrap("move jobs", err, "weir_operate")
	}
	var priority *int
	if to.Priority != 0 {
		priority = &to.Priority
	}
	return c.steps(ctx, "move jobs", where, func(ctx context.Context, w store.Where) (int64, string, error) {
		return c.store.MoveWhere(ctx, w, to.Queue, priority)
	}, progress)
}

func (c *Client) steps(ctx context.Context, what string, where store.Where, step func(context.Context, store.Where) (int64, string, error), progress func(int64)) (done int64, err error) {
	for {
		n, next, err := step(ctx, where)
		if err != nil {
			return done, wrap(what, err, "weir_operate")
		}
		done += n
		if progress != nil {
			progress(done)
		}
		if next == "" && done == 0 {
			return 0, wrap(what, c.checkQueue(ctx, where.Queue), "weir_operate")
		} else if next == "" {
			return done, nil
		}
		where.After = next
	}
}

// checkQueue returns ErrNotFound if there is no such queue; "" means all of them.
func (c *Client) checkQueue(ctx context.Context, name string) error {
	if name == "" {
		return nil
	}
	settings, err := c.Settings(ctx) // every queue has some
	found := slices.ContainsFunc(settings, func(s Setting) bool { return s.Queue == name })
	return orNotFound(found, err, "queue", name)
}

func (f JobFilter) where(verb string) (store.Where, error) {
	w := store.Where{Queue: f.Queue, Kinds: f.Kinds, Key: f.Key, Error: f.Error, Shape: f.Shape}
	unfinished := verb == "cancel" || verb == "move"
	switch {
	case unfinished && f.Error != "":
		return w, errors.New("JobFilter.Error selects jobs that have failed: it is only for RetryWhere and DeleteWhere")
	case unfinished && f.Shape != "":
		return w, errors.New("JobFilter.Shape selects jobs that have failed: it is only for RetryWhere and DeleteWhere")
	case unfinished && !(f.FinishedAfter.IsZero() && f.FinishedBefore.IsZero()):
		return w, errors.New("JobFilter.FinishedAfter and FinishedBefore select jobs that have ended: they are only for RetryWhere and DeleteWhere")
	case verb != "retry" && len(f.States) > 0:
		return w, fmt.Errorf("JobFilter.States is only for RetryWhere, got %v", f.States)
	}
	for _, s := range f.States {
		if !slices.Contains(States, s) {
			return w, fmt.Errorf("JobFilter.States has an unknown state %q", s)
		}
		w.States = append(w.States, string(s))
	}
	if f.Meta != nil {
		text, err := json.Marshal(f.Meta)
		if err != nil {
			return w, fmt.Errorf("encode JobFilter.Meta: %w", err)
		}
		if meta := string(text); meta != "{}" {
			w.Meta = &meta
		}
	}
	if f.Priority != 0 {
		w.Priority = &f.Priority
	}
	for _, t := range []struct {
		given time.Time
		at    **time.Time
	}{{f.EnqueuedAfter, &w.EnqueuedAfter}, {f.EnqueuedBefore, &w.EnqueuedBefore}, {f.FinishedAfter, &w.FinishedAfter}, {f.FinishedBefore, &w.FinishedBefore}} {
		if !t.given.IsZero() {
			*t.at = &t.given
		}
	}
	switch {
	case w.FinishedAfter != nil && w.FinishedBefore != nil && !w.FinishedAfter.Before(*w.FinishedBefore):
		return w, fmt.Errorf("no job ended at %s or later and before %s: JobFilter.FinishedAfter must be the earlier time", w.FinishedAfter.Format(time.RFC3339), w.FinishedBefore.Format(time.RFC3339))
	case w.EnqueuedAfter != nil && w.EnqueuedBefore != nil && !w.EnqueuedAfter.Before(*w.EnqueuedBefore):
		return w, fmt.Errorf("no job was enqueued at %s or later and before %s: JobFilter.EnqueuedAfter must be the earlier time", w.EnqueuedAfter.Format(time.RFC3339), w.EnqueuedBefore.Format(time.RFC3339))
	case w.Queue == "" && len(w.Kinds) == 0 && w.Meta == nil && w.Priority == nil && w.EnqueuedAfter == nil && w.EnqueuedBefore == nil && w.Key == "" && w.Error == "" && w.Shape == "" && w.FinishedAfter == nil && w.FinishedBefore == nil:
		return w, errors.New("the JobFilter is empty: set a field besides States, such as Queue; to select all jobs, set EnqueuedBefore to the present time")
	}
	return w, nil
}
