package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/weir-pg/weir"
)

type flowsCmd struct {
	List   flowsListCmd   `cmd:"" default:"withargs" help:"List flows, newest first."`
	Show   flowsShowCmd   `cmd:"" help:"Show how a flow stands."`
	Create flowsCreateCmd `cmd:"" help:"Create an open flow, and print its id."`
	Seal   flowsSealCmd   `cmd:"" help:"Seal flows: they end when their members have."`
	Cancel flowsCancelCmd `cmd:"" help:"Cancel flows: their members do not start, or are asked to stop."`
	Retry  flowsRetryCmd  `cmd:"" help:"Retry the failed and cancelled members of flows."`
}

func (flowsCmd) Help() string {
	return `A flow is a set of jobs that calls back when all of them have ended.

Example:

    weir flows list`
}

type flowsListCmd struct {
	After int64 `placeholder:"ID" help:"Only flows older than this one."`
	Limit int   `default:"20" help:"Maximum flows, up to 1000."`
	jsonFlag
}

func (flowsListCmd) Help() string {
	return `JOBS is how many members a flow has had. STATE is open (not sealed), running, cancelling, succeeded, failed, cancelled or abandoned (sealed by its deadline).

Example:

    weir flows list --json`
}

func (c *flowsListCmd) Run(ctx context.Context, s *streams, db *database) error {
	if c.Limit < 1 || c.Limit > 1000 {
		return usagef("--limit must be 1 to 1000, got %d", c.Limit)
	}
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	all, err := client.Flows(ctx, c.After, c.Limit)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(s.out, orEmpty(all))
	}
	if len(all) == 0 {
		fmt.Fprintln(s.err, "weir: no flows")
		return nil
	}
	rows := make([][]string, len(all))
	for i, f := range all {
		rows[i] = []string{strconv.FormatInt(f.ID, 10), cell(f.Name), string(f.State), count(f.Jobs), count(f.Unfinished), count(f.Completed), count(f.Failed), count(f.Cancelled), ago(&f.CreatedAt)}
	}
	return table(s.out, []string{"ID", "NAME", "STATE", "JOBS", "UNFINISHED", "COMPLETED", "FAILED", "CANCELLED", "CREATED"}, rows)
}

type flowsShowCmd struct {
	ID int64 `arg:"" help:"Id of a flow."`
	jsonFlag
}

func (flowsShowCmd) Help() string {
	return `It costs the same, however many members the flow has. To see these: weir jobs list --flow 1

Example:

    weir flows show 1`
}

func (c *flowsShowCmd) Run(ctx context.Context, s *streams, db *database) error {
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	f, err := client.FlowInfo(ctx, c.ID)
	if errors.Is(err, weir.ErrNotFound) {
		return noFlow(c.ID)
	} else if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(s.out, f)
	}
	for _, field := range [][2]string{
		{"id", strconv.FormatInt(f.ID, 10)}, {"name", printable(f.Name)}, {"state", string(f.State)}, {"generation", strconv.Itoa(f.Generation)},
		{"jobs", count(f.Jobs)}, {"unfinished", count(f.Unfinished)}, {"completed", count(f.Completed)}, {"failed", count(f.Failed)}, {"cancelled", count(f.Cancelled)},
		{"created", when(&f.CreatedAt)}, {"finished", when(f.FinishedAt)},
	} {
		if field[1] != "" {
			fmt.Fprintf(s.out, "%-11s %s\n", field[0], field[1])
		}
	}
	if f.State == weir.FlowOpen {
		fmt.Fprintf(s.out, "%-11s %s\n", "deadline", when(&f.Deadline))
		fmt.Fprintln(s.err, "weir: it does not end before it is sealed: weir flows seal", f.ID)
	}
	return nil
}

type flowsCreateCmd struct {
	Name      string        `arg:"" help:"What it is called."`
	OnDone    string        `placeholder:"JOB" help:"Job to enqueue when all members have ended, as JSON: queue, kind, and optionally args, priority, max_attempts, meta and key."`
	OnSuccess string        `placeholder:"JOB" help:"Job to enqueue when all members have completed."`
	Deadline  time.Duration `placeholder:"DURATION" help:"How long until it is sealed, if nobody does so (1 day)."`
}

func (flowsCreateCmd) Help() string {
	return `Example:

    flow=$(weir flows create import --on-success '{"queue": "default", "kind": "merge"}')
    weir enqueue -q files -k load --flow $flow --args '{"file": "a.csv"}'
    weir flows seal $flow`
}

