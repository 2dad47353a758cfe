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
	// Handlers run the jobs. Jobs of a kind without a handler are released, for other workers: see [ErrUnknownKind].
	Handlers *Handlers
	// Queues are the queues to work, each with the maximum number of its jobs to run at once, 1 to 10,000.
	Queues map[string]int
	// Name identifies the worker for people. Default: host name and process id.
	Name string
	// Timeout is the time limit of one attempt. After it, the attempt's context ends with [context.DeadlineExceeded], and the attempt fails
	// with an error that names the timeout, unless the handler still returns nil. Attempts that start within 1/64 of the timeout end
	// together, so that attempts need no timer each. Negative: no timeout. A kind may have its own timeout: see [KindOptions]. A handler that
	// ignores the end of its context is logged about 10 seconds later, and again when it returns.
	//
	// The default, 1 hour, is for attempts that hang: without a timeout, a call that never returns would occupy a slot of the worker
	// forever, and nobody would notice. A timeout that is too long frees the slot late. One that is too short stops healthy work on every
	// attempt until the job has failed for good. The default is therefore far above what most jobs take; set a timeout that suits yours.
	Timeout time.Duration
	// Retry returns the delay between a failed attempt and the next. A negative delay leaves it to the database: to the retry rule that matches
	// the error (see [RetryRule]), or else to the backoff of the queue, which is 1, 2, 4, 8 … seconds up to an hour, plus or minus a quarter, and
	// which [Client.SetQueue] changes. That is also the default, and what happens if Retry panics. After the last attempt the delay only
	// tells whether to ask the rules.
	Retry func(attempt int, err error) time.Duration
	// Lease is how long the database waits for a heartbeat of the worker before it gives the worker's jobs to others. If the process has
	// ended, that happens within seconds, provided that its connections to the server are direct. 1 second to 5 minutes; default 30
	// seconds.
	Lease time.Duration
	// StopTimeout is how long running jobs may continue after Run's context has ended. Then their contexts end, and jobs that do not
	// complete are released. Default 30 seconds.
	StopTimeout time.Duration
	// Hubs are HTTP addresses of hubs, such as http://127.0.0.1:8080. A worker without work waits at one of them for more, and polls the
	// database itself only every few seconds; while no hub can be reached, it polls as usual. Default: none.
	Hubs []string
	// HubToken, if set, returns the token for each request to a hub.
	HubToken func(ctx context.Context) (string, error)
	// NoMaintenance leaves promotion, rescue, rotation and retention to other workers.
	NoMaintenance bool
	// Logger is the log's destination; default slog.Default().
	Logger *slog.Logger
	// Middleware wraps the handlers of all kinds, the first outermost. It sees each attempt before its args are decoded, may change the
	// args, the context and the kind, and may turn one error into another, such as [Fail] or [Snooze]. It is part of the attempt: the
	// timeout, cancellation and panics apply to it as to a handler. It receives a handler's panic as a [*PanicError], and [ErrUnknownKind]
	// for a kind without a handler.
	Middleware []func(next WorkFunc) WorkFunc
	// Hooks are for metrics and tracing.
	Hooks []Hooks

	fits   func(queue string) bool // see seam.Follow
	others []string
	most   int
}

// Hooks are called while the worker works, from many goroutines at once; nil hooks are skipped. With several Hooks, each Start receives the
// context that the previous one returned, and the Ends are called in reverse order. A hook that panics is logged with its stack; the job,
// the other hooks and the worker continue as if it had returned.
type Hooks struct {
	// Start is called before a handler; the handler receives the context that Start returns. Each Start is followed by one End, even if the
	// handler or a retry policy panics or ends its goroutine.
	Start func(ctx context.Context, job JobMeta) context.Context
	// End is called when the outcome of an attempt has been recorded, with the handler's context, the recorded outcome, the handler's
	// running time, and its error. The outcome is the one in the database, whatever the handler returned: if CompleteTx succeeded but its
	// transaction was not committed, the outcome is retried; if the outcome could not be recorded because the job was given to another
	// worker, it is OutcomeLost. Ends are called one at a time: a slow hook delays the recording of later results.
	End func(ctx context.Context, job JobMeta, outcome Outcome, took time.Duration, err error)
	// Claimed is called after a claim that returned jobs, Recorded after results were recorded in bulk.
	Claimed  func(jobs int, took time.Duration)
	Recorded func(jobs int, took time.Duration)
	// Rescued is called when this worker's maintenance has taken attempts from a lost worker. Each attempt is followed by another one,
	// unless it was the last: then the job has failed. A slow hook delays the next rescue.
	Rescued func(r Rescue)
}

// Rescue reports attempts that were taken from a lost worker: all of them, or some.
type Rescue struct {
	Worker int32   // the id of the lost worker
	Reason string  // why the worker is considered lost
	Jobs   []int64 // ids of the jobs whose attempts were taken
}

// Worker runs jobs. Any number of workers may run, in one process or in many.
type Worker struct {
	pool   *pgxpool.Pool
	config worker.Config // without connections: each Run opens its own
	chores bool

	rescued func(store.Rescued) // nil: no hook wants it
	groups  *groups
}

