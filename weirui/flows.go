package weirui

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/weir-pg/weir"
)

func flowEndpoints() []endpoint {
	return []endpoint{
		page("flows", listFlows).takes("after"),
		page("flows/{id}", showFlow).takes("tasks", "within"),
		action(Operator, "flows/{id}/cancel", cancelFlow).asks(askID("Cancel flow %s, with its unfinished members and all that is within them?", "id")),
		action(Operator, "flows/{id}/retry", retryFlow).asks(askID("Retry the failed and cancelled members of flow %s?", "id")),
	}
}

const (
	flowsOnPage   = 50
	tasksOnPage   = 300
	mostTasks     = 5000             // looked at to draw a flow
	fewTasks      = 1000             // read each second
	manyFresh     = 10 * time.Second // how long more of them are shown again
	retryAtOnce   = 20 * time.Second // how long one request retries members
	lookedAtHolds = 100              // jobs that wait, of which it is said what holds them up
	pagesOfHolds  = 10               // that are read for them
)

// flowInfo is a flow, as it is shown.
type flowInfo struct{ weir.FlowInfo }

// Bar is how far its members are, as parts of a bar that is 100 wide.
func (f flowInfo) Bar() (parts []barPart) {
	if f.Jobs <= 0 {
		return nil
	}
	at := 0.0
	for _, p := range []barPart{{Class: "completed", N: f.Completed}, {Class: "failed", N: f.Failed}, {Class: "cancelled", N: f.Cancelled}} {
		if p.N > 0 {
			p.X, p.Width = at, float64(p.N)/float64(f.Jobs)*100
			at += p.Width
			parts = append(parts, p)
		}
	}
	return parts
}

type barPart struct {
	Class    string
	N        int64
	X, Width float64
}

// Retries reports whether it has members to retry.
func (f flowInfo) Retries() bool { return f.Failed+f.Cancelled > 0 }

// Goes reports whether it can be cancelled.
func (f flowInfo) Goes() bool { return f.FinishedAt == nil && f.State != weir.FlowCancelling }

func shownFlows(all []weir.FlowInfo) []flowInfo {
	shown := make([]flowInfo, len(all))
	for i, f := range all {
		shown[i] = flowInfo{f}
	}
	return shown
}