// callbackOf returns a callback of a flow; no args: there is none.
func callbackOf(flag, text string) (job weir.NewJob, err error) {
	if text == "" {
		return job, nil
	}
	var given struct {
		Queue, Kind, Key string
		Args, Meta       json.RawMessage
		Priority         int
		MaxAttempts      int `json:"max_attempts"`
	}
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&given); err != nil {
		return job, usagef("%s must be a job, as JSON: %v, got %s", flag, err, text)
	} else if given.Kind == "" {
		return job, usagef("%s needs a kind, got %s", flag, text)
	}
	if given.Args == nil {
		given.Args = json.RawMessage("{}")
	}
	job.Args = rawArgs{given.Kind, given.Args}
	job.Options = &weir.Options{Queue: given.Queue, Priority: given.Priority, MaxAttempts: given.MaxAttempts, Key: given.Key}
	if given.Meta != nil {
		job.Options.Meta = given.Meta
	}
	return job, nil
}

func (c *flowsCreateCmd) Run(ctx context.Context, s *streams, db *database) error {
	flow := weir.Flow{Name: c.Name, Open: true}
	var err error
	if flow.OnDone, err = callbackOf("--on-done", c.OnDone); err == nil {
		flow.OnSuccess, err = callbackOf("--on-success", c.OnSuccess)
	}
	if err != nil {
		return err
	}
	if c.Deadline < 0 {
		return usagef("--deadline must not be negative, got %s", c.Deadline)
	} else if c.Deadline > 0 {
		flow.Deadline = time.Now().Add(c.Deadline)
	}
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	id, err := client.Flow(ctx, flow)
	if err == nil {
		fmt.Fprintln(s.out, id)
	}
	return err
}

type flowsSealCmd struct {
	IDs []int64 `arg:"" name:"id" help:"Ids of flows."`
}

func (flowsSealCmd) Help() string {
	return `Example:

    weir flows seal 1`
}

func (c *flowsSealCmd) Run(ctx context.Context, s *streams, db *database) error {
	return eachFlow(ctx, db, c.IDs, func(client *weir.Client, id int64) error {
		_, err := client.FlowInfo(ctx, id) // sealing does not tell an unknown flow by ErrNotFound
		if err == nil {
			err = client.SealFlow(ctx, id)
		}
		if err == nil {
			fmt.Fprintln(s.out, "sealed", id)
		}
		return err
	})
}

type flowsCancelCmd struct {
	IDs []int64 `arg:"" name:"id" help:"Ids of flows."`
}

func (flowsCancelCmd) Help() string {
	return `Unfinished members do not start, or are asked to stop, however many they are, and nobody can add any. A flow that has ended stays as it is.

Example:

    weir flows cancel 1`
}

func (c *flowsCancelCmd) Run(ctx context.Context, s *streams, db *database) error {
	return eachFlow(ctx, db, c.IDs, func(client *weir.Client, id int64) error {
		state, err := client.CancelFlow(ctx, id)
		if err == nil {
			fmt.Fprintln(s.out, id, state)
		}
		return err
	})
}

type flowsRetryCmd struct {
	IDs []int64 `arg:"" name:"id" help:"Ids of flows."`
}

func (flowsRetryCmd) Help() string {
	return `If a flow had ended, it calls back once more when it ends again. If this is interrupted, run it again: it continues with the rest.

Example:

    weir flows retry 1`
}

func (c *flowsRetryCmd) Run(ctx context.Context, s *streams, db *database) error {
	return eachFlow(ctx, db, c.IDs, func(client *weir.Client, id int64) error {
		n, err := client.RetryFlow(ctx, id, nil)
		if err == nil {
			fmt.Fprintf(s.out, "retried %s of flow %d\n", count(n), id)
		}
		return err
	})
}

// eachFlow applies an operation to each flow, up to the first that fails.
func eachFlow(ctx context.Context, db *database, ids []int64, do func(*weir.Client, int64) error) error {
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	var unknown error
	for _, id := range ids {
		if err := do(client, id); errors.Is(err, weir.ErrNotFound) {
			unknown = cmp.Or(unknown, noFlow(id))
		} else if err != nil {
			return err
		}
	}
	return unknown
}

func noFlow(id int64) error {
	return notFoundf("no such flow: %d: it never existed, or it ended and its retention has expired", id)
}
