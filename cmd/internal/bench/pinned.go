package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/sleep"
)

// PinnedConfig configures Pinned.
type PinnedConfig struct {
	Duration  time.Duration // of each phase
	Rate      int           // jobs per second
	Pin       string        // read or write
	Producers int           // connections that enqueue; default 8
}

// pins are what the transaction does that pins the horizon, before it goes to sleep.
var pins = map[string][]string{
	"read":  {`BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY`, `SELECT count(*) FROM pg_class`},
	"write": {`BEGIN`, `SELECT pg_current_xact_id()`},
}

// Pinned enqueues and works jobs at a rate, first without, then with a long transaction that keeps VACUUM from
// removing any dead row.
func Pinned(ctx context.Context, d *Database, e Engine, c PinnedConfig) (r *Report, err error) {
	c.Producers = orDefault(c.Producers, 8)
	if c.Rate < 1 {
		return nil, fmt.Errorf("bench: pinned needs a rate of at least one job per second, got %d", c.Rate)
	}
	if pins[c.Pin] == nil {
		return nil, fmt.Errorf("bench: unknown pin %q: it is read (an old snapshot) or write (an idle transaction that holds an xid)", c.Pin)
	}
	if r, err = d.report(ctx, "pinned", e); err != nil {
		return nil, err
	}
	r.Note = fmt.Sprintf("%d jobs/s, each enqueued in a transaction of its own, from %d connections, to one worker; %s without and %s with a %s pin; latencies are from commit to handler",
		c.Rate, c.Producers, c.Duration, c.Duration, c.Pin)
	pool, client, err := d.client(ctx, e, c.Producers)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	workers, workerClient, err := d.client(ctx, e, 4)
	if err != nil {
		return nil, err
	}
	defer workers.Close()

	jobs := int64(c.Duration.Seconds() * float64(c.Rate))
	p := &producer{client: client, rate: c.Rate, connections: c.Producers, stamps: newStamps(int(2*jobs) + 1), next: 1}
	m, claimed := &meter{}, newClaims()
	stop, failed := work(ctx, workerClient, Work{Queues: map[string]int{Queue: 1000}, Run: p.stamps.start, Claimed: claimed.add, Recorded: m.add})
	defer func() { err = errors.Join(err, stop()) }()

	phase := func(name string) (*Figures, error) {
		d.say("%s the pin: %d jobs/s for %s", name, c.Rate, c.Duration)
		claimed.cut()
		from, worked, began := p.next, m.done.Load(), time.Now()
		f := &Figures{}
		rates, err := m.during(sampleEvery(c.Duration), func() error { return p.run(ctx, jobs, c.Duration) })
		if err != nil {
			return nil, fmt.Errorf("bench: enqueue: %w", err)
		}
		// What the worker did in the time that the producer took: a backlog that is left is not counted.
		took := time.Since(began).Seconds()
		f.Jobs, f.Seconds, f.Offered = m.done.Load()-worked, took, float64(p.next-from)/took
		f.JobsPerSecond, f.Rate = float64(f.Jobs)/took, SpreadOf(rates)
		h := claimed.cut()
		f.ClaimP50, f.ClaimP99 = h.at(50), h.at(99)
		if err := m.reach(ctx, p.next-1, failed); err != nil {
			return nil, err
		}
		l := p.stamps.latencies(from, p.next)
		f.P50, f.P99 = l.at(50), l.at(99)
		f.DeadTuples, err = d.deadTuples(ctx, e)
		return f, err
	}
	if r.Before, err = phase("before"); err != nil {
		return nil, err
	}

	holder, err := pgx.Connect(ctx, d.url)
	if err != nil {
		return nil, fmt.Errorf("bench: pin: %w", err)
	}
	defer holder.Close(context.WithoutCancel(ctx))
	for _, sql := range append([]string{`SET idle_in_transaction_session_timeout = 0`}, pins[c.Pin]...) {
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
	pool.Close() // a session reports all that it did when it ends
	workers.Close()
	if r.During.DeadTuples, err = d.deadTuples(ctx, e); err != nil {
		return nil, err
	}
	if _, err := holder.Exec(ctx, `COMMIT`); err != nil {
		return nil, fmt.Errorf("bench: the pin was lost, so the figures mean nothing: %w", err)
	}
	r.Ratio = SpreadOf([]float64{r.During.JobsPerSecond / r.Before.JobsPerSecond})
	r.atLeast("ratio of jobs per second during to before", r.Ratio.Median, 0.9)
	r.atMost("dead tuples", float64(*r.During.DeadTuples), 0)
	return r, nil
}

func sampleEvery(d time.Duration) time.Duration {
	return max(min(d/10, time.Second), 10*time.Millisecond)
}

// producer enqueues numbered jobs on a schedule, from several connections.
type producer struct {
	client      Client
	rate        int
	connections int
	stamps      *stamps
	next        int64 // number of the next job
}

// run enqueues jobs at their due times, and late ones at once; it gives up what is not sent when the time is over.
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
				if errs[i] = p.client.Enqueue(ctx, nil, Queue, p.next+n); errs[i] != nil {
					return
				}
				p.stamps.commit(p.next + n)
			}
		})
	}
	connections.Wait()
	p.next += taken.Load()
	return errors.Join(errs...)
}
