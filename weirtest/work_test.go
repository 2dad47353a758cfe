package weirtest_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirtest"
)

// TestWorkReturnsWhatWouldBeRecorded: for everything that a handler can return, Work returns the outcome that a worker would record.
func TestWorkReturnsWhatWouldBeRecorded(t *testing.T) {
	t.Parallel()
	ada := func(meta weir.JobMeta) *weir.Job[sendMail] {
		return &weir.Job[sendMail]{JobMeta: meta, Args: sendMail{To: "ada"}}
	}
	last := weir.JobMeta{Attempt: 3, MaxAttempts: 3}
	for name, c := range map[string]struct {
		meta weir.JobMeta
		run  func(ctx context.Context, job *weir.Job[sendMail]) error
		want weirtest.Result
	}{
		"success": {run: func(_ context.Context, job *weir.Job[sendMail]) error { job.SetOutput("sent"); return nil },
			want: weirtest.Result{Outcome: weir.OutcomeCompleted, Output: "sent"}},
		"error":              {run: func(context.Context, *weir.Job[sendMail]) error { return errDown }, want: weirtest.Result{Outcome: weir.OutcomeRetried, ByQueue: true, Err: errDown}},
		"error, last":        {meta: last, run: func(context.Context, *weir.Job[sendMail]) error { return errDown }, want: weirtest.Result{Outcome: weir.OutcomeFailed, Err: errDown}},
		"fail":               {run: func(context.Context, *weir.Job[sendMail]) error { return weir.Fail(errDown) }, want: weirtest.Result{Outcome: weir.OutcomeFailed, Err: errDown}},
		"cancel":             {run: func(context.Context, *weir.Job[sendMail]) error { return weir.Cancel(errDown) }, want: weirtest.Result{Outcome: weir.OutcomeCancelled, Err: errDown}},
		"snooze":             {meta: last, run: func(context.Context, *weir.Job[sendMail]) error { return weir.Snooze(time.Hour) }, want: weirtest.Result{Outcome: weir.OutcomeSnoozed, After: time.Hour}},
		"retry after":        {run: func(context.Context, *weir.Job[sendMail]) error { return weir.RetryAfter(time.Minute, errDown) }, want: weirtest.Result{Outcome: weir.OutcomeRetried, After: time.Minute, Err: errDown}},
		"retry after, last":  {meta: last, run: func(context.Context, *weir.Job[sendMail]) error { return weir.RetryAfter(time.Minute, errDown) }, want: weirtest.Result{Outcome: weir.OutcomeFailed, Err: errDown}},
		"handler's deadline": {run: func(context.Context, *weir.Job[sendMail]) error { return context.DeadlineExceeded }, want: weirtest.Result{Outcome: weir.OutcomeRetried, ByQueue: true, Err: context.DeadlineExceeded}},
	} {
		t.Run(name, func(t *testing.T) {
			got := weirtest.Work(t.Context(), t, handle(c.run), ada(c.meta))
			if !errors.Is(got.Err, c.want.Err) || (got.Err == nil) != (c.want.Err == nil) {
				t.Errorf("the error is %v, want %v", got.Err, c.want.Err)
			}
			got.Err, c.want.Err = nil, nil
			if got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

// TestWorkRunsAHandlerAsAWorkerDoes: Work applies defaults, timeouts and interruptions, and refuses jobs that can't exist.
func TestWorkRunsAHandlerAsAWorkerDoes(t *testing.T) {
	t.Parallel()
	config := handle(func(ctx context.Context, job *weir.Job[charge]) error {
		if job.ID != 1 || job.Kind != "charge" || job.Queue != "money" || job.Priority != 2 || job.Attempt != 2 || job.MaxAttempts != 3 || job.EnqueuedAt.IsZero() || job.Args.Cents != 5 {
			t.Errorf("the handler got %+v", job)
		}
		panic("no change")
	})
	config.Logger = new(pgtest.Log).Logger()
	config.Retry = func(attempt int, err error) time.Duration { return time.Duration(attempt) * time.Hour }
	got := weirtest.Work(t.Context(), t, config, &weir.Job[charge]{JobMeta: weir.JobMeta{Attempt: 2}, Args: charge{5}})
	var panicked *weir.PanicError
	if got.Outcome != weir.OutcomeRetried || got.After != 2*time.Hour || got.ByQueue || !errors.As(got.Err, &panicked) || panicked.Value != "no change" {
		t.Errorf("got %+v", got)
	}

	hangs := func(ctx context.Context, _ *weir.Job[sendMail]) error { <-ctx.Done(); return ctx.Err() }
	config = handle(hangs)
	config.Timeout = time.Millisecond
	got = weirtest.Work(t.Context(), t, config, &weir.Job[sendMail]{})
	if got.Outcome != weir.OutcomeRetried || !errors.Is(got.Err, context.DeadlineExceeded) || !strings.Contains(got.Err.Error(), "timeout of 1ms") {
		t.Errorf("after its timeout got %+v", got)
	}
	for cause, want := range map[error]weir.Outcome{weir.ErrCancelled: weir.OutcomeCancelled, weir.ErrStopping: weir.OutcomeReleased} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		if got := weirtest.Work(ctx, t, handle(hangs), &weir.Job[sendMail]{}); got.Outcome != want {
			t.Errorf("interrupted by %v got %+v, want %s", cause, got, want)
		}
	}
	config.Logger = new(pgtest.Log).Logger()
	if got := weirtest.Work(t.Context(), t, config, &weir.Job[charge]{}); got.Outcome != weir.OutcomeReleased || !errors.Is(got.Err, weir.ErrUnknownKind) {
		t.Errorf("without a handler got %+v", got)
	}
	for want, job := range map[string]*weir.Job[sendMail]{
		"unknown priority 5": {JobMeta: weir.JobMeta{Priority: 5}},
		"attempt 26 must be": {JobMeta: weir.JobMeta{Attempt: 26}},
		`Kind is "other"`:    {JobMeta: weir.JobMeta{Kind: "other"}},
	} {
		wantFailure(t, func(t testing.TB) { weirtest.Work(t.Context(), t, handle(hangs), job) }, want)
	}
	wantFailure(t, func(t testing.TB) { weirtest.Work(t.Context(), t, weir.WorkerConfig{}, &weir.Job[sendMail]{}) }, "WorkerConfig.Handlers is empty")
}

// TestMiddlewareAndHooksAreAroundTheHandler: Work calls hooks and middleware in the same order as a worker.
func TestMiddlewareAndHooksAreAroundTheHandler(t *testing.T) {
	t.Parallel()
	var said []string
	config := handle(func(context.Context, *weir.Job[sendMail]) error { said = append(said, "handler"); return errDown })
	config.Middleware = []func(weir.WorkFunc) weir.WorkFunc{func(next weir.WorkFunc) weir.WorkFunc {
		return func(ctx context.Context, job *weir.Job[json.RawMessage]) error {
			said = append(said, "middleware of "+string(job.Args))
			if err := next(ctx, job); errors.Is(err, errDown) {
				return weir.Cancel(err)
			}
			return nil
		}
	}}
	config.Hooks = []weir.Hooks{{
		Start: func(ctx context.Context, _ weir.JobMeta) context.Context { said = append(said, "start"); return ctx },
		End: func(_ context.Context, _ weir.JobMeta, outcome weir.Outcome, _ time.Duration, err error) {
			said = append(said, "end: "+string(outcome)+", "+err.Error())
		},
	}}
	got := weirtest.Work(t.Context(), t, config, &weir.Job[sendMail]{Args: sendMail{To: "ada"}})
	if got.Outcome != weir.OutcomeCancelled || !errors.Is(got.Err, errDown) {
		t.Errorf("got %+v", got)
	}
	if want := []string{"start", `middleware of {"to":"ada"}`, "handler", "end: cancelled, the mail server is down"}; !slices.Equal(said, want) {
		t.Errorf("the calls were %q, want %q", said, want)
	}
}

// TestAHandlerThatCompletesItsJobRunsWithoutAWorker: Work runs handlers that call CompleteTx, in one transaction with the code under test.
func TestAHandlerThatCompletesItsJobRunsWithoutAWorker(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	tx := weirtest.Tx(t, pool)
	client := weir.NewClient(pool)
	if _, err := client.EnqueueTx(t.Context(), tx, sendMail{To: "ada"}, nil); err != nil {
		t.Fatal(err)
	}
	complete := func(ctx context.Context, job *weir.Job[sendMail]) error {
		if err := job.CompleteTx(ctx, tx); err != nil {
			return err
		}
		job.SetOutput("sent")
		_, err := client.EnqueueTx(ctx, tx, charge{3}, nil)
		return err
	}
	// A whole flow runs in one transaction: the enqueueing, the handler, and the jobs that it enqueues.
	job := weirtest.RequireEnqueuedTx(t, tx, sendMail{To: "ada"}, nil)
	if got := weirtest.Work(t.Context(), t, handle(complete), &job.Job); got.Outcome != weir.OutcomeCompleted || !got.InTx {
		t.Errorf("got %+v", got)
	}
	weirtest.RequireEnqueuedTx(t, tx, charge{3}, nil)

	// A handler called directly, with a job made by hand, does not panic.
	if err := complete(t.Context(), &weir.Job[sendMail]{}); !errors.Is(err, weir.ErrNotClaimed) {
		t.Errorf("got %v", err)
	}
	(&weir.Job[sendMail]{}).SetOutput("lost")
}

// TestEachStartIsFollowedByOneEndInTests: also if the handler ends its test.
func TestEachStartIsFollowedByOneEndInTests(t *testing.T) {
	t.Parallel()
	client := weir.NewClient(pgtest.Pool(t, pgtest.Database(t)))
	var said []string
	fatally := func(t testing.TB) weir.WorkerConfig {
		config := handle(func(context.Context, *weir.Job[charge]) error { t.Fatal("seen enough"); return nil })
		config.Hooks = []weir.Hooks{{
			Start: func(ctx context.Context, _ weir.JobMeta) context.Context { said = append(said, "start"); return ctx },
			End: func(_ context.Context, _ weir.JobMeta, outcome weir.Outcome, _ time.Duration, err error) {
				said = append(said, string(outcome))
			},
		}}
		return config
	}
	if _, err := client.Enqueue(t.Context(), charge{1}, nil); err != nil {
		t.Fatal(err)
	}
	wantFailure(t, func(t testing.TB) { weirtest.Work(t.Context(), t, fatally(t), &weir.Job[charge]{}) }, "seen enough")
	wantFailure(t, func(t testing.TB) { weirtest.Drain(t.Context(), t, client, fatally(t), nil) }, "seen enough")
	if want := []string{"start", "retried", "start", "retried"}; !slices.Equal(said, want) {
		t.Errorf("the hooks said %v, want %v", said, want)
	}
}
