package weir_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// TestStopFinishesWhatRunsAndHandsBackTheRest: a worker that stops completes its running jobs, and releases those that have not started.
func TestStopFinishesWhatRunsAndHandsBackTheRest(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	started, release := make(chan int64, 10), make(chan struct{})
	stop := r.work(func(_ context.Context, job *weir.Job[number]) error {
		started <- job.ID
		<-release
		return nil
	}, func(c *weir.WorkerConfig) { c.Queues = map[string]int{"default": 1} })
	first := r.enqueue(1, nil)
	receive(t, started, "the first job starts")
	second := r.enqueue(2, nil)
	r.cancel() // before the first job ends, so that its slot stays free
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	close(release)
	if err := receive(t, stopped, "the worker stops"); err != nil {
		t.Fatal(err)
	}
	r.await(first, weir.StateCompleted)
	if info, _ := r.client.Job(t.Context(), second); info.State != weir.StateAvailable {
		t.Errorf("the job that had not started is %s, want available", info.State)
	}
	workers, err := r.client.Workers(t.Context())
	if err != nil || len(workers) != 1 || workers[0].State != "ended" {
		t.Errorf("the workers are %+v (%v)", workers, err)
	}
}

// TestStopInterruptsWhatOutlastsTheDeadline: jobs that run longer than StopTimeout are interrupted and released, without using up an attempt.
func TestStopInterruptsWhatOutlastsTheDeadline(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	started, cause := make(chan struct{}, 1), make(chan error, 1)
	stop := r.work(func(ctx context.Context, job *weir.Job[number]) error {
		if job.PutOff > 0 {
			return nil
		}
		started <- struct{}{}
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return ctx.Err()
	}, func(c *weir.WorkerConfig) { c.StopTimeout = 50 * time.Millisecond })
	id := r.enqueue(1, &weir.Options{MaxAttempts: 1})
	receive(t, started, "the job starts")
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, cause, "the job is interrupted"); !errors.Is(err, weir.ErrStopping) {
		t.Errorf("cause %v", err)
	}
	info := r.await(id, weir.StateAvailable)
	if info.Attempt != 1 || info.MaxAttempts != 1 {
		t.Errorf("the job is %+v, want it available: an interruption must not use up an attempt", info)
	}
	r.work(func(context.Context, *weir.Job[number]) error { return nil }, nil)
	r.await(id, weir.StateCompleted)
}

// TestATransactionThatStaysOpenKeepsNoWorkerAlive: a worker that stops does not wait for ever until it is known whether a handler's transaction completes its job, and whatever else it had
// need not wait for its lease to run out.
func TestATransactionThatStaysOpenKeepsNoWorkerAlive(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	open := make(chan pgx.Tx, 1)
	stop := r.work(func(ctx context.Context, job *weir.Job[number]) error {
		tx, err := r.pool.Begin(t.Context())
		if err != nil {
			return err
		}
		if err := job.CompleteTx(ctx, tx); err != nil {
			return errors.Join(err, tx.Rollback(t.Context()))
		}
		open <- tx
		return nil
	}, func(c *weir.WorkerConfig) { c.StopTimeout, c.Lease = 50*time.Millisecond, 5*time.Minute })
	r.enqueue(1, nil)
	tx := receive(t, open, "the job is completed, unless the transaction is rolled back")
	defer tx.Rollback(context.Background()) //nolint:errcheck // it ends the transaction, which is all
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	workers, err := r.client.Workers(t.Context())
	if err != nil || len(workers) != 1 || workers[0].State != "ended" {
		t.Errorf("the workers are %+v (%v)", workers, err)
	}
}

// TestJobsOfASilentWorkerAreRescued: the jobs of a worker without heartbeats run again on another.
func TestJobsOfASilentWorkerAreRescued(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	// A worker that claims jobs, and then vanishes.
	var dead int32
	if err := r.pool.QueryRow(t.Context(), `SELECT weir._start('dead', '{default}', '1 second')`).Scan(&dead); err != nil {
		t.Fatal(err)
	}
	id := r.enqueue(1, nil)
	if tag, err := r.pool.Exec(t.Context(), `SELECT * FROM weir._claim($1, '{default}', '{10}')`, dead); err != nil || tag.RowsAffected() != 1 {
		t.Fatal(tag, err)
	}
	r.work(func(context.Context, *weir.Job[number]) error { return nil }, nil)
	info := r.await(id, weir.StateCompleted)
	if info.Attempt != 2 || len(info.Errors) != 1 || info.Errors[0].Outcome != "lost" {
		t.Errorf("the job is %+v, want attempt 2", info)
	}
}

