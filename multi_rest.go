package weir

import (
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weir-pg/weir/internal/maintain"
	"github.com/weir-pg/weir/internal/outage"
	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/store"
	"github.com/weir-pg/weir/internal/worker"
)

// rest looks after a database in which nothing happens: it does the chores, with one connection, and returns when something stirs; or after about as long as anyway in any case.
func (d *workedDatabase) rest(ctx context.Context, w *Worker, idle *worker.Worker, anyway time.Duration) (stir worker.Stir, err error) {
	w.pool.Reset() // what handlers have used: they are done
	one, err := store.OpenOne(w.pool)
	if err != nil {
		return worker.Still, err
	}
	defer one.Pool().Close()
	log := w.config.Log
	out := outage.New(log)
	if w.chores {
		chores := maintain.New(one, log, out)
		chores.Rescued = w.rescued
		chores.Rarely(idleTimes)
		chores.Begun() // perhaps, meanwhile
		step, stop := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			chores.Run(step)
		}()
		defer func() {
			stop()
			<-done
		}()
	}
	ring := &bell{hub: w.config.Hub, queues: slices.Sorted(maps.Keys(w.config.Queues)), log: log}
	defer ring.leave()
	until := time.Now().Add(anyway/2 + rand.N(anyway))
	for time.Now().Before(until) {
		if !ring.wait(ctx, d.m.pollEvery()) {
			return worker.Still, nil
		}
		stir, err := idle.Stirs(ctx, one)
		switch {
		case ctx.Err() != nil:
			return worker.Still, nil
		case store.IsRefused(err):
			return worker.Still, explain(err, "weir_work")
		case err != nil:
			out.Failed("polls for work", err)
			d.is(DatabaseUnreachable, err)
		case stir != worker.Still:
			return stir, nil
		default:
			out.Worked("polls for work")
			d.is(DatabaseIdle, nil)
		}
	}
	return worker.Still, nil
}

// bell rings when a hub tells of work in an idle database. Whoever looks after the database owns it.
//
// Each token is received before the poll that follows it. So what that poll did not see was committed after the hub issued the token, and the next wait tells of
// it at once.
type bell struct {
	hub    worker.Hub // nil: there is none
	queues []string
	log    *slog.Logger

	token   string
	next    string             // the token that the wait has returned; read only after rang
	rang    chan error         // of the wait in progress; nil: none
	stop    context.CancelFunc // of that wait
	vain    bool               // the last ring came to nothing, as those do that come after a hub's longest wait
	unheard bool               // the hub can't be reached, which was logged
}

// wait waits until it is time to poll: because the bell rings, or after a while. That is pollAtHub, as long as a hub can be reached, and poll otherwise. It returns
// false, at once, if ctx has ended or ends meanwhile.
func (b *bell) wait(ctx context.Context, poll time.Duration) bool {
	if b.hub == nil || b.vain { // also: a hub that always answers at once is asked no more often
		b.vain = false
		return sleep.For(ctx, sleep.Jitter(poll))
	}
	if b.rang == nil {
		b.begin(ctx)
	}
	timer := time.NewTimer(sleep.Jitter(pollAtHub))
	defer timer.Stop()
	select {
	case err := <-b.rang:
		b.stop()
		b.rang, b.vain = nil, true
		switch {
		case err == nil:
			b.token = b.next
			if b.unheard {
				b.unheard = false
				b.log.Warn("weir: the hub can be reached again: the idle database waits there for work")
			}
		case !b.unheard && ctx.Err() == nil:
			b.unheard = true
			b.log.Warn("weir: the hub can't be reached: the idle database is polled until it can", "error", err)
		}
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// begin starts a wait at the hub, which ends with its answer or leave.
func (b *bell) begin(ctx context.Context) {
	ctx, b.stop = context.WithCancel(ctx)
	rang, since := make(chan error, 1), b.token
	b.rang = rang
	go func() {
		next, err := b.hub.Wait(ctx, b.queues, since)
		b.next = next
		rang <- err
	}()
}

// leave ends the wait in progress, if any.
func (b *bell) leave() {
	if b.rang != nil {
		b.stop()
		<-b.rang
		b.rang = nil
	}
}
