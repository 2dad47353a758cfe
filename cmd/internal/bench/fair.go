package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/sleep"
)

// FairConfig configures Fair.
type FairConfig struct {
	Tenants   int           // one of them is large
	Jobs      int           // the large one's, at once
	Rate      int           // jobs per second of all others together
	PerTenant int           // limits how many jobs of a tenant run; 0: no limit
	Window    time.Duration // before the onset, and after its first second
	Rounds    int           // default 1
}

const (
	fairWorkers    = 4
	fairShare      = 0.3 // of what the workers can do is what the others' jobs need
	fairJobTime    = 50 * time.Millisecond
	fairEnqueuers  = 8
	fairDrains     = 2000 // concurrency of the worker that drains a backlog
	fairFirst      = time.Second
	fairTopUpEvery = 100 * time.Millisecond
)

// Fair lets one tenant enqueue many jobs at once while the others enqueue at a steady rate, and measures how long the jobs of the others wait: before that,
// in its first second, and afterwards. In each round it does so with all those jobs, with half as many, and with a hundredth. So many wait all the time:
// what is worked is enqueued again. Between two backlogs, the queue is drained.
func Fair(ctx context.Context, d *load.Database, e load.Engine, c FairConfig) (*load.Report, error) {
	c.Rounds = max(c.Rounds, 1)
	if c.Tenants < 2 || c.Jobs < 100 || c.Rate < 1 {
		return nil, fmt.Errorf("bench: fair needs at least two tenants, a hundred jobs, and one job per second of the others, got %d, %d and %d", c.Tenants, c.Jobs, c.Rate)
	}
	concurrency := max(int(float64(c.Rate)*fairJobTime.Seconds()/fairShare)/fairWorkers, 1)
	r, err := d.Begin(ctx, "fair", e)
	if err != nil {
		return nil, err
	}
	r.Note = fmt.Sprintf("one of %d tenants has many jobs at once, while the others enqueue %d jobs/s, each in its own transaction; %d workers run %d jobs of %s each; waits are those of the others' jobs, from commit to handler",
		c.Tenants, c.Rate, fairWorkers, concurrency, fairJobTime)
	pool, client, err := d.Client(ctx, e, fairEnqueuers+1)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	tenants, ok := client.(load.TenantClient)
	if !ok {
		return nil, fmt.Errorf("bench: jobs of %s have no tenants", e.Name())
	}
	f := &fair{FairConfig: c, waits: newWaits(), db: d, client: tenants}
	if err := f.client.LimitTenants(ctx, load.Queue, c.PerTenant); err != nil {
		return nil, err
	}

	running, fail := context.WithCancelCause(ctx) // ends when a worker or an enqueuer fails
	var stops []func() error
	for range fairWorkers {
		var stop func() error
		if stop, err = f.work(running, fail, e, concurrency); err != nil {
			break
		}
		stops = append(stops, stop)
	}
	if err == nil {
		err = f.measure(running, fail, e)
	}
	if cause := context.Cause(running); cause != nil {
		err = cause
	}
	fail(nil)
	for _, stop := range stops {
		err = errors.Join(err, stop())
	}
	if err != nil {
		return nil, err
	}
	return r, f.report(ctx, r, e)
}

// fair is a run of Fair.
type fair struct {
	FairConfig
	*waits
	db     *load.Database
	client load.TenantClient

	sent            atomic.Int64 // the others' jobs
	filled, started atomic.Int64 // the large tenant's
	draining        atomic.Bool
}

// enqueue enqueues jobs of the others at their due times, and late ones at once, until stop is called.
func (f *fair) enqueue(ctx context.Context, fail context.CancelCauseFunc) (stop func()) {
	began, earlier := time.Now(), f.sent.Load()
	enqueuing, end := context.WithCancel(ctx)
	var all sync.WaitGroup
	one := func() error {
		number := f.sent.Add(1)
		due := began.Add(time.Duration(float64(number-earlier) / float64(f.Rate) * float64(time.Second)))
		if !sleep.For(enqueuing, time.Until(due)) {
			return nil
		}
		if err := f.client.EnqueueFor(ctx, load.Queue, tenant(1+rand.IntN(f.Tenants-1)), number); err != nil {
			return fmt.Errorf("bench: enqueue: %w", err)
		}
		f.committed(number)
		return nil
	}
	for range fairEnqueuers {
		all.Go(func() {
			for enqueuing.Err() == nil {
				if err := one(); err != nil {
					fail(err)
					return
				}
			}
		})
	}
	return func() {
		end()
		all.Wait()
	}
}