// TestFencedWorkerDropsItsJobsAndStartsAgain: a fenced worker interrupts its jobs, their late results do not count, and it works under a new id.
func TestFencedWorkerDropsItsJobsAndStartsAgain(t *testing.T) {
	pgtest.Alone(t, "a lease of a second is lost on a busy machine")
	r := newRig(t)
	started, cause := make(chan *weir.Job[number], 10), make(chan error, 1)
	r.work(func(ctx context.Context, job *weir.Job[number]) error {
		started <- job
		if job.Attempt > 1 {
			return nil
		}
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return nil // too late: this success must not count
	}, func(c *weir.WorkerConfig) { c.Lease = time.Second })
	id := r.enqueue(1, nil)
	receive(t, started, "the job starts")
	workers, err := r.client.Workers(t.Context())
	if err != nil || len(workers) != 1 {
		t.Fatal(workers, err)
	}
	eventually(t, func() error { // it waits for a claim of the worker to end
		var done bool
		err := r.pool.QueryRow(t.Context(), `SELECT weir._fence($1)`, workers[0].ID).Scan(&done)
		if err == nil && !done {
			err = errors.New("the worker is not fenced yet")
		}
		return err
	})
	if err := receive(t, cause, "the fenced worker's job is interrupted"); !errors.Is(err, weir.ErrFenced) {
		t.Errorf("cause %v", err)
	}
	if again := receive(t, started, "the job runs again"); again.Attempt != 2 {
		t.Errorf("attempt %d", again.Attempt)
	}
	if info := r.await(id, weir.StateCompleted); info.Attempt != 2 {
		t.Errorf("the job completed as attempt %d, want 2", info.Attempt)
	}
}

// TestWorkerSurvivesRestartsOfTheServer: a worker completes its jobs after the server was restarted or killed.
func TestWorkerSurvivesRestartsOfTheServer(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil)
	url := server.URL("postgres")
	migrate(t, url)
	pool := pgtest.Pool(t, url)
	r := &rig{t: t, url: url, pool: pool, client: weir.NewClient(pool)}
	var runs atomic.Int32
	r.work(func(ctx context.Context, job *weir.Job[number]) error {
		runs.Add(1)
		return nil
	}, nil)
	r.await(r.enqueue(0, nil), weir.StateCompleted)
	for round, restart := range []func() error{
		func() error { return server.Stop(t.Context()) },
		server.Kill,
	} {
		if err := restart(); err != nil {
			t.Fatal(err)
		}
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		var id int64
		eventually(t, func() error { // the pool's connections are broken at first
			job, err := r.client.Enqueue(t.Context(), number{round}, nil)
			id = job.ID
			return err
		})
		eventually(t, func() error {
			info, err := r.client.Job(t.Context(), id)
			if err == nil && info.State != weir.StateCompleted {
				err = fmt.Errorf("after restart %d the job is %s", round, info.State)
			}
			return err
		})
	}
}

