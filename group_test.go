package weir_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir"
)

// workGroups runs a worker on queue "default" that runs jobs in groups, and returns a function that stops it.
func (r *rig) workGroups(o weir.GroupOptions[number], concurrency int, run func(ctx context.Context, jobs []*weir.GroupJob[number]) error, change func(*weir.WorkerConfig)) (stop func() error) {
	r.t.Helper()
	return r.work(func(context.Context, *weir.Job[number]) error { return nil }, func(c *weir.WorkerConfig) {
		c.Handlers = weir.NewHandlers()
		weir.HandleGroup(c.Handlers, o, run)
		c.Queues = map[string]int{"default": concurrency}
		if change != nil {
			change(c)
		}
	})
}

// numbers returns the sorted args of a group's jobs.
func numbers(jobs []*weir.GroupJob[number]) (all []int) {
	for _, job := range jobs {
		all = append(all, job.Args.N)
	}
	sort.Ints(all)
	return all
}

func (r *rig) enqueueMany(n int) (ids []int64) {
	r.t.Helper()
	jobs := make([]weir.NewJob, n)
	for i := range jobs {
		jobs[i].Args = number{i}
	}
	all, err := r.client.EnqueueMany(r.t.Context(), jobs)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, job := range all {
		ids = append(ids, job.ID)
	}
	return ids
}

// TestAGroupStartsWhenItIsFullOrItsTimeHasCome: no group is larger than Size, a full one waits for nothing, and one that is not full starts after Wait.
func TestAGroupStartsWhenItIsFullOrItsTimeHasCome(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		jobs int
		wait time.Duration
		want []int // the sizes
	}{{20, time.Hour, []int{10, 10}}, {3, 20 * time.Millisecond, nil}} {
		r := newRig(t)
		sizes := make(chan int, 100)
		ids := r.enqueueMany(c.jobs)
		r.workGroups(weir.GroupOptions[number]{Size: 10, Wait: c.wait}, 30, func(_ context.Context, jobs []*weir.GroupJob[number]) error {
			sizes <- len(jobs)
			return nil
		}, nil)
		for _, id := range ids {
			r.await(id, weir.StateCompleted)
		}
		close(sizes)
		var got []int
		sum := 0
		for n := range sizes {
			got = append(got, n)
			sum += n
		}
		if sum != c.jobs || c.want != nil && !slices.Equal(got, c.want) {
			t.Errorf("%d jobs ran in groups of %v, want %v", c.jobs, got, c.want)
		}
	}
}

// TestJobsOfAGroupHaveOneKey: jobs with different keys never run together.
func TestJobsOfAGroupHaveOneKey(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ids := r.enqueueMany(30)
	groups := make(chan []int, 100)
	key := func(job *weir.Job[number]) string { return fmt.Sprint(job.Args.N % 3) }
	r.workGroups(weir.GroupOptions[number]{Size: 10, Wait: time.Hour, Key: key}, 40, func(_ context.Context, jobs []*weir.GroupJob[number]) error {
		groups <- numbers(jobs)
		return nil
	}, nil)
	for _, id := range ids {
		r.await(id, weir.StateCompleted)
	}
	for range 3 {
		group := receive(t, groups, "a group")
		for _, n := range group {
			if n%3 != group[0]%3 {
				t.Errorf("one group has %v", group)
			}
		}
	}
}

// TestJobsOfAGroupMayEndDifferently: each job ends as End or CompleteTx says, and the others with what the handler returns; hooks report each.
func TestJobsOfAGroupMayEndDifferently(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ids := r.enqueueMany(7)
	ends := make(chan ended, 100)
	r.workGroups(weir.GroupOptions[number]{Size: 7, Wait: time.Hour}, 10, func(ctx context.Context, jobs []*weir.GroupJob[number]) error {
		for _, job := range jobs {
			job.SetOutput(fmt.Sprint("job ", job.Args.N))
			switch job.Args.N {
			case 0:
				job.End(nil)
			case 1:
				job.End(weir.Fail(errors.New("never")))
			case 2:
				job.End(weir.Snooze(time.Hour))
			case 3:
				job.End(weir.Cancel(nil))
			case 4, 5:
				tx, err := r.pool.Begin(ctx)
				if err == nil {
					err = job.CompleteTx(ctx, tx)
				}
				if err == nil && job.Args.N == 4 {
					err = tx.Commit(ctx)
				} else if err == nil {
					err = tx.Rollback(ctx)
				}
				if err != nil {
					t.Error(err)
				}
			}
		}
		return errors.New("the rest")
	}, func(c *weir.WorkerConfig) {
		c.Retry = func(int, error) time.Duration { return time.Hour }
		c.Hooks = []weir.Hooks{{End: func(_ context.Context, job weir.JobMeta, outcome weir.Outcome, _ time.Duration, err error) {
			ends <- ended{job.ID, job.Attempt, outcome, err}
		}}}
	})
	want := []weir.Outcome{weir.OutcomeCompleted, weir.OutcomeFailed, weir.OutcomeSnoozed, weir.OutcomeCancelled, weir.OutcomeCompleted, weir.OutcomeRetried, weir.OutcomeRetried}
	for range ids {
		got := receive(t, ends, "an end")
		n := slices.Index(ids, got.id)
		if got.outcome != want[n] || got.attempt != 1 {
			t.Errorf("job %d ended %s, want %s", n, got.outcome, want[n])
		}
	}
	if info := r.await(ids[0], weir.StateCompleted); info.Output == nil || *info.Output != "job 0" {
		t.Errorf("the output is %v", info.Output)
	}
	if info := r.await(ids[6], weir.StateScheduled); info.Error == nil || *info.Error != "the rest" {
		t.Errorf("the error is %v", info.Error)
	}
}

