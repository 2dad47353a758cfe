package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sort"
	"sync/atomic"
	"time"

	"github.com/weir-pg/weir/internal/adverse"
	"github.com/weir-pg/weir/internal/outage"
	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/store"
)

// Causes of a job's cancelled context, for context.Cause.
var (
	ErrCancelled = errors.New("weir: the job was cancelled")
	ErrStopping  = errors.New("weir: the worker is stopping")
	ErrFenced    = errors.New("weir: the worker was fenced: its jobs were given to others")
	ErrLapsed    = errors.New("weir: the worker's heartbeats do not arrive: its jobs may soon be given to others")
)

// Task is one attempt to run.
type Task struct {
	store.Claim
	Worker int32 // the session's id, which results are recorded under

	batch    *batch
	place    int32 // in the batch
	state    taskState
	recorded bool                    // or given up
	stop     context.CancelCauseFunc // set while running
	ending   *ending                 // the completer's
}

// Result is how a task's handler ended it.
type Result struct {
	Outcome store.Outcome
	Err     error
	Output  *string
	After   *time.Duration // until the next attempt; as in store.End
	// Told, where set, is called once it is known how the attempt has ended in the database: as this says, or otherwise, as the error says.
	// Lost: this worker's word does not count any more. It is called for one attempt after the other, and must be quick, and not panic.
	Told func(recorded store.Outcome, why error)
	InTx bool // completed in a transaction of the handler's own: it is checked that it committed
}

// Handler runs one task. It must not panic.
type Handler func(ctx context.Context, t *Task) Result

// Hooks are called in the course of work; nil ones are skipped. They must be quick, and safe for
// concurrent use.
type Hooks struct {
	Claimed  func(jobs int, took time.Duration)
	Recorded func(jobs int, took time.Duration)
}

// Maintainer runs beside the session; see package maintain.
type Maintainer interface {
	// Run works until ctx ends.
	Run(ctx context.Context)
	// Poke says that jobs may have been logged.
	Poke()
	// Share says how many workers do the same chores.
	Share(workers int)
}

// Hub tells when there is work; see package wake.
type Hub interface {
	// Wait returns when there may be work in one of the queues that was committed since the token was given out, with the token to wait
	// with next. "" is the first token.
	Wait(ctx context.Context, queues []string, since string) (token string, err error)
}

// Config of a Worker. All fields are required, but for Timeout, Hooks, Maintainer, Hub and Health.
type Config struct {
	Store       *store.Store // claims, results and chores
	Keep        *store.Store // heartbeats and cancellations: nothing else may hold them up
	Name        string
	Queues      map[string]int // concurrency by queue
	Handler     Handler
	Timeout     func(kind string) time.Duration // of an attempt; 0 or less: none
	Lease       time.Duration                   // silent for so long, the worker is fenced
	StopTimeout time.Duration                   // how long running jobs may go on after the stop
	Poll        time.Duration                   // how long an idle worker waits between looks, times the number of workers
	Log         *slog.Logger
	Outage      *outage.Log // shared with the Maintainer
	Hooks       Hooks
	Maintainer  Maintainer
	Hub         Hub
	Health      *Health // kept while it runs
}

// Worker works jobs until its context ends.
type Worker struct {
	Config
	queues []string     // in the order of claims' arguments
	fleet  atomic.Int32 // how many workers live, by the last heartbeat
}

// New returns a worker that Run starts.
func New(c Config) *Worker {
	w := &Worker{Config: c}
	if w.Health == nil {
		w.Health = &Health{}
	}
	for name := range c.Queues {
		w.queues = append(w.queues, name)
	}
	sort.Strings(w.queues)
	return w
}

// Run works until ctx ends, then stops gracefully; nil means that every job was finished or handed
// back. Lost connections and restarts of the server are waited out, without an end. An error that
// waiting cannot cure (the schema is missing, a privilege lacks) is returned.
func (w *Worker) Run(ctx context.Context) (err error) {
	end := w.Health.begin(ctx, w.Lease, w.Outage)
	defer func() { end(err) }()
	wait := w.backoff()
	warned := false
	for {
		if !warned {
			warned = w.warn(ctx)
		}
		asked := time.Now()
		id, err := w.Store.StartWorker(ctx, w.Name, w.queues, w.Lease)
		if store.IsMoved(err) {
			n, rebaseErr := w.Store.Rebase(ctx)
			if rebaseErr == nil {
				attempts := int64(0)
				if n != nil {
					attempts = *n
				}
				w.Log.Warn("weir: the log came from another cluster and was re-based", "attempts", attempts)
				continue
			}
			err = fmt.Errorf("re-base: %w", rebaseErr)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			if store.IsRefused(err) {
				return fmt.Errorf("weir: start worker: %w", err)
			}
			w.Outage.Failed("the start", err)
			wait.sleep(ctx)
			continue
		}
		wait.reset()
		w.Outage.Anew()
		s := newSession(w, id, asked)
		w.Health.works()
		w.Log.Info("weir: worker started", "worker", id, "queues", w.queues)
		again, err := s.run(ctx)
		if !again || ctx.Err() != nil {
			return err
		}
		w.Log.Warn("weir: worker was fenced, starting again under a new id", "worker", id)
	}
}

// warn says what in the server's settings works against the worker, once they could be read.
func (w *Worker) warn(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	found, err := adverse.Read(ctx, w.Keep.Pool())
	for _, s := range found {
		w.Log.Warn("weir: a setting works against it", "setting", s.Name, "value", s.Value, "harm", s.Harm, "do", s.Do)
	}
	return err == nil // else the start says what is wrong
}

// backoff is how long to wait until the next try, doubling, with full jitter. One of a few workers is back a quarter of a second after its
// server at the latest; the larger the fleet, the more rarely each tries, so that it does not come back in one instant.
type backoff struct {
	tries int
	fleet *atomic.Int32 // nil: one
}

const (
	retryFirst = 10 * time.Millisecond
	retryMost  = 250 * time.Millisecond
	fleetMost  = 40 // as large as this it tries every 10 seconds
	fleetStep  = 10 // and up to so many are as one
)

func (w *Worker) backoff() backoff { return backoff{fleet: &w.fleet} }

func (b *backoff) next() time.Duration {
	times := time.Duration(1)
	if b.fleet != nil {
		times = time.Duration(min(max(b.fleet.Load()/fleetStep, 1), fleetMost))
	}
	most := times * min(retryFirst<<min(b.tries, 10), retryMost)
	b.tries++
	return rand.N(most) + time.Millisecond
}

func (b *backoff) sleep(ctx context.Context) bool { return sleep.For(ctx, b.next()) }

func (b *backoff) reset() { b.tries = 0 }
