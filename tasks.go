package weir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"

	"github.com/weir-pg/weir/internal/sealed"
	"github.com/weir-pg/weir/internal/store"
)

// Task is a job of a flow that has a name, and comes after others: it is enqueued when these have ended, with whatever they have added.
type Task struct {
	Name         string   // 1 to 200 characters, unique in the flow
	After        []string // the tasks that it comes after, added in the same call or before
	IgnoreFailed bool     // enqueue it even if some of these have failed or were cancelled; default: it is cancelled without having started
	Job          NewJob   // without Unique, Flow, Once and RunAt; middleware does not see it
}

// TaskInfo describes a task of a flow. A task is a flow of its own, whose first member is its job: its ID is one for [Client.FlowInfo], [Client.CancelFlow]
// and [Client.RetryFlow].
type TaskInfo struct {
	ID           int64     `json:"id"`
	Name         string    `json:"name"`
	State        FlowState `json:"state"`
	Job          int64     `json:"job,omitempty"` // 0: it has not been enqueued
	Queue        string    `json:"queue"`
	Kind         string    `json:"kind"`
	After        []string  `json:"after,omitempty"`
	WaitsFor     []string  `json:"waits_for,omitempty"` // those of After that have not ended
	IgnoreFailed bool      `json:"ignore_failed,omitempty"`
	Generation   int       `json:"generation"`
	Jobs         int64     `json:"jobs"` // that belong to it: its own, and those that this has added
	Unfinished   int64     `json:"unfinished"`
}

// AddTasks adds tasks to a flow, all or none, up to 10,000 in a call, and returns their ids in order. The flow must not have ended. A task that is
// there already stays as it is, so it is safe to repeat the call.
func (c *Client) AddTasks(ctx context.Context, flow int64, tasks ...Task) (ids []int64, err error) {
	err = c.store.InTx(ctx, func(q store.Querier) error {
		ids, err = c.AddTasksTx(ctx, q, flow, tasks...)
		return err
	})
	return ids, err
}

// AddTasksTx is AddTasks in your transaction.
func (c *Client) AddTasksTx(ctx context.Context, tx Tx, flow int64, tasks ...Task) ([]int64, error) {
	if tx == nil {
		return nil, errNoTx
	}
	all := make([]store.Task, len(tasks))
	for i, t := range tasks {
		job, err := c.owned(ctx, fmt.Sprintf("task %q", t.Name), t.Job)
		if err != nil {
			return nil, wrap("add tasks", err, "weir_enqueue")
		}
		all[i] = store.NewTask(t.Name, t.After, t.IgnoreFailed, job)
	}
	ids, err := store.AddTasks(ctx, tx, flow, all)
	return ids, wrap("add tasks", err, "weir_enqueue")
}

// Tasks lists up to limit tasks of a flow (1 to 1,000; 0: 100), oldest first, with greater ids than after. It returns ErrNotFound as [Client.FlowInfo] does.
func (c *Client) Tasks(ctx context.Context, flow, after int64, limit int) ([]TaskInfo, error) {
	if limit == 0 {
		limit = 100
	}
	all, err := store.Tasks[TaskInfo](ctx, c.store, flow, after, limit)
	if err == nil && len(all) == 0 {
		_, err = c.lookUpFlow(ctx, flow)
	}
	return all, wrap("list tasks", err, "weir_enqueue")
}

// IncrementTx adds n to a counter of a flow (1 to 100 characters; a flow has up to 100), in your transaction: it counts when you commit. Nothing is
// updated, so members never wait for each other. With [JobMeta.CompleteTx] in the same transaction, an attempt that is repeated is counted once, and
// the sums are exact when the flow ends; passed to CompleteTx itself, counts cost no call and no row of their own. [Client.FlowInfo] shows them at any time, and callbacks get them in their EndedFlow.
func (c *Client) IncrementTx(ctx context.Context, tx Tx, flow int64, counter string, n int64) error {
	if tx == nil {
		return errNoTx
	}
	return wrap("increment", store.Increment(ctx, tx, flow, counter, n), "weir_enqueue")
}

// Count is what is added to a counter of a flow: see [JobMeta.CompleteTx].
type Count struct {
	Counter string // 1 to 100 characters
	N       int64
}

// encodeCounts returns counts as the database takes them; nil: there are none.
func encodeCounts(counts []Count) (*string, error) {
	if len(counts) == 0 {
		return nil, nil
	}
	sums := map[string]int64{}
	for _, c := range counts {
		sums[c.Counter] += c.N
	}
	text, err := json.Marshal(sums)
	return new(string(text)), err
}

