package weir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/weir-pg/weir/internal/store"
)

// Flow describes a set of jobs, its members, and what is enqueued when all of them have ended: what others call a batch, a chord or a group. Members
// may be in different queues, and while they run they may add others, with the Flow of their Job as Options.Flow.
type Flow struct {
	Name      string    // for people, 1 to 200 characters
	OnDone    NewJob    // enqueued when all members have ended, in whatever way; no Args: nothing is
	OnSuccess NewJob    // enqueued when all members have completed; no Args: nothing is
	Open      bool      // others will add members: it does not end before [Client.SealFlow]
	Deadline  time.Time // when it is sealed as abandoned, if nobody has done so; default in one day
	Tasks     []Task    // members with names, which come after each other
	Parent    int64     // the flow that it is a member of, with its callbacks; 0: none. A member that adds one passes the Flow of its Job
	FailFast  bool      // cancel it as soon as a member has failed for good
}

// FlowState is the state of a flow.
type FlowState string

const (
	FlowOpen       FlowState = "open"       // not sealed
	FlowBlocked    FlowState = "blocked"    // a task whose job is not enqueued yet: one that it comes after has not ended, or no worker has come to it
	FlowRunning    FlowState = "running"    // members have not ended, or the callbacks are not enqueued yet
	FlowCancelling FlowState = "cancelling" // the same, after it was cancelled
	FlowSucceeded  FlowState = "succeeded"  // all members have completed
	FlowFailed     FlowState = "failed"     // all have ended, and some have failed or were cancelled
	FlowCancelled  FlowState = "cancelled"  // all have ended, after it was cancelled
	FlowAbandoned  FlowState = "abandoned"  // all have ended, after its deadline had sealed it
)

// FlowInfo describes a flow and its progress.
type FlowInfo struct {
	ID         int64      `json:"id"`
	Name       string     `json:"name"`
	State      FlowState  `json:"state"`
	Generation int        `json:"generation"` // how often it has ended, or will have: more than 1, if members were retried, or added, after it had
	Jobs       int64      `json:"jobs"`       // how many members it has had
	Unfinished int64      `json:"unfinished"` // of these
	Completed  int64      `json:"completed"`
	Failed     int64      `json:"failed"`
	Cancelled  int64      `json:"cancelled"`
	CreatedAt  time.Time  `json:"created_at"`
	Deadline   *time.Time `json:"deadline,omitempty"`    // nil: it is a task, which has none
	FinishedAt *time.Time `json:"finished_at,omitempty"` // nil: it has not ended

	Parent   int64            `json:"parent,omitempty"`    // the flow that it is a member of; 0: none
	IsTask   bool             `json:"is_task,omitempty"`   // it is a task of its parent
	Job      int64            `json:"job,omitempty"`       // of a task: its job; 0: it has not been enqueued
	FailFast bool             `json:"fail_fast,omitempty"` // it is cancelled as soon as a member has failed for good
	Counters map[string]int64 `json:"counters,omitempty"`  // see [Client.IncrementTx]

	OnDone    *FlowCallback `json:"on_done,omitempty"` // nil: it has none
	OnSuccess *FlowCallback `json:"on_success,omitempty"`
}

// FlowCallback is the job that a flow enqueues when it has ended.
type FlowCallback struct {
	Queue string `json:"queue"`
	Kind  string `json:"kind"`
}

// EndedFlow is what a callback is told about its flow.
type EndedFlow struct {
	ID         int64  `json:"id"`
	Name       string `json:"name"`
	Generation int    `json:"generation"` // 1; more, if members were retried, or added, after it had ended before
	Jobs       int64  `json:"jobs"`
	Completed  int64  `json:"completed"`
	Failed     int64  `json:"failed"`
	Cancelled  int64  `json:"cancelled"`

	Counters map[string]int64 `json:"counters,omitempty"` // see [Client.IncrementTx]
}