// TestWorkerUsesAtMostThreeConnections: whatever its concurrency, a worker opens no more than three connections of its own.
func TestWorkerUsesAtMostThreeConnections(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	cfg, err := pgxpool.ParseConfig(r.url)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 50
	cfg.ConnConfig.RuntimeParams["application_name"] = "weir_count"
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	worker := &rig{t: t, url: r.url, pool: pool, client: weir.NewClient(pool)}
	var ran atomic.Int32
	worker.work(func(context.Context, *weir.Job[number]) error {
		if ran.Add(1)%7 == 0 {
			return errors.New("fails now and then")
		}
		return nil
	}, func(c *weir.WorkerConfig) { c.Queues = map[string]int{"default": 500, "more": 500} })
	jobs := make([]weir.NewJob, 20_000)
	for i := range jobs {
		jobs[i] = weir.NewJob{Args: number{i}, Options: &weir.Options{Queue: []string{"default", "more"}[i%2]}}
	}
	if _, err := r.client.EnqueueMany(t.Context(), jobs); err != nil {
		t.Fatal(err)
	}
	peak := 0
	eventually(t, func() error {
		var n int
		if err := r.pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'weir_count'`).Scan(&n); err != nil {
			return err
		}
		if peak = max(peak, n); peak > 3 {
			t.Fatalf("the worker has %d connections, want at most 3", peak)
		}
		if got := ran.Load(); got < 20_000 {
			return fmt.Errorf("%d jobs ran", got)
		}
		return nil
	})
	t.Logf("at most %d connections", peak)
}

// TestPromotionIsPrompt: scheduled jobs run soon after their time, and never before.
func TestPromotionIsPrompt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const n = 10_000
	// The promise is 50 ms on an idle machine, which benchmarks measure. This test only checks that jobs are not delayed much.
	at := time.Now().Add(2 * time.Second)
	jobs := make([]weir.NewJob, n)
	for i := range jobs {
		jobs[i] = weir.NewJob{Args: number{i}, Options: &weir.Options{RunAt: at}}
	}
	if _, err := r.client.EnqueueMany(t.Context(), jobs); err != nil {
		t.Fatal(err)
	}
	var ran, early atomic.Int32
	done := make(chan struct{})
	r.work(func(context.Context, *weir.Job[number]) error {
		if time.Now().Before(at) {
			early.Add(1)
		}
		if ran.Add(1) == n {
			close(done)
		}
		return nil
	}, func(c *weir.WorkerConfig) { c.Queues = map[string]int{"default": 1000} })
	receive(t, done, "all scheduled jobs run")
	if early.Load() > 0 {
		t.Errorf("%d jobs ran before their time", early.Load())
	}
	t.Logf("the last of %d jobs due at once ran %s after its time", n, time.Since(at))
}

// migrate installs the schema in a database of a test's own server.
func migrate(t *testing.T, url string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
}

// TestAnOutageIsSaidOnceAndOnceWhenItIsOver: a worker logs the start and the end of an outage, and nothing in between.
func TestAnOutageIsSaidOnceAndOnceWhenItIsOver(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil)
	url := server.URL("postgres")
	migrate(t, url)
	r := newRigOn(t, url)
	var log pgtest.Log
	job := r.enqueue(0, nil) // before the worker starts, which would warn of a queue without jobs
	r.work(func(context.Context, *weir.Job[number]) error { return nil }, func(c *weir.WorkerConfig) { c.Logger, c.Lease = log.Logger(), 2*time.Second })
	r.await(job, weir.StateCompleted)
	const failing, works, lapsed, renewed = "calls of the database fail", "calls of the database succeed again", "no heartbeat has arrived", "heartbeats arrive again"
	for round := 1; round <= 2; round++ {
		if err := server.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error { // long enough for everything to fail, many times
			if log.Count(lapsed) <= log.Count(renewed) || log.Count(failing) < round { // on a busy machine, the lease may have lapsed before
				return errors.New("the worker has not logged the outage and a missed heartbeat yet")
			}
			return nil
		})
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error {
			if log.Count(works) < round || log.Count(renewed) < log.Count(lapsed) {
				return errors.New("the worker has not logged the end of the outage yet")
			}
			return nil
		})
	}
	// Start and end of each outage, and of the lapsed lease; on a busy machine a lease of two seconds also lapses without an outage.
	n, lapses := log.Count("level=WARN")-log.Count("a setting of the server is bad for Weir"), log.Count(lapsed)
	if log.Count(failing) != 2 || log.Count(works) != 2 || log.Count(renewed) != lapses || n != 4+2*lapses {
		t.Errorf("the worker logged %d lines for two outages and %d lapses, want %d:\n%s", n, lapses, 4+2*lapses, log.String())
	}
}

// TestAWorkerNamesItsQueuesThatNeverHadAJob: in one line at its start, each time until the first job, so that a mistyped name is noticed.
func TestAWorkerNamesItsQueuesThatNeverHadAJob(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	logOfStart := func() string {
		log := &pgtest.Log{}
		stop := r.work(func(context.Context, *weir.Job[number]) error { return nil }, func(c *weir.WorkerConfig) {
			c.Queues, c.Logger = map[string]int{"default": 1, "later": 1, "defualt": 1}, log.Logger()
		})
		eventually(t, func() error {
			if log.Count("worker started") == 0 {
				return fmt.Errorf("no line says that the worker has started, in %s", log)
			}
			return nil
		})
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		return log.String()
	}
	r.await(r.enqueue(1, nil), weir.StateAvailable)
	r.enqueue(2, &weir.Options{Queue: "later", RunAt: time.Now().Add(time.Hour)})
	const line = `level=WARN msg="weir: no job was ever enqueued to these queues: check their names, unless their first jobs are still to come" queues=[defualt] count=1`
	for range 2 {
		if log := logOfStart(); strings.Count(log, line) != 1 {
			t.Errorf("the line %s is not in the log once:\n%s", line, log)
		}
	}
	r.enqueue(3, &weir.Options{Queue: "defualt"})
	if log := logOfStart(); strings.Contains(log, "no job was ever enqueued") {
		t.Errorf("after the first job, the log says:\n%s", log)
	}
}

// TestAQueueWithoutANameIsRefusedAtOnce: by NewWorker, rather than by the first claim.
func TestAQueueWithoutANameIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(context.Context, *weir.Job[number]) error { return nil })
	if _, err := r.client.NewWorker(weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"q": 1, "": 1}}); err == nil || !strings.Contains(err.Error(), `the queue "": name it`) {
		t.Errorf("got %v, want an error about the queue without a name", err)
	}
}
