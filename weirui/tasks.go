package weirui

import (
	"context"
	"errors"
	"slices"

	"github.com/weir-pg/weir"
)

// States of tasks whose jobs have been enqueued, by the states of these. For a flow, all of them are running.
const (
	taskWaiting   = weir.FlowState("waiting")
	taskScheduled = weir.FlowState("scheduled")
	taskStarted   = weir.FlowState("started") // there are too many jobs to say more
)

const jobsOfTasks = 1000 // looked at for the states of tasks

// stateOfJobs says of running tasks whether their jobs do run, or wait, or are scheduled.
func (v *visit) stateOfJobs(ctx context.Context, flow int64, tasks []weir.TaskInfo) error {
	if !slices.ContainsFunc(tasks, func(t weir.TaskInfo) bool { return t.State == weir.FlowRunning && t.Job != 0 }) {
		return nil
	}
	page, err := v.db.client.Jobs(ctx, weir.JobsParams{Flow: flow, States: []weir.State{weir.StateRunning, weir.StateAvailable, weir.StateScheduled}, Limit: jobsOfTasks})
	if err != nil {
		return err
	}
	found := make(map[int64]weir.State, len(page.Jobs))
	for _, j := range page.Jobs {
		found[j.ID] = j.State
	}
	for i, t := range tasks {
		state, known := found[t.Job]
		switch {
		case t.State != weir.FlowRunning || t.Job == 0:
		case state == weir.StateAvailable:
			tasks[i].State = taskWaiting
		case state == weir.StateScheduled:
			tasks[i].State = taskScheduled
		case !known && page.Next != "":
			tasks[i].State = taskStarted
		}
	}
	return nil
}

// stateOfTask is the state of a flow or, if it is a task whose job has not begun, what that does.
func (v *visit) stateOfTask(f *weir.FlowInfo) (weir.FlowState, error) {
	if !f.IsTask || f.State != weir.FlowRunning || f.Job == 0 {
		return f.State, nil
	}
	j, err := v.job(f.Job)
	switch {
	case errors.Is(err, weir.ErrNotFound):
	case err != nil:
		return "", err
	case j.State == weir.StateAvailable:
		return taskWaiting, nil
	case j.State == weir.StateScheduled:
		return taskScheduled, nil
	}
	return f.State, nil
}