// Flow creates a flow with its Tasks and these members, in a transaction of its own, and returns its id. Unless it is Open, it takes no others than those that its
// members add, and ends when all have ended: at once, if there are none. The options of the members have no Flow: it is this one.
func (c *Client) Flow(ctx context.Context, f Flow, jobs ...NewJob) (id int64, err error) {
	err = c.store.InTx(ctx, func(q store.Querier) error {
		id, err = c.FlowTx(ctx, q, f, jobs...)
		return err
	})
	return id, err
}

// FlowTx is Flow in your transaction: the flow and its members exist when you commit, and never after a rollback.
func (c *Client) FlowTx(ctx context.Context, tx Tx, f Flow, jobs ...NewJob) (id int64, err error) {
	if tx == nil {
		return 0, errNoTx
	}
	members := make([]NewJob, len(jobs))
	for i, j := range jobs {
		o := j.options()
		if o.Flow != 0 {
			return 0, fmt.Errorf("weir: create flow: the options of job %d of %d, or the defaults of its kind, have Flow %d, but it is to be a member of this new flow: leave Flow out", i+1, len(jobs), o.Flow)
		}
		members[i] = NewJob{Args: j.Args, Options: &o, complete: true}
	}
	var onDone, onSuccess string
	if onDone, err = c.callback(ctx, "OnDone", f.OnDone); err == nil {
		onSuccess, err = c.callback(ctx, "OnSuccess", f.OnSuccess)
	}
	if err == nil {
		id, err = store.CreateFlow(ctx, tx, f.Name, onDone, onSuccess, f.Deadline, f.Parent, f.FailFast)
	}
	if err != nil {
		return 0, wrap("create flow", err, "weir_enqueue")
	}
	if len(members) > 0 {
		for _, m := range members {
			m.Options.Flow = id
		}
		if _, err = c.EnqueueManyTx(ctx, tx, members); err != nil {
			return 0, err
		}
	}
	if len(f.Tasks) > 0 {
		if _, err = c.AddTasksTx(ctx, tx, id, f.Tasks...); err != nil {
			return 0, err
		}
	}
	if !f.Open {
		if _, err = store.SealFlow(ctx, tx, id); err != nil {
			return 0, wrap("seal flow", err, "weir_enqueue")
		}
	}
	return id, nil
}

// callback returns a callback as the database takes it; "": there is none.
func (c *Client) callback(ctx context.Context, name string, j NewJob) (string, error) {
	if j.Args == nil {
		return "", nil
	}
	job, err := c.owned(ctx, name, j)
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(job.CallbackJSON())
	return string(text), err
}

// SealFlow seals a flow that was created Open: it ends when all its members have, and only these may add others. Sealing it again does nothing. It returns
// ErrNotFound if the id is unknown.
func (c *Client) SealFlow(ctx context.Context, id int64) error {
	return c.store.Direct(ctx, func(q store.Querier) error { return c.SealFlowTx(ctx, q, id) })
}

// SealFlowTx is SealFlow in your transaction: it takes effect when you commit. An error, ErrNotFound too, aborts the transaction: roll it back.
func (c *Client) SealFlowTx(ctx context.Context, tx Tx, id int64) error {
	_, err := store.SealFlow(ctx, tx, id)
	if store.IsUnknownFlow(err) {
		err = notFound("flow", id)
	}
	return wrap("seal flow", err, "weir_enqueue")
}

// FlowInfo returns a flow and its progress. It costs the same, however many members the flow has. It returns ErrNotFound if the id is unknown, or the
// flow ended longer ago than jobs are kept.
func (c *Client) FlowInfo(ctx context.Context, id int64) (*FlowInfo, error) {
	f, err := c.lookUpFlow(ctx, id)
	return f, wrap("look up flow", err, "weir_enqueue")
}

// FlowRunning returns how many jobs of a flow, and of the tasks and flows within it, are running: those that [Client.Jobs] lists. FlowInfo counts a task or a
// flow within it as one member, however many jobs of its own are running. It costs the same, however many members the flow has. It returns ErrNotFound as FlowInfo does.
func (c *Client) FlowRunning(ctx context.Context, id int64) (int64, error) {
	n, err := c.store.FlowRunning(ctx, id)
	if err == nil && n == 0 {
		_, err = c.lookUpFlow(ctx, id)
	}
	return n, wrap("count running jobs", err, "weir_work")
}

