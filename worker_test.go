package weir_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
)

// deadline limits every wait in these tests. It is generous, because the machine may be busy.
const deadline = time.Minute

// number is a job whose handler the test provides.
type number struct {
	N int `json:"n"`
}

func (number) Kind() string { return "number" }

// rig is a database with a client, and a worker that stops with the test.
type rig struct {
	t      *testing.T
	url    string
	pool   *pgxpool.Pool
	client *weir.Client
	cancel context.CancelFunc // stops the worker that was started last
}

func newRig(t *testing.T) *rig {
	t.Helper()
	url := pgtest.Database(t)
	pool := pgtest.Pool(t, url)
	return &rig{t: t, url: url, pool: pool, client: weir.NewClient(pool)}
}

// work runs a worker on queue "default", and returns a function that stops it and waits for its end.
func (r *rig) work(run func(ctx context.Context, job *weir.Job[number]) error, change func(*weir.WorkerConfig)) (stop func() error) {
	r.t.Helper()
	handlers := weir.NewHandlers()
	weir.Handle(handlers, run)
	cfg := weir.WorkerConfig{
		Handlers:    handlers,
		Queues:      map[string]int{"default": 10},
		Retry:       func(int, error) time.Duration { return 20 * time.Millisecond },
		Logger:      quiet(),
		StopTimeout: 10 * time.Second,
	}
	if change != nil {
		change(&cfg)
	}
	worker, err := r.client.NewWorker(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(deadline):
			return errRuns
		}
	})
	r.t.Cleanup(func() {
		if err := stop(); errors.Is(err, errRuns) {
			r.t.Error(err)
		}
	})
	return stop
}

// errRuns says that a worker did not stop, so that a test that fails while a handler waits for it does not wait for the handler.
var errRuns = errors.New("the worker still runs: a handler has not returned")

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func (r *rig) enqueue(n int, o *weir.Options) int64 {
	r.t.Helper()
	job, err := r.client.Enqueue(r.t.Context(), number{n}, o)
	if err != nil {
		r.t.Fatal(err)
	}
	return job.ID
}

// await waits until a job is in the state.
func (r *rig) await(id int64, state weir.State) *weir.JobInfo {
	r.t.Helper()
	var last *weir.JobInfo
	eventually(r.t, func() error {
		info, err := r.client.Job(r.t.Context(), id)
		if err != nil {
			return err
		}
		last = info
		if info.State != state {
			return fmt.Errorf("job %d is %+v, want %s", id, info, state)
		}
		return nil
	})
	return last
}

func eventually(t *testing.T, holds func() error) {
	t.Helper()
	pgtest.Eventually(t, holds)
}

// receive takes one value from a channel.
func receive[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	return pgtest.Receive(t, c, what)
}

// TestEveryJobIsRunOnceAndItsResultKept: each job runs once, with its own args, and its output is stored.
func TestEveryJobIsRunOnceAndItsResultKept(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const n = 3000
	jobs := make([]weir.NewJob, n)
	for i := range jobs {
		jobs[i] = weir.NewJob{Args: number{i}, Options: &weir.Options{Priority: i%4 + 1}}
	}
	ids, err := r.client.EnqueueMany(t.Context(), jobs)
	if err != nil {
		t.Fatal(err)
	}
	var seen [n]atomic.Int32
	r.work(func(_ context.Context, job *weir.Job[number]) error {
		seen[job.Args.N].Add(1)
		if ids[job.Args.N].ID != job.ID {
			t.Errorf("job %d has the args of job %d", job.ID, ids[job.Args.N].ID)
		}
		job.SetOutput(fmt.Sprint("did ", job.Args.N))
		return nil
	}, nil)
	for _, i := range []int{0, 1, n / 2, n - 1} {
		info := r.await(ids[i].ID, weir.StateCompleted)
		if info.Output == nil || *info.Output != fmt.Sprint("did ", i) || info.Attempt != 1 || info.Priority != i%4+1 {
			t.Errorf("job %d: %+v", ids[i].ID, info)
		}
	}
	eventually(t, func() error {
		for i := range seen {
			if got := seen[i].Load(); got != 1 {
				return fmt.Errorf("job %d ran %d times", i, got)
			}
		}
		return nil
	})
}

