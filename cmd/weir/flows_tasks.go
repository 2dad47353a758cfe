package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-pg/weir"
)

type flowsTasksCmd struct {
	ID    int64 `arg:"" range:"1 or more" help:"Id of a flow."`
	After int64 `placeholder:"ID" range:"1 or more" help:"Only tasks with greater ids."`
	Limit int   `default:"100" range:"1 to 1000" help:"Maximum tasks, up to 1000."`
	jsonFlag
}

func (flowsTasksCmd) Help() string {
	return `STATE is blocked until its job is enqueued, by a worker's chores, once all that it comes after have ended: WAITS FOR names those that have not. JOB is its job.

Example:

    weir flows tasks 1`
}

func (c *flowsTasksCmd) Run(ctx context.Context, s *streams, db *database) error {
	if c.Limit < 1 || c.Limit > 1000 {
		return usagef("--limit must be 1 to 1000, got %d", c.Limit)
	}
	return oneFlow(ctx, db, c.ID, func(client *weir.Client, _ *weir.FlowInfo) error {
		all, err := client.Tasks(ctx, c.ID, c.After, c.Limit)
		if err != nil {
			return err
		}
		if len(all) == c.Limit {
			defer tellOfMore(s, all[len(all)-1].ID)
		}
		if c.JSON {
			return printJSON(s.out, orEmpty(all))
		}
		if len(all) == 0 {
			fmt.Fprintln(s.err, "weir: no tasks")
			return nil
		}
		rows := make([][]string, len(all))
		for i, t := range all {
			job := ""
			if t.Job != 0 {
				job = strconv.FormatInt(t.Job, 10)
			}
			rows[i] = []string{strconv.FormatInt(t.ID, 10), cell(t.Name), string(t.State), job, cell(t.Queue), cell(t.Kind), cell(strings.Join(t.After, ", ")), cell(strings.Join(t.WaitsFor, ", "))}
		}
		return table(s.out, []string{"ID", "TASK", "STATE", "JOB", "QUEUE", "KIND", "AFTER", "WAITS FOR"}, rows)
	})
}

type flowsAddCmd struct {
	ID int64 `arg:"" range:"1 or more" help:"Id of a flow that has not ended."`
}

func (flowsAddCmd) Help() string {
	return `Reads a JSON array of tasks from standard input: {"task": NAME, "after": [NAME, …], "ignore_failed": true, "kind": …, "queue": …, "args": …}; only task and kind are required. All of them are added, or none. One that is there already stays as it is, and is marked.

Example:

    echo '[{"task": "load", "queue": "files", "kind": "load"}, {"task": "merge", "after": ["load"], "kind": "merge"}]' | weir flows add 1`
}

// taskFields are what a task may have.
var taskFields = slices.Concat([]string{"task", "after", "ignore_failed"}, callbackFields)

// readTasks reads an array of tasks.
func readTasks(in io.Reader) ([]weir.Task, error) {
	const most = 64 << 20
	const example = `[{"task": "load", "kind": "load"}]`
	text, err := io.ReadAll(io.LimitReader(in, most+1))
	if err != nil {
		return nil, fmt.Errorf("read standard input: %w", err)
	}
	var all []json.RawMessage
	var wrong *json.UnmarshalTypeError
	switch err := json.Unmarshal(text, &all); {
	case len(text) > most:
		return nil, usagef("standard input is longer than %d bytes: add the tasks in several calls", most)
	case len(bytes.TrimSpace(text)) == 0:
		return nil, usagef("standard input is empty: pipe a JSON array of tasks, such as %s", example)
	case errors.As(err, &wrong):
		return nil, usagef("standard input must be a JSON array of tasks, got a JSON %s: write it as %s", wrong.Value, example)
	case err != nil:
		return nil, usagef("standard input must be one JSON array of tasks, and nothing else: %w", err)
	case len(all) == 0:
		return nil, usagef("standard input is %s: there is no task to add", cell(string(bytes.TrimSpace(text))))
	}
	tasks := make([]weir.Task, len(all))
	for i, text := range all {
		var t struct {
			Task         string   `json:"task"`
			After        []string `json:"after"`
			IgnoreFailed bool     `json:"ignore_failed"`
			callbackJSON
		}
		what := fmt.Sprintf("task %d", i+1)
		if err := decodeFields(what, "a task", text, taskFields, &t); err != nil {
			return nil, err
		}
		job, err := t.job(what)
		if err != nil {
			return nil, err
		}
		tasks[i] = weir.Task{Name: t.Task, After: t.After, IgnoreFailed: t.IgnoreFailed, Job: job}
	}
	return tasks, nil
}

