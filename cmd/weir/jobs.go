package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/traceback"
)

type jobsCmd struct {
	List jobsListCmd `cmd:"" default:"withargs" help:"List jobs: those in one state, or the newest few of each."`
	Show jobsShowCmd `cmd:"" help:"Show everything about one job."`

	Failures jobsFailuresCmd `cmd:"" help:"Group failed jobs by kind and error."`

	Cancel jobsCancelCmd `cmd:"" help:"Cancel jobs: waiting jobs do not start, running ones are asked to stop."`
	Retry  jobsRetryCmd  `cmd:"" help:"Run finished jobs again."`
	Delete jobsDeleteCmd `cmd:"" help:"Delete failed jobs."`
	Move   jobsMoveCmd   `cmd:"" help:"Move waiting jobs to another queue or priority."`
}

func (jobsCmd) Help() string {
	return `Example:

    weir jobs list --state failed`
}

type jobsListCmd struct {
	State []string `placeholder:"STATE" values:"available,running,scheduled,completed,failed,cancelled" help:"available, running, scheduled, completed, failed or cancelled; may be repeated; states are listed one after another."`
	Queue string   `short:"q" help:"Only jobs of this queue."`
	Kind  []string `short:"k" placeholder:"KIND" sep:"none" help:"Only jobs of this kind. May be repeated."`
	Meta  string   `placeholder:"JSON" help:"Only jobs whose meta contains this JSON object."`
	Key   string   `help:"Only jobs with this key. With --queue, only the key's own jobs are read."`
	Flow  int64    `placeholder:"ID" range:"1 or more" help:"Only jobs of this flow, and of the tasks and flows within it."`
	Text  string   `help:"Only jobs whose args contain this text, A to Z and a to z alike. Args are searched as they are shown, encrypted ones not at all."`
	Shape string   `help:"Only failed jobs whose error has this shape, as weir jobs failures shows it."`
	Since past     `placeholder:"TIME" help:"Only jobs enqueued then or later: a time such as 2026-01-31T12:00:00Z or 2026-01-31, or how long ago, such as 90s, 10m, 24h or 7d."`
	Until past     `placeholder:"TIME" help:"Only jobs enqueued before that time."`
	After string   `placeholder:"CURSOR" help:"Continue after a previous list, with the cursor that it printed and the same flags, but for --limit. Times must be the same, too: not how long ago."`
	Limit *int     `placeholder:"N" help:"Maximum jobs (100 with --state; otherwise 5 of each state)."`
	jsonFlag
}

func (jobsListCmd) Help() string {
	return `Available jobs are listed in claim order, scheduled jobs by time, and all others newest first.

Examples:

    weir jobs list

    weir jobs list --state failed --queue files --json

    weir jobs list --state failed --state cancelled --meta '{"tenant": "acme"}'

    weir jobs list --shape 'user <n> not found' --kind welcome

    weir jobs list --text ada@example.org --since 24h`
}