// TestEnqueueTxFollowsItsTransaction: a job runs if its transaction was committed, and not if it, or a savepoint, was rolled back.
func TestEnqueueTxFollowsItsTransaction(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ran := make(chan int, 10)
	r.work(func(_ context.Context, job *weir.Job[number]) error {
		ran <- job.Args.N
		return nil
	}, nil)
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.client.EnqueueTx(t.Context(), tx, number{1}, nil); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}

	db, err := sql.Open("pgx", r.url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	stdTx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.client.EnqueueTx(t.Context(), weir.SQLTx(stdTx), number{2}, &weir.Options{Meta: map[string]int{"a": 1}}); err != nil {
		t.Fatal(err)
	}
	ids, err := r.client.EnqueueManyTx(t.Context(), weir.SQLTx(stdTx), []weir.NewJob{{Args: number{3}}, {Args: number{4}}})
	if err != nil || len(ids) != 2 {
		t.Fatal(ids, err)
	}
	if err := stdTx.Commit(); err != nil {
		t.Fatal(err)
	}
	got := map[int]bool{}
	for range 3 {
		got[receive(t, ran, "the committed jobs run")] = true
	}
	if !got[2] || !got[3] || !got[4] {
		t.Errorf("jobs %v ran, want 2, 3, 4", got)
	}
}

// TestFailuresAreRetriedAndTheirErrorsKept: a failed attempt is retried until max_attempts, and each error is stored.
func TestFailuresAreRetriedAndTheirErrorsKept(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.work(func(_ context.Context, job *weir.Job[number]) error {
		switch {
		case job.Args.N == 1 && job.Attempt < 3:
			return fmt.Errorf("attempt %d went wrong", job.Attempt)
		case job.Args.N == 2:
			return errors.New("never works")
		case job.Args.N == 3:
			return weir.Fail(errors.New("no use"))
		case job.Args.N == 4:
			panic("ouch")
		case job.Args.N == 5:
			return weir.Cancel(errors.New("needless"))
		case job.Args.N == 6 && job.PutOff == 0:
			return weir.Snooze(10 * time.Millisecond)
		}
		return nil
	}, nil)
	retried := r.await(r.enqueue(1, nil), weir.StateCompleted)
	if retried.Attempt != 3 || len(retried.Errors) != 2 || retried.Errors[1].Error != "attempt 2 went wrong" {
		t.Errorf("retried: %+v", retried)
	}
	failed := r.await(r.enqueue(2, &weir.Options{MaxAttempts: 2}), weir.StateFailed)
	if failed.Attempt != 2 || len(failed.Errors) != 2 || failed.Error == nil || *failed.Error != "never works" {
		t.Errorf("failed: %+v", failed)
	}
	final := r.await(r.enqueue(3, nil), weir.StateFailed)
	if final.Attempt != 1 {
		t.Errorf("the job failed for good at attempt %d", final.Attempt)
	}
	panicked := r.await(r.enqueue(4, &weir.Options{MaxAttempts: 1}), weir.StateFailed)
	if panicked.Error == nil || !strings.Contains(*panicked.Error, "ouch") || !strings.Contains(*panicked.Error, "worker_test.go") {
		t.Errorf("panicked: %v", panicked.Error)
	}
	r.await(r.enqueue(5, nil), weir.StateCancelled)
	snoozed := r.await(r.enqueue(6, &weir.Options{MaxAttempts: 1}), weir.StateCompleted)
	if snoozed.Attempt != 1 || snoozed.MaxAttempts != 1 {
		t.Errorf("snoozed: %+v", snoozed)
	}
}

// TestRetriesWaitAsTheQueueSays: the queue's backoff decides if the worker has no retry policy, or one that leaves the delay to the queue.
func TestRetriesWaitAsTheQueueSays(t *testing.T) {
	t.Parallel()
	for _, policy := range []func(int, error) time.Duration{nil, func(int, error) time.Duration { return -time.Minute }} {
		r := newRig(t)
		first := r.enqueue(1, &weir.Options{MaxAttempts: 2}) // creates the queue
		if _, err := r.pool.Exec(t.Context(), `SELECT weir.set('default', 'backoff', '1 hour'), weir.set('default', 'backoff_limit', '1 day')`); err != nil {
			t.Fatal(err)
		}
		r.work(func(context.Context, *weir.Job[number]) error { return errors.New("not now") }, func(c *weir.WorkerConfig) { c.Retry = policy })
		job := r.await(first, weir.StateScheduled)
		if job.RunAt == nil || time.Until(*job.RunAt) < 30*time.Minute || time.Until(*job.RunAt) > 90*time.Minute {
			t.Errorf("the job is retried at %v", job.RunAt)
		}
	}
}