// TestAHandlerOfAGroupThatPanicsFailsOnlyTheJobsThatHaveNotEnded: with a panic, or by ending its goroutine.
func TestAHandlerOfAGroupThatPanicsFailsOnlyTheJobsThatHaveNotEnded(t *testing.T) {
	t.Parallel()
	for _, how := range []func(){func() { panic("no") }, runtime.Goexit} {
		r := newRig(t)
		ids := r.enqueueMany(3)
		r.workGroups(weir.GroupOptions[number]{Size: 3, Wait: time.Hour}, 3, func(_ context.Context, jobs []*weir.GroupJob[number]) error {
			for _, job := range jobs {
				if job.Args.N == 1 {
					job.End(nil)
				}
			}
			how()
			return nil
		}, func(c *weir.WorkerConfig) { c.Retry = func(int, error) time.Duration { return time.Hour } })
		r.await(ids[1], weir.StateCompleted)
		for _, id := range []int64{ids[0], ids[2]} {
			if info := r.await(id, weir.StateScheduled); info.Attempt != 2 || info.Error == nil {
				t.Errorf("the job is %+v", info)
			}
		}
	}
}

// TestJobsThatWaitForTheirGroupAreReleasedWhenTheWorkerStops: at once, without using up an attempt; the worker may run again.
func TestJobsThatWaitForTheirGroupAreReleasedWhenTheWorkerStops(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ids := r.enqueueMany(3)
	started := make(chan struct{}, 10)
	outcomes := make(chan weir.Outcome, 10)
	hooks := func(c *weir.WorkerConfig) {
		c.StopTimeout = time.Hour
		c.Hooks = []weir.Hooks{{
			Start: func(ctx context.Context, _ weir.JobMeta) context.Context { started <- struct{}{}; return ctx },
			End: func(_ context.Context, _ weir.JobMeta, outcome weir.Outcome, _ time.Duration, _ error) {
				outcomes <- outcome
			},
		}}
	}
	handlers := weir.NewHandlers()
	weir.HandleGroup(handlers, weir.GroupOptions[number]{Size: 10, Wait: time.Hour}, func(context.Context, []*weir.GroupJob[number]) error {
		t.Error("the group has started")
		return nil
	})
	config := weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"default": 20}, Logger: quiet()}
	hooks(&config)
	worker, err := r.client.NewWorker(config)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- worker.Run(ctx) }()
		for range ids {
			receive(t, started, "a job waits")
		}
		cancel()
		if err := receive(t, done, "the worker has stopped"); err != nil {
			t.Error(err)
		}
		for range ids {
			if outcome := receive(t, outcomes, "an end"); outcome != weir.OutcomeReleased {
				t.Errorf("a job that waited was %s", outcome)
			}
		}
	}
	for _, id := range ids {
		if info := r.await(id, weir.StateAvailable); info.Attempt != 1 {
			t.Errorf("the job is %+v", info)
		}
	}
}