func (c *flowsAddCmd) Run(ctx context.Context, s *streams, db *database) error {
	if _, ok := isTerminal(s.in); ok {
		fmt.Fprintln(s.err, "weir: reading tasks from the terminal: end with Ctrl-D")
	}
	tasks, err := readTasks(&contextReader{ctx: ctx, in: s.in})
	if err != nil {
		return err
	}
	return oneFlow(ctx, db, c.ID, func(client *weir.Client, _ *weir.FlowInfo) error {
		before, err := allTasks(ctx, client, c.ID)
		if err != nil {
			return err
		}
		ids, err := client.AddTasks(ctx, c.ID, tasks...)
		for i := range ids {
			note := ""
			if _, found := slices.BinarySearchFunc(before, ids[i], func(t weir.TaskInfo, id int64) int { return cmp.Compare(t.ID, id) }); found {
				note = " (was there already)"
			}
			fmt.Fprintf(s.out, "%d %s%s\n", ids[i], printable(tasks[i].Name), note)
		}
		return err
	})
}

type flowsOutputsCmd struct {
	ID int64 `arg:"" range:"1 or more" help:"Id of a flow, or of a task."`
	jsonFlag
}

func (flowsOutputsCmd) Help() string {
	return `One line for each member that has completed with an output, in the order in which they were recorded: its job, its task (-: none), its kind, and the output as a JSON string.

Example:

    weir flows outputs 1`
}

func (c *flowsOutputsCmd) Run(ctx context.Context, s *streams, db *database) error {
	return oneFlow(ctx, db, c.ID, func(client *weir.Client, _ *weir.FlowInfo) error {
		type line struct {
			Job    int64  `json:"job"`
			Task   string `json:"task,omitempty"`
			Kind   string `json:"kind"`
			Output string `json:"output"`
		}
		all := []line{}
		for o, err := range client.FlowOutputs(ctx, c.ID) {
			if err != nil {
				return err
			}
			if c.JSON {
				all = append(all, line{o.Job, o.Task, o.Kind, o.Text})
				continue
			}
			text, err := json.Marshal(o.Text)
			if err != nil {
				return err
			}
			fmt.Fprintf(s.out, "%d\t%s\t%s\t%s\n", o.Job, printable(cmp.Or(o.Task, "-")), printable(o.Kind), text)
		}
		if c.JSON {
			return printJSON(s.out, all)
		}
		return nil
	})
}

type flowsGraphCmd struct {
	ID     int64  `arg:"" range:"1 or more" help:"Id of a flow."`
	Format string `default:"text" enum:"text,dot,mermaid" help:"text, dot (for Graphviz) or mermaid."`
}

func (flowsGraphCmd) Help() string {
	return `Shows which task comes after which. In the text, a task stands below the first of those that it comes after, with its state; where it is named again, what comes after it is left out.

Examples:

    weir flows graph 1

    weir flows graph 1 --format dot | dot -Tsvg > flow.svg`
}

func (c *flowsGraphCmd) Run(ctx context.Context, s *streams, db *database) error {
	return oneFlow(ctx, db, c.ID, func(client *weir.Client, f *weir.FlowInfo) error {
		tasks, err := allTasks(ctx, client, c.ID)
		if err != nil {
			return err
		}
		if len(tasks) == 0 {
			fmt.Fprintln(s.err, "weir: no tasks")
			return nil
		}
		switch c.Format {
		case "dot":
			return drawDOT(s.out, f.Name, tasks)
		case "mermaid":
			return drawMermaid(s.out, tasks)
		default:
			return drawText(s.out, tasks)
		}
	})
}

// allTasks reads all tasks of a flow.
func allTasks(ctx context.Context, client *weir.Client, flow int64) (all []weir.TaskInfo, err error) {
	const page = 1000
	for after := int64(0); ; after = all[len(all)-1].ID {
		some, err := client.Tasks(ctx, flow, after, page)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
		if len(some) < page {
			return all, nil
		}
	}
}