// TestUnknownKindIsHandedBackForWorkersThatHaveIt: a worker without a handler releases the job, for another worker that has one.
func TestUnknownKindIsHandedBackForWorkersThatHaveIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var log pgtest.Log
	stop := r.work(func(context.Context, *weir.Job[number]) error { return nil }, func(c *weir.WorkerConfig) { c.Logger = log.Logger() })
	var ids []int64
	for range 3 {
		job, err := r.client.Enqueue(t.Context(), other{}, &weir.Options{MaxAttempts: 1})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, job.ID)
	}
	for _, id := range ids {
		eventually(t, func() error {
			info, err := r.client.Job(t.Context(), id)
			if err == nil && (len(info.Errors) == 0 || info.Errors[0].Outcome != "released" || !strings.Contains(*info.Error, `"other"`)) {
				err = fmt.Errorf("the job was not released: %+v", info)
			}
			return err
		})
	}
	if n := log.Count("no handler for this kind in this worker: its jobs are released"); n != 1 {
		t.Errorf("the release was logged %d times, want once:\n%s", n, log.String())
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(context.Context, *weir.Job[other]) error { return nil })
	r.work(nil, func(c *weir.WorkerConfig) { c.Handlers = handlers })
	for _, id := range ids {
		if info := r.await(id, weir.StateCompleted); info.Attempt != 1 {
			t.Errorf("the job took %d attempts", info.Attempt)
		}
	}
}

// TestWhatFailsForGoodIsLogged: a job that fails for good is logged with its kind, attempt and error, and a panic with its stack.
func TestWhatFailsForGoodIsLogged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var log pgtest.Log
	r.work(func(_ context.Context, job *weir.Job[number]) error {
		if job.Args.N == 2 {
			panic("ouch")
		}
		return errors.New("never works")
	}, func(c *weir.WorkerConfig) { c.Logger = log.Logger() })
	retried := r.enqueue(1, &weir.Options{MaxAttempts: 2})
	r.await(retried, weir.StateFailed)
	var bad int64
	if err := r.pool.QueryRow(t.Context(), `SELECT weir.enqueue('default', 'number', '{"n": "seven"}', max_attempts => 1)`).Scan(&bad); err != nil {
		t.Fatal(err)
	}
	r.await(bad, weir.StateFailed)
	r.await(r.enqueue(2, &weir.Options{MaxAttempts: 1}), weir.StateFailed)
	eventually(t, func() error {
		if n := log.Count("job failed for good"); n != 3 {
			return fmt.Errorf("the log has %d failed jobs, want 3", n)
		}
		return nil
	})
	for _, line := range []string{
		fmt.Sprintf(`job=%d kind=number queue=default attempt=2 error="never works"`, retried),
		`args of a job do not decode`,
		`attempt=1 error="panic: ouch"`,
		`kind=number queue=default attempt=1 error="json: cannot unmarshal`,
	} {
		if log.Count(line) == 0 {
			t.Errorf("the log does not contain %s:\n%s", line, log.String())
		}
	}
	if n := log.Count("runtime/debug.Stack"); n != 1 {
		t.Errorf("the log contains the stack of a panic %d times:\n%s", n, log.String())
	}
}

// TestWhatIsRefusedTwiceHasFailed: if the database refuses a job's result and its replacement, the job fails instead of being claimed again
// forever.
func TestWhatIsRefusedTwiceHasFailed(t *testing.T) {
	pgtest.Alone(t, "a lease of a second is lost on a busy machine")
	r := newRig(t)
	if _, err := r.pool.Exec(t.Context(), `ALTER TABLE weir.result ADD CONSTRAINT refuses CHECK (outcome NOT IN ('completed', 'retried'))`); err != nil {
		t.Fatal(err)
	}
	var log pgtest.Log
	var runs atomic.Int32
	r.work(func(_ context.Context, job *weir.Job[number]) error { runs.Add(1); return nil }, func(c *weir.WorkerConfig) {
		c.Logger = log.Logger()
		c.Lease = time.Second // jobs that the worker no longer holds are claimed again
	})
	info := r.await(r.enqueue(1, nil), weir.StateFailed)
	if info.Attempt != 1 || runs.Load() != 1 || info.Error == nil || !strings.Contains(*info.Error, "refuses") {
		t.Errorf("the job ran %d times, and is %+v", runs.Load(), info)
	}
	if log.Count("the database refused a result") != 2 {
		t.Errorf("the log does not say twice that a result was refused:\n%s", log.String())
	}
}

