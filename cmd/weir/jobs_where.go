package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weir-pg/weir"
)

// whereFlags select jobs for a bulk operation.
type whereFlags struct {
	Queue          string   `short:"q" help:"Jobs of this queue."`
	Kind           []string `short:"k" placeholder:"KIND" sep:"none" help:"Jobs of this kind. May be repeated."`
	Meta           string   `placeholder:"JSON" help:"Jobs whose meta contains this JSON object."`
	Priority       int      `placeholder:"N" range:"1 to 4" help:"Jobs of this priority, 1 to 4."`
	Key            string   `help:"Jobs with this key."`
	EnqueuedAfter  past     `placeholder:"TIME" help:"Jobs enqueued then or later: a time such as 2026-01-31T12:00:00Z or 2026-01-31, or how long ago, such as 90s, 10m, 24h or 7d."`
	EnqueuedBefore past     `placeholder:"TIME" help:"Jobs enqueued before that time. 0s selects all jobs."`
	DryRun         bool     `help:"Change nothing; show the first jobs that match."`
}

// endedFlags select jobs by how and when they have ended.
type endedFlags struct {
	Error          string `placeholder:"TEXT" help:"Jobs whose last error contains this text."`
	Shape          string `placeholder:"TEXT" help:"Jobs whose last error has this shape, as weir jobs failures shows it."`
	FinishedAfter  past   `placeholder:"TIME" help:"Jobs that ended then or later."`
	FinishedBefore past   `placeholder:"TIME" help:"Jobs that ended before that time."`
}

func (e *endedFlags) isSetEnded() bool {
	return e.Error != "" || e.Shape != "" || !e.FinishedAfter.IsZero() || !e.FinishedBefore.IsZero()
}

// past is a time, written as such or as a duration before now.
type past struct{ time.Time }

func (p *past) UnmarshalText(text []byte) (err error) {
	if ago, err := parseDuration(string(text)); err == nil {
		p.Time = time.Now().Add(-ago)
		return nil
	}
	if p.Time, err = parseTime(string(text)); err != nil {
		return fmt.Errorf("%q is not a valid time: write it as %s, as a date, or as how long ago it was, such as 90s, 10m, 24h or 7d", text, time.Now().Format(time.RFC3339))
	}
	return nil
}

// parseTime parses a time with its offset, or a date, which begins at midnight here.
func parseTime(text string) (time.Time, error) {
	if at, err := time.ParseInLocation(time.DateOnly, text, time.Local); err == nil {
		return at, nil
	}
	return time.Parse(time.RFC3339, text)
}

func (w *whereFlags) isSet() bool { return w.selects() || w.DryRun }

// selects reports whether a flag selects jobs.
func (w *whereFlags) selects() bool {
	return w.Queue != "" || len(w.Kind) > 0 || w.Meta != "" || w.Priority != 0 || w.Key != "" || !w.EnqueuedAfter.IsZero() || !w.EnqueuedBefore.IsZero()
}

// filter checks the flags.
func (w *whereFlags) filter(ids []int64, e *endedFlags, states []string) (weir.JobFilter, error) {
	f := weir.JobFilter{Queue: w.Queue, Kinds: w.Kind, Priority: w.Priority, Key: w.Key, EnqueuedAfter: w.EnqueuedAfter.Time, EnqueuedBefore: w.EnqueuedBefore.Time,
		Error: e.Error, Shape: e.Shape, FinishedAfter: e.FinishedAfter.Time, FinishedBefore: e.FinishedBefore.Time}
	if len(ids) > 0 {
		return f, usagef("give ids or flags that select jobs, not both")
	}
	if w.Meta != "" {
		var object map[string]json.RawMessage
		if json.Unmarshal([]byte(w.Meta), &object) != nil || object == nil {
			return f, usagef("--meta must be a JSON object, got %s", w.Meta)
		}
		f.Meta = json.RawMessage(w.Meta)
		if len(object) == 0 {
			return f, usagef("--meta {} selects nothing in particular: name a key")
		}
	}
	if w.Priority < 0 || w.Priority > 4 {
		return f, usagef("--priority must be 1 to 4, got %d", w.Priority)
	}
	if !w.EnqueuedAfter.IsZero() && !w.EnqueuedBefore.IsZero() && !w.EnqueuedAfter.Before(w.EnqueuedBefore.Time) {
		return f, usagef("no job was enqueued after %s and before %s: --enqueued-after must be the earlier time", when(&w.EnqueuedAfter.Time), when(&w.EnqueuedBefore.Time))
	}
	if !e.FinishedAfter.IsZero() && !e.FinishedBefore.IsZero() && !e.FinishedAfter.Before(e.FinishedBefore.Time) {
		return f, usagef("no job ended after %s and before %s: --finished-after must be the earlier time", when(&e.FinishedAfter.Time), when(&e.FinishedBefore.Time))
	}
	if !w.selects() && !e.isSetEnded() {
		return f, usagef("give ids, or flags that select jobs, such as --queue; --enqueued-before 0s selects all jobs")
	}
	for _, name := range states {
		state := weir.State(name)
		if !slices.Contains([]weir.State{weir.StateFailed, weir.StateCancelled, weir.StateCompleted}, state) {
			return f, usagef("%q is not a state of finished jobs: use failed, cancelled or completed", name)
		}
		f.States = append(f.States, state)
	}
	return f, nil
}