// FlowOutput is what a member of a flow has passed to [JobMeta.SetOutput].
type FlowOutput struct {
	no   int64
	Job  int64
	Task string // "": the job is not that of a task
	Kind string
	Text string
}

// Decode decodes the text as JSON.
func (o FlowOutput) Decode(v any) error {
	if err := json.Unmarshal([]byte(o.Text), v); err != nil {
		return fmt.Errorf("weir: decode the output of job %d: %w", o.Job, err)
	}
	return nil
}

// FlowOutputs iterates over the outputs of a flow's members that have completed, in the order in which they were recorded; those of a flow that has ended
// are complete. It reads a hundred at a time, so there may be any number. They are kept as long as the flow, also when the jobs have left the log. The
// outputs of jobs that a task has added belong to the task: pass its id. It yields ErrNotFound as FlowInfo returns it.
func (c *Client) FlowOutputs(ctx context.Context, flow int64) iter.Seq2[FlowOutput, error] {
	const page = 100
	return func(yield func(FlowOutput, error) bool) {
		for after := int64(0); ; {
			some, err := c.outputs(ctx, flow, "", after, page)
			if err == nil && len(some) == 0 && after == 0 {
				_, err = c.lookUpFlow(ctx, flow)
				err = wrap("read outputs", err, "weir_work")
			}
			if err != nil {
				yield(FlowOutput{}, err)
				return
			}
			for _, o := range some {
				if !yield(o, nil) {
					return
				}
				after = o.no
			}
			if len(some) < page {
				return
			}
		}
	}
}

// TaskOutput returns the output of a task of a flow, decoded as JSON; as a string, as it is. A task that comes after others reads theirs with the Flow of its
// [JobMeta.Task]. It returns ErrNotFound if the task has not completed, or has no output.
func TaskOutput[T any](ctx context.Context, c *Client, flow int64, task string) (v T, err error) {
	some, err := c.outputs(ctx, flow, task, 0, 1)
	switch {
	case err != nil:
		return v, err
	case len(some) == 0:
		return v, fmt.Errorf("weir: the output of task %q of flow %d: %w", task, flow, ErrNotFound)
	}
	if text, ok := any(&v).(*string); ok {
		*text = some[0].Text
		return v, nil
	}
	return v, some[0].Decode(&v)
}

// outputs returns a page of outputs, decrypted.
func (c *Client) outputs(ctx context.Context, flow int64, task string, after int64, limit int) ([]FlowOutput, error) {
	type row struct {
		No         int64
		Job        int64
		Task, Kind string
		Text       string
	}
	rows, err := store.FlowOutputs[row](ctx, c.store, flow, task, after, limit)
	if err != nil {
		return nil, wrap("read outputs", err, "weir_work")
	}
	all := make([]FlowOutput, len(rows))
	for i, r := range rows {
		all[i] = FlowOutput{r.No, r.Job, r.Task, r.Kind, r.Text}
		if sealed.Is(r.Text) {
			plain, err := c.codecs.decode(ctx, sealed.Output, r.Job, r.Kind, []byte(r.Text))
			if err != nil {
				return nil, fmt.Errorf("weir: read the output of job %d: %w", r.Job, err)
			}
			all[i].Text = string(plain)
		}
	}
	return all, nil
}

// TaskOf is what the job of a task is told about it.
type TaskOf struct {
	Flow int64  `json:"flow"` // the flow that the task belongs to; the Flow of the job is the task
	Name string `json:"name"`
}

// Task returns which task of which flow the job is; nil: it is none. Children of the task are added with the Flow of the job, further tasks with TaskOf.Flow.
func (j *JobMeta) Task() *TaskOf {
	var meta struct {
		Task *TaskOf `json:"weir.task"`
	}
	if j.Meta == nil || json.Unmarshal(j.Meta, &meta) != nil {
		return nil
	}
	return meta.Task
}

var errOwned = errors.New("it can't have Unique, Flow, Once or RunAt, because the flow enqueues it itself, once: leave them out")

// owned encodes a job that a flow enqueues itself.
func (c *Client) owned(ctx context.Context, name string, j NewJob) (store.Job, error) {
	if o := j.options(); o.Unique != nil || o.Flow != 0 || o.Once != "" || !o.RunAt.IsZero() {
		return store.Job{}, fmt.Errorf("%s: %w", name, errOwned)
	}
	job, err := j.encode(ctx, c.codecs)
	if err != nil {
		return job, fmt.Errorf("%s: %w", name, err)
	}
	return job, nil
}
