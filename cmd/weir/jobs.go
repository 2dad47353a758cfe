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

	"github.com/weir-pg/weir"
)

type jobsCmd struct {
	List   jobsListCmd   `cmd:"" default:"withargs" help:"List jobs: those in one state, or the newest few of each."`
	Show   jobsShowCmd   `cmd:"" help:"Show everything about one job."`
	Cancel jobsCancelCmd `cmd:"" help:"Cancel jobs: waiting jobs do not start, running ones are asked to stop."`
	Retry  jobsRetryCmd  `cmd:"" help:"Run finished jobs again."`
}

func (jobsCmd) Help() string {
	return `Example:

    weir jobs list --state failed`
}

type jobsListCmd struct {
	State string `placeholder:"STATE" values:"available,running,later,completed,failed,cancelled" help:"available, running, later, completed, failed or cancelled."`
	Queue string `short:"q" help:"Only of this queue."`
	Limit int    `placeholder:"N" help:"At most so many of a state (100 with --state, otherwise 5)."`
	jsonFlag
}

func (jobsListCmd) Help() string {
	return `Available jobs stand in the order in which they will be claimed, later ones by their time, all others newest first.

Examples:

    weir jobs list

    weir jobs list --state failed --queue files --json`
}

func (c *jobsListCmd) Run(ctx context.Context, s *streams, db *database) error {
	const most = 10_000
	states, limit := []weir.State{weir.State(c.State)}, 100
	if c.State != "" && !slices.Contains(weir.States, states[0]) {
		return usagef("there is no state %q: states are available, running, later, completed, failed and cancelled", c.State)
	}
	if c.State == "" {
		states = []weir.State{weir.StateRunning, weir.StateAvailable, weir.StateLater, weir.StateFailed, weir.StateCancelled, weir.StateCompleted}
		limit = 5
	}
	if c.Limit != 0 {
		limit = c.Limit
	}
	if limit < 1 || limit > most {
		return usagef("--limit must be 1 to %d, got %d", most, limit)
	}
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	var jobs []weir.JobInfo
	cut := []string{}
	for _, state := range states {
		some, err := client.Jobs(ctx, state, c.Queue, min(limit+1, most))
		if err != nil {
			return err
		}
		if len(some) > limit {
			some = some[:limit]
			cut = append(cut, string(state))
		}
		jobs = append(jobs, some...)
	}
	if c.JSON {
		return printJSON(s.out, orEmpty(jobs))
	}
	if len(jobs) == 0 {
		fmt.Fprintln(s.err, "weir: no jobs")
		return nil
	}
	rows := make([][]string, len(jobs))
	for i, j := range jobs {
		rows[i] = []string{
			strconv.FormatInt(j.ID, 10), string(j.State), j.Queue, j.Kind, fmt.Sprintf("%d/%d", j.Attempt, j.MaxAttempts), moved(j), cell(gist(j)),
		}
	}
	if err := table(s.out, []string{"ID", "STATE", "QUEUE", "KIND", "ATTEMPT", "WHEN", "WHAT"}, rows); err != nil {
		return err
	}
	switch {
	case len(cut) > 0 && c.State == "":
		fmt.Fprintf(s.err, "weir: there are more that are %s: see them with --state\n", strings.Join(cut, ", "))
	case len(cut) > 0:
		fmt.Fprintf(s.err, "weir: there are more than %s: raise --limit\n", count(limit))
	}
	return nil
}

// moved is when a job came into its state, or is due.
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

// gist is what one wants to know of a job in its state: the error, the output, or else the args.
func gist(j weir.JobInfo) string {
	switch {
	case j.Error != nil && *j.Error != "" && j.State != weir.StateCompleted:
		return strings.TrimSpace(*j.Error)
	case j.Output != nil && *j.Output != "":
		return strings.TrimSpace(*j.Output)
	}
	return string(j.Args)
}

type jobsShowCmd struct {
	ID int64 `arg:"" help:"Id of the job."`
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
		state += ", told to stop"
	}
	field("job", strconv.FormatInt(j.ID, 10))
	field("state", state)
	field("queue", fmt.Sprintf("%s, priority %d", j.Queue, j.Priority))
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
}

func indented(text json.RawMessage) string {
	var b bytes.Buffer
	if json.Indent(&b, text, "", "  ") != nil {
		return string(text)
	}
	return b.String()
}
