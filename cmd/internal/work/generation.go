package work

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/weir-pg/weir/internal/maintain"
	"github.com/weir-pg/weir/internal/outage"
	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/store"
	"github.com/weir-pg/weir/internal/worker"
)

const (
	growAfter      = 20 * time.Millisecond // queues that are asked for within this time share a generation; four times as long for each that has not ended yet
	maxGenerations = 8                     // at once, with three connections each
	failedAgain    = 5 * time.Second
)

// generation is a worker in the database, for the queues that were asked for when it was started.
type generation struct {
	d      *Dispatcher
	worker *worker.Worker
	more   func()          // tells the worker that there are free slots again
	ctx    context.Context // ends when it is replaced, or the dispatcher ends
	stop   context.CancelFunc
	lives  context.Context // ends with its last attempt
	end    context.CancelFunc
	// Attempts of this generation by queue, that have not ended; Dispatcher.mu guards it.
	running map[string]int
}

func (g *generation) works(queue string) bool { return g.worker.Queues[queue] > 0 }

// generations starts a generation whenever another queue is asked for, until ctx ends, and then waits for all of them.
func (d *Dispatcher) generations(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		select {
		case <-d.again:
		case <-ctx.Done():
			return
		}
		if !sleep.For(ctx, growAfter<<(2*max(len(d.places)-1, 0))) {
			return
		}
		select {
		case d.places <- struct{}{}: // or jobs of an earlier generation must end first
		case <-ctx.Done():
			return
		}
		before, g := d.grow(ctx)
		if g == nil {
			<-d.places
			continue
		}
		all.Go(func() {
			defer func() { <-d.places }()
			d.run(g)
		})
		if before != nil {
			before.stop()
		}
	}
}

// grow makes a generation with all queues that were asked for, if one lacks any.
func (d *Dispatcher) grow(ctx context.Context) (before, g *generation) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, lacks := d.clock(), d.now == nil && len(d.queues) > 0
	d.forgetQueues(now)
	queues := map[string]int{}
	for name := range d.queues {
		queues[name] = maxSlots
		lacks = lacks || !d.now.works(name)
	}
	if !lacks || d.quiet {
		return nil, nil
	}
	before = d.now
	g = &generation{d: d, running: map[string]int{}}
	g.worker = worker.New(worker.Config{
		Name: fmt.Sprintf("hub %.90s", d.Name), Queues: queues, Slots: g.slots, Linger: true, Handler: g.handle,
		Lease: d.Lease, StopTimeout: 5 * time.Second, Poll: worker.PollEvery, Health: &worker.Health{}, Log: d.Log, Outage: outage.New(d.Log),
	})
	g.more = g.worker.More
	g.ctx, g.stop = context.WithCancel(ctx)
	g.lives, g.end = context.WithCancel(ctx)
	d.now = g
	return before, g
}

// run runs a generation until it is replaced, or the dispatcher ends. After an error that waiting does not mend, it tries again all the same: somebody may have mended it.
func (d *Dispatcher) run(g *generation) {
	ctx := g.ctx
	defer g.end()
	defer g.stop()
	for ctx.Err() == nil {
		err := d.work(ctx, g)
		if ctx.Err() != nil {
			return
		}
		d.mu.Lock()
		d.failed = fmt.Errorf("%w: %w", errNoWorker, err)
		d.tellTrouble(d.failed)
		d.mu.Unlock()
		d.Log.Error("weir: jobs over HTTP: the hub's worker does not run", "error", err)
		sleep.For(ctx, failedAgain)
		d.mu.Lock()
		d.failed = nil
		d.mu.Unlock()
	}
}

// tellTrouble tells all sessions why the hub can't work jobs; the caller holds mu.
func (d *Dispatcher) tellTrouble(why error) {
	for _, s := range d.sessions {
		s.trouble = why
		s.signal()
	}
}

// checkRole notices that the worker's calls are refused because the hub lacks its role: it goes on trying, and what is in the way only an operator can mend. The caller holds mu.
func (d *Dispatcher) checkRole() {
	if d.now == nil {
		return
	}
	if why, _, err := d.now.worker.Health.Ill(); why == worker.Unreachable && store.IsDenied(err) {
		d.tellTrouble(fmt.Errorf("%w: %w", errNoWorker, err))
	}
}