type other struct{}

func (other) Kind() string { return "other" }

// TestCancelledJobsDoNotStartAndRunningOnesAreTold: cancelled jobs do not start, and the contexts of running ones end with ErrCancelled.
func TestCancelledJobsDoNotStartAndRunningOnesAreTold(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	scheduled := r.enqueue(1, &weir.Options{RunAt: time.Now().Add(300 * time.Millisecond)})
	waiting := r.enqueue(2, nil)
	for _, id := range []int64{scheduled, waiting} {
		if state, err := r.client.CancelJob(t.Context(), id); err != nil || state != weir.StateCancelled {
			t.Fatal(state, err)
		}
	}
	started, cause := make(chan int, 10), make(chan error, 1)
	r.work(func(ctx context.Context, job *weir.Job[number]) error {
		started <- job.Args.N
		if job.Args.N != 3 {
			return nil
		}
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return ctx.Err()
	}, nil)
	running := r.enqueue(3, nil)
	if n := receive(t, started, "job 3 starts"); n != 3 {
		t.Fatalf("job %d started, although it was cancelled", n)
	}
	if state, err := r.client.CancelJob(t.Context(), running); err != nil || state != weir.StateRunning {
		t.Fatal(state, err)
	}
	if err := receive(t, cause, "the running job is interrupted"); !errors.Is(err, weir.ErrCancelled) {
		t.Errorf("cause %v", err)
	}
	for _, id := range []int64{scheduled, waiting, running} {
		r.await(id, weir.StateCancelled)
	}
	// The scheduled job becomes due: it is claimed, but not run.
	eventually(t, func() error {
		info, err := r.client.Job(t.Context(), scheduled)
		if err == nil && info.FinishedAt == nil {
			err = errors.New("the cancelled job has not been claimed yet")
		}
		return err
	})
	if state, err := r.client.RetryJob(t.Context(), waiting); err != nil || state != weir.StateAvailable {
		t.Fatal(state, err)
	}
	if n := receive(t, started, "the retried job runs"); n != 2 {
		t.Fatalf("job %d started", n)
	}
	r.await(waiting, weir.StateCompleted)
}

// TestPausedQueueIsNotWorked: no job of a paused queue starts until the queue is resumed.
func TestPausedQueueIsNotWorked(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ran := make(chan int, 10)
	r.work(func(_ context.Context, job *weir.Job[number]) error {
		ran <- job.Args.N
		return nil
	}, nil)
	r.await(r.enqueue(1, nil), weir.StateCompleted)
	pgtest.Receive(t, ran, "the job runs")
	if err := r.client.PauseQueue(t.Context(), "default"); err != nil {
		t.Fatal(err)
	}
	id := r.enqueue(2, nil)
	// Run two more jobs of another queue on a second worker, which gives the first one time to poll.
	r.work(func(_ context.Context, job *weir.Job[number]) error { return nil }, func(c *weir.WorkerConfig) { c.Queues = map[string]int{"open": 1} })
	for range 2 {
		r.await(r.enqueue(3, &weir.Options{Queue: "open"}), weir.StateCompleted)
	}
	if info, _ := r.client.Job(t.Context(), id); info.State != weir.StateAvailable {
		t.Errorf("the job of the paused queue is %s", info.State)
	}
	if err := r.client.ResumeQueue(t.Context(), "default"); err != nil {
		t.Fatal(err)
	}
	if n := receive(t, ran, "the resumed queue is worked"); n != 2 {
		t.Errorf("ran %d", n)
	}
}

// TestCompleteTxCommitsEffectsAndCompletionTogether: the effects and the completion of a job are committed or rolled back together.
func TestCompleteTxCommitsEffectsAndCompletionTogether(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if _, err := r.pool.Exec(t.Context(), `CREATE TABLE effect (n int)`); err != nil {
		t.Fatal(err)
	}
	r.work(func(ctx context.Context, job *weir.Job[number]) error {
		return pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `INSERT INTO effect VALUES ($1)`, job.Args.N); err != nil {
				return err
			}
			if err := job.CompleteTx(ctx, tx); err != nil {
				return err
			}
			if job.Args.N == 2 && job.Attempt == 1 {
				return tx.Rollback(ctx) // but returns no error
			}
			return nil
		})
	}, nil)
	r.await(r.enqueue(1, nil), weir.StateCompleted)
	second := r.await(r.enqueue(2, nil), weir.StateCompleted)
	if second.Attempt != 2 || len(second.Errors) != 1 {
		t.Errorf("the completion that was rolled back counts: %+v", second)
	}
	var effects int
	if err := r.pool.QueryRow(t.Context(), `SELECT count(*) FROM effect`).Scan(&effects); err != nil || effects != 2 {
		t.Errorf("there are %d effects, want 2 (%v)", effects, err)
	}
}

