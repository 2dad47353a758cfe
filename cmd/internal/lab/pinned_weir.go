package lab

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/maintain"
	"github.com/weir-pg/weir/internal/outage"
	"github.com/weir-pg/weir/internal/store"
	"github.com/weir-pg/weir/internal/worker"
)

// weirQueue is Weir, as the root package configures it. It has one worker, whose concurrency is 25 times the number of the others' sessions:
// it uses three sessions at any concurrency.
var weirQueue = queueKind{
	name: "Weir", kind: Fix, what: "jobs are rows of an insert-only log, read through a snapshot cursor and reclaimed by " +
		"TRUNCATE; they are claimed and completed by Weir's own worker, which has four connections, and runs up to 25 times as many jobs at a time as the others have sessions",
	schema: "weir", named: true,
	enqueue: `SELECT count(weir.enqueue($2, 'lab', '{"n": 1}')) FROM generate_series(1, $1::int)`,
	left:    `SELECT count(*) FROM weir.jobs('available', $2, 10000) WHERE coalesce(run_at, enqueued_at) < now() - $1::float8 * interval '1 second'`,
	work:    workWeir,
}

func workWeir(ctx, until context.Context, t *trial, m *load.Tally) error {
	config, err := pgxpool.ParseConfig(t.site.url)
	if err != nil {
		return err
	}
	config.ConnConfig.RuntimeParams["application_name"] = appName
	config.MaxConns = 4
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	own, err := store.OpenOwn(pool)
	if err != nil {
		return err
	}
	defer own.Close()
	log := slog.New(slog.DiscardHandler)
	trouble := outage.New(log)
	w := worker.New(worker.Config{
		Store: own.Work, Keep: own.Keep, Name: "weir lab", Queues: map[string]int{t.name: 25 * t.Workers},
		Handler: func(ctx context.Context, task *worker.Task, r *worker.Result) {
			t.handle(ctx, task.ID, time.Since(task.Ready())) // on a server with another clock, it is as wrong as the clocks are
			r.Outcome = store.Completed
		},
		Lease: 30 * time.Second, StopTimeout: 10 * time.Second, Poll: worker.PollEvery, Log: log,
		Outage: trouble, Maintainer: maintain.New(own.Work, log, trouble),
		Hooks: worker.Hooks{
			Claimed:  func(jobs int, took time.Duration) { t.claimed(m, jobs, took) },
			Recorded: func(jobs int, _ time.Duration) { t.finished(m, jobs) },
		},
	})
	return w.Run(until)
}
