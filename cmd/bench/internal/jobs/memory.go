package jobs

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/sleep"
)

// Running measures the memory of this process while one worker runs the given number of jobs at once. The result includes the bench
// itself, so a worker takes less.
func Running(ctx context.Context, d *load.Database, e load.Engine, jobs int) (r *load.Report, err error) {
	if jobs < 1 {
		return nil, fmt.Errorf("bench: memory needs at least one job, got %d", jobs)
	}
	if r, err = d.Begin(ctx, "memory", e); err != nil {
		return nil, err
	}
	r.Note = "the whole process, with every handler waiting"
	pool, client, err := d.Client(ctx, e, 4)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	if err := client.Fill(ctx, load.Queue, jobs); err != nil {
		return nil, fmt.Errorf("bench: fill: %w", err)
	}
	runtime.GC() // garbage of the filling must not count

	var running atomic.Int64
	full, release := make(chan struct{}), make(chan struct{})
	m := &load.Meter{}
	began := time.Now()
	stop, failed := load.Start(ctx, client, load.Work{
		Queues: map[string]int{load.Queue: jobs},
		Run: func(ctx context.Context, _ int64) {
			if running.Add(1) == int64(jobs) {
				close(full)
			}
			select {
			case <-release:
			case <-ctx.Done():
			}
		},
		Recorded: m.Add,
	})
	defer func() { err = errors.Join(err, stop()) }()
	select {
	case <-full:
	case err := <-failed:
		return nil, fmt.Errorf("bench: the worker ended early: %w", err)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if !sleep.For(ctx, time.Second) {
		return nil, ctx.Err()
	}
	rss, ok := load.OwnRSS()
	close(release)
	if err := m.Reach(ctx, int64(jobs), failed); err != nil {
		return nil, err
	}
	took := time.Since(began).Seconds()
	r.Figures = &load.Figures{Jobs: int64(jobs), Seconds: took, JobsPerSecond: float64(jobs) / took}
	if err := stop(); err != nil {
		return nil, err
	}
	pool.Close()
	if r.DeadTuples, err = d.DeadTuples(ctx, e); err != nil {
		return nil, err
	}
	if !ok {
		return nil, errors.New("bench: this system does not report the memory of a process: run the bench on Linux or macOS")
	}
	r.Memory = &load.Memory{Running: jobs, RSS: rss}
	r.AtMost("MB of memory", float64(rss)/1e6, 100)
	return r, nil
}
