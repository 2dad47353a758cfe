// Package bench measures a job queue on a server: how fast a backlog drains, what enqueueing costs compared with a plain INSERT, and how soon a
// job starts. It uses the queue only as a load.Engine, so that the same measurement runs on Weir and on similar queues.
package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
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
	// Features are each compared with plain jobs, in turn, in every round. If there are any, no others are measured.
	Features []Feature
}

// Feature is what jobs are compared with plain ones for.
type Feature struct {
	What          string
	Engine, Plain load.Engine
	// Around, if not nil, starts what goes on beside the jobs. It returns what ends it, even after an error.
	Around func(context.Context) (end func() error, err error)
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
	r.Note = fmt.Sprintf("%d no-op jobs enqueued in bulk, then processed by one process with concurrency %d; %s, of which the median is shown", c.Jobs, c.Concurrency, load.Plural(c.Rounds, "round"))
	if c.JobTime > 0 {
		r.Note = strings.Replace(r.Note, "no-op jobs", fmt.Sprintf("jobs of %v", c.JobTime), 1)
	}
	var plain drained
	features := make([]compared, len(c.Features))
	for round := range c.Rounds {
		if len(features) == 0 {
			if err := plain.round(ctx, d, e, load.Queue, c); err != nil {
				return nil, err
			}
			d.Say("%s drain, round %d of %d: %.0f jobs/s", e.Name(), round+1, c.Rounds, plain.rates[round])
		}
		for i := range features {
			f := &features[i]
			if err := f.round(ctx, d, round, i, c); err != nil {
				return nil, err
			}
			d.Say("%s drain, round %d of %d: %s: %.0f jobs/s, plain jobs: %.0f", e.Name(), round+1, c.Rounds, c.Features[i].What, f.own.rates[round], f.plain.rates[round])
		}
	}
	for i := range features {
		plain.add(&features[i].plain)
		r.Features = append(r.Features, features[i].report(c.Features[i].What, c))
	}
	r.Figures = plain.figures(c)
	if r.DeadTuples, err = d.DeadTuples(ctx, e); err != nil {
		return nil, err
	}
	r.AtMost("dead tuples", float64(*r.DeadTuples), 0)
	return r, nil
}

// drained is what rounds of one kind have shown. The CPU time is that of the server, in microseconds per job.
type drained struct{ rates, seconds, enqueued, bytes, cpu []float64 }

func (r *drained) add(other *drained) {
	for _, to := range []struct {
		to   *[]float64
		from []float64
	}{{&r.rates, other.rates}, {&r.seconds, other.seconds}, {&r.enqueued, other.enqueued}, {&r.bytes, other.bytes}, {&r.cpu, other.cpu}} {
		*to.to = append(*to.to, to.from...)
	}
}

func (r *drained) round(ctx context.Context, d *load.Database, e load.Engine, queue string, c DrainConfig) error {
	pool, client, err := d.Client(ctx, e, c.Connections)
	if err != nil {
		return err
	}
	defer pool.Close()
	before, err := d.WAL(ctx)
	if err != nil {
		return err
	}
	started := time.Now()
	if err := client.Fill(ctx, queue, c.Jobs); err != nil {
		return fmt.Errorf("bench: fill: %w", err)
	}
	filled := time.Since(started)
	cpu, counted := d.ServerCPU()
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
		return err
	}
	if used, ok := d.ServerCPU(); ok && counted {
		r.cpu = append(r.cpu, float64((used-cpu).Microseconds())/float64(c.Jobs))
	}
	after, err := d.WAL(ctx)
	if err != nil {
		return err
	}
	r.enqueued = append(r.enqueued, float64(c.Jobs)/filled.Seconds())
	r.rates, r.seconds = append(r.rates, float64(c.Jobs)/m.Took().Seconds()), append(r.seconds, m.Took().Seconds())
	r.bytes = append(r.bytes, float64(after-before)/float64(c.Jobs))
	return nil
}

func (r *drained) figures(c DrainConfig) *load.Figures {
	f := &load.Figures{Jobs: int64(c.Jobs), Rate: load.SpreadOf(r.rates), Seconds: load.SpreadOf(r.seconds).Median, WALBytesPerJob: &load.SpreadOf(r.bytes).Median}
	f.JobsPerSecond, f.Enqueued = f.Rate.Median, load.SpreadOf(r.enqueued)
	if cpu := load.SpreadOf(r.cpu); cpu != nil {
		f.ServerCPUPerJob = &cpu.Median
	}
	return f
}

// compared is what rounds of a feature have shown, and those of plain jobs beside it.
type compared struct{ own, plain drained }

// round drains jobs with a feature, and as many plain ones right before, or in every second round right after. Each feature has a queue of its own,
// because limits stay with a queue.
func (f *compared) round(ctx context.Context, d *load.Database, round, i int, c DrainConfig) error {
	feature := c.Features[i]
	sides := []func() error{
		func() error { return f.plain.round(ctx, d, feature.Plain, load.Queue, c) },
		func() (err error) {
			if feature.Around != nil {
				end, failed := feature.Around(ctx)
				defer func() { err = errors.Join(err, end()) }()
				if failed != nil {
					return failed
				}
			}
			return f.own.round(ctx, d, feature.Engine, fmt.Sprintf("%s-%d", load.Queue, i+1), c)
		},
	}
	if round%2 == 1 {
		slices.Reverse(sides)
	}
	for _, side := range sides {
		if err := side(); err != nil {
			return err
		}
	}
	return nil
}

func (f *compared) report(what string, c DrainConfig) load.Feature {
	var ratios, bytes, cpu []float64
	for i := range f.own.rates {
		ratios, bytes = append(ratios, f.own.rates[i]/f.plain.rates[i]), append(bytes, f.own.bytes[i]-f.plain.bytes[i])
	}
	for i := range min(len(f.own.cpu), len(f.plain.cpu)) {
		cpu = append(cpu, f.own.cpu[i]-f.plain.cpu[i])
	}
	return load.Feature{What: what, Figures: f.own.figures(c), Plain: f.plain.figures(c), Ratio: load.SpreadOf(ratios), WAL: load.SpreadOf(bytes), CPU: load.SpreadOf(cpu)}
}