// afterID reads the id after which a page begins; 0: the first page.
func (v *visit) afterID(name string) (int64, error) {
	text := v.URL.Query().Get(name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 {
		return 0, badInput("%s is the last id of the page before; got %q.", name, cut(text, 50))
	}
	return n, nil
}

// flowList is a page of flows.
type flowList struct {
	Flows []flowInfo `json:"flows"`
	Next  int64      `json:"next,omitempty"` // ?after= of the next page
	After int64      `json:"-"`
}

// flowsAfter reads a page of the flows within a flow, or of those that are within none: newest first.
func (v *visit) flowsAfter(parent, after int64) (list flowList, err error) {
	all, err := read(v.Context(), v.db, fmt.Sprintf("flows of %d after %d", parent, after), func(ctx context.Context) ([]weir.FlowInfo, error) {
		if parent == 0 {
			return v.db.client.Flows(ctx, after, flowsOnPage+1)
		}
		return v.db.client.FlowsWithin(ctx, parent, after, flowsOnPage+1)
	})
	if err != nil {
		return list, err
	}
	list.After = after
	if len(all) > flowsOnPage {
		all = all[:flowsOnPage]
		list.Next = all[flowsOnPage-1].ID
	}
	list.Flows = shownFlows(all)
	return list, nil
}

func listFlows(v *visit) (*view, error) {
	after, err := v.afterID("after")
	if err != nil {
		return nil, err
	}
	list, err := v.flowsAfter(0, after)
	if err != nil {
		return nil, err
	}
	return &view{template: "flows", title: "Flows", data: list}, nil
}

// flowPage is what the page of a flow shows.
type flowPage struct {
	Flow    flowInfo        `json:"flow"`
	Running int64           `json:"running"`           // jobs of it, and of what is within it
	Waits   []string        `json:"waits,omitempty"`   // what holds it up
	Tasks   []weir.TaskInfo `json:"tasks,omitempty"`   // a page of them
	Next    int64           `json:"next,omitempty"`    // ?tasks= of the next page
	Layers  []layer         `json:"layers,omitempty"`  // if there are too many tasks to draw each
	Partial bool            `json:"partial,omitempty"` // not all tasks were looked at
	Within  flowList        `json:"within"`            // flows within it
	Graph   *graph          `json:"-"`                 // nil: nothing to draw, or too much
	Paged   bool            `json:"-"`                 // this is not the first page of tasks
}

// Counted is how many tasks are drawn, or counted by layer, at most.
func (flowPage) Counted() int { return mostTasks }

func showFlow(v *visit) (*view, error) {
	id, err := v.id()
	if err != nil {
		return nil, err
	}
	after, err := v.afterID("tasks")
	if err != nil {
		return nil, err
	}
	within, err := v.afterID("within")
	if err != nil {
		return nil, err
	}
	f, err := v.flow(id)
	if errors.Is(err, weir.ErrNotFound) {
		return nil, &problem{404, fmt.Sprintf("There is no flow %d.", id), "It may never have existed, or it ended and its retention is over."}
	} else if err != nil {
		return nil, err
	}
	p := flowPage{Flow: flowInfo{*f}, Paged: after > 0}
	if p.Flow.State, err = v.stateOfTask(f); err != nil {
		return nil, err
	}
	age := fresh
	if f.Jobs > fewTasks {
		age = manyFresh
	}
	tasks, err := readAged(v.Context(), v.db, fmt.Sprintf("flow %d tasks", id), age, func(ctx context.Context) ([]weir.TaskInfo, error) { return v.firstTasks(ctx, id) })
	if err != nil {
		return nil, err
	}
	p.Partial = len(tasks) >= mostTasks
	if p.Graph = draw(tasks); p.Graph == nil {
		p.Layers = summarize(tasks)
	}
	if p.Tasks, p.Next, err = v.tasksAfter(id, after, tasks); err != nil {
		return nil, err
	}
	if p.Within, err = v.flowsAfter(id, within); err != nil {
		return nil, err
	}
	if f.FinishedAt == nil {
		if p.Running, err = read(v.Context(), v.db, fmt.Sprintf("flow %d running", id), func(ctx context.Context) (int64, error) { return v.db.client.FlowRunning(ctx, id) }); err != nil {
			return nil, err
		}
		if p.Waits, err = v.holdUps(f); err != nil {
			return nil, err
		}
	}
	title := fmt.Sprintf("Flow %d: %s", id, f.Name)
	if f.IsTask {
		title = fmt.Sprintf("Task %s of flow %d", f.Name, f.Parent)
	}
	return &view{template: "flow", title: title, data: p}, nil
}

// flow looks up a flow.
func (v *visit) flow(id int64) (*weir.FlowInfo, error) {
	return read(v.Context(), v.db, fmt.Sprintf("flow %d", id), func(ctx context.Context) (*weir.FlowInfo, error) { return v.db.client.FlowInfo(ctx, id) })
}

// firstTasks reads the first mostTasks tasks of a flow.
func (v *visit) firstTasks(ctx context.Context, id int64) (all []weir.TaskInfo, err error) {
	const page = 1000
	for after := int64(0); len(all) < mostTasks; after = all[len(all)-1].ID {
		some, err := v.db.client.Tasks(ctx, id, after, page)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
		if len(some) < page {
			break
		}
	}
	return all, v.stateOfJobs(ctx, id, all)
}

// tasksAfter returns a page of tasks, from the first ones if they are among these.
func (v *visit) tasksAfter(id, after int64, first []weir.TaskInfo) (tasks []weir.TaskInfo, next int64, err error) {
	if len(first) < mostTasks || after < first[len(first)-1].ID {
		at := slices.IndexFunc(first, func(t weir.TaskInfo) bool { return t.ID > after })
		if at < 0 {
			return nil, 0, nil
		}
		tasks = first[at:]
	} else {
		tasks, err = read(v.Context(), v.db, fmt.Sprintf("flow %d tasks after %d", id, after), func(ctx context.Context) ([]weir.TaskInfo, error) {
			some, err := v.db.client.Tasks(ctx, id, after, tasksOnPage+1)
			if err != nil {
				return nil, err
			}
			return some, v.stateOfJobs(ctx, id, some)
		})
		if err != nil {
			return nil, 0, err
		}
	}
	if len(tasks) > tasksOnPage {
		return tasks[:tasksOnPage], tasks[tasksOnPage-1].ID, nil
	}
	if len(first) >= mostTasks && len(tasks) > 0 && tasks[len(tasks)-1].ID == first[len(first)-1].ID {
		next = tasks[len(tasks)-1].ID // there may be more than the first ones
	}
	return tasks, next, nil
}

// holdUps says what holds up a flow that has not ended, apart from its tasks and the flows within it, which the page lists.
func (v *visit) holdUps(f *weir.FlowInfo) (all []string, err error) {
	if f.State == weir.FlowOpen && f.Deadline != nil {
		all = append(all, fmt.Sprintf("It is open, so it does not end before it is sealed: by its program, with weir flows seal %d, or at its deadline, %s.", f.ID, ago(*f.Deadline)))
	}
	workers, err := v.workers()
	if err != nil {
		return nil, err
	}
	if !anyAlive(workers) {
		all = append(all, "No worker runs, and nothing else enqueues tasks and callbacks, or finds that it has ended.")
	}
	page, err := read(v.Context(), v.db, fmt.Sprintf("flow %d waiting", f.ID), func(ctx context.Context) (*weir.JobsPage, error) {
		list := weir.JobsParams{Flow: f.ID, States: []weir.State{weir.StateAvailable}, Limit: lookedAtHolds}
		for pages := 1; ; pages++ { // jobs of other flows may take up the first ones
			page, err := v.db.client.Jobs(ctx, list)
			if err != nil || len(page.Jobs) > 0 || page.Next == "" || pages == pagesOfHolds {
				return page, err
			}
			list.After = page.Next
		}
	})
	if err != nil || len(page.Jobs) == 0 {
		return all, err
	}
	queues, err := v.queues()
	if err != nil {
		return nil, err
	}
	for _, q := range queues {
		waits := slices.ContainsFunc(page.Jobs, func(j weir.JobInfo) bool { return j.Queue == q.Name })
		switch {
		case waits && q.PausedAt != nil:
			all = append(all, fmt.Sprintf("Jobs of it wait in queue %s, which is paused.", q.Name))
		case waits && q.Workers == 0:
			all = append(all, fmt.Sprintf("Jobs of it wait in queue %s, which no worker works.", q.Name))
		}
	}
	return all, nil
}

func cancelFlow(v *visit) (string, error) {
	id, err := v.id()
	if err != nil {
		return "", err
	}
	state, err := v.db.client.CancelFlow(v.Context(), id)
	if err == nil && state != weir.FlowCancelling {
		return fmt.Sprintf("Flow %d had ended already, as %s.", id, state), nil
	}
	return fmt.Sprintf("Flow %d is being cancelled: its members do not start, and those that run have been asked to end.", id), err
}

// retryFlow retries the failed and cancelled members of a flow: as many as can be in one request.
func retryFlow(v *visit) (string, error) {
	id, err := v.id()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(v.Context(), retryAtOnce)
	defer cancel()
	n, err := v.db.client.RetryFlow(ctx, id, nil)
	switch {
	case n > 0 && ctx.Err() != nil && v.Context().Err() == nil:
		return fmt.Sprintf("%s jobs of flow %d are retried so far: retry it again for the rest.", number(n), id), nil
	case err == nil && n == 0:
		return fmt.Sprintf("No member of flow %d has failed or was cancelled.", id), nil
	case n == 1:
		return fmt.Sprintf("1 job of flow %d is retried.", id), err
	}
	return fmt.Sprintf("%s jobs of flow %d are retried.", number(n), id), err
}