func (w *whereFlags) cancel(ctx context.Context, s *streams, db *database, ids []int64, asJSON bool) error {
	f, err := w.filter(ids, &endedFlags{}, nil)
	if err != nil {
		return err
	}
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	if w.DryRun {
		return preview(ctx, s, client, f, []weir.State{weir.StateRunning, weir.StateAvailable, weir.StateScheduled}, asJSON)
	}
	err = client.CancelWhere(ctx, f)
	switch {
	case errors.Is(err, weir.ErrNotFound):
		return noQueue(f.Queue)
	case err != nil:
		return err
	case asJSON:
		return printJSON(s.out, map[string]bool{"cancelled": true})
	}
	fmt.Fprintln(s.out, "cancelled: none of these jobs starts any more, and running ones are asked to stop")
	return nil
}

type stepper func(client *weir.Client, f weir.JobFilter, progress func(int64)) (int64, error)

// steps does a bulk operation, or shows what it would change: jobs in one of the states usual, unless the filter names others.
func (w *whereFlags) steps(ctx context.Context, s *streams, db *database, f weir.JobFilter, usual []weir.State, asJSON bool, done string, do stepper) error {
	if w.DryRun && f.Shape != "" {
		return usagef("--dry-run can't show jobs by --shape, which the database works out: see how many they are with weir jobs failures")
	}
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	if w.DryRun {
		if len(f.States) > 0 {
			usual = f.States
		}
		return preview(ctx, s, client, f, usual, asJSON)
	}
	p := newProgress(s.err)
	n, err := do(client, f, func(n int64) { p.show("weir: %s %s", done, plural(n, "job")) })
	p.done()
	if errors.Is(err, weir.ErrNotFound) {
		return noQueue(f.Queue)
	} else if err != nil {
		if n > 0 || ctx.Err() != nil { // what was done before it was interrupted, even if that is nothing
			fmt.Fprintf(s.err, "weir: %s %s; run the same command again for the rest\n", done, plural(n, "job"))
		}
		return err
	}
	if asJSON {
		return printJSON(s.out, map[string]int64{done: n})
	}
	fmt.Fprintf(s.out, "%s %s\n", done, plural(n, "job"))
	return nil
}

