package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/cmd/internal/bench"
	"github.com/weir-pg/weir/schema"
)

// weirEngine is Weir through its public API.
type weirEngine struct{ log io.Writer }

func (weirEngine) Name() string   { return "weir" }
func (weirEngine) Tables() string { return `^weir\.` }

func (weirEngine) Install(ctx context.Context, conn *pgx.Conn) error {
	if err := schema.Up(ctx, conn); err != nil {
		return err
	}
	// Clients that use a new queue's name for the first time at the same instant make twins, and setting those aside later updates rows.
	_, err := conn.Exec(ctx, `SELECT weir._queue_id($1)`, bench.Queue)
	return err
}

func (e weirEngine) Client(pool *pgxpool.Pool) (bench.Client, error) {
	return weirClient{weir.NewClient(pool), pool, e.log}, nil
}

func (weirEngine) Unfinished(ctx context.Context, pool *pgxpool.Pool) (bool, error) {
	for _, state := range []weir.State{weir.StateAvailable, weir.StateRunning, weir.StateLater} {
		jobs, err := weir.NewClient(pool).Jobs(ctx, state, "", 1)
		if errors.Is(err, weir.ErrNotInstalled) {
			return false, nil
		}
		if err != nil || len(jobs) > 0 {
			return len(jobs) > 0, err
		}
	}
	return false, nil
}

type weirClient struct {
	client *weir.Client
	pool   *pgxpool.Pool
	log    io.Writer
}

// job is the job of both engines.
type job struct {
	Number int64 `json:"n,omitempty"`
}

func (job) Kind() string { return "bench" }

func (c weirClient) Fill(ctx context.Context, queue string, n int) error {
	jobs := make([]weir.NewJob, min(n, fillMost))
	for i := range jobs {
		jobs[i] = weir.NewJob{Args: job{}, Options: &weir.Options{Queue: queue}}
	}
	for ; n > 0; n -= len(jobs) {
		if _, err := c.client.EnqueueMany(ctx, jobs[:min(n, len(jobs))]); err != nil {
			return err
		}
	}
	return nil
}

// fillMost is how many jobs are enqueued at once, for both engines.
const fillMost = 10_000

func (c weirClient) Enqueue(ctx context.Context, tx pgx.Tx, queue string, number int64) (err error) {
	options := &weir.Options{Queue: queue}
	if tx == nil {
		_, err = c.client.Enqueue(ctx, job{number}, options)
	} else {
		_, err = c.client.EnqueueTx(ctx, tx, job{number}, options)
	}
	return err
}

// EnqueueSQL is the call of programs in other languages.
func (c weirClient) EnqueueSQL(ctx context.Context, queue string, number int64) error {
	_, err := c.pool.Exec(ctx, `SELECT weir.enqueue($1, 'bench', jsonb_build_object('n', $2::bigint))`, queue, number)
	return err
}

func (c weirClient) Work(ctx context.Context, w bench.Work) error {
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, j *weir.Job[job]) error {
		w.Run(ctx, j.Args.Number)
		return nil
	})
	worker, err := c.client.NewWorker(weir.WorkerConfig{
		Handlers: handlers, Queues: w.Queues,
		Hooks:  []weir.Hooks{{Claimed: w.Claimed, Recorded: func(jobs int, _ time.Duration) { w.Recorded(jobs) }}},
		Logger: quiet(c.log),
	})
	if err != nil {
		return err
	}
	return worker.Run(ctx)
}

// quiet logs what goes wrong.
func quiet(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelWarn}))
}
