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
	// Outcome is what is recorded: OutcomeRetried if another attempt follows, OutcomeFailed if the job has failed for good.
	Outcome weir.Outcome
	// After is how long until a job that was retried, snoozed or released runs again. If ByQueue is set, the backoff of the job's queue decides, and
	// After is 0.
	After   time.Duration
	ByQueue bool
	// Err is why the attempt did not complete: the handler's error, its panic (a *weir.PanicError) or its timeout (errors.Is
	// context.DeadlineExceeded). Nil if Outcome is OutcomeCompleted or OutcomeSnoozed.
	Err error
	// Output is what the handler has set by SetOutput.
	Output string
	// InTx: the handler has called CompleteTx.
	InTx bool
}

// Work runs the handler of a job as a worker of this configuration does: with its middleware, hooks, timeouts and retry policy, and panics caught.
// It runs in the calling goroutine, so that handlers may call t.Fatal, and without a database: nothing is recorded, and CompleteTx leaves its
// transaction alone. The handler's context derives from ctx. To see what a handler does when it is interrupted, pass a context that ends with the
// cause weir.ErrCancelled or weir.ErrStopping. The configuration needs handlers, and no queues.
//
// Args go through JSON, as they do in a worker. Fields of the job that are not set have the defaults of the kind and of weir.Options: Attempt 1, for
// example. ID is 1 by default, and EnqueuedAt is now.
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

// taskOf is a job as a claim would hand it out.
func taskOf[A weir.Args](job *weir.Job[A]) (*worker.Task, error) {
	m := job.JobMeta
	kind := job.Args.Kind()
	if m.Kind != "" && m.Kind != kind {
		return nil, fmt.Errorf("the job says it is of kind %q, and its args are of kind %q", m.Kind, kind)
	}
	args, err := json.Marshal(job.Args)
	if err != nil {
		return nil, fmt.Errorf("encode the args of kind %s: %w", kind, err)
	}
	if !bytes.HasPrefix(args, []byte("{")) {
		return nil, fmt.Errorf("the args of kind %s must encode to a JSON object, and they are %s", kind, shortened(args))
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
		Batch: store.Batch{Lane: int32(cmp.Or(m.Priority, o.Priority, 2) - 1)},
		Queue: cmp.Or(m.Queue, o.Queue, "default"),
		ID:    cmp.Or(m.ID, 1), Attempt: int32(cmp.Or(m.Attempt, 1)), MaxAttempts: int32(cmp.Or(m.MaxAttempts, o.MaxAttempts, store.DefaultMaxAttempts)),
		PutOff: int32(m.PutOff), Kind: kind, Args: args, Meta: m.Meta, EnqueuedAt: m.EnqueuedAt,
	}}
	if !m.ReadyAt.IsZero() {
		task.ReadyAt = &m.ReadyAt
	}
	if p := task.Lane; p < 0 || p > 3 {
		return nil, fmt.Errorf("unknown priority %d: priorities are 1 (first) to 4", p+1)
	}
	if task.Attempt < 1 || task.Attempt > task.MaxAttempts {
		return nil, fmt.Errorf("attempt %d of at most %d: attempts count from 1", task.Attempt, task.MaxAttempts)
	}
	return task, nil
}

// resultOf is how a worker's result was recorded, or would be; why: it was not recorded as the handler said.
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
