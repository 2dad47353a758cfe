package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/user"
	"strconv"

	"github.com/weir-pg/weir"
)

type operationsCmd struct {
	List operationsListCmd `cmd:"" default:"withargs" help:"List bulk operations, newest first."`
	Stop operationsStopCmd `cmd:"" help:"Stop operations; what they have done stays done."`
}

func (operationsCmd) Help() string {
	return `A bulk operation that was begun with --background, or in the web UI, is done by workers, step by step.

Example:

    weir operations list`
}

type operationsListCmd struct {
	Limit  int   `default:"20" placeholder:"N" range:"1 to 1000" help:"Maximum operations (${default})."`
	Before int64 `placeholder:"ID" range:"1 or more" help:"Only operations with smaller numbers."`
	jsonFlag
}

func (operationsListCmd) Help() string {
	return `JOBS is how many jobs it has retried, deleted or moved so far; a cancellation counts nothing. Operations are kept for 30 days.

Example:

    weir operations list --json`
}

func (c *operationsListCmd) Run(ctx context.Context, s *streams, db *database) error {
	if c.Limit < 1 || c.Limit > 1000 {
		return usagef("--limit must be 1 to 1000, got %d", c.Limit)
	}
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	all, err := client.Operations(ctx, weir.OperationsParams{Before: c.Before, Limit: c.Limit})
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(s.out, orEmpty(all))
	}
	if len(all) == 0 {
		fmt.Fprintln(s.err, "weir: no operations")
		return nil
	}
	rows := make([][]string, len(all))
	for i, o := range all {
		state, jobs := string(o.State), ""
		switch {
		case o.Error != "":
			state += ": " + o.Error
		case o.StoppedBy != "":
			state += " by " + o.StoppedBy
		}
		if o.Changed != nil {
			jobs = count(*o.Changed)
		}
		rows[i] = []string{strconv.FormatInt(o.ID, 10), string(o.What), cell(state), jobs, ago(&o.BeganAt), cell(o.BeganBy), cell(aim(o))}
	}
	return table(s.out, []string{"OPERATION", "WHAT", "STATE", "JOBS", "BEGAN", "BY", "FILTER"}, rows)
}

// aim is the filter of an operation, and where it moves jobs.
func aim(o weir.OperationInfo) string {
	var b bytes.Buffer
	if json.Compact(&b, o.Filter) != nil {
		return string(o.Filter)
	}
	if o.ToQueue != "" {
		fmt.Fprintf(&b, " to queue %s", o.ToQueue)
	}
	if o.ToPriority != 0 {
		fmt.Fprintf(&b, " to priority %d", o.ToPriority)
	}
	return b.String()
}

type operationsStopCmd struct {
	IDs []int64 `arg:"" name:"id" help:"Numbers of operations."`
	jsonFlag
}

func (operationsStopCmd) Help() string {
	return `Once it returns, the operations change no more jobs. To go on, begin another with the same filter.

Example:

    weir operations stop 7`
}

func (c *operationsStopCmd) Run(ctx context.Context, s *streams, db *database) error {
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	var answers []answer
	for _, id := range c.IDs {
		state, err := client.StopOperation(ctx, id, whoami())
		if errors.Is(err, weir.ErrNotFound) {
			return notFoundf("operation %d does not exist: see weir operations list", id)
		} else if err != nil {
			return err
		}
		answers = append(answers, answer{id, string(state)})
		if !c.JSON {
			fmt.Fprintf(s.out, "operation %d is %s\n", id, state)
		}
	}
	if c.JSON {
		return printJSON(s.out, answers)
	}
	return nil
}

// whoami is who uses the command; "": the operating system does not know.
func whoami() string {
	u, err := user.Current()
	if err != nil {
		return ""
	}
	return u.Username
}

// backgroundFlag is for bulk operations that workers can do.
type backgroundFlag struct {
	Background bool `help:"Let workers do it, and return at once: weir operations list shows how far it is. It means the jobs that there are now."`
}

// begin begins an operation.
func (backgroundFlag) begin(ctx context.Context, s *streams, db *database, o weir.Operation, dryRun, asJSON bool) error {
	if dryRun {
		return usagef("--dry-run changes nothing: leave out --background")
	}
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	o.By = whoami()
	id, err := client.BeginOperation(ctx, o)
	switch {
	case errors.Is(err, weir.ErrNotFound):
		return noQueue(o.Filter.Queue)
	case err != nil:
		return err
	case asJSON:
		return printJSON(s.out, map[string]int64{"operation": id})
	}
	fmt.Fprintf(s.out, "operation %d has begun\n", id)
	fmt.Fprintln(s.err, "weir: workers will do it in the background: see weir operations list")
	return nil
}
