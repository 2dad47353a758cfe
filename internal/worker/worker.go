package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"sort"
	"sync/atomic"
	"time"

	"github.com/weir-pg/weir/internal/adverse"
	"github.com/weir-pg/weir/internal/outage"
	"github.com/weir-pg/weir/internal/sealed"
	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/store"
)

// Causes of a cancelled job context, for context.Cause.
var (
	ErrCancelled = errors.New("weir: the job was cancelled")
	ErrStopping  = errors.New("weir: the worker is stopping")
	ErrFenced    = errors.New("weir: the worker was fenced: its jobs were given to others")
	ErrLapsed    = errors.New("weir: the worker's heartbeats do not arrive: its jobs may soon be given to others")
)

// ErrIdle ends Run: there was nothing to do for a while. Stirs tells when there may be something.
var ErrIdle = errors.New("weir: the worker has nothing to do")

// Task is one attempt to run.
type Task struct {
	store.Claim
	Worker int32 // the session's id, under which its result is recorded

	batch    *batch
	place    int32 // in the batch
	state    taskState
	recorded bool                    // its end is recorded or given up
	stop     context.CancelCauseFunc // set while running
	ctx      context.Context         // the handler's, set while running
	started  time.Time
	overdue  bool    // it was logged that its handler does not return
	ending   *ending // owned by the completer
	report   *Report // nil: the attempt has reported nothing
}

// StoredCheckpoint returns the checkpoint that earlier attempts at the job have set, or a transaction of this one; nil: they have set none, or there is no
// database.
func (t *Task) StoredCheckpoint(ctx context.Context, setByThis bool) ([]byte, error) {
	if t.batch == nil || t.Attempt == 1 && t.PutOff == 0 && !setByThis {
		return nil, nil
	}
	return t.batch.reports.s.Store.Checkpoint(ctx, t.ID)
}

// Result is how a handler ended its task.
type Result struct {
	Outcome store.Outcome
	Err     error
	Output  *string
	After   *time.Duration // delay before the next attempt; as in store.End
	// Seal, if set, encrypts the texts of Err and Output before they are stored.
	Seal func(part sealed.Part, text string) (string, error)
	// Told, if set, is called once it is known how the attempt has ended in the database: as in this Result, or otherwise for the reason
	// why. Outcome Lost means that this worker no longer holds the attempt. Calls are made one at a time; Told must be quick and must not
	// panic.
	Told func(recorded store.Outcome, why error)
	// Found, if set, is called before Told if the attempt had ended already when its end was to be recorded: somebody else has recorded one, or it was this one,
	// in a call whose answer was lost.
	Found func()
	// InTx means that the handler completed the job in a transaction of its own. Outcome Completed then says that it was committed, which
	// the worker checks. With another outcome it may have been: then the job has completed, and Told says so.
	InTx bool
	// Soon means that somebody waits until the end is recorded, and goes on only then. Other ends wait for more, to share a commit with them.
	Soon bool
}

// Handler runs one task and sets its result, even if it ends its goroutine (runtime.Goexit). It must not panic.
type Handler func(ctx context.Context, t *Task, r *Result)

// Hooks are called while the worker works; nil hooks are skipped. They must be quick, safe for concurrent use, and must not panic.
type Hooks struct {
	Started  func() // the worker has its id, or another one after it was fenced
	Stays    func() // it has something to do or, for some time, to wait for: it will not be idle soon; called again and again
	Claimed  func(jobs int, took time.Duration)
	Recorded func(jobs int, took time.Duration)
}

// Maintainer runs next to the session; see package maintain.
type Maintainer interface {
	// Run works until ctx ends.
	Run(ctx context.Context)
	// Poke signals that jobs may have been logged.
	Poke()
	// Arrived signals that members of flows have ended.
	Arrived()
	// Begun signals that a bulk operation may have begun.
	Begun()
	// Share passes the number of workers that do the same chores.
	Share(workers int)
}

// Hub reports when there is work; see package wake.
type Hub interface {
	// Wait returns when one of the queues may have work that was committed after the token was issued, with the token for the next call. ""
	// is the first token.
	Wait(ctx context.Context, queues []string, since string) (token string, err error)
}

