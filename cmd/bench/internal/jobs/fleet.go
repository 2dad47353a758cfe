package jobs

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/sleep"
)

// FleetConfig configures Fleet.
type FleetConfig struct {
	Workers  int
	Limit    int           // of the queue; that of the engine
	Duration time.Duration // of each part
	Refills  int           // slots that are freed one at a time; default 50
}

const (
	fleetPatience = 10 * time.Minute
	fleetJobTime  = 50 * time.Millisecond // while jobs flow
	fleetBacklog  = 1000                  // jobs more than are needed
	fleetStarting = 10                    // workers start at the same time
	fleetWarmUp   = 30 * time.Second      // the first calls of a connection take ten times as long: it reads the catalogue, and plans their statements
)

// Fleet lets many workers of concurrency 1 share one queue: without jobs; with jobs of which a limit lets no more start; with one slot freed at a time;
// and with short jobs. It measures what the fleet costs in each, and how soon a freed slot is used again. limited is the engine that sets the limit.
func Fleet(ctx context.Context, d *load.Database, plain, limited load.Engine, c FleetConfig) (r *load.Report, err error) {
	if c.Workers < 1 || c.Limit < 1 || c.Limit > c.Workers || c.Refills < 1 {
		return nil, fmt.Errorf("bench: fleet needs a worker, a limit of 1 to so many, and a refill, got %d, %d and %d", c.Workers, c.Limit, c.Refills)
	}
	if r, err = d.Begin(ctx, "fleet", plain); err != nil {
		return nil, err
	}
	r.Note = fmt.Sprintf("%d workers of concurrency 1, each with %d connections, all in this process, share a queue with a limit of %d", c.Workers, perWorker, c.Limit)
	pool, client, err := d.Client(ctx, limited, 2)
	if err != nil {
		return nil, err
	}
	defer pool.Close()

	// The queue exists before its workers, which would complain.
	first, err := plain.Client(pool)
	if err != nil {
		return nil, err
	}
	if err := first.Fill(ctx, load.Queue, 1); err != nil {
		return nil, fmt.Errorf("bench: fill: %w", err)
	}

	f := &fleet{FleetConfig: c, db: d, gate: make(chan struct{}), started: make(chan time.Time, 1_000_000)}
	f.flows.Store(true)
	stopAll, err := f.begin(ctx, plain)
	defer func() { err = errors.Join(err, stopAll()) }()
	if err != nil {
		return nil, err
	}
	if _, err := f.next(ctx); err != nil {
		return nil, err
	}
	f.flows.Store(false)
	r.Fleet = &load.Fleet{Workers: c.Workers, Limit: c.Limit}
	if r.Fleet.Idle, err = f.calm(ctx, "without jobs"); err != nil {
		return nil, err
	}

	flowing := int(float64(c.Limit) * (c.Duration + fleetWarmUp).Seconds() / fleetJobTime.Seconds())
	if err := client.Fill(ctx, load.Queue, c.Limit+c.Refills+flowing+fleetBacklog); err != nil {
		return nil, fmt.Errorf("bench: fill: %w", err)
	}
	for range c.Limit {
		if _, err := f.next(ctx); err != nil {
			return nil, err
		}
	}
	if r.Fleet.Saturated, err = f.calm(ctx, "with all slots in use"); err != nil {
		return nil, err
	}
	d.Say("fleet: freeing one slot at a time")
	refills := load.NewHistogram()
	for range c.Refills {
		freed := time.Now()
		select {
		case f.gate <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		started, err := f.next(ctx)
		if err != nil {
			return nil, err
		}
		refills.Add(started.Sub(freed))
	}
	r.Fleet.Refill = refills.Times()

	f.flows.Store(true)
	f.open()
	d.Say("fleet: with jobs of %s, for %s, until its connections have planned their calls", fleetJobTime, fleetWarmUp)
	if !sleep.For(ctx, fleetWarmUp) {
		return nil, ctx.Err()
	}
	from := f.done.Load()
	if r.Fleet.Flowing, err = f.measure(ctx, fmt.Sprintf("with jobs of %s", fleetJobTime)); err != nil {
		return nil, err
	}
	r.Fleet.Flowing.Jobs = f.done.Load() - from
	r.Fleet.Used = float64(r.Fleet.Flowing.Jobs) * fleetJobTime.Seconds() / r.Fleet.Flowing.Seconds / float64(c.Limit)

	if err := stopAll(); err != nil {
		return nil, err
	}
	// One worker works the remaining jobs.
	if err := workRest(ctx, client, &load.Meter{}); err != nil {
		return nil, err
	}
	r.AtMost("transaction ids per second while no slot is free", r.Fleet.Saturated.XIDs, 1)
	r.AtMost("ms until a freed slot is used again, p99", r.Fleet.Refill.P99, 100)
	return r, nil
}

// fleet is a run of Fleet.
type fleet struct {
	FleetConfig
	db      *load.Database
	gate    chan struct{} // a job ends when it can receive from it; closed: at once
	opened  bool
	flows   atomic.Bool // jobs take their time, and no more
	started chan time.Time
	done    atomic.Int64
}

// begin starts all workers, and waits until all are there. stop ends them, and must be called even after an error.
func (f *fleet) begin(ctx context.Context, e load.Engine) (stop func() error, err error) {
	var stops []func() error
	stop = func() error {
		f.open()
		errs := make(chan error, len(stops))
		for _, stop := range stops { // at the same time, because each has something to finish
			go func() { errs <- stop() }()
		}
		var all error
		for range stops {
			all = errors.Join(all, <-errs)
		}
		stops = nil
		return all
	}
	f.db.Say("starting %d workers", f.Workers)
	until := time.Now().Add(fleetPatience)
	for i := range f.Workers {
		own, client, err := f.db.Client(ctx, e, perWorker)
		if err != nil {
			return stop, err
		}
		end, _ := load.Start(ctx, client, load.Work{Queues: map[string]int{load.Queue: 1}, Run: f.run, Recorded: func(jobs int) { f.done.Add(int64(jobs)) }})
		stops = append(stops, func() error {
			defer own.Close()
			return end()
		})
		// A machine that serves a fleet may still be too small for all of it to start at once.
		if err := f.arrive(ctx, i+1-fleetStarting, until); err != nil {
			return stop, err
		}
	}
	return stop, f.arrive(ctx, f.Workers, until)
}

// arrive waits until so many workers are there.
func (f *fleet) arrive(ctx context.Context, workers int, until time.Time) error {
	for {
		var here int
		if err := f.db.Observer.QueryRow(ctx, `SELECT count(*) FROM weir.workers()`).Scan(&here); err != nil || here >= workers {
			return err
		}
		if time.Now().After(until) {
			return fmt.Errorf("bench: %d of %d workers have started in %s", here, f.Workers, fleetPatience)
		}
		if !sleep.For(ctx, 20*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// run is the handler.
func (f *fleet) run(context.Context, int64) {
	select {
	case f.started <- time.Now():
	default:
	}
	if f.flows.Load() {
		time.Sleep(fleetJobTime)
		return
	}
	<-f.gate
}

// open ends all jobs that wait, and lets no more wait.
func (f *fleet) open() {
	if !f.opened {
		close(f.gate)
		f.opened = true
	}
}

// next waits for the start of the next job.
func (f *fleet) next(ctx context.Context) (time.Time, error) {
	patience := time.NewTimer(fleetPatience)
	defer patience.Stop()
	select {
	case at := <-f.started:
		return at, nil
	case <-patience.C:
		return time.Time{}, fmt.Errorf("bench: a slot is free, and no job has started in %s", fleetPatience)
	case <-ctx.Done():
		return time.Time{}, ctx.Err()
	}
}

// calm measures until the fleet has calmed down: workers learn from heartbeats how many they are, and poll the less often, the longer they are idle.
func (f *fleet) calm(ctx context.Context, what string) (last *load.FleetCost, err error) {
	for until := time.Now().Add(fleetPatience); time.Now().Before(until); {
		cost, err := f.measure(ctx, what)
		if err != nil || last != nil && cost.Transactions > 0.9*last.Transactions {
			return cost, err
		}
		last = cost
	}
	return last, nil
}

// measure measures the costs of the fleet for a time.
func (f *fleet) measure(ctx context.Context, what string) (*load.FleetCost, error) {
	f.db.Say("fleet: %s, for %s", what, f.Duration)
	type counters struct {
		at                      time.Time
		xids, transactions, wal int64
		own, server             time.Duration
		known                   bool
	}
	count := func() (c counters, err error) {
		err = f.db.Observer.QueryRow(ctx, `SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint, xact_commit FROM pg_stat_database WHERE datname = current_database()`).
			Scan(&c.xids, &c.transactions)
		if err != nil {
			return c, err
		}
		if c.wal, err = f.db.WAL(ctx); err != nil {
			return c, err
		}
		c.at = time.Now()
		c.own, c.known = load.OwnCPU()
		server, known := f.db.ServerCPU()
		c.server, c.known = server, c.known && known
		return c, nil
	}
	before, err := count()
	if err != nil {
		return nil, err
	}
	if !sleep.For(ctx, f.Duration) {
		return nil, ctx.Err()
	}
	after, err := count()
	if err != nil {
		return nil, err
	}
	took := after.at.Sub(before.at).Seconds()
	cost := &load.FleetCost{What: what, Seconds: took, XIDs: float64(after.xids-before.xids) / took, Transactions: float64(after.transactions-before.transactions) / took,
		WAL: float64(after.wal-before.wal) / took}
	if before.known && after.known {
		own, server := 100*(after.own-before.own).Seconds()/took, 100*(after.server-before.server).Seconds()/took
		cost.Workers, cost.Server = &own, &server
	}
	return cost, nil
}
