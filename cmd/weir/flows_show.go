package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-pg/weir"
)

type flowsShowCmd struct {
	ID int64 `arg:"" range:"1 or more" help:"Id of a flow, or of a task."`
	jsonFlag
}

func (flowsShowCmd) Help() string {
	return `It costs the same, however many jobs the flow has. "jobs" to "cancelled" count members: a task, or a flow within it, is one. "running" counts all jobs that are running, also those of tasks and flows within it. "waits for" names some of what it waits for, if it has not ended. To see its jobs: weir jobs list --flow 1

Example:

    weir flows show 1`
}

// shownFlow is what is shown of a flow.
type shownFlow struct {
	*weir.FlowInfo
	Running  *int64   `json:"running,omitempty"`   // nil: it has ended, or the user may not see it
	WaitsFor []string `json:"waits_for,omitempty"` // for people
}

func (c *flowsShowCmd) Run(ctx context.Context, s *streams, db *database) error {
	return oneFlow(ctx, db, c.ID, func(client *weir.Client, f *weir.FlowInfo) error {
		shown := shownFlow{FlowInfo: f}
		if f.FinishedAt == nil {
			w := waits{client: client, flow: f}
			if err := w.look(ctx); err != nil {
				return err
			}
			shown.Running, shown.WaitsFor = w.running, w.lines
			if len(w.hidden) > 0 {
				defer fmt.Fprintln(s.err, "weir: this user may not see everything: "+strings.Join(w.hidden, "; "))
			}
		}
		if c.JSON {
			return printJSON(s.out, shown)
		}
		fields := [][2]string{
			{"id", strconv.FormatInt(f.ID, 10)}, {"name", printable(f.Name)}, {"state", string(f.State)}, {"generation", strconv.Itoa(f.Generation)},
			{"jobs", count(f.Jobs)}, {"unfinished", count(f.Unfinished)}, {"completed", count(f.Completed)}, {"failed", count(f.Failed)}, {"cancelled", count(f.Cancelled)},
			{"created", when(&f.CreatedAt)}, {"finished", when(f.FinishedAt)},
		}
		if f.Parent != 0 {
			fields = append(fields, [2]string{"parent", strconv.FormatInt(f.Parent, 10)})
		}
		if f.Job != 0 {
			fields = append(fields, [2]string{"job", strconv.FormatInt(f.Job, 10)})
		}
		if f.State == weir.FlowOpen {
			fields = append(fields, [2]string{"deadline", when(f.Deadline)})
		}
		for _, name := range slices.Sorted(maps.Keys(f.Counters)) {
			fields = append(fields, [2]string{"counter", printable(name) + " " + strconv.FormatInt(f.Counters[name], 10)})
		}
		if shown.Running != nil {
			fields = append(fields, [2]string{"running", count(*shown.Running)})
		}
		for _, what := range shown.WaitsFor {
			fields = append(fields, [2]string{"waits for", what})
		}
		for _, field := range fields {
			if field[1] != "" {
				fmt.Fprintf(s.out, "%-11s %s\n", field[0], field[1])
			}
		}
		return nil
	})
}

// waits finds out what a flow that has not ended waits for, as far as the user may see it.
type waits struct {
	client *weir.Client
	flow   *weir.FlowInfo

	running *int64   // nil: the user may not see it
	lines   []string // up to ten of each sort
	hidden  []string // which roles show what else
}

// isDenied reports whether the user may not make a call, and notes which role may.
func (w *waits) isDenied(err error, role string) bool {
	if !denied(err) {
		return false
	}
	if !slices.Contains(w.hidden, role) {
		w.hidden = append(w.hidden, role)
	}
	return true
}

// What roles show. The second has the rights of the first, too.
const (
	workShows    = "the role weir_work shows how many jobs are running, and which jobs and flows within it this waits for"
	operateShows = "the role weir_operate shows whether there are workers, and queues are paused"
)

// add adds lines, and says which command shows more of them. isCut: not all of them were read.
func (w *waits) add(lines []string, isCut bool, more string) {
	const most = 10
	switch {
	case len(lines) > most:
		lines = append(lines[:most:most], "more: weir "+more)
	case isCut:
		lines = append(lines, "perhaps more: weir "+more)
	}
	w.lines = append(w.lines, lines...)
}

func (w *waits) look(ctx context.Context) error {
	id := w.flow.ID
	if w.flow.State == weir.FlowOpen {
		w.lines = append(w.lines, fmt.Sprintf("to be sealed: weir flows seal %d, or by its deadline at %s", id, when(w.flow.Deadline)))
	}
	running, err := w.client.FlowRunning(ctx, id)
	if err == nil {
		w.running = &running
	} else if !w.isDenied(err, workShows) {
		return err
	}
	jobs, err := w.jobs(ctx)
	if err != nil {
		return err
	}
	if err := w.flows(ctx); err != nil {
		return err
	}
	if err := w.tasks(ctx, jobs); err != nil {
		return err
	}
	if w.flow.Unfinished == 0 && w.flow.State != weir.FlowOpen {
		return w.chores(ctx, []string{"a worker's chores, which find that it has ended"}, "")
	}
	return nil
}