// Room is a worker's part of slots that it shares with others; see package share.
type Room interface {
	// Free returns how many slots may be reserved now. If there are none, More is called when there are.
	Free() int
	// Reserve takes up to n slots for a claim; Settle must follow, unless it returns 0.
	Reserve(n int) int
	// Settle ends a claim that got some jobs.
	Settle(jobs int)
	// Enter reports whether a job that was claimed may start. If not, More is called when it may be asked again.
	Enter() bool
	// Ended gives back the slot of a job that had entered, Dropped those of jobs that had not.
	Ended()
	Dropped(jobs int)
}

// Config configures a Worker. All fields are required except Slots, Room, Fits, Others, Most, Again, Idle, Look, Known, Linger, Timeout, Hooks, Maintainer, Hub and Health.
type Config struct {
	Store       *store.Store // claims, results and chores
	Keep        *store.Store // heartbeats and cancellations, which nothing else may delay
	Name        string
	Queues      map[string]int          // concurrency by queue
	Slots       func(queue string) int  // how many jobs of a queue may run at the moment, those that run included; at most its concurrency. Call More when it grows. nil: its concurrency
	Room        map[string]Room         // by queue: slots that are shared with other workers; nil: they are not. A worker has Slots or Room
	Fits        func(queue string) bool // whether a queue that is not in Queues is worked, too: those that are there, and those that come into being. nil: none is. Called by one goroutine
	Others      []string                // patterns of the same queues, for whoever counts the workers of a queue. Fits needs them
	Most        int                     // how many jobs of all queues it may have at once, about: each queue gets what the others leave, up to its concurrency. 0: as many as the queues may. Fits needs it
	Again       bool                    // it was warned before of what is bad in the server's settings and in the names of queues
	Idle        time.Duration           // after so long without a job, Run returns ErrIdle; 0: never
	Look        time.Duration           // the same while it has had none yet; 0: as Idle
	Known       store.Probe             // what an idle worker has Rested at: transactions that were in progress before that need not be waited for again, many of which are of other databases
	Linger      bool                    // after Run's context has ended, running jobs may continue for as long as they take
	Handler     Handler
	Timeout     func(kind string) time.Duration // of an attempt; 0 or less: none
	Lease       time.Duration                   // a worker without heartbeats for this time is fenced
	StopTimeout time.Duration                   // how long running jobs may continue after Run's context has ended
	Poll        time.Duration                   // pause of an idle worker between polls, multiplied by the number of workers
	Log         *slog.Logger
	Outage      *outage.Log // shared with the Maintainer
	Hooks       Hooks
	Maintainer  Maintainer
	Hub         Hub
	Health      *Health // updated while the worker runs
}

// Worker works jobs until its context ends.
type Worker struct {
	Config
	queues []string     // in the order of a claim's arguments, with those that it has taken up
	fleet  atomic.Int32 // number of live workers, by the last heartbeat
	rested store.Probe  // with ErrIdle: the state up to which claims have followed
	now    atomic.Pointer[session]
}

// New returns a worker; Run starts it.
func New(c Config) *Worker {
	w := &Worker{Config: c}
	if w.Fits != nil {
		w.Queues = map[string]int{} // its own, which grows
		maps.Copy(w.Queues, c.Queues)
	}
	if w.Health == nil {
		w.Health = &Health{}
	}
	for name := range c.Queues {
		w.queues = append(w.queues, name)
	}
	sort.Strings(w.queues)
	return w
}

// Run works until ctx ends, then stops gracefully; nil means that every job has finished or been released. Run waits out lost connections
// and restarts of the server, however long they take. It returns an error that waiting cannot fix, such as a missing schema or privilege.
func (w *Worker) Run(ctx context.Context) (err error) {
	end := w.Health.begin(ctx, w.Lease, w.Outage)
	defer func() { end(err) }()
	wait := w.backoff()
	warned, warnedOfNames := w.Again, w.Again
	for {
		if !warned {
			warned = w.warn(ctx)
		}
		asked := time.Now()
		id, err := w.Store.StartWorker(ctx, w.Name, w.queues, w.Others, w.Lease)
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
		w.Outage.Reset()
		if !warnedOfNames {
			warnedOfNames = true
			w.warnOfNames(ctx)
		}
		s := newSession(w, id, asked)
		w.now.Store(s)
		w.Health.works()
		w.Log.Info("weir: worker started", "worker", id, "queues", w.queues)
		if w.Hooks.Started != nil {
			w.Hooks.Started()
		}
		again, err := s.run(ctx)
		if !again || ctx.Err() != nil {
			return err
		}
		w.Log.Warn("weir: worker was fenced, restarting with a new id", "worker", id)
	}
}

