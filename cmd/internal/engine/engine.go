// Package engine lets benches measure Weir through its public API, as any program uses it.
package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/schema"
)

// Engine implements load.Engine for Weir. Its workers log warnings to Log. If Unique, Fill enqueues unique jobs, none of them a duplicate;
// if Numbered, jobs with the same args, which aren't unique. If Limit is not 0, it limits how many jobs of the queue run. If Keys is not 0, its jobs have
// so many different keys, one after the other, of each of which KeyLimit limits how many run.
type Engine struct {
	Log              io.Writer
	Unique, Numbered bool
	Limit            int

	Keys, KeyLimit int
}

func (Engine) Name() string { return "weir" }

// Tables leaves out the settings of queues and the declarations of schedules: a bench that sets limits or drops schedules leaves dead rows there, which no
// job does.
func (Engine) Tables() string { return `^weir\.(?!(queue|queue_limit|schedule)$)` }

func (Engine) Install(ctx context.Context, conn *pgx.Conn) error {
	if err := schema.Up(ctx, conn); err != nil {
		return err
	}
	// Clients that use a new queue's name for the first time at the same instant create duplicates, and setting those aside later updates rows.
	_, err := conn.Exec(ctx, `SELECT weir._queue_id($1)`, load.Queue)
	return err
}

func (Engine) Unfinished(ctx context.Context, pool *pgxpool.Pool) (bool, error) {
	jobsOf := weir.NewClient(pool)
	for _, state := range []weir.State{weir.StateAvailable, weir.StateRunning, weir.StateScheduled} {
		for list := (weir.JobsParams{States: []weir.State{state}, Limit: 1}); ; {
			page, err := jobsOf.Jobs(ctx, list)
			if errors.Is(err, weir.ErrNotInstalled) {
				return false, nil
			}
			if err != nil || len(page.Jobs) > 0 {
				return err == nil, err
			}
			if page.Next == "" {
				break
			}
			list.After = page.Next
		}
	}
	return false, nil
}

func (e Engine) Client(pool *pgxpool.Pool) (load.Client, error) {
	return client{weir.NewClient(pool), pool, e}, nil
}

type client struct {
	weir *weir.Client
	pool *pgxpool.Pool
	Engine
}

// errFails is the error of attempts that fail on purpose.
var errFails = errors.New("bench: this attempt fails on purpose")

// BatchSize is the number of jobs enqueued at once.
const BatchSize = 10_000

// Job is a bench's job, the same for all engines. Number 0 is omitted, so that the args are {}.
type Job struct {
	Number int64 `json:"n,omitempty"`
}

func (Job) Kind() string { return "bench" }

func (c client) Fill(ctx context.Context, queue string, n int) error {
	for _, limit := range []weir.Limit{{Running: c.Limit}, {Running: c.KeyLimit, PerKey: true}} {
		if limit.Running > 0 {
			if err := c.weir.SetLimit(ctx, queue, limit); err != nil {
				return err
			}
		}
	}
	jobs := make([]weir.NewJob, min(n, BatchSize))
	for i := range jobs {
		jobs[i] = weir.NewJob{Args: Job{}, Options: &weir.Options{Queue: queue}}
	}
	key := 0
	number := time.Now().UnixNano() // no earlier fill has used the numbers from here on
	for ; n > 0; n -= len(jobs) {
		for i := 0; c.Keys > 0 && i < len(jobs); i++ {
			key = (key + 1) % c.Keys
			jobs[i].Options.Key = "key " + strconv.Itoa(key)
		}
		for i := 0; (c.Unique || c.Numbered) && i < len(jobs); i++ {
			number++
			jobs[i].Args = Job{number}
			if c.Unique {
				jobs[i].Options.Unique = &weir.Unique{}
			}
		}
		if _, err := c.weir.EnqueueMany(ctx, jobs[:min(n, len(jobs))]); err != nil {
			return err
		}
	}
	return nil
}

func (c client) Enqueue(ctx context.Context, tx pgx.Tx, queue string, number int64) (err error) {
	options := &weir.Options{Queue: queue}
	if tx == nil {
		_, err = c.weir.Enqueue(ctx, Job{number}, options)
	} else {
		_, err = c.weir.EnqueueTx(ctx, tx, Job{number}, options)
	}
	return err
}

// EnqueueSQL enqueues as a program in another language does.
func (c client) EnqueueSQL(ctx context.Context, queue string, number int64) error {
	_, err := c.pool.Exec(ctx, `SELECT weir.enqueue($1, 'bench', jsonb_build_object('n', $2::bigint))`, queue, number)
	return err
}

func (c client) Work(ctx context.Context, w load.Work) error {
	worker, err := c.weir.NewWorker(c.working(w))
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return worker.Run(ctx)
}

// WorkMany runs one worker of several databases, which their connection strings name, until ctx ends.
func (e Engine) WorkMany(ctx context.Context, databases []string, w load.Work) error {
	worker, err := weir.NewMultiWorker(weir.MultiWorkerConfig{
		WorkerConfig: e.working(w), Databases: func(context.Context) ([]string, error) { return databases, nil },
	})
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return worker.Run(ctx)
}

// working is the configuration of a worker.
func (e Engine) working(w load.Work) weir.WorkerConfig {
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[Job]) error {
		if w.Run != nil {
			w.Run(ctx, job.Args.Number)
		}
		if w.Fail != nil && w.Fail(job.Args.Number) {
			return errFails
		}
		return nil
	})
	hooks := weir.Hooks{Claimed: w.Claimed}
	if w.Recorded != nil {
		hooks.Recorded = func(jobs int, _ time.Duration) { w.Recorded(jobs) }
	}
	return weir.WorkerConfig{Handlers: handlers, Queues: w.Queues, Hooks: []weir.Hooks{hooks}, Logger: Warnings(e.Log)}
}

// Warnings returns a logger of warnings and errors.
func Warnings(w io.Writer) *slog.Logger {
	return slog.New(Expectant{slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelWarn})})
}

// Expectant is a handler that drops the worker's remark that its queue is new, because its name is ours.
type Expectant struct{ slog.Handler }

// Handle passes on all other records.
func (h Expectant) Handle(ctx context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "weir: no job was ever enqueued") {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}