func tenant(i int) string { return "tenant " + strconv.Itoa(i) }

// fill gives the large tenant n jobs, in one transaction.
func (f *fair) fill(ctx context.Context, n int, commits func() error) error {
	f.filled.Add(int64(n))
	if err := f.client.FillFor(ctx, load.Queue, tenant(0), n, commits); err != nil {
		return fmt.Errorf("bench: fill: %w", err)
	}
	return nil
}

// waiting returns how many jobs of the large tenant wait.
func (f *fair) waiting() int64 { return f.filled.Load() - f.started.Load() }

// run is the handler: jobs of the large tenant have the number 0.
func (f *fair) run(_ context.Context, number int64) {
	if number != 0 {
		f.start(number)
		time.Sleep(fairJobTime)
		return
	}
	f.started.Add(1)
	if f.draining.Load() {
		return
	}
	defer f.large()()
	time.Sleep(fairJobTime)
}

// work starts a worker with connections of its own. stop ends it.
func (f *fair) work(ctx context.Context, fail context.CancelCauseFunc, e load.Engine, concurrency int) (stop func() error, err error) {
	pool, client, err := f.db.Client(ctx, e, 3)
	if err != nil {
		return nil, err
	}
	end, failed := load.Start(ctx, client, load.Work{Queues: map[string]int{load.Queue: concurrency}, Run: f.run, Claimed: func(_ int, took time.Duration) { f.claimed(took) }})
	ended := make(chan struct{})
	go func() { // ends with the worker, or when it is stopped
		select {
		case err := <-failed:
			fail(fmt.Errorf("bench: a worker ended early: %w", err))
		case <-ended:
		}
	}()
	return func() error {
		defer pool.Close()
		defer close(ended)
		return end()
	}, nil
}

// sizes are the backlogs to measure with.
func (f *fair) sizes() []int { return []int{f.Jobs, f.Jobs / 2, f.Jobs / 100} }

func (f *fair) measure(ctx context.Context, fail context.CancelCauseFunc, e load.Engine) error {
	for round := range f.Rounds {
		for _, size := range f.sizes() {
			f.db.Say("fair, round %d of %d: before %d jobs of one tenant", round+1, f.Rounds, size)
			stop := f.enqueue(ctx, fail)
			err := f.onset(ctx, size)
			if stop(); err != nil {
				return err
			}
			f.db.Say("fair: draining")
			if err := f.drain(ctx, fail, e); err != nil {
				return err
			}
		}
	}
	return nil
}

// onset measures before, while and after one tenant enqueues so many jobs.
func (f *fair) onset(ctx context.Context, size int) error {
	if !sleep.For(ctx, min(f.Window, 2*time.Second)) { // nothing is measured while enqueuers and workers start
		return ctx.Err()
	}
	if err := f.settle(ctx); err != nil {
		return err
	}
	if err := f.during(ctx, "before", f.Window, 0); err != nil {
		return err
	}
	if n := f.unstarted(); n > int64(10*f.Rate) {
		return fmt.Errorf("bench: %d of the others' jobs wait before the large tenant has any: this machine doesn't carry %d a second: lower the rate", n, f.Rate)
	}
	f.enter(fmt.Sprintf("while %d of one are enqueued", size))
	err := f.fill(ctx, size, func() error {
		// What enqueueing so much took from the machine must not count as the onset's.
		err := f.settle(ctx)
		f.db.Say("fair: here they come")
		f.enter(first(size))
		return err
	})
	if err != nil {
		return err
	}
	if err := f.during(ctx, first(size), fairFirst, int64(size)); err != nil {
		return err
	}
	return f.during(ctx, after(size), f.Window, int64(size))
}

// settle waits until no more of the others' jobs wait than come in a quarter of a second, as long as a machine with much other load may need.
func (f *fair) settle(ctx context.Context) error {
	const patience = 15 * time.Second
	for until := time.Now().Add(patience); f.unstarted() > int64(f.Rate)/4 && time.Now().Before(until); {
		if !sleep.For(ctx, 10*time.Millisecond) {
			return ctx.Err()
		}
	}
	return nil
}

