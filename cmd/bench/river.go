package main

import (
	"context"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/weir-pg/weir/cmd/internal/engine"
	"github.com/weir-pg/weir/cmd/internal/load"
)

// riverEngine is River with the settings that make it fastest with a backlog. If unique, Fill enqueues jobs that are unique by their args, none of them
// a duplicate.
type riverEngine struct {
	log    io.Writer
	unique bool
}

const (
	riverFetchCooldown = 2 * time.Millisecond
	riverPoll          = 20 * time.Millisecond
)

func (riverEngine) Name() string   { return "river" }
func (riverEngine) Tables() string { return `\.river_` }

// Install migrates through its own pool, which River's migrator requires.
func (riverEngine) Install(ctx context.Context, conn *pgx.Conn) error {
	pool, err := pgxpool.New(ctx, conn.Config().ConnString())
	if err != nil {
		return err
	}
	defer pool.Close()
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		return err
	}
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return err
}

func (riverEngine) Unfinished(ctx context.Context, pool *pgxpool.Pool) (unfinished bool, err error) {
	if err := pool.QueryRow(ctx, `SELECT to_regclass('river_job') IS NOT NULL`).Scan(&unfinished); err != nil || !unfinished {
		return false, err
	}
	err = pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM river_job WHERE finalized_at IS NULL)`).Scan(&unfinished)
	return unfinished, err
}

func (e riverEngine) Client(pool *pgxpool.Pool) (load.Client, error) {
	inserter, err := river.NewClient(riverpgxv5.New(pool), &river.Config{})
	return riverClient{pool, inserter, e.log, e.unique}, err
}

type riverClient struct {
	pool     *pgxpool.Pool
	inserter *river.Client[pgx.Tx]
	log      io.Writer
	unique   bool
}

func (c riverClient) Fill(ctx context.Context, queue string, n int) error {
	jobs := make([]river.InsertManyParams, min(n, engine.BatchSize))
	for i := range jobs {
		jobs[i] = river.InsertManyParams{Args: engine.Job{}, InsertOpts: &river.InsertOpts{Queue: queue}}
	}
	number := time.Now().UnixNano() // no earlier fill has used the numbers from here on
	for ; n > 0; n -= len(jobs) {
		for i := 0; c.unique && i < len(jobs); i++ {
			number++
			jobs[i] = river.InsertManyParams{Args: engine.Job{Number: number}, InsertOpts: &river.InsertOpts{Queue: queue, UniqueOpts: river.UniqueOpts{ByArgs: true}}}
		}
		var err error
		if c.unique { // COPY, which InsertManyFast uses, can't skip duplicates
			_, err = c.inserter.InsertMany(ctx, jobs[:min(n, len(jobs))])
		} else {
			_, err = c.inserter.InsertManyFast(ctx, jobs[:min(n, len(jobs))])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c riverClient) Enqueue(ctx context.Context, tx pgx.Tx, queue string, number int64) (err error) {
	options := &river.InsertOpts{Queue: queue}
	if tx == nil {
		_, err = c.inserter.Insert(ctx, engine.Job{Number: number}, options)
	} else {
		_, err = c.inserter.InsertTx(ctx, tx, engine.Job{Number: number}, options)
	}
	return err
}

type riverWorker struct {
	river.WorkerDefaults[engine.Job]
	run func(ctx context.Context, number int64)
}

func (w riverWorker) Work(ctx context.Context, j *river.Job[engine.Job]) error {
	w.run(ctx, j.Args.Number)
	return nil
}

// Work learns about recorded jobs from River's events, which it sends when their completion is on disk.
func (c riverClient) Work(ctx context.Context, w load.Work) error {
	workers := river.NewWorkers()
	river.AddWorker(workers, riverWorker{run: w.Run})
	queues := map[string]river.QueueConfig{}
	for name, concurrency := range w.Queues {
		queues[name] = river.QueueConfig{MaxWorkers: concurrency}
	}
	client, err := river.NewClient(riverpgxv5.New(c.pool), &river.Config{
		Queues: queues, Workers: workers, FetchCooldown: riverFetchCooldown, FetchPollInterval: riverPoll, Logger: engine.Warnings(c.log),
	})
	if err != nil {
		return err
	}
	// Events are dropped when the channel is full, so it holds more than are ever in transit.
	events, unsubscribe := client.SubscribeConfig(&river.SubscribeConfig{ChanSize: 1 << 20, Kinds: []river.EventKind{river.EventKindJobCompleted}})
	counted := make(chan struct{})
	go func() { // ends with the subscription
		for range events {
			w.Recorded(1)
		}
		close(counted)
	}()
	defer func() {
		unsubscribe()
		<-counted
	}()
	if err := client.Start(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	<-ctx.Done()
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return client.Stop(stop)
}