// TestACompletionThatIsNotCommittedIsRetriedAfterTheBackoff: a handler that forgets to commit does not use up its attempts within a second.
func TestACompletionThatIsNotCommittedIsRetriedAfterTheBackoff(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue(1, nil)
	for _, name := range []string{"backoff", "backoff_limit"} {
		if err := r.client.SetQueue(t.Context(), "default", name, "1 hour"); err != nil {
			t.Fatal(err)
		}
	}
	r.work(func(ctx context.Context, job *weir.Job[number]) error {
		tx, err := r.pool.Begin(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback(ctx) }()
		return job.CompleteTx(ctx, tx)
	}, nil)
	info := r.await(id, weir.StateScheduled)
	if info.Attempt != 2 || info.RunAt == nil || time.Until(*info.RunAt) < 30*time.Minute {
		t.Errorf("attempt %d is due at %v, want the second in about an hour", info.Attempt, info.RunAt)
	}
}

// TestScheduledJobsWaitForTheirTime: a job with a RunAt starts at that time, and not before.
func TestScheduledJobsWaitForTheirTime(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ran := make(chan time.Time, 1)
	r.work(func(context.Context, *weir.Job[number]) error {
		ran <- time.Now()
		return nil
	}, nil)
	far := r.enqueue(2, &weir.Options{RunAt: time.Now().Add(time.Hour)})
	at := time.Now().Add(700 * time.Millisecond)
	id := r.enqueue(1, &weir.Options{RunAt: at})
	if got := receive(t, ran, "the scheduled job runs"); got.Before(at) {
		t.Errorf("the job ran %s before its time", at.Sub(got))
	}
	r.await(id, weir.StateCompleted)
	if info, _ := r.client.Job(t.Context(), far); info.State != weir.StateScheduled {
		t.Errorf("the job is %s before its time", info.State)
	}
}

// TestAnAttemptSaysSinceWhenItCouldBeClaimed: ReadyAt is when the job was enqueued, or the time for which it had to wait.
func TestAnAttemptSaysSinceWhenItCouldBeClaimed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	seen := make(chan weir.JobMeta, 10)
	r.work(func(_ context.Context, job *weir.Job[number]) error {
		seen <- job.JobMeta
		if job.Args.N == 3 && job.Attempt == 1 {
			return weir.RetryAfter(50*time.Millisecond, errors.New("not yet"))
		}
		return nil
	}, nil)
	r.enqueue(1, nil)
	if job := receive(t, seen, "a job"); !job.ReadyAt.Equal(job.EnqueuedAt) || job.ReadyAt.IsZero() {
		t.Errorf("ready at %s, want when it was enqueued: %s", job.ReadyAt, job.EnqueuedAt)
	}
	// By the server's clock, in one statement: on a busy machine, the time may be over before the job is enqueued.
	var at time.Time
	if err := r.pool.QueryRow(t.Context(), `SELECT now() + interval '300 ms' WHERE weir.enqueue('default', 'number', '{"n": 2}', run_at => now() + interval '300 ms') > 0`).Scan(&at); err != nil {
		t.Fatal(err)
	}
	if job := receive(t, seen, "a scheduled job"); !job.ReadyAt.Equal(at) || !job.EnqueuedAt.Before(at) {
		t.Errorf("ready at %s, want its RunAt: %s", job.ReadyAt, at)
	}
	r.enqueue(3, nil)
	first, second := receive(t, seen, "an attempt"), receive(t, seen, "the next attempt")
	if second.ReadyAt.Sub(first.ReadyAt) < 50*time.Millisecond || !second.EnqueuedAt.Equal(first.EnqueuedAt) {
		t.Errorf("the second attempt was ready at %s, want 50 ms after the first at least: %s", second.ReadyAt, first.ReadyAt)
	}
}
