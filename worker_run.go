package weir

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/weir-pg/weir/internal/sealed"
	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/store"
	"github.com/weir-pg/weir/internal/worker"
)

// runner turns a task into a handler's call, and the handler's error into a result.
type runner struct {
	WorkerConfig
	hooks   hooks
	client  *Client
	codecs  codecs
	wrapped WorkFunc // nil: no middleware
	unknown *unknownKinds
	groups  *groups
}

func newRunner(cfg WorkerConfig, c *Client) (*runner, error) {
	r := &runner{WorkerConfig: cfg, hooks: hooks{cfg.Hooks, cfg.Logger}, client: c, codecs: c.codecs, unknown: &unknownKinds{logged: map[string]time.Time{}}, groups: &groups{gathering: newGathering(cfg.Queues)}}
	var err error
	if len(cfg.Middleware) > 0 {
		r.wrapped, err = wrapped(WorkFunc(cfg.Handlers.work), cfg.Middleware)
	}
	return r, err
}

var errExited = errors.New("the handler, or a hook, ended its goroutine (runtime.Goexit, or FailNow of a test)")

// run implements worker.Handler. Whatever the handler, a hook or the retry policy does, the attempt gets a result, and each hook whose Start
// was called gets its End.
func (r *runner) run(ctx context.Context, t *worker.Task, result *worker.Result) {
	meta := JobMeta{
		ID: t.ID, Kind: t.Kind, Queue: t.Queue, Priority: t.Priority, Key: t.Key, Flow: t.Flow,
		Attempt: int(t.Attempt), PutOff: int(t.PutOff), MaxAttempts: int(t.MaxAttempts), EnqueuedAt: t.EnqueuedAt, Meta: t.Meta,
		ReadyAt: t.Ready(), attempt: &attempt{groups: r.groups, worker: t.Worker, batch: t.Batch, client: r.client},
	}
	seal := r.codecs.seal(ctx, t)
	meta.attempt.task, meta.attempt.seal, meta.attempt.codecs = t, seal, &r.codecs
	meta.Encrypted = seal != nil || sealed.Is(t.Args)
	h := r.Handlers.find(t.Kind)
	var started time.Time
	hooked, err := 0, errExited
	defer func() { // also when the goroutine ends
		took := time.Duration(0)
		if !started.IsZero() {
			took = time.Since(started)
		}
		defer func() {
			if hooked > 0 && r.hooks.ends() || result.Outcome != store.Completed || result.InTx {
				result.Told = r.told(ctx, hooked, meta, took, err)
			}
		}()
		r.settle(ctx, meta, h, &err, result)
		if result.Err == nil || !inTheClear(err) {
			result.Seal = seal
		}
	}()
	r.hooks.start(&ctx, &hooked, meta)
	started = time.Now()
	err = r.call(ctx, h, meta, t)
}

// settle derives the result from a handler's error, which it replaces if it is unusable.
func (r *runner) settle(ctx context.Context, meta JobMeta, h *handler, err *error, result *worker.Result) {
	defer func() { // a method of the error may panic
		if v := recover(); v != nil {
			failure := &PanicError{Value: v, Stack: debug.Stack()}
			r.Logger.Error("weir: the error that a handler returned panicked when it was examined", append(attrs(meta), shownPanic(meta, v, failure.Stack)...)...)
			*err, *result = failure, retriedFor(meta, failure)
		}
	}()
	if *err != nil {
		*result = retriedFor(meta, *err) // in case the retry policy ends the goroutine
	}
	*result = worker.Settle(r.conclude(meta, h, *err), context.Cause(ctx))
	if *err != nil {
		r.log(meta, *err)
	}
}

// retriedFor returns the result of an attempt that failed with an error, and is retried by the backoff of its queue.
func retriedFor(meta JobMeta, err error) worker.Result {
	after := store.ByQueue
	return worker.Result{Outcome: store.Retried, Err: err, After: &after, InTx: meta.attempt.inTx}
}

// told returns the function to call when the outcome of an attempt is recorded, with the number of hooks to tell. It is created here so that
// workers without hooks don't pay for it.
func (r *runner) told(ctx context.Context, hooked int, meta JobMeta, took time.Duration, err error) func(store.Outcome, error) {
	return func(recorded store.Outcome, why error) {
		err := cmp.Or(err, why)
		defer r.hooks.end(hooked, ctx, meta, Outcome(recorded), took, err)
		if recorded == store.Failed {
			r.logFailed(meta, err)
		}
	}
}

// logFailed logs that a job has failed for good.
func (r *runner) logFailed(meta JobMeta, err error) {
	text := shown(meta, err)
	var panicked *PanicError
	if errors.As(err, &panicked) { // its stack is logged already
		text = fmt.Sprintf("panic: %v", shownPanic(meta, panicked.Value, nil)[1])
	}
	r.Logger.Error("weir: job failed for good", append(attrs(meta), "error", text[:min(len(text), 1000)])...)
}