// Rested returns the state up to which claims have followed, once the worker was idle; and after Ended, those of the next worker, whose Config.Known it is.
func (w *Worker) Rested() store.Probe { return w.rested }

// Stir is what has happened in the database of an idle worker.
type Stir int

// Stirs, by what a worker does about them.
const (
	Still Stir = iota // nothing: none is needed
	Ended             // a transaction that was in progress when the last job was logged, and may have logged others: another look finds them
	Moved             // something was logged, or will be when its transaction commits: the worker begins anew
)

// Stirs returns what has happened since the worker was idle. It is called after Run, with a store that may have a single connection.
func (w *Worker) Stirs(ctx context.Context, s *store.Store) (Stir, error) {
	before := w.rested
	watch := watch{store: s, known: before}
	changed, _, err := watch.poll(ctx, 1, 0)
	w.rested = watch.known
	switch {
	case err != nil || !changed:
		return Still, err
	case w.rested.Jobs == before.Jobs && w.rested.Control == before.Control:
		return Ended, nil
	}
	return Moved, nil
}

// More tells the worker that Slots or Room has grown.
func (w *Worker) More() {
	if s := w.now.Load(); s != nil {
		s.tellRoom()
		for _, q := range s.everyQueue() {
			q.resume()
		}
	}
}

// warn logs the server's settings that are bad for the worker, once they can be read.
func (w *Worker) warn(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	found, err := adverse.Read(ctx, w.Keep.Pool())
	for _, s := range found {
		w.Log.Warn("weir: a setting of the server is bad for Weir", "setting", s.Name, "value", s.Value, "harm", s.Harm, "do", s.Do)
	}
	return err == nil // after an error, StartWorker reports what is wrong
}

// warnOfNames logs queues whose names may be mistyped, if they can be read.
func (w *Worker) warnOfNames(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, w.Lease/4) // the lease has begun
	defer cancel()
	if names, _ := w.Store.NeverUsed(ctx, w.queues); len(names) > 0 { // an error is one that claims have, too
		w.Log.Warn("weir: no job was ever enqueued to these queues: check their names, unless their first jobs are still to come", "queues", names[:min(len(names), maxNamed)], "count", len(names))
	}
}

// maxNamed is the maximum number of queues that are named in one line of the log.
const maxNamed = 20

// PollEvery is the pause of a single idle worker between two polls, plus or minus a quarter, and up to a millisecond more when the server
// polls on its behalf. N workers pause N times as long, so that a job is found just as soon and a fleet costs the server no more than one
// worker.
const PollEvery = 3500 * time.Microsecond

// backoff computes pauses between tries, doubling, with full jitter. With few workers, each is back within a quarter of a second of its
// server's return. The larger the fleet, the less often each worker tries, so that the fleet does not return all at once.
type backoff struct {
	tries int
	fleet *atomic.Int32 // number of workers; nil: 1
}

const (
	retryFirst = 10 * time.Millisecond
	maxRetry   = 250 * time.Millisecond
	maxFleet   = 40 // factor for a large fleet, whose workers try every 10 seconds
	fleetStep  = 10 // up to this many workers count as one
)

func (w *Worker) backoff() backoff { return backoff{fleet: &w.fleet} }

func (b *backoff) next() time.Duration {
	times := time.Duration(1)
	if b.fleet != nil {
		times = time.Duration(min(max(b.fleet.Load()/fleetStep, 1), maxFleet))
	}
	longest := times * min(retryFirst<<min(b.tries, 10), maxRetry)
	b.tries++
	return rand.N(longest) + time.Millisecond
}

func (b *backoff) sleep(ctx context.Context) bool { return sleep.For(ctx, b.next()) }

func (b *backoff) reset() { b.tries = 0 }
