package weirtest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/seam"
	"github.com/weir-pg/weir/internal/store"
	"github.com/weir-pg/weir/internal/worker"
)

// Result is how an attempt ended.
type Result struct {
	// Outcome is the recorded outcome: OutcomeRetried if another attempt follows, OutcomeFailed if the job has failed for good.
	Outcome weir.Outcome
	// After is the delay before a retried, snoozed or released job runs again. If ByQueue is set, the database decides, by its retry
	// rules and the backoff of the job's queue, and After is 0.
	After   time.Duration
	ByQueue bool
	// Err is why the attempt did not complete: the handler's error, its panic (a *weir.PanicError) or its timeout (errors.Is
	// context.DeadlineExceeded). It is nil if Outcome is OutcomeCompleted or OutcomeSnoozed.
	Err error
	// Output is the text that the handler passed to SetOutput.
	Output string
	// InTx reports whether the handler has called CompleteTx.
	InTx bool
}

// Work runs the handler of a job as a worker with this configuration does: with its middleware, hooks, timeouts and retry policy, and with
// panics caught. It runs in the calling goroutine, so that handlers may call t.Fatal, and without a database: nothing is recorded, and
// CompleteTx does not use its transaction. The handler's context derives from ctx. To test how a handler reacts to an interruption, pass a
// context that ends with the cause weir.ErrCancelled or weir.ErrStopping. The configuration needs handlers, but no queues.
//
// Args are encoded as JSON and decoded, as for a worker. Unset fields of the job have the defaults of the kind and of weir.Options;
// Attempt, for example, is 1. ID is 1 by default, and EnqueuedAt is now.
func Work[A weir.Args](ctx context.Context, t testing.TB, config weir.WorkerConfig, job *weir.Job[A]) Result {
	t.Helper()
	task, err := taskOf(job)
	if err != nil {
		t.Fatalf("weirtest: %v", err)
	}
	config.Hubs = nil
	if len(config.Queues) == 0 {
		config.Queues = map[string]int{task.Queue: 1}
	}
	w, err := weir.NewClient(nil).NewWorker(config)
	if err != nil {
		t.Fatalf("weirtest: %v", err)
	}
	r := seam.Attempt(ctx, w, task)
	return resultOf(r, r.Outcome, nil)
}

// taskOf returns the job as a claim would return it.
func taskOf[A weir.Args](job *weir.Job[A]) (*worker.Task, error) {
	m := job.JobMeta
	kind := job.Args.Kind()
	if m.Kind != "" && m.Kind != kind {
		return nil, fmt.Errorf("the job's Kind is %q, but its args are of kind %q", m.Kind, kind)
	}
	args, err := json.Marshal(job.Args)
	if err != nil {
		return nil, fmt.Errorf("encode the args of kind %s: %w", kind, err)
	}
	if !bytes.HasPrefix(args, []byte("{")) {
		return nil, fmt.Errorf("the args of kind %s must encode to a JSON object, got %s", kind, shortened(args))
	}
	var o weir.Options
	if own, ok := any(job.Args).(weir.ArgsWithOptions); ok {
		o = own.EnqueueOptions()
	}
	if m.Meta == nil && o.Meta != nil {
		if m.Meta, err = json.Marshal(o.Meta); err != nil {
			return nil, fmt.Errorf("encode the meta of kind %s: %w", kind, err)
		}
	}
	if m.EnqueuedAt.IsZero() {
		m.EnqueuedAt = time.Now()
	}
	task := &worker.Task{Claim: store.Claim{
		Queue: cmp.Or(m.Queue, o.Queue, "default"), Priority: cmp.Or(m.Priority, o.Priority, 2), Key: cmp.Or(m.Key, o.Key),
		ID: cmp.Or(m.ID, 1), Attempt: int32(cmp.Or(m.Attempt, 1)), MaxAttempts: int32(cmp.Or(m.MaxAttempts, o.MaxAttempts, store.DefaultMaxAttempts)),
		PutOff: int32(m.PutOff), Kind: kind, Args: args, Meta: m.Meta, EnqueuedAt: m.EnqueuedAt,
	}}
	if !m.ReadyAt.IsZero() {
		task.ReadyAt = &m.ReadyAt
	}
	if p := task.Priority; p < 1 || p > 4 {
		return nil, fmt.Errorf("unknown priority %d: priorities are 1 (first) to 4", p)
	}
	if task.Attempt < 1 || task.Attempt > task.MaxAttempts {
		return nil, fmt.Errorf("attempt %d must be from 1 to MaxAttempts, %d", task.Attempt, task.MaxAttempts)
	}
	return task, nil
}

// resultOf returns how a worker's result was recorded, or would be. why is the reason if it differs from what the handler returned.
func resultOf(r worker.Result, recorded store.Outcome, why error) Result {
	result := Result{Outcome: weir.Outcome(recorded), Err: r.Err, InTx: r.InTx}
	if why != nil {
		result.Err = errors.Join(why, r.Err)
	}
	if r.Output != nil {
		result.Output = *r.Output
	}
	switch result.Outcome {
	case weir.OutcomeRetried, weir.OutcomeSnoozed, weir.OutcomeReleased:
		if r.After != nil && *r.After < 0 {
			result.ByQueue = true
		} else if r.After != nil {
			result.After = *r.After
		}
	}
	return result
}
