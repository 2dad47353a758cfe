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

	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/store"
	"github.com/weir-pg/weir/internal/worker"
)

// runner turns a task into a handler's call, and the handler's error into a result.
type runner struct {
	WorkerConfig
	hooks   Hooks    // all of WorkerConfig.Hooks, joined
	wrapped WorkFunc // nil: no middleware
	unknown *unknownKinds
}

func newRunner(cfg WorkerConfig) (*runner, error) {
	r := &runner{WorkerConfig: cfg, hooks: joined(cfg.Hooks), unknown: &unknownKinds{logged: map[string]time.Time{}}}
	var err error
	if len(cfg.Middleware) > 0 {
		r.wrapped, err = wrapped(WorkFunc(cfg.Handlers.work), cfg.Middleware)
	}
	return r, err
}

func (r *runner) run(ctx context.Context, t *worker.Task) (result worker.Result) {
	defer func() { // a hook or a retry policy may panic
		if v := recover(); v != nil {
			err := &PanicError{Value: v, Stack: debug.Stack()}
			r.Logger.Error("weir: a hook or a retry policy panicked", "job", t.ID, "kind", t.Kind, "panic", v, "stack", string(err.Stack))
			after := byQueue
			result = worker.Result{Outcome: store.Retried, Err: err, After: &after}
		}
	}()
	meta := JobMeta{
		ID: t.ID, Kind: t.Kind, Queue: t.Queue, Priority: t.Priority(),
		Attempt: int(t.Attempt), PutOff: int(t.PutOff), MaxAttempts: int(t.MaxAttempts), EnqueuedAt: t.EnqueuedAt, Meta: t.Meta,
		ReadyAt: t.Ready(), attempt: &attempt{worker: t.Worker, batch: t.Batch},
	}
	h := r.Handlers.find(t.Kind)
	options := KindOptions{}
	if h != nil {
		options = h.options
	}
	if options.Retry == nil {
		options.Retry = r.Retry
	}
	if r.hooks.Start != nil {
		ctx = r.hooks.Start(ctx, meta)
	}
	started := time.Now()
	err := r.call(ctx, h, meta, t.Args)
	took := time.Since(started)
	result = worker.Settle(conclude(meta, err, options.Retry), context.Cause(ctx))
	if err != nil {
		r.log(meta, err)
	}
	if r.hooks.End != nil || result.Outcome != store.Completed || result.InTx {
		result.Told = r.told(ctx, meta, took, err)
	}
	return result
}

// told returns the function to call when the outcome of an attempt is recorded. It is created here so that workers without hooks don't pay
// for it.
func (r *runner) told(ctx context.Context, meta JobMeta, took time.Duration, err error) func(store.Outcome, error) {
	return func(recorded store.Outcome, why error) { r.ended(ctx, meta, Outcome(recorded), took, cmp.Or(err, why)) }
}

// ended is called when the outcome of an attempt is recorded.
func (r *runner) ended(ctx context.Context, meta JobMeta, recorded Outcome, took time.Duration, err error) {
	defer func() {
		if v := recover(); v != nil {
			r.Logger.Error("weir: Hooks.End panicked", "job", meta.ID, "kind", meta.Kind, "panic", v, "stack", string(debug.Stack()))
		}
	}()
	if recorded == OutcomeFailed {
		text := fmt.Sprint(err)
		var panicked *PanicError
		if errors.As(err, &panicked) { // its stack is logged already
			text = fmt.Sprintf("panic: %v", panicked.Value)
		}
		r.Logger.Error("weir: job failed for good", append(attrs(meta), "error", text[:min(len(text), 1000)])...)
	}
	if r.hooks.End != nil {
		r.hooks.End(ctx, meta, recorded, took, err)
	}
}

// rescued returns the function to call when attempts were taken from a lost worker; nil if there is no such hook.
func (r *runner) rescued() func(store.Rescued) {
	if r.hooks.Rescued == nil {
		return nil
	}
	return func(some store.Rescued) {
		defer func() {
			if v := recover(); v != nil {
				r.Logger.Error("weir: Hooks.Rescued panicked", "worker", some.Worker, "panic", v, "stack", string(debug.Stack()))
			}
		}()
		r.hooks.Rescued(Rescue{Worker: some.Worker, Reason: some.Reason, Jobs: some.Jobs})
	}
}

func attrs(meta JobMeta) []any {
	return []any{"job", meta.ID, "kind", meta.Kind, "queue", meta.Queue, "attempt", meta.Attempt}
}

// call runs the handler with its middleware, turns a panic into an error, and names the timeout in the error of an attempt that exceeded
// it.
func (r *runner) call(ctx context.Context, h *handler, meta JobMeta, args []byte) (err error) {
	if h == nil && r.wrapped == nil {
		return ErrUnknownKind
	}
	defer caught(&err)
	if r.wrapped != nil {
		err = r.wrapped(ctx, &Job[json.RawMessage]{JobMeta: meta, Args: args})
	} else {
		err = h.run(ctx, meta, args)
	}
	var late *worker.TimedOut
	if err != nil && errors.As(context.Cause(ctx), &late) {
		err = fmt.Errorf("%w: %w", late, err)
	}
	return err
}

// conclude derives the result from a handler's error.
func conclude(meta JobMeta, err error, retry func(int, error) time.Duration) worker.Result {
	if err == nil {
		return worker.Result{Outcome: store.Completed, Output: meta.attempt.output, InTx: meta.attempt.inTx}
	}
	result := worker.Result{Outcome: store.Retried, Err: err, Output: meta.attempt.output}
	var end *ending
	var after time.Duration
	if errors.Is(err, ErrUnknownKind) {
		after = sleep.Jitter(min(time.Second<<min(meta.PutOff, 10), maxUnknownPause))
		return worker.Result{Outcome: store.Released, Err: fmt.Errorf("kind %q: %w", meta.Kind, err), After: &after}
	}
	if errors.As(err, &end) {
		result.Outcome, after = end.outcome, max(end.after, 0)
		if end.outcome == store.Snoozed {
			result.Err = nil
		}
	} else if meta.Attempt < meta.MaxAttempts {
		if after = retry(meta.Attempt, err); after < 0 {
			after = byQueue
		}
	}
	switch result.Outcome {
	case store.Retried, store.Snoozed:
		if result.Outcome == store.Retried && meta.Attempt >= meta.MaxAttempts {
			result.Outcome = store.Failed
			break
		}
		result.After = &after
	}
	return result
}

// log logs errors that point to a fault in a handler or in what was enqueued for it.
func (r *runner) log(meta JobMeta, err error) {
	var panicked *PanicError
	var bad *undecoded
	switch {
	case errors.As(err, &panicked):
		r.Logger.Error("weir: handler panicked", append(attrs(meta), "panic", panicked.Value, "stack", string(panicked.Stack))...)
	case errors.As(err, &bad):
		r.Logger.Warn("weir: the args of a job do not decode into its handler's type", append(attrs(meta), "error", bad.err)...)
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