func (c *jobsListCmd) Run(ctx context.Context, s *streams, db *database) error {
	const maxLimit = 10_000
	list := weir.JobsParams{Queue: c.Queue, Kinds: c.Kind, Key: c.Key, Flow: c.Flow, Text: c.Text, Shape: c.Shape, EnqueuedAfter: c.Since.Time, EnqueuedBefore: c.Until.Time, After: c.After}
	limit := 100
	if c.Shape != "" {
		if len(c.State) == 0 {
			c.State = []string{string(weir.StateFailed)}
		} else if slices.ContainsFunc(c.State, func(name string) bool { return name != string(weir.StateFailed) }) {
			return usagef("--shape selects failed jobs: leave out --state, or name failed alone")
		}
	}
	for _, name := range c.State {
		state := weir.State(name)
		if !slices.Contains(weir.States, state) {
			return usagef("%q is not a valid state: use available, running, scheduled, completed, failed or cancelled", name)
		}
		list.States = append(list.States, state)
	}
	if len(c.State) == 0 {
		limit = 5
	}
	if c.Limit != nil {
		limit = *c.Limit
	}
	if limit < 1 || limit > maxLimit {
		return usagef("--limit must be 1 to %d, got %d", maxLimit, limit)
	}
	if c.Meta != "" {
		var object map[string]json.RawMessage
		if json.Unmarshal([]byte(c.Meta), &object) != nil || object == nil {
			return usagef("--meta must be a JSON object, got %s", c.Meta)
		}
		list.Meta = json.RawMessage(c.Meta)
	}
	if !c.Since.IsZero() && !c.Until.IsZero() && !c.Since.Before(c.Until.Time) {
		return usagef("no job was enqueued after %s and before %s: --since must be the earlier time", when(&c.Since.Time), when(&c.Until.Time))
	}
	if c.After != "" && len(c.State) == 0 {
		return usagef("--after continues a list of chosen states: give the same --state as before")
	}
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	var jobs []weir.JobInfo
	var next string
	cut := []string{}
	if len(c.State) > 0 {
		jobs, next, err = listJobs(ctx, client, list, limit, s.err)
		if err != nil {
			return err
		}
	} else {
		for _, state := range []weir.State{weir.StateRunning, weir.StateAvailable, weir.StateScheduled, weir.StateFailed, weir.StateCancelled, weir.StateCompleted} {
			list.States = []weir.State{state}
			some, more, err := listJobs(ctx, client, list, limit, s.err)
			if err != nil {
				return err
			}
			if more != "" {
				cut = append(cut, string(state))
			}
			jobs = append(jobs, some...)
		}
	}
	if next != "" {
		defer func() {
			fmt.Fprintf(s.err, "weir: there may be more: list them with --after %s\n", next)
		}()
	}
	if len(jobs) == 0 {
		if err := unknownQueue(ctx, client, c.Queue); err != nil {
			return err
		}
		if c.Flow != 0 {
			if _, err := client.FlowInfo(ctx, c.Flow); errors.Is(err, weir.ErrNotFound) {
				return noFlow(c.Flow)
			}
		}
		if !c.JSON {
			fmt.Fprintln(s.err, "weir: no jobs")
		}
	}
	if c.JSON {
		return printJSON(s.out, orEmpty(jobs))
	}
	if len(jobs) == 0 {
		return nil
	}
	if err := jobTable(s.out, jobs); err != nil {
		return err
	}
	if len(cut) > 0 {
		fmt.Fprintf(s.err, "weir: there are more jobs that are %s: list them with --state\n", strings.Join(cut, ", "))
	}
	return nil
}

func jobTable(w io.Writer, jobs []weir.JobInfo) error {
	rows := make([][]string, len(jobs))
	for i, j := range jobs {
		rows[i] = []string{
			strconv.FormatInt(j.ID, 10), string(j.State), j.Queue, j.Kind, fmt.Sprintf("%d/%d", j.Attempt, j.MaxAttempts), moved(j), cell(gist(j)),
		}
	}
	head := []string{"ID", "STATE", "QUEUE", "KIND", "ATTEMPT", "WHEN", "WHAT"}
	if slices.ContainsFunc(jobs, func(j weir.JobInfo) bool { return j.Key != "" }) {
		head = slices.Insert(head, 3, "KEY")
		for i, j := range jobs {
			rows[i] = slices.Insert(rows[i], 3, cell(j.Key))
		}
	}
	return table(w, head, rows)
}

// listJobs reads pages until it has limit jobs or there are no more. next is the cursor to continue after. If that takes long, it says so.
func listJobs(ctx context.Context, client *weir.Client, list weir.JobsParams, limit int, say io.Writer) (jobs []weir.JobInfo, next string, err error) {
	const (
		onPage  = 1000
		patient = 2 * time.Second
	)
	said := time.Now()
	for pages := 1; ; pages++ {
		list.Limit = min(limit-len(jobs), onPage)
		page, err := client.Jobs(ctx, list)
		if err != nil {
			return nil, "", err
		}
		jobs = append(jobs, page.Jobs...)
		if len(jobs) == limit || page.Next == "" {
			return jobs, page.Next, nil
		}
		list.After = page.Next
		if time.Since(said) >= patient {
			said = time.Now()
			states := "all"
			if len(list.States) > 0 {
				names := make([]string, len(list.States))
				for i, state := range list.States {
					names[i] = string(state)
				}
				states = strings.Join(names, ", ")
			}
			fmt.Fprintf(say, "weir: still looking (%s jobs): %d found on %s\n", states, len(jobs), plural(pages, "page"))
		}
	}
}

