package weir_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir"
)

// ended is a call of Hooks.End.
type ended struct {
	id      int64
	attempt int
	outcome weir.Outcome
	err     error
}

// TestHooksTellWhatIsRecordedAndNotWhatTheHandlerSaid: Hooks.End reports the outcome that the database has recorded, whatever the handler returned.
func TestHooksTellWhatIsRecordedAndNotWhatTheHandlerSaid(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ends, started := make(chan ended, 100), make(chan struct{}, 1)
	release := make(chan struct{})
	stop := r.work(func(ctx context.Context, job *weir.Job[number]) error {
		switch {
		case job.Args.N == 1 && job.Attempt == 1: // completes the job in a transaction, but does not commit it
			return pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
				return errors.Join(job.CompleteTx(ctx, tx), tx.Rollback(ctx))
			})
		case job.Args.N == 2:
			return fmt.Errorf("attempt %d", job.Attempt)
		case job.Args.N == 3 && job.Attempt == 1: // succeeds, but another worker has the job already
			started <- struct{}{}
			<-release
		}
		return nil
	}, func(c *weir.WorkerConfig) {
		c.Hooks = []weir.Hooks{{End: func(_ context.Context, job weir.JobMeta, outcome weir.Outcome, took time.Duration, err error) {
			info, lookErr := r.client.Job(context.Background(), job.ID)
			if lookErr != nil || outcome == weir.OutcomeFailed && info.State != weir.StateFailed || outcome == weir.OutcomeCompleted && info.State != weir.StateCompleted {
				t.Errorf("End was called with outcome %s, but the job is %+v (%v)", outcome, info, lookErr)
			}
			ends <- ended{job.ID, job.Attempt, outcome, err}
		}}}
	})
	expect := func(id int64, attempt int, outcome weir.Outcome) {
		t.Helper()
		if got := receive(t, ends, "an end"); got.id != id || got.attempt != attempt || got.outcome != outcome || (got.err == nil) != (outcome == weir.OutcomeCompleted) {
			t.Errorf("End was called with %+v, want attempt %d of job %d: %s", got, attempt, id, outcome)
		}
	}
	first := r.enqueue(1, nil)
	expect(first, 1, weir.OutcomeRetried)
	expect(first, 2, weir.OutcomeCompleted)
	second := r.enqueue(2, &weir.Options{MaxAttempts: 2})
	expect(second, 1, weir.OutcomeRetried)
	expect(second, 2, weir.OutcomeFailed)
	third := r.enqueue(3, nil)
	receive(t, started, "the job starts")
	workers, err := r.client.Workers(t.Context())
	if err != nil || len(workers) != 1 {
		t.Fatal(workers, err)
	}
	eventually(t, func() error { // it waits for a claim of the worker to end
		if _, err := r.pool.Exec(t.Context(), `SELECT weir._fence($1)`, workers[0].ID); err != nil {
			return err
		}
		all, err := r.client.Workers(t.Context())
		for _, w := range all {
			if err == nil && w.ID == workers[0].ID && w.State != "ended" {
				err = errors.New("the worker is not fenced yet")
			}
		}
		return err
	})
	close(release)
	// The order of the two depends on when the worker learns that it is fenced.
	attempts := map[weir.Outcome]int{}
	for range 2 {
		got := receive(t, ends, "an end")
		attempts[got.outcome] = got.attempt
	}
	if attempts[weir.OutcomeLost] != 1 || attempts[weir.OutcomeCompleted] != 2 {
		t.Errorf("the attempts by outcome are %v for job %d, want the first lost and the second completed", attempts, third)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// TestARetryRuleDecidesForWorkersInGo: what a retry rule makes of an error is recorded, also of the last attempt's, and is what Hooks.End reports; a
// delay of WorkerConfig.Retry comes before the rules.
func TestARetryRuleDecidesForWorkersInGo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pause := time.Hour
	for _, rule := range []weir.RetryRule{
		{Name: "gone", Error: "^gone$", Action: weir.RetryActionCancel},
		{Name: "declined", Error: "^declined$", Action: weir.RetryActionFail},
		{Name: "busy", Error: "^busy$", Action: weir.RetryActionSnooze, Backoff: &pause},
	} {
		if err := r.client.SetRetryRule(t.Context(), rule); err != nil {
			t.Fatal(err)
		}
	}
	texts := []string{"gone", "declined", "busy", "else", "busy"}
	ends := make(chan ended, 100)
	r.work(func(_ context.Context, job *weir.Job[number]) error { return errors.New(texts[job.Args.N]) }, func(c *weir.WorkerConfig) {
		c.Retry = func(_ int, err error) time.Duration {
			if err.Error() == "else" {
				return time.Hour
			}
			return -1
		}
		c.Hooks = []weir.Hooks{{End: func(_ context.Context, job weir.JobMeta, outcome weir.Outcome, _ time.Duration, err error) {
			ends <- ended{job.ID, job.Attempt, outcome, err}
		}}}
	})
	for n, want := range []struct {
		most    int
		outcome weir.Outcome
		state   weir.State
	}{
		{5, weir.OutcomeCancelled, weir.StateCancelled},
		{5, weir.OutcomeFailed, weir.StateFailed},
		{5, weir.OutcomeSnoozed, weir.StateScheduled},
		{5, weir.OutcomeRetried, weir.StateScheduled},
		{1, weir.OutcomeSnoozed, weir.StateScheduled},
	} {
		id := r.enqueue(n, &weir.Options{MaxAttempts: want.most})
		if got := receive(t, ends, "an end"); got.id != id || got.outcome != want.outcome || got.err == nil {
			t.Errorf("%s: End was called with %+v, want %s", texts[n], got, want.outcome)
		}
		if info, err := r.client.Job(t.Context(), id); err != nil || info.State != want.state {
			t.Errorf("%s: the job is %+v (%v), want %s", texts[n], info, err, want.state)
		}
	}
}

