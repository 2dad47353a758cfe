package weir

import (
	"context"
	"fmt"
	"strconv"

	"github.com/weir-pg/weir/internal/store"
)

// CancelJob cancels a job, and returns its new state. StateCancelled: it will not start. StateRunning, which is requested in weir.cancel and in the
// command: its worker is notified, and ends the job's context. StateCompleted or StateFailed: it has already finished. CancelJob returns ErrNotFound if the id is unknown, or the job's
// retention is over.
func (c *Client) CancelJob(ctx context.Context, id int64) (State, error) {
	answer, err := c.store.Cancel(ctx, id)
	return cancelled(id, answer, err)
}

// CancelJobTx is CancelJob in your transaction: it takes effect when you commit.
func (c *Client) CancelJobTx(ctx context.Context, tx Tx, id int64) (State, error) {
	answer, err := store.CancelTx(ctx, tx, id)
	return cancelled(id, answer, err)
}

func cancelled(id int64, answer string, err error) (State, error) {
	state := State(answer)
	switch {
	case err == nil && answer == "":
		err = notFound("job", id)
	case answer == "requested":
		state = StateRunning
	}
	return state, wrap("cancel job", err, "weir_work")
}

// RetryJob makes a job in a final state available again, and returns its new state. A job in another state is not changed. RetryJob returns
// ErrNotFound if the id is unknown, or the job's retention is over.
func (c *Client) RetryJob(ctx context.Context, id int64) (State, error) {
	state, err := c.store.Retry(ctx, id)
	return retried(id, state, err)
}

// RetryJobTx is RetryJob in your transaction, which must be READ COMMITTED: it takes effect when you commit.
func (c *Client) RetryJobTx(ctx context.Context, tx Tx, id int64) (State, error) {
	state, err := store.RetryTx(ctx, tx, id)
	return retried(id, state, err)
}

func retried(id int64, state string, err error) (State, error) {
	if err == nil && state == "" {
		err = notFound("job", id)
	}
	return State(state), wrap("retry job", err, "weir_operate")
}

// DeleteJob deletes a failed job: it is unknown from then on, and can't be retried. false: the job has not failed, or has been retried, and stays. DeleteJob returns ErrNotFound if the id
// is unknown, or the job's retention is over. To delete many, see DeleteWhere.
func (c *Client) DeleteJob(ctx context.Context, id int64) (deleted bool, err error) {
	state, err := c.store.Delete(ctx, id)
	if err == nil && state == "" {
		err = notFound("job", id)
	}
	return state == "deleted", wrap("delete job", err, "weir_operate")
}

// PauseQueue stops claims from a queue; running jobs continue. It returns ErrNotFound if the queue does not exist.
func (c *Client) PauseQueue(ctx context.Context, queue string) error {
	found, err := c.store.Pause(ctx, queue)
	return wrap("pause queue", orNotFound(found, err, "queue", queue), "weir_operate")
}

// ResumeQueue undoes PauseQueue. It returns ErrNotFound if the queue does not exist.
func (c *Client) ResumeQueue(ctx context.Context, queue string) error {
	found, err := c.store.Resume(ctx, queue)
	return wrap("resume queue", orNotFound(found, err, "queue", queue), "weir_operate")
}

// Set changes a setting of the database: completed_retention, failed_retention or message_retention (intervals), retention_bytes,
// message_retention_bytes or message_bytes; see docs/operators.md.
func (c *Client) Set(ctx context.Context, name, value string) error {
	return wrap("set "+name, c.store.Set(ctx, name, value), "weir_operate")
}

// SetQueue changes a setting of a queue: backoff, the delay after a job's first failure; backoff_limit, the longest delay (both are
// intervals); backoff_form, how the delay grows with each further failure: exponential (the default), linear or fixed; or ageing, the
// time after which a job may start ahead of those of the priority before its own, an interval too (see docs/priorities.md). The queue need
// not have been used yet.
func (c *Client) SetQueue(ctx context.Context, queue, name, value string) error {
	return wrap("set "+name, c.store.SetQueue(ctx, queue, name, value), "weir_operate")
}

func wrap(what string, err error, role string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("weir: %s: %w", what, explain(err, role))
}

func orNotFound(found bool, err error, what, name string) error {
	if err == nil && !found {
		return notFound(what, name)
	}
	return err
}

func notFound(what string, name any) error {
	if text, ok := name.(string); ok {
		name = strconv.Quote(text)
	}
	return fmt.Errorf("%s %v: %w", what, name, ErrNotFound)
}
