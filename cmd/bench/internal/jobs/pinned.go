package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/sleep"
)

// PinnedConfig configures Pinned.
type PinnedConfig struct {
	Duration  time.Duration // duration of each phase
	Rate      int           // jobs per second
	Pin       string        // read or write
	Producers int           // number of connections that enqueue; default 8
}

// Pinned enqueues and works jobs at a fixed rate, first without and then with a long transaction that prevents VACUUM from
// removing any dead row.
func Pinned(ctx context.Context, d *load.Database, e load.Engine, c PinnedConfig) (r *load.Report, err error) {
	c.Producers = cmp.Or(c.Producers, 8)
	if c.Rate < 1 {
		return nil, fmt.Errorf("bench: pinned needs a rate of at least one job per second, got %d", c.Rate)
	}
	pin, err := load.PinOf(c.Pin)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	if r, err = d.Begin(ctx, "pinned", e); err != nil {
		return nil, err
	}
	r.Note = fmt.Sprintf("%d jobs/s, each enqueued in a transaction of its own, from %d connections, to one worker; %s without and %s with a %s pin; latencies are from commit to handler",
		c.Rate, c.Producers, c.Duration, c.Duration, c.Pin)
	pool, client, err := d.Client(ctx, e, c.Producers)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	workers, workerClient, err := d.Client(ctx, e, 4)
	if err != nil {
		return nil, err
	}
	defer workers.Close()

	jobs := int64(c.Duration.Seconds() * float64(c.Rate))
	p := &producer{client: client, rate: c.Rate, connections: c.Producers, stamps: load.NewStamps(int(2*jobs) + 2), next: 1}
	m, claimed := &load.Meter{}, load.NewTally()
	stop, failed := load.Start(ctx, workerClient, load.Work{Queues: map[string]int{load.Queue: 1000}, Run: p.stamps.Start, Claimed: claimed.Did, Recorded: m.Add})
	defer func() { err = errors.Join(err, stop()) }()

	// The worker has started when the first job is done. Only then is anything measured.
	if err := p.run(ctx, 1, time.Hour); err != nil {
		return nil, fmt.Errorf("bench: enqueue: %w", err)
	}
	if err := m.Reach(ctx, p.next-1, failed); err != nil {
		return nil, err
	}

	phase := func(name string) (*load.Figures, error) {
		d.Say("%s the pin: %d jobs/s for %s", name, c.Rate, c.Duration)
		claimed.Cut()
		from, worked, began := p.next, m.Done.Load(), time.Now()
		f := &load.Figures{}
		rates, err := m.During(load.SampleEvery(c.Duration), func() error { return p.run(ctx, jobs, c.Duration) })
		if err != nil {
			return nil, fmt.Errorf("bench: enqueue: %w", err)
		}
		// This counts what the worker did in the producer's time, without the remaining backlog.
		took := time.Since(began).Seconds()
		f.Jobs, f.Seconds, f.Offered = m.Done.Load()-worked, took, float64(p.next-from)/took
		f.JobsPerSecond, f.Rate = float64(f.Jobs)/took, load.SpreadOf(rates)
		_, h := claimed.Cut()
		f.ClaimP50, f.ClaimP99 = h.At(50), h.At(99)
		if err := m.Reach(ctx, p.next-1, failed); err != nil {
			return nil, err
		}
		l := p.stamps.Latencies(from, p.next)
		f.P50, f.P99 = l.At(50), l.At(99)
		f.DeadTuples, err = d.DeadTuples(ctx, e)
		return f, err
	}
	if r.Before, err = phase("before"); err != nil {
		return nil, err
	}

	holder, err := pgx.Connect(ctx, d.URL)
	if err != nil {
		return nil, fmt.Errorf("bench: pin: %w", err)
	}
	defer holder.Close(context.WithoutCancel(ctx))
	for _, sql := range append([]string{`SET idle_in_transaction_session_timeout = 0`}, pin.SQL...) {
		if _, err := holder.Exec(ctx, sql); err != nil {
			return nil, fmt.Errorf("bench: pin: %w", err)
		}
	}
	if r.During, err = phase("during"); err != nil {
		return nil, err
	}
	if err := stop(); err != nil {
		return nil, err
	}
	pool.Close() // a session reports its statistics when it ends
	workers.Close()
	if r.During.DeadTuples, err = d.DeadTuples(ctx, e); err != nil {
		return nil, err
	}
	if _, err := holder.Exec(ctx, `COMMIT`); err != nil {
		return nil, fmt.Errorf("bench: the pin was lost, so the figures are meaningless: %w", err)
	}
	r.Ratio = load.SpreadOf([]float64{r.During.JobsPerSecond / r.Before.JobsPerSecond})
	r.AtLeast("ratio of jobs per second during to before", r.Ratio.Median, 0.9)
	r.AtMost("dead tuples", float64(*r.During.DeadTuples), 0)
	return r, nil
}

// producer enqueues numbered jobs on a schedule, from several connections.
type producer struct {
	client      load.Client
	rate        int
	connections int
	stamps      *load.Stamps
	next        int64 // number of the next job
}

// run enqueues jobs at their due times, and late ones at once. It drops the jobs that are not sent when the time is over.
func (p *producer) run(ctx context.Context, jobs int64, d time.Duration) error {
	var connections sync.WaitGroup
	var taken atomic.Int64
	errs := make([]error, p.connections)
	began := time.Now()
	for i := range p.connections {
		connections.Go(func() {
			for time.Since(began) < d {
				n := taken.Add(1) - 1
				if n >= jobs {
					taken.Add(-1)
					return
				}
				due := time.Duration(n) * time.Second / time.Duration(p.rate)
				if early := due - time.Since(began); early > 0 && !sleep.For(ctx, early) {
					errs[i] = ctx.Err()
					return
				}
				if errs[i] = p.client.Enqueue(ctx, nil, load.Queue, p.next+n); errs[i] != nil {
					return
				}
				p.stamps.Commit(p.next + n)
			}
		})
	}
	connections.Wait()
	p.next += taken.Load()
	return errors.Join(errs...)
}