// TestHooksAreCalledAsOneWithinTheOther: each receives the context of the previous ones, and a panic in one does not prevent the End of
// another.
func TestHooksAreCalledAsOneWithinTheOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	type key struct{}
	calls := make(chan string, 10)
	hook := func(name string) weir.Hooks {
		return weir.Hooks{
			Start: func(ctx context.Context, _ weir.JobMeta) context.Context {
				before, _ := ctx.Value(key{}).(string)
				return context.WithValue(ctx, key{}, before+name)
			},
			End: func(ctx context.Context, _ weir.JobMeta, _ weir.Outcome, _ time.Duration, _ error) {
				calls <- name + " after " + ctx.Value(key{}).(string)
				if name == "b" {
					panic("ouch")
				}
			},
			Claimed:  func(int, time.Duration) { calls <- name + " claimed" },
			Recorded: func(int, time.Duration) { calls <- name + " recorded" },
		}
	}
	r.work(func(ctx context.Context, _ *weir.Job[number]) error {
		calls <- "handler in " + ctx.Value(key{}).(string)
		return nil
	}, func(c *weir.WorkerConfig) { c.Hooks = []weir.Hooks{hook("a"), {}, hook("b")} })
	r.enqueue(1, nil)
	for _, want := range []string{"a claimed", "b claimed", "handler in ab"} {
		if got := receive(t, calls, want); got != want {
			t.Errorf("the call is %q, want %q", got, want)
		}
	}
	got := map[string]int{} // the number of flushes varies, and another goroutine reports the ends
	for range 4 {
		got[receive(t, calls, "ends and a flush")] = len(got)
	}
	if len(got) != 4 || got["b after ab"] >= got["a after ab"] || got["a recorded"] >= got["b recorded"] {
		t.Errorf("the order of calls is %v, want b's End before a's, and a's Recorded before b's", got)
	}
}

// TestHooksTellWhichJobsWereRescued: Hooks.Rescued reports the worker, the reason and the jobs; a hook that panics does not stop rescues.
func TestHooksTellWhichJobsWereRescued(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ids := []int64{r.enqueue(1, nil), r.enqueue(2, nil)}
	var lost int32
	if err := r.pool.QueryRow(t.Context(), `SELECT weir._start('lost', ARRAY['default'], interval '1 minute')`).Scan(&lost); err != nil {
		t.Fatal(err)
	}
	if _, err := r.pool.Exec(t.Context(), `SELECT weir._claim($1, ARRAY['default'], ARRAY[10], NULL, NULL)`, lost); err != nil {
		t.Fatal(err)
	}
	if _, err := r.pool.Exec(t.Context(), `SELECT weir._fence($1, 'its machine burned')`, lost); err != nil {
		t.Fatal(err)
	}
	rescues := make(chan weir.Rescue, 10)
	attempts := make(chan int, 10)
	r.work(func(_ context.Context, job *weir.Job[number]) error {
		attempts <- job.Attempt
		return nil
	}, func(c *weir.WorkerConfig) {
		c.Hooks = []weir.Hooks{{Rescued: func(r weir.Rescue) { rescues <- r }}, {Rescued: func(weir.Rescue) { panic("ouch") }}}
	})
	got := receive(t, rescues, "the rescue")
	slices.Sort(got.Jobs)
	if got.Worker != lost || got.Reason != "its machine burned" || !slices.Equal(got.Jobs, ids) {
		t.Errorf("Rescued was called with %+v, want jobs %v of worker %d", got, ids, lost)
	}
	for range ids {
		if got := receive(t, attempts, "a rescued job"); got != 2 {
			t.Errorf("attempt %d ran, want the second", got)
		}
	}
}