func first(size int) string { return fmt.Sprintf("first second with %d", size) }

func after(size int) string { return fmt.Sprintf("then, with %d", size) }

// during measures one phase, for a time in which the large tenant has a backlog of this size.
func (f *fair) during(ctx context.Context, name string, d time.Duration, size int64) error {
	began, before := time.Now(), f.cpu()
	p := f.enter(name)
	defer f.leave()
	for until := began.Add(d); time.Now().Before(until); {
		if missing := size - f.waiting(); missing > size/10 {
			if err := f.fill(ctx, int(missing), nil); err != nil {
				return err
			}
		}
		if !sleep.For(ctx, min(time.Until(until), fairTopUpEvery)) {
			return ctx.Err()
		}
	}
	p.cpu += f.cpu() - before
	p.lasted += time.Since(began)
	return nil
}

// cpu returns the CPU time of this process and the server; 0 if that is not known.
func (f *fair) cpu() time.Duration {
	own, ok := load.OwnCPU()
	server, serverOK := f.db.ServerCPU()
	if !ok || !serverOK {
		return 0
	}
	return own + server
}

// drain works all jobs, with one more worker. Those of the large tenant take no time meanwhile, nor does a limit hold.
func (f *fair) drain(ctx context.Context, fail context.CancelCauseFunc, e load.Engine) error {
	f.draining.Store(true)
	defer f.draining.Store(false)
	if f.PerTenant > 0 {
		if err := f.client.LimitTenants(ctx, load.Queue, 0); err != nil {
			return err
		}
	}
	stop, err := f.work(ctx, fail, e, fairDrains)
	if err != nil {
		return err
	}
	err = f.await(ctx, "jobs have not started", func() int64 { return f.waiting() + f.unstarted() })
	if err := errors.Join(err, stop()); err != nil {
		return err
	}
	return f.client.LimitTenants(ctx, load.Queue, f.PerTenant)
}

// await waits until none is left. It returns an error if that makes no progress for a minute.
func (f *fair) await(ctx context.Context, what string, left func() int64) error {
	const patience = time.Minute
	least, at := left(), time.Now()
	for n := least; n > 0; n = left() {
		if n < least {
			least, at = n, time.Now()
		} else if time.Since(at) > patience {
			return fmt.Errorf("bench: %d %s, and none fewer than %s ago", n, what, patience)
		}
		if !sleep.For(ctx, 10*time.Millisecond) {
			return ctx.Err()
		}
	}
	return nil
}

// report summarizes the phases.
func (f *fair) report(ctx context.Context, r *load.Report, e load.Engine) error {
	for _, name := range f.order {
		r.Phases = append(r.Phases, f.phases[name].report(name))
	}
	onset, later, claims := 0.0, 0.0, 0.0
	before := *f.phases["before"].waits.At(99)
	for _, size := range f.sizes() {
		onset = max(onset, most(f.phases[first(size)].waits, 100))
		later = max(later, most(f.phases[after(size)].waits, 99))
		claims = max(claims, most(f.phases[after(size)].claims, 99))
	}
	r.AtMost("ms that others wait in the first second, max", onset, 1000)
	r.AtMost("ms that others wait afterwards, p99", later, before+float64(fairJobTime.Milliseconds()))
	r.AtMost("ms of a claim with a backlog, p99", claims, 10)
	full, small := f.phases[after(f.Jobs)].claims.At(50), f.phases[after(f.Jobs/100)].claims.At(50)
	if full != nil && small != nil {
		r.AtMost(fmt.Sprintf("ratio of a claim's median with %d jobs to that with %d", f.Jobs, f.Jobs/100), *full / *small, 1.25)
	}
	if f.PerTenant > 0 {
		r.AtMost("jobs of the large tenant that run at a time", float64(f.mostLarge()), float64(f.PerTenant))
	}
	dead, err := f.db.DeadTuples(ctx, e)
	if err != nil {
		return err
	}
	r.AtMost("dead tuples", float64(*dead), 0)
	return nil
}

// most returns a percentile; 0 if there is nothing.
func most(h load.Histogram, percent float64) float64 {
	if ms := h.At(percent); ms != nil {
		return *ms
	}
	return 0
}
