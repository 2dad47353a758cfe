package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/weir-pg/weir/cmd/internal/load"
)

// DrainServers does what Drain does over the first one, two, four and so on of several servers, and over all of them, in turn: as many jobs in all, spread evenly, which
// one process works. work runs its worker over databases, which their connection strings name, until ctx ends.
func DrainServers(ctx context.Context, all []*load.Database, e load.Engine, c DrainConfig, work func(ctx context.Context, databases []string, w load.Work) error) (*load.Report, error) {
	if c.Jobs < len(all) {
		return nil, fmt.Errorf("bench: drain over %d servers needs at least as many jobs, got %d", len(all), c.Jobs)
	}
	c.Rounds, c.Concurrency, c.Connections = max(c.Rounds, 1), 1000, 4
	r, err := all[0].Begin(ctx, "drain", e)
	if err != nil {
		return nil, err
	}
	r.Note = fmt.Sprintf("%d no-op jobs, spread evenly over servers on this machine and enqueued in bulk, then processed by one process with concurrency %d for each server; %s, of which the median is shown",
		c.Jobs, c.Concurrency, load.Plural(c.Rounds, "round"))
	var sizes []int
	for n := 1; n < len(all); n *= 2 {
		sizes = append(sizes, n)
	}
	sizes = append(sizes, len(all))
	each := make([]spread, len(sizes))
	for round := range c.Rounds {
		order := make([]int, len(sizes))
		for i := range order {
			order[i] = i
		}
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, i := range order {
			if err := each[i].over(ctx, all[:sizes[i]], e, c, work); err != nil {
				return nil, err
			}
			all[0].Say("%s drain, round %d of %d: over %s: %.0f jobs/s", e.Name(), round+1, c.Rounds, load.Plural(sizes[i], "server"), each[i].rates[round])
		}
	}
	for i, n := range sizes {
		var ratios []float64
		for round, rate := range each[i].rates {
			ratios = append(ratios, rate/each[0].rates[round])
		}
		r.Over = append(r.Over, load.Over{Servers: n, Figures: each[i].figures(c), Connections: each[i].connections, Ratio: load.SpreadOf(ratios)})
	}
	return r, nil
}

// spread is what rounds over several servers have shown.
type spread struct {
	drained
	connections int
}

// over is a round over several servers.
func (r *spread) over(ctx context.Context, servers []*load.Database, e load.Engine, c DrainConfig, work func(context.Context, []string, load.Work) error) error {
	began := time.Now()
	var wal, cpu int64
	for _, d := range servers {
		bytes, err := d.WAL(ctx)
		if err != nil {
			return err
		}
		wal -= bytes
	}
	errs := make([]error, len(servers))
	var fills sync.WaitGroup
	for i, d := range servers {
		jobs := c.Jobs / len(servers)
		if i < c.Jobs%len(servers) {
			jobs++
		}
		fills.Go(func() { errs[i] = fill(ctx, d, e, jobs) })
	}
	fills.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	filled := time.Since(began)
	counted := true
	var urls []string
	for _, d := range servers {
		used, ok := d.ServerCPU()
		counted = counted && ok
		cpu -= used.Microseconds()
		urls = append(urls, d.URL)
	}
	m := &load.Meter{}
	stop, failed := load.Start(ctx, many{work: func(ctx context.Context, w load.Work) error { return work(ctx, urls, w) }}, load.Work{
		Queues: map[string]int{load.Queue: c.Concurrency * len(servers)}, // so that claims are as large
		Run: func(context.Context, int64) {
			m.Start()
			time.Sleep(c.JobTime)
		},
		Claimed:  func(_ int, took time.Duration) { m.Begin(time.Now().Add(-took)) },
		Recorded: m.Add,
	})
	err := m.Reach(ctx, int64(c.Jobs), failed)
	connections := 0
	for _, d := range servers {
		n, uncounted := d.Connections(ctx)
		connections, err = connections+n, errors.Join(err, uncounted)
	}
	if err := errors.Join(err, stop()); err != nil {
		return err
	}
	r.connections = max(r.connections, connections)
	for _, d := range servers {
		used, _ := d.ServerCPU()
		cpu += used.Microseconds()
		bytes, err := d.WAL(ctx)
		if err != nil {
			return err
		}
		wal += bytes
	}
	if counted {
		r.cpu = append(r.cpu, float64(cpu)/float64(c.Jobs))
	}
	r.enqueued = append(r.enqueued, float64(c.Jobs)/filled.Seconds())
	r.rates, r.seconds = append(r.rates, float64(c.Jobs)/m.Took().Seconds()), append(r.seconds, m.Took().Seconds())
	r.bytes = append(r.bytes, float64(wal)/float64(c.Jobs))
	return nil
}

// many is a client that only works.
type many struct {
	load.Client
	work func(context.Context, load.Work) error
}

func (m many) Work(ctx context.Context, w load.Work) error { return m.work(ctx, w) }

func fill(ctx context.Context, d *load.Database, e load.Engine, jobs int) error {
	pool, client, err := d.Client(ctx, e, 1)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := client.Fill(ctx, load.Queue, jobs); err != nil {
		return fmt.Errorf("bench: fill: %w", err)
	}
	return nil
}
