package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-pg/weir"
)

type flowsCmd struct {
	List    flowsListCmd    `cmd:"" default:"withargs" help:"List flows, newest first."`
	Show    flowsShowCmd    `cmd:"" help:"Show how a flow stands."`
	Create  flowsCreateCmd  `cmd:"" help:"Create an open flow, and print its id."`
	Add     flowsAddCmd     `cmd:"" help:"Add tasks that come after each other to a flow."`
	Seal    flowsSealCmd    `cmd:"" help:"Seal flows: they end when their members have."`
	Cancel  flowsCancelCmd  `cmd:"" help:"Cancel flows: their members do not start, or are asked to stop."`
	Retry   flowsRetryCmd   `cmd:"" help:"Retry the failed and cancelled members of flows."`
	Tasks   flowsTasksCmd   `cmd:"" help:"List the tasks of a flow."`
	Graph   flowsGraphCmd   `cmd:"" help:"Draw which task of a flow comes after which."`
	Outputs flowsOutputsCmd `cmd:"" help:"Print the outputs of the members of a flow."`
}

func (flowsCmd) Help() string {
	return `A flow is a set of jobs that calls back when all of them have ended.

Example:

    weir flows list`
}

type flowsListCmd struct {
	Parent int64 `placeholder:"ID" range:"1 or more" help:"Only flows within this flow, or this task; by default, those that are within none."`
	After  int64 `placeholder:"ID" range:"1 or more" help:"Only flows older than this one."`
	Limit  int   `default:"20" range:"1 to 1000" help:"Maximum flows, up to 1000."`
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
	var all []weir.FlowInfo
	if c.Parent == 0 {
		all, err = client.Flows(ctx, c.After, c.Limit)
	} else {
		all, err = client.FlowsWithin(ctx, c.Parent, c.After, c.Limit)
	}
	if errors.Is(err, weir.ErrNotFound) {
		return noFlow(c.Parent)
	} else if err != nil {
		return err
	}
	if len(all) == c.Limit {
		defer tellOfMore(s, all[len(all)-1].ID)
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

// tellOfMore says how a list that is as long as it may be continues.
func tellOfMore(s *streams, last int64) {
	fmt.Fprintf(s.err, "weir: there may be more: list them with --after %d\n", last)
}

type flowsCreateCmd struct {
	Name      string        `arg:"" help:"What it is called."`
	OnDone    string        `placeholder:"JOB" help:"Job to enqueue when all members have ended, as JSON: kind, and optionally queue (default), args, priority, max_attempts, meta and key."`
	OnSuccess string        `placeholder:"JOB" help:"Job to enqueue when all members have completed."`
	Deadline  time.Duration `placeholder:"DURATION" help:"How long until it is sealed, if nobody does so (1 day)."`
	Parent    int64         `placeholder:"ID" range:"1 or more" help:"The flow that it is a member of."`
	FailFast  bool          `help:"Cancel it as soon as a member has failed for good."`
}

func (flowsCreateCmd) Help() string {
	return `Example:

    flow=$(weir flows create import --on-success '{"queue": "default", "kind": "merge"}')
    weir enqueue -q files -k load --flow $flow --args '{"file": "a.csv"}'
    weir flows seal $flow`
}

// callbackFields are what a callback may have.
var callbackFields = []string{"kind", "queue", "args", "priority", "max_attempts", "meta", "key"}

// callbackOf returns a callback of a flow; no args: there is none.
func callbackOf(flag, text string) (job weir.NewJob, err error) {
	if text == "" {
		return job, nil
	}
	var given callbackJSON
	if err := decodeFields(flag, "a job", []byte(text), callbackFields, &given); err != nil {
		return job, err
	}
	return given.job(flag)
}

// decodeFields decodes a JSON object that may have these fields. what names it in errors, and is says what it must be.
func decodeFields(what, is string, text []byte, fields []string, into any) error {
	var given map[string]json.RawMessage
	var wrong *json.UnmarshalTypeError
	if err := json.Unmarshal(text, &given); errors.As(err, &wrong) {
		return usagef("%s must be %s, as a JSON object, got a JSON %s", what, is, wrong.Value)
	} else if err != nil {
		return usagef("%s must be %s, as JSON, got %s: for example {\"queue\": \"default\", \"kind\": \"merge\"}", what, is, text)
	} else if given == nil {
		return usagef("%s must be %s, as a JSON object, got null", what, is)
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if !slices.Contains(fields, name) {
			return usagef("%s has an unknown key %q: %s has %s and %s", what, name, is, strings.Join(fields[:len(fields)-1], ", "), fields[len(fields)-1])
		}
	}
	if err := json.Unmarshal(text, into); errors.As(err, &wrong) {
		name := wrong.Field[strings.LastIndexByte(wrong.Field, '.')+1:]
		must := map[reflect.Kind]string{reflect.Int: "a whole number", reflect.Bool: "true or false"}[wrong.Type.Kind()]
		if name == "after" {
			must = "an array of names of tasks"
		}
		return usagef("%s: %s must be %s, got %s", what, name, cmp.Or(must, "a text"), given[name])
	} else if err != nil {
		return usagef("%s must be %s, as JSON: %w, got %s", what, is, err, text)
	}
	return nil
}

// callbackJSON is a job that a flow enqueues itself.
type callbackJSON struct {
	Queue       string          `json:"queue"`
	Kind        string          `json:"kind"`
	Args        json.RawMessage `json:"args"`
	Priority    int             `json:"priority"`
	MaxAttempts int             `json:"max_attempts"`
	Meta        json.RawMessage `json:"meta"`
	Key         string          `json:"key"`
}

// job returns it; what names it in errors.
func (j callbackJSON) job(what string) (job weir.NewJob, err error) {
	if j.Kind == "" {
		return job, usagef("%s needs a kind", what)
	}
	if j.Args == nil {
		j.Args = json.RawMessage("{}")
	}
	job.Args = rawArgs{j.Kind, j.Args}
	job.Options = &weir.Options{Queue: j.Queue, Priority: j.Priority, MaxAttempts: j.MaxAttempts, Key: j.Key}
	if err := checkKeys(what+": meta", string(j.Meta)); err != nil {
		return job, err
	}
	if j.Meta != nil {
		job.Options.Meta = j.Meta
	}
	return job, nil
}

func (c *flowsCreateCmd) Run(ctx context.Context, s *streams, db *database) error {
	flow := weir.Flow{Name: c.Name, Open: true, Parent: c.Parent, FailFast: c.FailFast}
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
		err := client.SealFlow(ctx, id)
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