func (d *Dispatcher) work(ctx context.Context, g *generation) error {
	own, err := store.OpenOwn(d.Pool)
	if err != nil {
		return err
	}
	defer own.Close()
	g.worker.Store, g.worker.Keep = own.Work, own.Keep
	g.worker.Maintainer = maintain.New(own.Work, d.Log, g.worker.Outage)
	return g.worker.Run(ctx)
}

// slots returns how many jobs of a queue the worker may have: those that sessions have, as many as they want, and a few ahead.
func (g *generation) slots(name string) int {
	d := g.d
	d.mu.Lock()
	defer d.mu.Unlock()
	n := g.running[name]
	q := d.queues[name]
	if g == d.now && !d.quiet && q != nil && q.here < maxHere {
		n += min(max(q.credit, 0), d.affords()) + d.ahead(q, n)
	}
	return n
}

// handle has an attempt run by a session, and returns when it has ended.
func (g *generation) handle(ctx context.Context, t *worker.Task, r *worker.Result) {
	point, err := t.StoredCheckpoint(ctx, false)
	if err != nil {
		*r = worker.Result{Outcome: store.Released, Err: fmt.Errorf("read the job's checkpoint: %w", err), After: new(time.Second)}
		return
	}
	ended := make(chan worker.Result, 1) // it has one end
	a := g.begin(t, point, func(r worker.Result) { ended <- r })
	defer func() { // in any case, the outcome in the database is told to whoever has reported the end
		g.over(a)
		r.Found = func() { a.found = true }
		r.Told = func(recorded store.Outcome, why error) { g.d.settled(a, recorded, why) }
	}()
	select {
	case *r = <-ended:
		return
	case <-ctx.Done():
	}
	cause := context.Cause(ctx)
	g.d.toStop(a, cause)
	*r = worker.Settle(<-ended, cause) // its session says so, or is not heard of
}

// begin hands out an attempt that was claimed; ended is told its end.
func (g *generation) begin(t *worker.Task, point []byte, ended func(worker.Result)) *attempt {
	d := g.d
	k := key{t.Worker, t.Lane, t.Seq, t.ID}
	a := &attempt{key: k, task: t, token: d.tokens.token(k), point: point, ended: ended}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.ours[t.Worker] {
		d.ours[t.Worker] = true
		d.peers.hearsOf(g.lives, t.Worker)
	}
	g.running[t.Queue]++
	d.bytes += int64(a.size())
	d.average += (float64(a.size()) - d.average) / 64
	d.place(a)
	return a
}

// over is called when the end of an attempt is known here, before it is recorded.
func (g *generation) over(a *attempt) {
	g.d.mu.Lock()
	defer g.d.mu.Unlock()
	if g.running[a.task.Queue]--; g.running[a.task.Queue] == 0 {
		delete(g.running, a.task.Queue)
	}
}

// toStop is called when the database, or the hub's own worker, has decided that an attempt is to stop.
func (d *Dispatcher) toStop(a *attempt, cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if a.session == nil {
		a.queue.drop(a)
	}
	if cause != worker.ErrCancelled {
		d.interrupt(a, Lost)
		if a.finish(worker.Settle(worker.Result{Outcome: store.Retried, Err: cause}, cause)) {
			d.freed(a)
		}
	} else if a.session == nil {
		a.finish(worker.Result{Outcome: store.Cancelled})
	} else {
		d.interrupt(a, Cancelled)
	}
}

// settled is called when it is known how an attempt has ended in the database.
func (d *Dispatcher) settled(a *attempt, recorded store.Outcome, why error) {
	d.mu.Lock()
	if d.bytes > maxBytes*3/4 { // claims may wait for this
		d.more()
	}
	d.bytes -= int64(a.size())
	if recorded != store.Lost {
		d.counts.recorded++
	} else if d.lost[a.key] = true; len(d.lost) > maxRemembered {
		clear(d.lost)
	}
	if d.attempts[a.key] == a {
		delete(d.attempts, a.key)
	}
	for _, same := range a.again { // which the database does not have any more, or gives to others if it has lost that end, too
		same.finish(endedElsewhere())
	}
	told := a.told
	a.told, a.again = nil, nil
	d.checkIdle()
	d.mu.Unlock()
	for _, f := range told {
		f(settlement{recorded, why, a.found})
	}
}
