package weir

import (
	"context"
	"fmt"

	"github.com/weir-pg/weir/internal/store"
)

// State of a job.
type State = store.State

const (
	Available State = "available" // may be claimed
	Running   State = "running"
	Later     State = "later" // waits for its RunAt
	Completed State = "completed"
	Failed    State = "failed"
	Cancelled State = "cancelled"
)

// States are all of them.
var States = []State{Available, Running, Later, Completed, Failed, Cancelled}

// Outcome is how an attempt ended.
type Outcome = store.Outcome

const (
	OutcomeCompleted = store.Completed
	OutcomeFailed    = store.Failed    // for good
	OutcomeCancelled = store.Cancelled // for good
	OutcomeRetried   = store.Retried   // failed, and another attempt follows
	OutcomeSnoozed   = store.Snoozed   // put off by the handler
	OutcomeReleased  = store.Released  // handed back by a worker that stopped
	OutcomeLost      = store.Lost      // its worker was lost
)

// What Client looks at.
type (
	JobInfo      = store.JobInfo
	AttemptError = store.AttemptError
	QueueInfo    = store.QueueInfo
	WorkerInfo   = store.WorkerInfo
	HubInfo      = store.HubInfo
)

// Job looks one job up; nil if the id is unknown or the job's retention is over.
func (c *Client) Job(ctx context.Context, id int64) (*JobInfo, error) {
	info, err := c.store.Job(ctx, id)
	return info, wrap("look up job", err, "weir_work")
}

// Jobs lists jobs in a state, of one queue or, with "", of all: available ones in the order they will be
// claimed, later ones by RunAt, the others newest first. At most 10,000; 0 means 100.
func (c *Client) Jobs(ctx context.Context, state State, queue string, most int) ([]JobInfo, error) {
	if most == 0 {
		most = 100
	}
	jobs, err := c.store.Jobs(ctx, state, queue, most)
	return jobs, wrap("list jobs", err, "weir_work")
}

// Queues lists all queues.
func (c *Client) Queues(ctx context.Context) ([]QueueInfo, error) {
	queues, err := c.store.Queues(ctx)
	return queues, wrap("list queues", err, "weir_operate")
}

// Workers lists workers, newest first, those that have ended too.
func (c *Client) Workers(ctx context.Context) ([]WorkerInfo, error) {
	workers, err := c.store.Workers(ctx)
	return workers, wrap("list workers", err, "weir_operate")
}

// Hubs lists the hubs that have shown a sign of life in the last five minutes.
func (c *Client) Hubs(ctx context.Context) ([]HubInfo, error) {
	hubs, err := c.store.Hubs(ctx)
	return hubs, wrap("list hubs", err, "weir_operate")
}

// CancelJob cancels a job. The answer is cancelled if it will not start, requested if it runs and its
// worker is told, or else the final state it had already; "" if the id is unknown.
func (c *Client) CancelJob(ctx context.Context, id int64) (answer string, err error) {
	answer, err = c.store.Cancel(ctx, id)
	return answer, wrap("cancel job", err, "weir_operate")
}

// RetryJob makes a finished job available once more, and returns the state it has then; "" if the id is
// unknown.
func (c *Client) RetryJob(ctx context.Context, id int64) (State, error) {
	state, err := c.store.Retry(ctx, id)
	return state, wrap("retry job", err, "weir_operate")
}

// PauseQueue stops claims from a queue; what runs, runs on. False if there is no queue of that name.
func (c *Client) PauseQueue(ctx context.Context, queue string) (found bool, err error) {
	found, err = c.store.Pause(ctx, queue)
	return found, wrap("pause queue", err, "weir_operate")
}

// ResumeQueue undoes PauseQueue.
func (c *Client) ResumeQueue(ctx context.Context, queue string) (found bool, err error) {
	found, err = c.store.Resume(ctx, queue)
	return found, wrap("resume queue", err, "weir_operate")
}

// Set changes a setting of the database: retention and message_retention (intervals), retention_bytes, message_retention_bytes or
// message_bytes; see docs/operators.md.
func (c *Client) Set(ctx context.Context, name, value string) error {
	return wrap("set "+name, c.store.Set(ctx, name, value), "weir_operate")
}

func wrap(what string, err error, role string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("weir: %s: %w", what, explain(err, role))
}