// NewWorker returns a worker for the client's database. Call Run to start it. It then opens at most three connections of its own, with the
// configuration and hooks of the client's pool. It takes none from the pool, so handlers may use all of the pool's connections.
func (c *Client) NewWorker(cfg WorkerConfig) (*Worker, error) {
	cfg, err := cfg.checked()
	if err != nil {
		return nil, err
	}
	run, err := newRunner(cfg, c)
	if err != nil {
		return nil, fmt.Errorf("weir: WorkerConfig.Middleware: %w", err)
	}
	inner := worker.Config{
		Name:        cfg.Name,
		Queues:      cfg.Queues,
		Fits:        cfg.fits,
		Others:      cfg.others,
		Most:        cfg.most,
		Handler:     run.run,
		Timeout:     cfg.timeout,
		Lease:       cfg.Lease,
		StopTimeout: cfg.StopTimeout,
		Poll:        worker.PollEvery,
		Health:      &worker.Health{},
		Log:         cfg.Logger,
		Hooks:       worker.Hooks{Claimed: run.hooks.claimed(), Recorded: run.hooks.recorded()},
	}
	if len(cfg.Hubs) > 0 {
		h, err := newHubs(cfg.Hubs, cfg.HubToken)
		if err != nil {
			return nil, fmt.Errorf("weir: WorkerConfig.Hubs: %w", err)
		}
		inner.Hub = h
	}
	return &Worker{pool: c.store.Pool(), config: inner, chores: !cfg.NoMaintenance, rescued: run.hooks.rescued(), groups: run.groups}, nil
}

// checked returns the configuration with its defaults, or what is wrong with it.
func (cfg WorkerConfig) checked() (WorkerConfig, error) {
	if cfg.Handlers == nil || len(cfg.Handlers.kinds) == 0 && cfg.Handlers.rest == nil {
		return cfg, errors.New("weir: WorkerConfig.Handlers is empty: register a handler with weir.Handle")
	}
	if len(cfg.Queues) == 0 && cfg.fits == nil {
		return cfg, errors.New("weir: WorkerConfig.Queues is empty: name at least one queue and its concurrency")
	}
	for name, n := range cfg.Queues {
		if name == "" {
			return cfg, errors.New("weir: WorkerConfig.Queues has the queue \"\": name it")
		}
		if n < 1 || n > 10_000 {
			return cfg, fmt.Errorf("weir: queue %q: concurrency must be 1 to 10000, got %d", name, n)
		}
	}
	if cfg.Lease == 0 {
		cfg.Lease = 30 * time.Second
	}
	if cfg.Lease < time.Second || cfg.Lease > 5*time.Minute {
		return cfg, fmt.Errorf("weir: WorkerConfig.Lease must be 1s to 5m, got %s", cfg.Lease)
	}
	if cfg.StopTimeout == 0 {
		cfg.StopTimeout = 30 * time.Second
	}
	if cfg.StopTimeout < 0 {
		return cfg, fmt.Errorf("weir: WorkerConfig.StopTimeout must not be negative, got %s", cfg.StopTimeout)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Hour
	}
	if cfg.Retry == nil {
		cfg.Retry = func(int, error) time.Duration { return store.ByQueue }
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Name == "" {
		host, _ := os.Hostname()
		cfg.Name = fmt.Sprintf("%.100s:%d", host, os.Getpid())
	}
	return cfg, nil
}

// Run works until ctx ends. Then it stops claiming, releases jobs that have not started, waits up to StopTimeout for running jobs, cancels
// their contexts, and returns nil when every job has finished or been released. Run waits out lost connections and restarts of the server.
// It returns an error that waiting cannot fix, such as a missing schema. Run may be called again after it has returned.
func (w *Worker) Run(ctx context.Context) error {
	return explain(w.run(ctx, w.config, func(*worker.Worker) {}), "weir_work")
}

// run runs the worker with a configuration, which lacks its connections, and passes it to started before.
func (w *Worker) run(ctx context.Context, config worker.Config, started func(*worker.Worker)) error {
	own, err := store.OpenOwn(w.pool)
	if err != nil {
		return fmt.Errorf("weir: open the worker's connections: %w", err)
	}
	defer own.Close()
	defer context.AfterFunc(ctx, w.groups.begin())() // groups wait no longer than the worker runs
	config.Store, config.Keep = own.Work, own.Keep
	config.Outage = outage.New(config.Log)
	if w.chores {
		chores := maintain.New(own.Work, config.Log, config.Outage)
		chores.Rescued = w.rescued
		config.Maintainer = chores
	}
	inner := worker.New(config)
	started(inner)
	return inner.Run(ctx)
}

// timeout returns the timeout of an attempt at a job of a kind; negative: none.
func (cfg *WorkerConfig) timeout(kind string) time.Duration {
	if h := cfg.Handlers.find(kind); h != nil && h.options.Timeout != 0 {
		return h.options.Timeout
	}
	return cfg.Timeout
}

// maxUnknownPause is the longest pause of a job of a kind for which no worker has had a handler so far.
const maxUnknownPause = 5 * time.Minute

// PanicError is the error of a handler that panicked.
type PanicError struct {
	Value any
	Stack []byte
}

// Error returns the value and the stack.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v\n\n%s", e.Value, e.Stack) }
