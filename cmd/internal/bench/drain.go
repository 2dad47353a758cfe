// Package bench measures a job queue on a server: how fast a backlog drains, what enqueueing costs compared with a plain INSERT, and how soon a
// job starts. It uses the queue only as a load.Engine, so that the same measurement runs on Weir and on similar queues.
package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weir-pg/weir/cmd/internal/load"
)

// DrainConfig configures Drain.
type DrainConfig struct {
	Jobs        int // per round
	Rounds      int // default 1
	Concurrency int // default 2000
	Connections int // of the worker's pool; default 4
}

// Drain fills the queue with no-op jobs, and then processes them with one worker in this process. Only the processing is timed, from the first
// claim to the last result; the WAL is that of both.
func Drain(ctx context.Context, d *load.Database, e load.Engine, c DrainConfig) (*load.Report, error) {
	if c.Jobs < 1 {
		return nil, fmt.Errorf("bench: drain needs at least one job, got %d", c.Jobs)
	}
	c.Rounds, c.Concurrency, c.Connections = max(c.Rounds, 1), cmp.Or(c.Concurrency, 2000), cmp.Or(c.Connections, 4)
	r, err := d.Begin(ctx, "drain", e)
	if err != nil {
		return nil, err
	}
	r.Note = fmt.Sprintf("%d no-op jobs enqueued in bulk, then processed by one process with concurrency %d; %d rounds, of which the median is shown", c.Jobs, c.Concurrency, c.Rounds)
	f := &load.Figures{}
	r.Figures = f
	var rates, seconds, bytes []float64
	for round := range c.Rounds {
		took, written, err := drainRound(ctx, d, e, c)
		if err != nil {
			return nil, err
		}
		rate := float64(c.Jobs) / took.Seconds()
		d.Say("%s drain, round %d of %d: %.0f jobs/s", e.Name(), round+1, c.Rounds, rate)
		rates, seconds, bytes = append(rates, rate), append(seconds, took.Seconds()), append(bytes, float64(written)/float64(c.Jobs))
	}
	f.Jobs, f.Rate = int64(c.Jobs), load.SpreadOf(rates)
	f.Seconds, f.JobsPerSecond = load.SpreadOf(seconds).Median, f.Rate.Median
	f.WALBytesPerJob = &load.SpreadOf(bytes).Median
	if f.DeadTuples, err = d.DeadTuples(ctx, e); err != nil {
		return nil, err
	}
	r.AtMost("dead tuples", float64(*f.DeadTuples), 0)
	return r, nil
}

func drainRound(ctx context.Context, d *load.Database, e load.Engine, c DrainConfig) (took time.Duration, written int64, err error) {
	pool, client, err := d.Client(ctx, e, c.Connections)
	if err != nil {
		return 0, 0, err
	}
	defer pool.Close()
	before, err := d.WAL(ctx)
	if err != nil {
		return 0, 0, err
	}
	if err := client.Fill(ctx, load.Queue, c.Jobs); err != nil {
		return 0, 0, fmt.Errorf("bench: fill: %w", err)
	}
	m := &load.Meter{}
	stop, failed := load.Start(ctx, client, load.Work{
		Queues:   map[string]int{load.Queue: c.Concurrency},
		Run:      func(context.Context, int64) { m.Start() },
		Claimed:  func(_ int, took time.Duration) { m.Begin(time.Now().Add(-took)) },
		Recorded: m.Add,
	})
	err = m.Reach(ctx, int64(c.Jobs), failed)
	if err := errors.Join(err, stop()); err != nil {
		return 0, 0, err
	}
	after, err := d.WAL(ctx)
	return m.Took(), after - before, err
}