// TestAJobThatIsCancelledLeavesTheGroupThatItWaitsFor: the others wait on.
func TestAJobThatIsCancelledLeavesTheGroupThatItWaitsFor(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first := r.enqueue(1, nil)
	started := make(chan struct{}, 10)
	group := make(chan []int, 10)
	r.workGroups(weir.GroupOptions[number]{Size: 2, Wait: time.Hour}, 10, func(_ context.Context, jobs []*weir.GroupJob[number]) error {
		group <- numbers(jobs)
		return nil
	}, func(c *weir.WorkerConfig) {
		c.Hooks = []weir.Hooks{{Start: func(ctx context.Context, _ weir.JobMeta) context.Context { started <- struct{}{}; return ctx }}}
	})
	receive(t, started, "the job waits")
	if _, err := r.client.CancelJob(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	r.await(first, weir.StateCancelled)
	r.enqueue(2, nil)
	r.enqueue(3, nil)
	if got := receive(t, group, "a group"); !slices.Equal(got, []int{2, 3}) {
		t.Errorf("the group has jobs %v", got)
	}
}

// TestAGroupRunsUntilAllItsJobsAreCancelled: a job that is cancelled ends its own context; the handler's ends with the last.
func TestAGroupRunsUntilAllItsJobsAreCancelled(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ids := r.enqueueMany(2)
	running, saw := make(chan struct{}), make(chan error, 2)
	r.workGroups(weir.GroupOptions[number]{Size: 2, Wait: time.Hour}, 10, func(ctx context.Context, jobs []*weir.GroupJob[number]) error {
		close(running)
		for _, job := range jobs {
			if job.ID == ids[0] {
				<-job.Context().Done()
			}
		}
		saw <- ctx.Err()
		<-ctx.Done()
		saw <- context.Cause(ctx)
		return ctx.Err()
	}, nil)
	receive(t, running, "the group runs")
	for i, id := range ids {
		if _, err := r.client.CancelJob(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if err := receive(t, saw, "the context"); i == 0 && err != nil || i == 1 && !errors.Is(err, weir.ErrCancelled) {
			t.Errorf("after %d cancellations: %v", i+1, err)
		}
	}
	for _, id := range ids {
		r.await(id, weir.StateCancelled)
	}
}

// TestJobsThatWaitForTheirGroupsDoNotFillTheQueue: when they take up its whole concurrency, the largest group starts, so that others get a place.
func TestJobsThatWaitForTheirGroupsDoNotFillTheQueue(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueueMany(5) // the keys 0, 0, 1, 1, 1
	groups := make(chan []int, 10)
	key := func(job *weir.Job[number]) string { return fmt.Sprint(job.Args.N >= 2) }
	r.workGroups(weir.GroupOptions[number]{Size: 10, Wait: time.Hour, Key: key}, 5, func(_ context.Context, jobs []*weir.GroupJob[number]) error {
		groups <- numbers(jobs)
		return nil
	}, func(c *weir.WorkerConfig) {
		weir.Handle(c.Handlers, func(context.Context, *weir.Job[other]) error { return nil })
	})
	if got := receive(t, groups, "a group"); !slices.Equal(got, []int{2, 3, 4}) {
		t.Errorf("the group that started has jobs %v", got)
	}
	job, err := r.client.Enqueue(t.Context(), other{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.await(job.ID, weir.StateCompleted)
}

// TestTheTimeThatAJobWaitsForItsGroupCounts: an attempt's timeout begins when it begins to wait.
func TestTheTimeThatAJobWaitsForItsGroupCounts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue(1, &weir.Options{MaxAttempts: 1})
	r.workGroups(weir.GroupOptions[number]{Size: 2, Wait: time.Hour, KindOptions: weir.KindOptions{Timeout: 20 * time.Millisecond}}, 10,
		func(context.Context, []*weir.GroupJob[number]) error { return nil }, nil)
	if info := r.await(id, weir.StateFailed); !strings.Contains(*info.Error, "longer than its timeout of 20ms: it waited for its group") {
		t.Errorf("the error is %q", *info.Error)
	}
}

// TestMiddlewareWrapsEachJobOfAGroup: with its own args and result.
func TestMiddlewareWrapsEachJobOfAGroup(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ids := r.enqueueMany(3)
	saw := make(chan string, 10)
	r.workGroups(weir.GroupOptions[number]{Size: 3, Wait: time.Hour}, 10, func(ctx context.Context, jobs []*weir.GroupJob[number]) error {
		return pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
			return errors.Join(jobs[0].CompleteTx(ctx, tx), jobs[1].CompleteTx(ctx, tx), jobs[2].CompleteTx(ctx, tx))
		})
	}, func(c *weir.WorkerConfig) {
		c.Middleware = []func(weir.WorkFunc) weir.WorkFunc{func(next weir.WorkFunc) weir.WorkFunc {
			return func(ctx context.Context, job *weir.Job[json.RawMessage]) error {
				err := next(ctx, job)
				saw <- fmt.Sprint(string(job.Args), err)
				return err
			}
		}}
	})
	var all []string
	for _, id := range ids {
		r.await(id, weir.StateCompleted)
		all = append(all, receive(t, saw, "middleware"))
	}
	sort.Strings(all)
	if got := fmt.Sprint(all); got != `[{"n": 0}<nil> {"n": 1}<nil> {"n": 2}<nil>]` {
		t.Errorf("middleware saw %s", got)
	}
}

// TestAUniqueJobInAGroupHoldsItsKey: of unique jobs that did not see each other one runs in a group; its key is taken while the group runs, also for an
// attempt that follows, and free once its own job has ended.
func TestAUniqueJobInAGroupHoldsItsKey(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	unique := &weir.Options{Unique: &weir.Unique{Key: "a"}}
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	late, err := r.client.EnqueueTx(t.Context(), tx, number{1}, unique)
	if err != nil {
		t.Fatal(err)
	}
	first, err := r.client.Enqueue(t.Context(), number{2}, unique)
	if err != nil || first.Duplicate {
		t.Fatalf("%+v, %v", first, err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	plain := r.enqueueMany(3)
	groups, end := make(chan []*weir.GroupJob[number], 10), make(chan struct{})
	r.workGroups(weir.GroupOptions[number]{Size: 4, Wait: time.Hour}, 10, func(_ context.Context, jobs []*weir.GroupJob[number]) error {
		groups <- jobs
		<-end
		for _, job := range jobs {
			if job.ID == late.ID || job.ID == first.ID {
				if job.Attempt == 1 {
					job.End(errors.New("once more"))
				}
			}
		}
		return nil
	}, func(c *weir.WorkerConfig) {
		c.Retry = func(int, error) time.Duration { return time.Millisecond }
	})
	asks := func(when string, holder int64) int64 {
		t.Helper()
		got, err := r.client.Enqueue(t.Context(), number{3}, unique)
		if err != nil || got.Duplicate != (holder != 0) || got.Duplicate && got.ID != holder {
			t.Fatalf("%s: %+v, %v, want a duplicate of %d", when, got, err, holder)
		}
		return got.ID
	}
	// holder returns the job of the key in the next group.
	holder := func(others int) (id int64) {
		t.Helper()
		group := receive(t, groups, "a group")
		for _, job := range group {
			if !slices.Contains(plain, job.ID) {
				id = job.ID
			}
		}
		if len(group) != others+1 || id == 0 {
			t.Fatalf("a group has %d jobs, and %d of the key", len(group), id)
		}
		return id
	}
	id := holder(3)
	dropped := late.ID + first.ID - id
	r.await(dropped, weir.StateCancelled)
	asks("while its group runs", id)
	more := r.enqueueMany(3)
	plain = append(plain, more...)
	end <- struct{}{}
	if again := holder(3); again != id {
		t.Fatalf("job %d has run, want the next attempt of %d", again, id)
	}
	asks("while it is tried again", id)
	end <- struct{}{}
	r.await(id, weir.StateCompleted)
	plain = append(plain, r.enqueueMany(3)...)
	next := asks("once it has ended", 0)
	if got := holder(3); got != next {
		t.Errorf("job %d has run, want %d", got, next)
	}
	close(end)
	r.await(next, weir.StateCompleted)
}

// TestEncryptedJobsOfAGroupGoOnFromTheirCheckpoints: each job of a group has a checkpoint of its own, which its next attempt reads in whatever group, and
// nothing of it is stored in the clear.
func TestEncryptedJobsOfAGroupGoOnFromTheirCheckpoints(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.client = r.client.WithCodec(codec(t, "k1"))
	ids := r.enqueueMany(4)
	r.workGroups(weir.GroupOptions[number]{Size: 2, Wait: 50 * time.Millisecond}, 10, func(ctx context.Context, jobs []*weir.GroupJob[number]) error {
		for _, job := range jobs {
			var at reached
			found, err := job.Checkpoint(ctx, &at)
			switch {
			case err != nil:
				job.End(err)
			case found != (job.Attempt > 1) || at.Done != (job.Attempt-1)*(job.Args.N+1):
				job.End(weir.Fail(fmt.Errorf("job %d, attempt %d, has read %+v, %v", job.Args.N, job.Attempt, at, found)))
			case job.Attempt > 3:
				job.End(nil)
			default:
				at.Done += job.Args.N + 1
				at.Text = "hunter2"
				job.SetProgress(float64(at.Done), "hunter2")
				if err := job.SetCheckpoint(at); err != nil {
					job.End(weir.Fail(err))
				}
			}
		}
		return errors.New("hunter2")
	}, func(c *weir.WorkerConfig) {
		c.Retry = func(int, error) time.Duration { return time.Millisecond }
	})
	for _, id := range ids {
		r.await(id, weir.StateCompleted)
	}
	var reports string
	if err := r.pool.QueryRow(t.Context(), `SELECT coalesce(string_agg(x::text, ' '), '') FROM weir.report x`).Scan(&reports); err != nil {
		t.Fatal(err)
	}
	if reports == "" || strings.Contains(reports+r.everything(), "hunter2") {
		t.Errorf("stored in the clear, or not at all: %.200q", reports)
	}
}