// preview shows the first jobs that a filter selects.
func preview(ctx context.Context, s *streams, client *weir.Client, f weir.JobFilter, states []weir.State, asJSON bool) error {
	const most, pages = 20, 20
	list := weir.JobsParams{States: states, Queue: f.Queue, Kinds: f.Kinds, Meta: f.Meta, Key: f.Key, EnqueuedAfter: f.EnqueuedAfter, EnqueuedBefore: f.EnqueuedBefore, Limit: 200}
	found := []weir.JobInfo{}
	more := false
	for range pages {
		page, err := client.Jobs(ctx, list)
		if err != nil {
			return err
		}
		for _, j := range page.Jobs {
			ended := j.EnqueuedAt // of a job that was cancelled before it started
			if j.FinishedAt != nil {
				ended = *j.FinishedAt
			}
			if (f.Priority == 0 || j.Priority == f.Priority) && !ended.Before(f.FinishedAfter) && (f.FinishedBefore.IsZero() || ended.Before(f.FinishedBefore)) &&
				(f.Error == "" || j.Error != nil && strings.Contains(*j.Error, f.Error)) {
				found = append(found, j)
			}
		}
		list.After = page.Next
		more = page.Next != "" || len(found) > most
		if page.Next == "" || len(found) > most {
			break
		}
	}
	if len(found) == 0 {
		if err := unknownQueue(ctx, client, f.Queue); err != nil {
			return err
		}
	}
	found = found[:min(len(found), most)]
	if asJSON {
		return printJSON(s.out, found)
	}
	if len(found) > 0 {
		if err := jobTable(s.out, found); err != nil {
			return err
		}
	}
	switch {
	case more:
		fmt.Fprintln(s.err, "weir: nothing was changed; there may be more jobs that match")
	case len(found) == 0:
		fmt.Fprintln(s.err, "weir: no job matches")
	default:
		match := "match"
		if len(found) == 1 {
			match = "matches"
		}
		fmt.Fprintf(s.err, "weir: nothing was changed; %s %s\n", plural(len(found), "job"), match)
	}
	return nil
}

type jobsDeleteCmd struct {
	whereFlags
	endedFlags
	backgroundFlag
	jsonFlag
}

func (jobsDeleteCmd) Help() string {
	return `Deletes all failed jobs that match all of the flags, in small steps. They are unknown from then on and can't be retried; their data leaves the
disk when its retention is over. Completed and cancelled jobs go by themselves, when completed_retention is over. If it is interrupted, run it again.

Example:

    weir jobs delete --queue mail --error 'no such account' --enqueued-before 24h`
}

func (c *jobsDeleteCmd) Run(ctx context.Context, s *streams, db *database) error {
	f, err := c.filter(nil, &c.endedFlags, nil)
	if err != nil {
		return err
	}
	if c.Background {
		return c.begin(ctx, s, db, weir.Operation{What: weir.OperationDelete, Filter: f}, c.DryRun, c.JSON)
	}
	return c.steps(ctx, s, db, f, []weir.State{weir.StateFailed}, c.JSON, "deleted", func(client *weir.Client, f weir.JobFilter, progress func(int64)) (int64, error) {
		return client.DeleteWhere(ctx, f, progress)
	})
}

type jobsMoveCmd struct {
	whereFlags
	ToQueue    string `placeholder:"QUEUE" help:"The queue to move to."`
	ToPriority int    `placeholder:"N" range:"1 to 4" help:"The priority to move to, 1 to 4."`
	backgroundFlag
	jsonFlag
}

func (jobsMoveCmd) Help() string {
	return `Moves all jobs that have not started and that match all of the flags, in small steps. They keep their ids and attempts, and come behind the
jobs that wait there. If it is interrupted, run it again: it continues with the rest.

Examples:

    weir jobs move --queue mail --kind newsletter --to-queue bulk-mail

    weir jobs move --queue mail --meta '{"tenant": "acme"}' --to-priority 1`
}

func (c *jobsMoveCmd) Run(ctx context.Context, s *streams, db *database) error {
	if c.ToQueue == "" && c.ToPriority == 0 {
		return usagef("give --to-queue or --to-priority")
	}
	if c.ToPriority < 0 || c.ToPriority > 4 {
		return usagef("--to-priority must be 1 to 4, got %d", c.ToPriority)
	}
	f, err := c.filter(nil, &endedFlags{}, nil)
	if err != nil {
		return err
	}
	to := weir.MoveTo{Queue: c.ToQueue, Priority: c.ToPriority}
	if c.Background {
		return c.begin(ctx, s, db, weir.Operation{What: weir.OperationMove, Filter: f, To: to}, c.DryRun, c.JSON)
	}
	waiting := []weir.State{weir.StateAvailable, weir.StateScheduled}
	isNew := false
	err = c.steps(ctx, s, db, f, waiting, c.JSON, "moved", func(client *weir.Client, f weir.JobFilter, progress func(int64)) (int64, error) {
		unknown := unknownQueue(ctx, client, c.ToQueue) != nil
		n, err := client.MoveWhere(ctx, f, to, progress)
		isNew = unknown && n > 0
		return n, err
	})
	if isNew {
		tellOfNew(s, c.ToQueue)
	}
	return err
}