// drawText draws tasks as a tree.
func drawText(w io.Writer, tasks []weir.TaskInfo) error {
	byName, next := map[string]weir.TaskInfo{}, map[string][]string{}
	for _, t := range tasks {
		byName[t.Name] = t
		for _, before := range t.After {
			next[before] = append(next[before], t.Name)
		}
	}
	var failed error
	drawn := map[string]bool{}
	var draw func(name, indent, branch string)
	draw = func(name, indent, branch string) {
		t := byName[name]
		more := ""
		if drawn[name] && len(next[name]) > 0 {
			more = " …"
		}
		if _, err := fmt.Fprintf(w, "%s%s%s  %s%s\n", indent, branch, printable(name), t.State, more); err != nil {
			failed = cmp.Or(failed, err)
		}
		if drawn[name] || failed != nil {
			return
		}
		drawn[name] = true
		switch branch {
		case "├─ ":
			indent += "│  "
		case "└─ ":
			indent += "   "
		}
		for i, after := range next[name] {
			if i == len(next[name])-1 {
				draw(after, indent, "└─ ")
			} else {
				draw(after, indent, "├─ ")
			}
		}
	}
	for _, t := range tasks {
		if len(t.After) == 0 {
			draw(t.Name, "", "")
		}
	}
	return failed
}

// colours of tasks by their state.
var colours = map[weir.FlowState]string{weir.FlowSucceeded: "#b7e4c7", weir.FlowFailed: "#f4b6b6", weir.FlowCancelled: "#d9d9d9", weir.FlowAbandoned: "#f4b6b6", weir.FlowRunning: "#a9d6f5", weir.FlowCancelling: "#a9d6f5", weir.FlowBlocked: "#ffffff"}

// drawDOT draws tasks in the language of Graphviz.
func drawDOT(w io.Writer, name string, tasks []weir.TaskInfo) error {
	var b strings.Builder
	quote := func(text string) string {
		return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(printableLines(text)) + `"`
	}
	fmt.Fprintf(&b, "digraph %s {\n  node [shape=box, style=filled]\n", quote(name))
	for _, t := range tasks {
		fmt.Fprintf(&b, "  %s [label=%s, fillcolor=%q]\n", quote(t.Name), quote(t.Name+"\n"+string(t.State)), colours[t.State])
		for _, before := range t.After {
			style := ""
			if t.IgnoreFailed {
				style = " [style=dashed]"
			}
			fmt.Fprintf(&b, "  %s -> %s%s\n", quote(before), quote(t.Name), style)
		}
	}
	b.WriteString("}\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// drawMermaid draws tasks as a flowchart of Mermaid.
func drawMermaid(w io.Writer, tasks []weir.TaskInfo) error {
	var b strings.Builder
	b.WriteString("flowchart TD\n")
	id := map[string]string{}
	for i, t := range tasks {
		id[t.Name] = "t" + strconv.Itoa(i+1)
	}
	label := strings.NewReplacer(`"`, "#quot;", "\n", " ", "#", "#35;")
	for _, t := range tasks {
		fmt.Fprintf(&b, "  %s[\"%s<br>%s\"]:::%s\n", id[t.Name], label.Replace(printableLines(t.Name)), t.State, t.State)
		for _, before := range t.After {
			arrow := "-->"
			if t.IgnoreFailed {
				arrow = "-.->"
			}
			fmt.Fprintf(&b, "  %s %s %s\n", id[before], arrow, id[t.Name])
		}
	}
	for _, state := range slices.Sorted(maps.Keys(colours)) {
		fmt.Fprintf(&b, "  classDef %s fill:%s,stroke:#555,color:#000\n", state, colours[state])
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// oneFlow calls do with a flow.
func oneFlow(ctx context.Context, db *database, id int64, do func(*weir.Client, *weir.FlowInfo) error) error {
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	f, err := client.FlowInfo(ctx, id)
	if errors.Is(err, weir.ErrNotFound) {
		return noFlow(id)
	} else if err != nil {
		return err
	}
	return do(client, f)
}
