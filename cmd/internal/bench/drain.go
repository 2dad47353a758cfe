package bench

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// DrainConfig configures Drain.
type DrainConfig struct {
	Jobs        int // of each round
	Rounds      int // default 1
	Concurrency int // default 2000
	Connections int // of the worker's pool; default 4
}

// Drain fills the queue with no-op jobs, then works them with one worker in this process. Only the work
// is timed, from the first claim to the last result; the WAL is that of both.
func Drain(ctx context.Context, d *Database, e Engine, c DrainConfig) (*Report, error) {
	if c.Jobs < 1 {
		return nil, fmt.Errorf("bench: drain needs at least one job, got %d", c.Jobs)
	}
	c.Rounds, c.Concurrency, c.Connections = max(c.Rounds, 1), orDefault(c.Concurrency, 2000), orDefault(c.Connections, 4)
	r, err := d.report(ctx, "drain", e)
	if err != nil {
		return nil, err
	}
	r.Note = fmt.Sprintf("%d no-op jobs enqueued in bulk, then worked by one process with concurrency %d; %d rounds, the median one is shown", c.Jobs, c.Concurrency, c.Rounds)
	f := &Figures{}
	r.Figures = f
	var rates, seconds, bytes []float64
	for round := range c.Rounds {
		took, written, err := drainRound(ctx, d, e, c)
		if err != nil {
			return nil, err
		}
		rate := float64(c.Jobs) / took.Seconds()
		d.say("%s drain, round %d of %d: %.0f jobs/s", e.Name(), round+1, c.Rounds, rate)
		rates, seconds, bytes = append(rates, rate), append(seconds, took.Seconds()), append(bytes, float64(written)/float64(c.Jobs))
	}
	f.Jobs, f.Rate = int64(c.Jobs), SpreadOf(rates)
	f.Seconds, f.JobsPerSecond = SpreadOf(seconds).Median, f.Rate.Median
	f.WALBytesPerJob = &SpreadOf(bytes).Median
	if f.DeadTuples, err = d.deadTuples(ctx, e); err != nil {
		return nil, err
	}
	r.atMost("dead tuples", float64(*f.DeadTuples), 0)
	return r, nil
}

func drainRound(ctx context.Context, d *Database, e Engine, c DrainConfig) (took time.Duration, written int64, err error) {
	pool, client, err := d.client(ctx, e, c.Connections)
	if err != nil {
		return 0, 0, err
	}
	defer pool.Close()
	before, err := d.wal(ctx)
	if err != nil {
		return 0, 0, err
	}
	if err := client.Fill(ctx, Queue, c.Jobs); err != nil {
		return 0, 0, fmt.Errorf("bench: fill: %w", err)
	}
	m := &meter{}
	stop, failed := work(ctx, client, Work{
		Queues:   map[string]int{Queue: c.Concurrency},
		Run:      func(context.Context, int64) { m.start() },
		Claimed:  func(_ int, took time.Duration) { m.begin(time.Now().Add(-took)) },
		Recorded: m.add,
	})
	err = m.reach(ctx, int64(c.Jobs), failed)
	if err := errors.Join(err, stop()); err != nil {
		return 0, 0, err
	}
	after, err := d.wal(ctx)
	return time.Duration(m.ended.Load() - m.began.Load()), after - before, err
}

func orDefault[T comparable](value, or T) T {
	var zero T
	if value == zero {
		return or
	}
	return value
}
