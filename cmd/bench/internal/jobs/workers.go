package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/sleep"
)

// WorkersConfig configures Workers.
type WorkersConfig struct {
	Duration time.Duration
	Workers  int
	Backlog  int // number of jobs that always wait; default 20,000
}

// WorkersConnections returns how many connections of the server Workers needs.
func WorkersConnections(workers int) int { return perWorker*workers + 20 }

const perWorker = 3

// Workers lets many workers of concurrency 1, each with its own pool, share one queue that never runs empty,
// and measures their total rate and how evenly they share the jobs.
func Workers(ctx context.Context, d *load.Database, e load.Engine, c WorkersConfig) (r *load.Report, err error) {
	c.Backlog = cmp.Or(c.Backlog, 20_000)
	if c.Workers < 1 {
		return nil, fmt.Errorf("bench: workers needs at least one worker, got %d", c.Workers)
	}
	if r, err = d.Begin(ctx, "workers", e); err != nil {
		return nil, err
	}
	r.Note = fmt.Sprintf("%d workers of concurrency 1 on one queue, each with %d connections, all in this process", c.Workers, perWorker)
	pool, client, err := d.Client(ctx, e, 2)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	total := &load.Meter{}
	if err := client.Fill(ctx, load.Queue, c.Backlog); err != nil {
		return nil, fmt.Errorf("bench: fill: %w", err)
	}

	each := make([]atomic.Int64, c.Workers)
	var stops []func() error
	stopAll := func() error {
		// All are stopped at the same time, because each has something to finish.
		errs := make(chan error, len(stops))
		for _, stop := range stops {
			go func() { errs <- stop() }()
		}
		var all error
		for range stops {
			all = errors.Join(all, <-errs)
		}
		stops = nil
		return all
	}
	defer func() { err = errors.Join(err, stopAll()) }()
	d.Say("starting %d workers", c.Workers)
	for i := range c.Workers {
		own, workerClient, err := d.Client(ctx, e, perWorker)
		if err != nil {
			return nil, err
		}
		stop, _ := load.Start(ctx, workerClient, load.Work{Queues: map[string]int{load.Queue: 1}, Recorded: func(jobs int) {
			each[i].Add(int64(jobs))
			total.Add(jobs)
		}})
		stops = append(stops, func() error {
			defer own.Close()
			return stop()
		})
	}

	filling, stopFilling := context.WithCancel(ctx)
	defer stopFilling()
	filled := make(chan error, 1)
	go func() { // ends with filling
		filled <- keepFull(filling, client, total, c.Backlog)
	}()

	// This waits until every worker has had a job, and has learned from a heartbeat how many others there are.
	for i := range each {
		for each[i].Load() == 0 {
			if !sleep.For(ctx, 10*time.Millisecond) {
				return nil, ctx.Err()
			}
		}
	}
	if !sleep.For(ctx, min(c.Duration/5, 6*time.Second)) {
		return nil, ctx.Err()
	}
	d.Say("measuring for %s", c.Duration)
	before := make([]int64, len(each))
	for i := range each {
		before[i] = each[i].Load()
	}
	from, began := total.Done.Load(), time.Now()
	rates, err := total.During(load.SampleEvery(c.Duration), func() error {
		if !sleep.For(ctx, c.Duration) {
			return ctx.Err()
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	f := &load.Figures{Jobs: total.Done.Load() - from, Seconds: time.Since(began).Seconds(), Rate: load.SpreadOf(rates)}
	f.JobsPerSecond = float64(f.Jobs) / f.Seconds
	r.Figures = f
	r.Shares = &load.Shares{Workers: c.Workers, Least: 1}
	for i := range each {
		share := float64(each[i].Load()-before[i]) / float64(f.Jobs)
		r.Shares.Least, r.Shares.Greatest = min(r.Shares.Least, share), max(r.Shares.Greatest, share)
	}

	stopFilling()
	if err := <-filled; err != nil {
		return nil, fmt.Errorf("bench: fill: %w", err)
	}
	if err := stopAll(); err != nil {
		return nil, err
	}
	// One worker works the remaining jobs.
	if err := workRest(ctx, client, total); err != nil {
		return nil, err
	}
	pool.Close()
	if f.DeadTuples, err = d.DeadTuples(ctx, e); err != nil {
		return nil, err
	}
	r.AtLeast("jobs per second of all workers", f.JobsPerSecond, 1500)
	r.AtLeast("ratio of the least to the greatest share", r.Shares.Least/r.Shares.Greatest, 0.5)
	return r, nil
}

// keepFull enqueues as many jobs as are completed, until ctx ends.
func keepFull(ctx context.Context, client load.Client, m *load.Meter, backlog int) error {
	for enqueued := int64(0); sleep.For(ctx, 20*time.Millisecond); {
		if n := m.Done.Load() - enqueued; n >= int64(backlog/10) {
			// A call in progress is allowed to finish.
			if err := client.Fill(context.WithoutCancel(ctx), load.Queue, int(n)); err != nil {
				return err
			}
			enqueued += n
		}
	}
	return nil
}

// workRest works until the queue has been empty for a moment.
func workRest(ctx context.Context, client load.Client, m *load.Meter) error {
	stop, failed := load.Start(ctx, client, load.Work{Queues: map[string]int{load.Queue: 1000}, Recorded: m.Add})
	for last := int64(-1); m.Done.Load() != last; {
		last = m.Done.Load()
		select {
		case err := <-failed:
			return fmt.Errorf("bench: the worker ended early: %w", err)
		default:
		}
		if !sleep.For(ctx, 500*time.Millisecond) {
			return errors.Join(ctx.Err(), stop())
		}
	}
	return stop()
}