// lookUpFlow is FlowInfo, for other calls too.
func (c *Client) lookUpFlow(ctx context.Context, id int64) (*FlowInfo, error) {
	found, err := store.FlowInfo[FlowInfo](ctx, c.store, id)
	switch {
	case err != nil:
		return nil, err
	case len(found) == 0:
		return nil, notFound("flow", id)
	}
	return &found[0], nil
}

// Flows lists up to limit flows that are not members of others (1 to 1,000; 0: 100), newest first, with smaller ids than after; 0: from the newest on.
func (c *Client) Flows(ctx context.Context, after int64, limit int) ([]FlowInfo, error) {
	if limit == 0 {
		limit = 100
	}
	all, err := store.Flows[FlowInfo](ctx, c.store, 0, after, limit)
	return all, wrap("list flows", err, "weir_work")
}

// FlowsWithin lists flows as Flows does, but those whose Parent is this flow, or this task. Its tasks are listed by [Client.Tasks]. It returns ErrNotFound as FlowInfo does.
func (c *Client) FlowsWithin(ctx context.Context, parent, after int64, limit int) ([]FlowInfo, error) {
	if limit == 0 {
		limit = 100
	}
	all, err := store.Flows[FlowInfo](ctx, c.store, parent, after, limit)
	if err == nil && len(all) == 0 {
		_, err = c.lookUpFlow(ctx, parent)
	}
	return all, wrap("list flows", err, "weir_work")
}

// CancelFlow cancels all unfinished members of a flow, whatever their number, with one row, and what is within it, and returns its state: FlowCancelling; or a final one, if it
// had ended already. Members that wait do not start, running ones are notified, and nobody can add any: a flow that is open is sealed. When all have ended, Flow.OnDone is enqueued. It
// returns ErrNotFound if the id is unknown.
func (c *Client) CancelFlow(ctx context.Context, id int64) (state FlowState, err error) {
	err = c.store.Direct(ctx, func(q store.Querier) error {
		state, err = c.CancelFlowTx(ctx, q, id)
		return err
	})
	return state, err
}

// CancelFlowTx is CancelFlow in your transaction: it takes effect when you commit.
func (c *Client) CancelFlowTx(ctx context.Context, tx Tx, id int64) (FlowState, error) {
	state, err := store.CancelFlow(ctx, tx, id)
	if err == nil && state == "" {
		err = notFound("flow", id)
	}
	return FlowState(state), wrap("cancel flow", err, "weir_work")
}

// RetryFlow retries all failed and cancelled members of a flow and of what is within it, as RetryJob does, and returns how many. If the flow had ended, its callbacks are enqueued
// once more when it ends again, with the next generation. It works in steps, and calls progress after each with the number so far, unless it is nil. If
// it is interrupted, another call does the rest. It returns ErrNotFound if the id is unknown, or the flow ended longer ago than jobs are kept.
func (c *Client) RetryFlow(ctx context.Context, id int64, progress func(retried int64)) (retried int64, err error) {
	if _, err := c.FlowInfo(ctx, id); errors.Is(err, ErrNotFound) {
		return 0, wrap("retry flow", notFound("flow", id), "weir_operate")
	}
	for after := ""; ; {
		var n int64
		if n, after, err = c.store.RetryFlow(ctx, id, after); err != nil {
			return retried, wrap("retry flow", err, "weir_operate")
		}
		retried += n
		if progress != nil {
			progress(retried)
		}
		if after == "" {
			return retried, nil
		}
	}
}

// EndedFlow returns what the job, which is a callback, is told about its flow; nil: it is none.
func (j *JobMeta) EndedFlow() *EndedFlow {
	var meta struct {
		Flow *EndedFlow `json:"weir.flow"`
	}
	if j.Meta == nil || json.Unmarshal(j.Meta, &meta) != nil {
		return nil
	}
	return meta.Flow
}