// moved returns when a job entered its state or, for a scheduled job, when it is due.
func moved(j weir.JobInfo) string {
	switch {
	case j.FinishedAt != nil && j.RunAt == nil:
		return ago(j.FinishedAt)
	case j.RunAt != nil:
		return ago(j.RunAt)
	case j.ClaimedAt != nil:
		return ago(j.ClaimedAt)
	}
	return ago(&j.EnqueuedAt)
}

// gist returns the most useful detail of a job in its state: its error, progress, output or args.
func gist(j weir.JobInfo) string {
	switch {
	case j.State == weir.StateRunning && j.Percent != nil:
		text := fmt.Sprintf("%.4g%%", *j.Percent)
		if j.Message != nil && *j.Message != "" {
			text += " " + strings.TrimSpace(*j.Message)
		}
		return text
	case j.Error != nil && *j.Error != "" && j.State != weir.StateCompleted:
		return strings.TrimSpace(traceback.Message(*j.Error))
	case j.Output != nil && *j.Output != "":
		return strings.TrimSpace(*j.Output)
	}
	return string(j.Args)
}

type jobsShowCmd struct {
	ID int64 `arg:"" range:"1 or more" help:"Id of the job."`
	jsonFlag
}

func (jobsShowCmd) Help() string {
	return `Example:

    weir jobs show 42`
}

func (c *jobsShowCmd) Run(ctx context.Context, s *streams, db *database) error {
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	j, err := client.Job(ctx, c.ID)
	if errors.Is(err, weir.ErrNotFound) {
		return noJobs(c.ID)
	}
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(s.out, j)
	}
	showJob(s.out, j)
	return nil
}

func showJob(w io.Writer, j *weir.JobInfo) {
	field := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%-12s %s\n", name, printable(value))
		}
	}
	state := string(j.State)
	if j.CancelRequested && j.State == weir.StateRunning {
		state += ", cancel requested"
	}
	field("job", strconv.FormatInt(j.ID, 10))
	field("state", state)
	field("queue", fmt.Sprintf("%s, priority %d", j.Queue, j.Priority))
	field("key", j.Key)
	if j.Flow != 0 {
		field("flow", strconv.FormatInt(j.Flow, 10))
	}
	field("kind", j.Kind)
	field("attempt", fmt.Sprintf("%d of %d", j.Attempt, j.MaxAttempts))
	field("enqueued", when(&j.EnqueuedAt))
	field("runs", when(j.RunAt))
	field("claimed", when(j.ClaimedAt))
	field("finished", when(j.FinishedAt))
	if j.Worker != nil {
		field("worker", strconv.Itoa(int(*j.Worker)))
	}
	block := func(name, text string) {
		fmt.Fprintf(w, "%s\n", name)
		for line := range strings.Lines(printableLines(strings.TrimRight(text, "\n"))) {
			fmt.Fprintf(w, "  %s\n", strings.TrimRight(line, "\n"))
		}
	}
	if j.Percent != nil {
		progress := fmt.Sprintf("%.4g%%", *j.Percent)
		if j.Message != nil && *j.Message != "" {
			progress += ", " + *j.Message
		}
		field("progress", progress)
	}
	block("args", indented(j.Args))
	if j.Meta != nil {
		block("meta", indented(j.Meta))
	}
	for _, e := range j.Errors {
		block(fmt.Sprintf("attempt %d, %s %s", e.Attempt, e.Outcome, when(&e.At)), e.Error)
	}
	if j.Output != nil {
		block("output", *j.Output)
	}
	if len(j.Log) > 0 {
		var b strings.Builder
		for _, l := range j.Log {
			fmt.Fprintf(&b, "%d %s %-5s %s\n", l.Attempt, l.At.Local().Format("15:04:05"), l.Level, l.Text)
		}
		block("log (attempt, time, level, text)", b.String())
	}
}

func indented(text json.RawMessage) string {
	var b bytes.Buffer
	if json.Indent(&b, text, "", "  ") != nil {
		return string(text)
	}
	return b.String()
}