// jobs adds the jobs that it waits for, and returns them.
func (w *waits) jobs(ctx context.Context) ([]weir.JobInfo, error) {
	const most = 11
	list := weir.JobsParams{Flow: w.flow.ID, States: []weir.State{weir.StateRunning, weir.StateAvailable, weir.StateScheduled}, Limit: most}
	page, err := w.client.Jobs(ctx, list)
	if w.isDenied(err, workShows) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	jobs, unread := page.Jobs, page.Next
	if len(jobs) < most {
		list.States, list.Limit = []weir.State{weir.StateCancelled}, 100
		if page, err = w.client.Jobs(ctx, list); err != nil {
			return nil, err
		}
		unread = cmp.Or(unread, page.Next)
		for _, j := range page.Jobs {
			if j.FinishedAt == nil { // it ends when a worker would have started it
				jobs = append(jobs, j)
			}
		}
	}
	queues := map[string]weir.QueueInfo{}
	if slices.ContainsFunc(jobs, func(j weir.JobInfo) bool { return j.State == weir.StateAvailable || j.State == weir.StateCancelled }) {
		all, err := w.client.Queues(ctx)
		if err != nil && !w.isDenied(err, operateShows) {
			return nil, err
		}
		for _, q := range all {
			queues[q.Name] = q
		}
	}
	lines := make([]string, len(jobs))
	for i, j := range jobs {
		q, known := queues[j.Queue]
		lines[i] = fmt.Sprintf("job %d of kind %s in queue %s, which is %s", j.ID, printable(j.Kind), printable(j.Queue), standing(j, known && q.PausedAt != nil, known && q.Workers == 0))
	}
	w.add(lines, unread != "", fmt.Sprintf("jobs list --flow %d", w.flow.ID))
	return jobs, nil
}

// standing says how a job stands, and what holds it up.
func standing(j weir.JobInfo, paused, unworked bool) string {
	holdUp := ""
	switch {
	case paused:
		holdUp = "its queue is paused: weir queues resume " + j.Queue
	case unworked:
		holdUp = "no worker works its queue"
	}
	switch {
	case j.State == weir.StateScheduled:
		return "scheduled for " + when(j.RunAt)
	case j.State == weir.StateRunning && j.CancelRequested:
		return "running, and was asked to stop"
	case j.State == weir.StateAvailable && holdUp != "":
		return "available, but " + holdUp
	case j.State != weir.StateCancelled:
		return string(j.State)
	case j.RunAt != nil && holdUp != "":
		return "cancelled and ends when it is due, " + when(j.RunAt) + ", but " + holdUp
	case j.RunAt != nil:
		return "cancelled and ends when it is due, " + when(j.RunAt)
	case holdUp != "":
		return "cancelled, and " + holdUp
	}
	return "cancelled and ends when a worker comes to it"
}

// readAtOnce is how many tasks, and flows within it, are looked at.
const readAtOnce = 1000

// flows adds the flows within it that it waits for.
func (w *waits) flows(ctx context.Context) error {
	all, err := w.client.FlowsWithin(ctx, w.flow.ID, 0, readAtOnce)
	if w.isDenied(err, workShows) {
		return nil
	} else if err != nil {
		return err
	}
	var lines []string
	for _, f := range all {
		todo := "show"
		if f.State == weir.FlowOpen {
			todo = "seal"
		}
		if f.FinishedAt == nil {
			lines = append(lines, fmt.Sprintf("flow %d %q, which is %s: weir flows %s %[1]d", f.ID, cell(f.Name), f.State, todo))
		}
	}
	w.add(lines, len(all) == readAtOnce, fmt.Sprintf("flows list --parent %d", w.flow.ID))
	return nil
}

// tasks adds the tasks that it waits for, but those of these jobs.
func (w *waits) tasks(ctx context.Context, jobs []weir.JobInfo) error {
	all, err := w.client.Tasks(ctx, w.flow.ID, 0, readAtOnce)
	if err != nil {
		return err
	}
	var lines, ready []string
	for _, t := range all {
		name := printable(cell(t.Name))
		switch {
		case t.State == weir.FlowBlocked && len(t.WaitsFor) > 0:
			lines = append(lines, fmt.Sprintf("task %s, which comes after %s", name, printable(strings.Join(t.WaitsFor, ", "))))
		case t.State == weir.FlowBlocked:
			ready = append(ready, fmt.Sprintf("task %s, which a worker's chores enqueue", name))
		case (t.State == weir.FlowRunning || t.State == weir.FlowCancelling) && !slices.ContainsFunc(jobs, func(j weir.JobInfo) bool { return j.Flow == t.ID }):
			lines = append(lines, fmt.Sprintf("task %s, which is %s: weir flows show %d", name, t.State, t.ID))
		}
	}
	more := fmt.Sprintf("flows tasks %d", w.flow.ID)
	w.add(lines, len(all) == readAtOnce, more)
	return w.chores(ctx, ready, more)
}

// chores adds what a worker's chores do next, and says if there is no worker.
func (w *waits) chores(ctx context.Context, lines []string, more string) error {
	if len(lines) == 0 {
		return nil
	}
	workers, err := w.client.Workers(ctx)
	if err != nil && !w.isDenied(err, operateShows) {
		return err
	}
	if err == nil && !slices.ContainsFunc(workers, func(one weir.WorkerInfo) bool { return one.State == "alive" }) {
		for i := range lines {
			lines[i] += ", but no worker runs"
		}
	}
	w.add(lines, false, more)
	return nil
}
