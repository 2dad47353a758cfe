package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/weir-pg/weir"
)

type queuesCmd struct {
	List   queuesListCmd   `cmd:"" default:"withargs" help:"List queues and the number of jobs that wait in each."`
	Pause  queuesPauseCmd  `cmd:"" help:"Pause queues: no further jobs start; running jobs continue."`
	Resume queuesResumeCmd `cmd:"" help:"Resume paused queues."`
}

func (queuesCmd) Help() string {
	return `Example:

    weir queues list`
}

type queuesListCmd struct{ jsonFlag }

func (queuesListCmd) Help() string {
	return `OLDEST is when the available job that has waited longest became available. A ~ before a count marks an estimate, used where there is too much to count: off by a few percent, or, of running jobs, perhaps too low. LIMIT shows the limits of queues: 20/20 means that 20 run and at most 20 may.

Example:

    weir queues list --json`
}

func (c *queuesListCmd) Run(ctx context.Context, s *streams, db *database) error {
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	queues, err := client.Queues(ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(s.out, orEmpty(queues))
	}
	if len(queues) == 0 {
		fmt.Fprintln(s.err, "weir: no queues yet: the first job on a queue creates it")
		return nil
	}
	limits := map[string][]weir.QueueLimit{}
	all, err := client.Limits(ctx)
	if err != nil {
		return err
	}
	for _, l := range all {
		limits[l.Queue] = append(limits[l.Queue], l)
	}
	const counted = 100 // available and scheduled jobs are counted up to here
	rows := make([][]string, len(queues))
	for i, q := range queues {
		depth := func(n, exact int64) string {
			if q.Approximate && n >= exact {
				return "~" + count(n)
			}
			return count(n)
		}
		rows[i] = []string{
			q.Name, depth(q.Available, counted), ago(q.ReadySince), depth(q.Running, 0), depth(q.Scheduled, counted), count(q.Claimed), ago(q.LastClaim), strconv.FormatInt(q.Workers, 10), ago(q.PausedAt),
		}
		if len(limits) > 0 {
			rows[i] = append(rows[i], limitText(limits[q.Name]))
		}
	}
	head := []string{"QUEUE", "AVAILABLE", "OLDEST", "RUNNING", "SCHEDULED", "CLAIMED", "LAST CLAIM", "WORKERS", "PAUSED"}
	if len(limits) > 0 {
		head = append(head, "LIMIT")
	}
	return table(s.out, head, rows)
}

type queuesPauseCmd struct {
	Queue []string `arg:"" help:"Names of queues."`
}

func (queuesPauseCmd) Help() string {
	return `Example:

    weir queues pause files`
}

func (c *queuesPauseCmd) Run(ctx context.Context, s *streams, db *database) error {
	return eachQueue(ctx, s, db, c.Queue, "paused", (*weir.Client).PauseQueue)
}

type queuesResumeCmd struct {
	Queue []string `arg:"" help:"Names of queues."`
}

func (queuesResumeCmd) Help() string {
	return `Example:

    weir queues resume files`
}

func (c *queuesResumeCmd) Run(ctx context.Context, s *streams, db *database) error {
	return eachQueue(ctx, s, db, c.Queue, "resumed", (*weir.Client).ResumeQueue)
}

func eachQueue(ctx context.Context, s *streams, db *database, names []string, done string, do func(*weir.Client, context.Context, string) error) error {
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	for _, name := range names {
		err := do(client, ctx, name)
		if errors.Is(err, weir.ErrNotFound) {
			return noQueue(name)
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(s.out, "%s %s\n", done, printable(name))
	}
	return nil
}

// unknownQueue returns an error if no queue has this name. It returns nil for "", and if the user may not look, or it takes too long.
func unknownQueue(ctx context.Context, client *weir.Client, name string) error {
	if name == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	settings, err := client.Settings(ctx) // every queue has some, and unlike client.Queues it counts no jobs
	if err != nil || slices.ContainsFunc(settings, func(s weir.Setting) bool { return s.Queue == name }) {
		return nil
	}
	return noQueue(name)
}

// tellOfNew says that a queue did not exist before: its name may be misspelled.
func tellOfNew(s *streams, name string) {
	fmt.Fprintf(s.err, "weir: the queue %s is new: check that workers work it\n", printable(name))
}

// noQueue returns the error for a queue that does not exist.
func noQueue(name string) error {
	return notFoundf("queue %q does not exist: see weir queues list", name)
}
