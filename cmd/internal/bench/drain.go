// Package bench measures a job queue on a server: how fast a backlog drains, what enqueueing costs compared with a plain INSERT, and how soon a
// job starts. It uses the queue only as a load.Engine, so that the same measurement runs on Weir and on similar queues.
package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/weir-pg/weir/cmd/internal/load"
)

// DrainConfig configures Drain.
type DrainConfig struct {
	Jobs        int // per round
	Rounds      int // default 1
	Concurrency int // default 2000
	Connections int // of the worker's pool; default 4
	// JobTime is how long each job takes. The default is no time.
	JobTime time.Duration
	// Beside, if not nil, drains as many jobs of another queue before each round, to compare with.
	Beside load.Engine
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
	if c.JobTime > 0 {
		r.Note = strings.Replace(r.Note, "no-op jobs", fmt.Sprintf("jobs of %v", c.JobTime), 1)
	}
	var own, beside drained
	var ratios []float64
	queue := load.Queue
	if c.Beside != nil {
		queue += "-compared"
	}
	for round := range c.Rounds {
		if c.Beside != nil {
			if err := beside.round(ctx, d, c.Beside, load.Queue, c); err != nil {
				return nil, err
			}
			d.Say("%s drain, round %d of %d: %.0f jobs/s to compare with", e.Name(), round+1, c.Rounds, beside.rates[round])
		}
		if err := own.round(ctx, d, e, queue, c); err != nil {
			return nil, err
		}
		d.Say("%s drain, round %d of %d: %.0f jobs/s", e.Name(), round+1, c.Rounds, own.rates[round])
		if c.Beside != nil {
			ratios = append(ratios, own.rates[round]/beside.rates[round])
		}
	}
	f := own.figures(c)
	r.Figures = f
	if c.Beside != nil {
		r.Beside, r.Ratio = beside.figures(c), load.SpreadOf(ratios)
	}
	if f.DeadTuples, err = d.DeadTuples(ctx, e); err != nil {
		return nil, err
	}
	r.AtMost("dead tuples", float64(*f.DeadTuples), 0)
	return r, nil
}

// drained is what rounds of one kind have shown.
type drained struct{ rates, seconds, enqueued, bytes []float64 }

func (r *drained) round(ctx context.Context, d *load.Database, e load.Engine, queue string, c DrainConfig) error {
	filled, took, written, err := drainRound(ctx, d, e, queue, c)
	if err != nil {
		return err
	}
	r.enqueued = append(r.enqueued, float64(c.Jobs)/filled.Seconds())
	r.rates, r.seconds, r.bytes = append(r.rates, float64(c.Jobs)/took.Seconds()), append(r.seconds, took.Seconds()), append(r.bytes, float64(written)/float64(c.Jobs))
	return nil
}

func (r *drained) figures(c DrainConfig) *load.Figures {
	f := &load.Figures{Jobs: int64(c.Jobs), Rate: load.SpreadOf(r.rates), Seconds: load.SpreadOf(r.seconds).Median, WALBytesPerJob: &load.SpreadOf(r.bytes).Median}
	f.JobsPerSecond, f.Enqueued = f.Rate.Median, load.SpreadOf(r.enqueued)
	return f
}

func drainRound(ctx context.Context, d *load.Database, e load.Engine, queue string, c DrainConfig) (filled, took time.Duration, written int64, err error) {
	pool, client, err := d.Client(ctx, e, c.Connections)
	if err != nil {
		return 0, 0, 0, err
	}
	defer pool.Close()
	before, err := d.WAL(ctx)
	if err != nil {
		return 0, 0, 0, err
	}
	started := time.Now()
	if err := client.Fill(ctx, queue, c.Jobs); err != nil {
		return 0, 0, 0, fmt.Errorf("bench: fill: %w", err)
	}
	filled = time.Since(started)
	m := &load.Meter{}
	stop, failed := load.Start(ctx, client, load.Work{
		Queues: map[string]int{queue: c.Concurrency},
		Run: func(context.Context, int64) {
			m.Start()
			time.Sleep(c.JobTime)
		},
		Claimed:  func(_ int, took time.Duration) { m.Begin(time.Now().Add(-took)) },
		Recorded: m.Add,
	})
	err = m.Reach(ctx, int64(c.Jobs), failed)
	if err := errors.Join(err, stop()); err != nil {
		return 0, 0, 0, err
	}
	after, err := d.WAL(ctx)
	return filled, m.Took(), after - before, err
}
