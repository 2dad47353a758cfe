package weir

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/internal/maintain"
	"github.com/weir-pg/weir/internal/outage"
	"github.com/weir-pg/weir/internal/store"
	"github.com/weir-pg/weir/internal/worker"
)

// WorkerConfig configures a Worker. Handlers and Queues are required.
type WorkerConfig struct {
	// Handlers run the jobs. A job of a kind without one is handed back, for another worker: see ErrUnknownKind.
	Handlers *Handlers
	// Queues to work, and how many jobs of each at once, 1 to 10,000.
	Queues map[string]int
	// Name tells this worker from others, for people. Default: host name and process id.
	Name string
	// Timeout of an attempt: past it the attempt's context ends, with [context.DeadlineExceeded], and unless its handler returns nil all the
	// same it has failed, with an error that names the timeout. Attempts that start within a sixty-fourth of the timeout share its end, so
	// that it costs no timer for each. Negative: none. Kinds may have their own, see KindOptions.
	//
	// Default 1 hour. It is there for what hangs: a call without a timeout of its own would keep its place in the worker for ever, and nobody
	// would be told. A timeout that is too long frees the place late; one that is too short ends sound work, again at each attempt, until the job has
	// failed for good. So the default is far above what most jobs take; give yours what suits them.
	Timeout time.Duration
	// Retry is how long to wait before the attempt that follows a failed one; negative: as long as the queue's backoff says. Default: always
	// that. It is 1, 2, 4, 8 … seconds up to an hour, give or take a quarter, until weir.set changes it for a queue.
	Retry func(attempt int, err error) time.Duration
	// Lease: when the database has not heard of the worker for so long, its jobs are given to others. Those of a process that has ended are within
	// seconds, where its connections to the server are direct.
	// 1 second to 5 minutes; default 30 seconds.
	Lease time.Duration
	// StopTimeout is how long running jobs may go on after Run's context has ended; then their contexts
	// end, and what does not complete is handed back. Default 30 seconds.
	StopTimeout time.Duration
	// Hubs are HTTP addresses of hubs, such as http://127.0.0.1:8080. A worker without work waits at one of them for more, and looks into
	// the database by itself every few seconds only; while none can be reached it looks as ever. Default: none.
	Hubs []string
	// HubToken, where set, is asked for the token that a hub is shown.
	HubToken func(ctx context.Context) (string, error)
	// NoMaintenance leaves promotion, rescue, rotation and retention to other workers.
	NoMaintenance bool
	// Logger; default slog.Default().
	Logger *slog.Logger
	// Middleware wraps the handlers of all kinds, the first outermost. It sees each attempt before its args are decoded, may change them, the
	// context and the kind, and may turn one error into another, such as [Fail] or [Snooze]. It is part of the attempt: the timeout, cancellation and
	// panics count for it as for a handler. A handler's panic is a [*PanicError] to it, and a kind without a handler [ErrUnknownKind].
	Middleware []func(next WorkFunc) WorkFunc
	// Hooks for metrics and tracing.
	Hooks []Hooks
}

// Hooks are called in the course of work, from many goroutines at once; nil ones are skipped. Of several, each Start is called with the context
// that the one before has returned, and Ends are called in the other order.
type Hooks struct {
	// Start is called before a handler; the context it returns is the handler's.
	Start func(ctx context.Context, job JobMeta) context.Context
	// End is called once it is recorded how the attempt of a handler has ended, with the handler's context, that outcome, how long the handler
	// took, and its error. The outcome is what the database has, whatever the handler returned: a success whose CompleteTx was not committed is
	// retried; what could not be recorded, because the job was given to another worker, is OutcomeLost. Ends are told one after the other: a
	// slow hook holds up what is recorded later.
	End func(ctx context.Context, job JobMeta, outcome Outcome, took time.Duration, err error)
	// Claimed is called after a claim that found jobs, Recorded after a flush of results.
	Claimed  func(jobs int, took time.Duration)
	Recorded func(jobs int, took time.Duration)
	// Rescued is called when this worker's chores have taken attempts from a worker that was lost: each is followed by the next one, or was the
	// last, and the job has failed. It holds up the next rescue.
	Rescued func(r Rescue)
}

// Rescue is what became of a worker that was lost, or of some of what it had.
type Rescue struct {
	Worker int32   // its id
	Reason string  // why it was given up
	Jobs   []int64 // whose attempts were taken from it
}

// Worker works jobs. Any number of them may run, in one process or many.
type Worker struct {
	pool   *pgxpool.Pool
	config worker.Config // but for its connections, which each Run has of its own
	chores bool

	rescued func(store.Rescued) // nil: nobody asks
}

