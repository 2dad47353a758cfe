package jobs

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/cmd/internal/load"
)

// Retry measures how long one operation takes that retries all failed jobs, in the background of a worker of another queue.
func Retry(ctx context.Context, d *load.Database, e load.Engine, failed int) (r *load.Report, err error) {
	if failed < 1 {
		return nil, fmt.Errorf("bench: retry needs failed jobs, got %d", failed)
	}
	if r, err = d.Begin(ctx, "retry", e); err != nil {
		return nil, err
	}
	r.Note = fmt.Sprintf("%d failed jobs, retried by one operation in the background of a worker", failed)
	pool, err := d.Pool(ctx, 4)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	if err := fail(ctx, pool, failed); err != nil {
		return nil, fmt.Errorf("bench: fill: %w", err)
	}
	d.Say("retry: %d jobs have failed", failed)
	client := weir.NewClient(pool)
	handlers := weir.NewHandlers()
	weir.HandleRest(handlers, weir.KindOptions{}, func(context.Context, *weir.Job[json.RawMessage]) error { return nil })
	idle, err := client.NewWorker(weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"idle": 1}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	working, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- idle.Run(working) }()
	began := time.Now()
	id, err := client.BeginOperation(ctx, weir.Operation{What: weir.OperationRetry, Filter: weir.JobFilter{Queue: "broken"}})
	if err != nil {
		return nil, err
	}
	for said := int64(0); ; {
		o, err := client.Operation(ctx, id)
		if err != nil {
			return nil, err
		}
		if o.State != weir.OperationRunning {
			if o.State != weir.OperationDone || o.Changed == nil || *o.Changed != int64(failed) {
				return nil, fmt.Errorf("bench: the operation of %d jobs is %s, has changed %v: %s", failed, o.State, o.Changed, o.Error)
			}
			break
		}
		if o.Changed != nil && *o.Changed-said >= 100_000 {
			said = *o.Changed
			d.Say("retry: %d jobs retried", said)
		}
		select {
		case err := <-done:
			return nil, fmt.Errorf("bench: the worker has ended: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
	took := time.Since(began)
	stop()
	if err := <-done; err != nil {
		return nil, err
	}
	r.AtLeast("jobs/s", float64(failed)/took.Seconds(), 1000)
	return r, nil
}

// fail makes jobs that fail, in a thousand ways of ten shapes.
func fail(ctx context.Context, pool *pgxpool.Pool, n int) error {
	_, err := pool.Exec(ctx, `SELECT weir.enqueue_many(array_agg('broken'::text), array_agg('letter'::text), array_agg(jsonb_build_object('n', n))) FROM generate_series(1, $1::int) n GROUP BY n / 10000`, n)
	if err != nil || n == 0 {
		return err
	}
	handlers := weir.NewHandlers()
	weir.HandleRest(handlers, weir.KindOptions{}, func(_ context.Context, j *weir.Job[json.RawMessage]) error {
		return weir.Fail(fmt.Errorf("%s: user %d not found", strings.Repeat("x", int(j.ID%10)), j.ID%1000))
	})
	w, err := weir.NewClient(pool).NewWorker(weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"broken": 500}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	for {
		var left bool
		if err := pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM weir.jobs('available', 'broken', 1)) OR EXISTS (SELECT FROM weir.jobs('running', 'broken', 1))`).Scan(&left); err != nil {
			return err
		}
		if !left {
			stop()
			return <-done
		}
		select {
		case err := <-done:
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}
