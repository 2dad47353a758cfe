package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/weir-pg/weir"
)

type jobsCancelCmd struct {
	IDs []int64 `arg:"" optional:"" name:"id" help:"Ids of jobs. Or select jobs with flags."`
	whereFlags
	jsonFlag
}

func (jobsCancelCmd) Help() string {
	return `A job that has not started does not start. A running job's worker is notified, and ends its command.

With flags, it cancels all unfinished jobs that were enqueued so far and that match all of the flags, at once and whatever their number.

Examples:

    weir jobs cancel 42 43

    weir jobs cancel --queue mail --kind newsletter --dry-run`
}

func (c *jobsCancelCmd) Run(ctx context.Context, s *streams, db *database) error {
	if len(c.IDs) == 0 || c.isSet() {
		return c.cancel(ctx, s, db, c.IDs, c.JSON)
	}
	return each(ctx, s, db, c.IDs, c.JSON, func(client *weir.Client, id int64) (string, error) {
		state, err := client.CancelJob(ctx, id)
		if state == weir.StateRunning {
			return "requested", err
		}
		return string(state), err
	})
}

type jobsRetryCmd struct {
	IDs []int64 `arg:"" optional:"" name:"id" help:"Ids of jobs. Or select jobs with flags."`
	whereFlags
	endedFlags
	backgroundFlag
	State []string `placeholder:"STATE" help:"failed (the default), cancelled or completed; may be repeated. Only together with other flags."`
	jsonFlag
}

func (jobsRetryCmd) Help() string {
	return `A job that completed, failed or was cancelled becomes available again; any other stays as it is.

With flags, it retries all failed jobs (or those in --state) that match all of the flags, in small steps. If it is interrupted, run it again: it
continues with the rest. With --background, workers do it.

Examples:

    weir jobs retry 42

    weir jobs retry --queue mail --error 'connection refused'

    weir jobs retry --kind welcome --shape 'user <n> not found' --finished-after 24h --background`
}

func (c *jobsRetryCmd) Run(ctx context.Context, s *streams, db *database) error {
	if len(c.IDs) == 0 || c.isSet() || c.isSetEnded() || c.Background || len(c.State) > 0 {
		f, err := c.filter(c.IDs, &c.endedFlags, c.State)
		if err != nil {
			return err
		}
		if c.Background {
			return c.begin(ctx, s, db, weir.Operation{What: weir.OperationRetry, Filter: f}, c.DryRun, c.JSON)
		}
		return c.steps(ctx, s, db, f, []weir.State{weir.StateFailed}, c.JSON, "retried", func(client *weir.Client, f weir.JobFilter, progress func(int64)) (int64, error) {
			return client.RetryWhere(ctx, f, progress)
		})
	}
	return each(ctx, s, db, c.IDs, c.JSON, func(client *weir.Client, id int64) (string, error) {
		state, err := client.RetryJob(ctx, id)
		return string(state), err
	})
}

// answer is the result for one job.
type answer struct {
	ID    int64  `json:"id"`
	State string `json:"state"`
}

// each applies an operation to each job, in a transaction each, and prints the results, even if it fails halfway. It fails at the end if
// some jobs do not exist.
func each(ctx context.Context, s *streams, db *database, ids []int64, asJSON bool, do func(*weir.Client, int64) (string, error)) error {
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	var answers []answer
	var rows [][]string
	var unknown []int64
	var failed error
	for _, id := range ids {
		state, err := do(client, id)
		if errors.Is(err, weir.ErrNotFound) {
			unknown = append(unknown, id)
			state = "unknown"
		} else if err != nil {
			failed = fmt.Errorf("%w (job %d and those after it may be unchanged)", err, id)
			break
		}
		answers = append(answers, answer{id, state})
		rows = append(rows, []string{strconv.FormatInt(id, 10), state})
	}
	if asJSON {
		err = printJSON(s.out, orEmpty(answers))
	} else if len(rows) > 0 {
		err = table(s.out, []string{"ID", "STATE"}, rows)
	}
	if failed != nil {
		return failed
	}
	if err == nil && len(unknown) > 0 {
		err = noJobs(unknown...)
	}
	return err
}

// noJobs returns the error for ids that do not exist.
func noJobs(ids ...int64) error {
	names := make([]string, len(ids))
	for i, id := range ids {
		names[i] = strconv.FormatInt(id, 10)
	}
	return notFoundf("no such job: %s: it never existed, or it finished and its retention has expired", strings.Join(names, ", "))
}