// pollEvery is how long one idle worker waits between two looks for work, give or take a quarter, and up to a
// millisecond more when the server does the looking. N workers wait N times as
// long, so that a job is found as soon, and a fleet costs the server what one worker does.
const pollEvery = 3500 * time.Microsecond

// NewWorker returns a worker for the client's database. It starts with Run, and then opens at most three connections of its own, made as
// those of the client's pool are: with its configuration and hooks. It takes none from the pool, so handlers may use up all of that.
func (c *Client) NewWorker(cfg WorkerConfig) (*Worker, error) {
	if cfg.Handlers == nil || len(cfg.Handlers.kinds) == 0 && cfg.Handlers.rest == nil {
		return nil, errors.New("weir: WorkerConfig.Handlers is empty: register a handler with weir.Handle")
	}
	if len(cfg.Queues) == 0 {
		return nil, errors.New("weir: WorkerConfig.Queues is empty: name at least one queue and its concurrency")
	}
	for name, n := range cfg.Queues {
		if n < 1 || n > 10_000 {
			return nil, fmt.Errorf("weir: queue %q: concurrency must be 1 to 10000, got %d", name, n)
		}
	}
	if cfg.Lease == 0 {
		cfg.Lease = 30 * time.Second
	}
	if cfg.Lease < time.Second || cfg.Lease > 5*time.Minute {
		return nil, fmt.Errorf("weir: WorkerConfig.Lease must be 1s to 5m, got %s", cfg.Lease)
	}
	if cfg.StopTimeout == 0 {
		cfg.StopTimeout = 30 * time.Second
	}
	if cfg.StopTimeout < 0 {
		return nil, fmt.Errorf("weir: WorkerConfig.StopTimeout must not be negative, got %s", cfg.StopTimeout)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Hour
	}
	if cfg.Retry == nil {
		cfg.Retry = func(int, error) time.Duration { return byQueue }
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Name == "" {
		host, _ := os.Hostname()
		cfg.Name = fmt.Sprintf("%.100s:%d", host, os.Getpid())
	}
	run, err := newRunner(cfg)
	if err != nil {
		return nil, fmt.Errorf("weir: WorkerConfig.Middleware: %w", err)
	}
	inner := worker.Config{
		Name:        cfg.Name,
		Queues:      cfg.Queues,
		Handler:     run.run,
		Timeout:     cfg.timeout,
		Lease:       cfg.Lease,
		StopTimeout: cfg.StopTimeout,
		Poll:        pollEvery,
		Health:      &worker.Health{},
		Log:         cfg.Logger,
		Hooks:       worker.Hooks{Claimed: run.hooks.Claimed, Recorded: run.hooks.Recorded},
	}
	if len(cfg.Hubs) > 0 {
		h, err := newHubs(cfg.Hubs, cfg.HubToken)
		if err != nil {
			return nil, fmt.Errorf("weir: WorkerConfig.Hubs: %w", err)
		}
		inner.Hub = h
	}
	return &Worker{pool: c.store.Pool(), config: inner, chores: !cfg.NoMaintenance, rescued: run.rescued()}, nil
}

// Run works until ctx ends; then it stops claiming, hands back what has not started, waits for running
// jobs up to StopTimeout, cancels their contexts, and returns nil when every job was finished or handed
// back. Lost connections and restarts of the server are waited out. An error that waiting cannot cure,
// such as a missing schema, is returned. Run may be called again after it has returned.
func (w *Worker) Run(ctx context.Context) error {
	own, err := store.OpenOwn(w.pool)
	if err != nil {
		return fmt.Errorf("weir: open the worker's connections: %w", err)
	}
	defer own.Close()
	config := w.config
	config.Store, config.Keep = own.Work, own.Keep
	config.Outage = outage.New(config.Log)
	if w.chores {
		chores := maintain.New(own.Work, config.Log, config.Outage)
		chores.Rescued = w.rescued
		config.Maintainer = chores
	}
	return explain(worker.New(config).Run(ctx), "weir_work")
}

// timeout of an attempt at a job of a kind; negative: none.
func (cfg *WorkerConfig) timeout(kind string) time.Duration {
	if h := cfg.Handlers.find(kind); h != nil && h.options.Timeout != 0 {
		return h.options.Timeout
	}
	return cfg.Timeout
}

// byQueue has the server say when the next attempt is due, by the backoff of the job's queue.
const byQueue = -1 * time.Nanosecond

// unknownMost is the longest pause of a job that no worker so far had a handler for.
const unknownMost = 5 * time.Minute

// PanicError is the error of a handler that panicked.
type PanicError struct {
	Value any
	Stack []byte
}

// Error is the value and the stack.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v\n\n%s", e.Value, e.Stack) }