func attrs(meta JobMeta) []any {
	return []any{"job", meta.ID, "kind", meta.Kind, "queue", meta.Queue, "attempt", meta.Attempt}
}

// call runs the handler with its middleware, turns a panic into an error, and names the timeout in the error of an attempt that exceeded
// it.
func (r *runner) call(ctx context.Context, h *handler, meta JobMeta, t *worker.Task) (err error) {
	if h == nil && r.wrapped == nil {
		return ErrUnknownKind
	}
	defer caught(&err)
	if err := r.codecs.open(ctx, t); err != nil {
		return err
	}
	if r.wrapped != nil {
		err = r.wrapped(ctx, &Job[json.RawMessage]{JobMeta: meta, Args: t.Args})
	} else {
		err = h.run(ctx, meta, t.Args)
	}
	var late *worker.TimedOut
	if err != nil && errors.As(context.Cause(ctx), &late) {
		err = fmt.Errorf("%w: %w", late, err)
	}
	return err
}

// conclude derives the result from a handler's error.
func (r *runner) conclude(meta JobMeta, h *handler, err error) worker.Result {
	if err == nil {
		return worker.Result{Outcome: store.Completed, Output: meta.attempt.output, InTx: meta.attempt.inTx}
	}
	result := worker.Result{Outcome: store.Retried, Err: err, Output: meta.attempt.output, InTx: meta.attempt.inTx}
	var end *ending
	var after time.Duration
	if errors.Is(err, ErrUnknownKind) {
		after = sleep.Jitter(min(time.Second<<min(meta.PutOff, 10), maxUnknownPause))
		return worker.Result{Outcome: store.Released, Err: fmt.Errorf("kind %q: %w", meta.Kind, err), After: &after}
	}
	if errors.Is(err, ErrEncrypted) {
		after = sleep.Jitter(min(time.Second<<min(meta.PutOff, 10), maxUnknownPause))
		return worker.Result{Outcome: store.Released, Err: err, After: &after}
	}
	if errors.As(err, &end) {
		result.Outcome, after = end.outcome, max(end.after, 0)
		if end.outcome == store.Snoozed {
			result.Err = nil
		}
	} else {
		after, result.Err = r.delay(meta, h, err)
	}
	switch result.Outcome {
	case store.Retried, store.Snoozed:
		// Of the last attempt too, the database decides what follows if the delay is left to it: a retry rule may snooze or cancel the job.
		if result.Outcome == store.Retried && meta.Attempt >= meta.MaxAttempts && after >= 0 {
			result.Outcome = store.Failed
			break
		}
		result.After = &after
	}
	return result
}

// delay asks the retry policy when the next attempt is due. If the policy panics, the backoff of the queue applies, and the error to record
// mentions the panic.
func (r *runner) delay(meta JobMeta, h *handler, err error) (after time.Duration, record error) {
	defer func() {
		if v := recover(); v != nil {
			r.Logger.Error("weir: a retry policy panicked", append(attrs(meta), shownPanic(meta, v, debug.Stack())...)...)
			after, record = store.ByQueue, fmt.Errorf("%w\n\nthe retry policy panicked: %v", err, v)
		}
	}()
	retry := r.Retry
	if h != nil && h.options.Retry != nil {
		retry = h.options.Retry
	}
	if after = retry(meta.Attempt, err); after < 0 {
		after = store.ByQueue
	}
	return after, err
}

// log logs errors that point to a fault in a handler or in what was enqueued for it.
func (r *runner) log(meta JobMeta, err error) {
	var panicked *PanicError
	var bad *undecoded
	var closed *undecrypted
	switch {
	case errors.As(err, &panicked):
		r.Logger.Error("weir: handler panicked", append(attrs(meta), shownPanic(meta, panicked.Value, panicked.Stack)...)...)
	case errors.As(err, &bad):
		r.Logger.Warn("weir: the args of a job do not decode into its handler's type", append(attrs(meta), "error", shown(meta, bad.err))...)
	case errors.Is(err, ErrEncrypted):
		if r.unknown.due(meta.Kind) {
			r.Logger.Warn("weir: jobs are encrypted, and this worker's client has no codec for their kind: they are released, for workers that have one", attrs(meta)...)
		}
	case errors.As(err, &closed):
		r.Logger.Error("weir: a job cannot be decrypted", append(attrs(meta), "error", err)...)
	case errors.Is(err, ErrUnknownKind) && r.unknown.due(meta.Kind):
		r.Logger.Warn("weir: no handler for this kind in this worker: its jobs are released, for workers that have one", attrs(meta)...)
	}
}

// unknownKinds remembers when a missing handler was last logged for each kind.
type unknownKinds struct {
	mu     sync.Mutex
	logged map[string]time.Time
}

const (
	logKindEvery = 10 * time.Minute
	maxKinds     = 1000 // anyone who enqueues can invent kinds
)

func (u *unknownKinds) due(kind string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	if now.Sub(u.logged[kind]) < logKindEvery {
		return false
	}
	if len(u.logged) >= maxKinds {
		clear(u.logged)
	}
	u.logged[kind] = now
	return true
}
