package weir_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir"
)

// run works a queue until ctx ends, and prints how each attempt was recorded.
func run(ctx context.Context, client *weir.Client, queue string, handlers *weir.Handlers) {
	worker, err := client.NewWorker(weir.WorkerConfig{
		Handlers: handlers,
		Queues:   map[string]int{queue: 1},
		Hooks: []weir.Hooks{{End: func(_ context.Context, job weir.JobMeta, outcome weir.Outcome, _ time.Duration, err error) {
			fmt.Printf("attempt %d: %s (%v)\n", job.Attempt, outcome, err)
		}}},
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

// A job that returns an error is retried, here after a delay that its kind sets. Without Retry, the delay is the backoff of the queue: see Client.SetQueue.
func ExampleHandleWith() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := weir.NewClient(connect())
	if _, err := client.Enqueue(ctx, SendMail{To: "ada@example.org"}, &weir.Options{Queue: "retries", MaxAttempts: 3}); err != nil {
		log.Fatal(err)
	}
	handlers := weir.NewHandlers()
	weir.HandleWith(handlers, weir.KindOptions{
		Timeout: time.Minute, // of each attempt
		Retry:   func(attempt int, err error) time.Duration { return time.Duration(attempt) * time.Millisecond },
	}, func(ctx context.Context, job *weir.Job[SendMail]) error {
		if job.Attempt == job.MaxAttempts {
			stop() // ends this example
		}
		return errors.New("connection refused")
	})
	run(ctx, client, "retries", handlers)
	// Output:
	// attempt 1: retried (connection refused)
	// attempt 2: retried (connection refused)
	// attempt 3: failed (connection refused)
}

// RetryAfter sets the delay for one error, for example as requested by a remote server.
func ExampleRetryAfter() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := weir.NewClient(connect())
	if _, err := client.Enqueue(ctx, SendMail{To: "ada@example.org"}, &weir.Options{Queue: "retry-after"}); err != nil {
		log.Fatal(err)
	}
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[SendMail]) error {
		if job.Attempt == 1 {
			return weir.RetryAfter(10*time.Millisecond, errors.New("too many requests"))
		}
		stop() // ends this example
		return nil
	})
	run(ctx, client, "retry-after", handlers)
	// Output:
	// attempt 1: retried (too many requests)
	// attempt 2: completed (<nil>)
}

// Fail ends a job for good, if another attempt would be useless.
func ExampleFail() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := weir.NewClient(connect())
	enqueued, err := client.Enqueue(ctx, SendMail{To: "nobody"}, &weir.Options{Queue: "fail"})
	if err != nil {
		log.Fatal(err)
	}
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[SendMail]) error {
		stop() // ends this example
		return weir.Fail(fmt.Errorf("%q is not an address", job.Args.To))
	})
	run(ctx, client, "fail", handlers)

	job, err := client.Job(context.Background(), enqueued.ID)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(job.State, "after", job.Attempt, "of", job.MaxAttempts, "attempts:", *job.Error)
	// Output:
	// attempt 1: failed ("nobody" is not an address)
	// failed after 1 of 25 attempts: "nobody" is not an address
}

// Cancel ends a job that is no longer needed. The job does not count as failed.
func ExampleCancel() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := weir.NewClient(connect())
	if _, err := client.Enqueue(ctx, SendMail{To: "ada@example.org"}, &weir.Options{Queue: "cancel"}); err != nil {
		log.Fatal(err)
	}
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[SendMail]) error {
		stop() // ends this example
		return weir.Cancel(errors.New("she has unsubscribed"))
	})
	run(ctx, client, "cancel", handlers)
	// Output: attempt 1: cancelled (she has unsubscribed)
}

// Snooze postpones a job. It uses up no attempt.
func ExampleSnooze() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := weir.NewClient(connect())
	if _, err := client.Enqueue(ctx, SendMail{To: "ada@example.org"}, &weir.Options{Queue: "snooze"}); err != nil {
		log.Fatal(err)
	}
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[SendMail]) error {
		if job.PutOff < 2 { // how many times it was snoozed before
			return weir.Snooze(10 * time.Millisecond)
		}
		stop() // ends this example
		return nil
	})
	run(ctx, client, "snooze", handlers)
	// Output:
	// attempt 1: snoozed (snoozed for 10ms)
	// attempt 1: snoozed (snoozed for 10ms)
	// attempt 1: completed (<nil>)
}

// Hooks report what the database has recorded, for example for metrics, or to report jobs that have failed for good.
func ExampleHooks() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := weir.NewClient(connect())
	if _, err := client.Enqueue(ctx, SendMail{To: "ada@example.org"}, &weir.Options{Queue: "hooks", MaxAttempts: 1}); err != nil {
		log.Fatal(err)
	}
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[SendMail]) error {
		stop() // ends this example
		panic("out of paper")
	})
	worker, err := client.NewWorker(weir.WorkerConfig{
		Handlers: handlers,
		Queues:   map[string]int{"hooks": 8},
		Hooks: []weir.Hooks{{
			Claimed: func(jobs int, took time.Duration) { fmt.Println("claimed", jobs) },
			End: func(ctx context.Context, job weir.JobMeta, outcome weir.Outcome, took time.Duration, err error) {
				var panicked *weir.PanicError
				if outcome == weir.OutcomeFailed && errors.As(err, &panicked) {
					fmt.Println(job.Kind, "failed for good:", panicked.Value)
				}
			},
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// claimed 1
	// send_mail failed for good: out of paper
}

// The effect and the job's completion commit together, so that the effect occurs exactly once.
func ExampleJobMeta_CompleteTx() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	pool := connect()
	client := weir.NewClient(pool)
	if _, err := client.Enqueue(ctx, SendMail{To: "grace@example.org"}, &weir.Options{Queue: "complete"}); err != nil {
		log.Fatal(err)
	}
	if _, err := pool.Exec(ctx, `INSERT INTO orders (buyer) VALUES ('grace@example.org')`); err != nil {
		log.Fatal(err)
	}
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[SendMail]) error {
		defer stop() // ends this example
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `UPDATE orders SET mails = mails + 1 WHERE buyer = $1`, job.Args.To); err != nil {
				return err
			}
			return job.CompleteTx(ctx, tx)
		})
	})
	run(ctx, client, "complete", handlers)

	var mails int
	err := pool.QueryRow(context.Background(), `SELECT mails FROM orders WHERE buyer = 'grace@example.org'`).Scan(&mails)
	fmt.Println(mails, err)
	// Output:
	// attempt 1: completed (<nil>)
	// 1 <nil>
}

// The output that a handler sets is stored with the job.
func ExampleJobMeta_SetOutput() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := weir.NewClient(connect())
	enqueued, err := client.Enqueue(ctx, SendMail{To: "ada@example.org"}, &weir.Options{Queue: "output"})
	if err != nil {
		log.Fatal(err)
	}
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[SendMail]) error {
		job.SetOutput("250 queued as 4711")
		stop() // ends this example
		return nil
	})
	run(ctx, client, "output", handlers)

	job, err := client.Job(context.Background(), enqueued.ID)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(job.State, *job.Output)
	// Output:
	// attempt 1: completed (<nil>)
	// completed 250 queued as 4711
}

// One function runs jobs of any kind, with their args as JSON.
func ExampleHandleRest() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := weir.NewClient(connect())
	if _, err := client.Enqueue(ctx, SendMail{To: "ada@example.org"}, &weir.Options{Queue: "rest"}); err != nil {
		log.Fatal(err)
	}
	handlers := weir.NewHandlers()
	weir.HandleRest(handlers, weir.KindOptions{}, func(ctx context.Context, job *weir.Job[json.RawMessage]) error {
		fmt.Println(job.Kind, string(job.Args))
		stop()     // ends this example
		return nil // or weir.ErrUnknownKind, to release it for another worker
	})
	run(ctx, client, "rest", handlers)
	// Output:
	// send_mail {"to": "ada@example.org"}
	// attempt 1: completed (<nil>)
}

func sendMail(context.Context, string) error { return nil }

// For each queue, the worker limits how many of its jobs it runs at once.
func ExampleWorkerConfig() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := weir.NewClient(connect())
	const mails = 12
	for n := range mails {
		if _, err := client.Enqueue(ctx, SendMail{To: fmt.Sprintf("user%d@example.org", n)}, &weir.Options{Queue: "limits"}); err != nil {
			log.Fatal(err)
		}
	}
	var mu sync.Mutex
	var running, peak, done int
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[SendMail]) error {
		mu.Lock()
		running++
		peak = max(peak, running)
		mu.Unlock()

		_ = sendMail(ctx, job.Args.To) // takes time

		mu.Lock()
		defer mu.Unlock()
		running--
		if done++; done == mails {
			stop() // ends this example
		}
		return nil
	})
	worker, err := client.NewWorker(weir.WorkerConfig{
		Handlers: handlers,
		Queues:   map[string]int{"limits": 3, "invoices": 100},
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println(done, "mails, never more than 3 at once:", peak <= 3)
	// Output: 12 mails, never more than 3 at once: true
}

// When Run's context ends, running jobs may finish within StopTimeout. Then their contexts end, and the jobs are released: another worker runs
// them, and no attempt is used up.
func ExampleWorker_Run() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := weir.NewClient(connect())
	enqueued, err := client.Enqueue(ctx, SendMail{To: "ada@example.org"}, &weir.Options{Queue: "shutdown"})
	if err != nil {
		log.Fatal(err)
	}
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[SendMail]) error {
		stop() // as a signal would
		<-ctx.Done()
		fmt.Println("interrupted:", errors.Is(context.Cause(ctx), weir.ErrStopping))
		return ctx.Err()
	})
	worker, err := client.NewWorker(weir.WorkerConfig{
		Handlers:    handlers,
		Queues:      map[string]int{"shutdown": 8},
		StopTimeout: 50 * time.Millisecond,
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("stopped:", worker.Run(ctx))

	job, err := client.Job(context.Background(), enqueued.ID)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(job.State, "attempt", job.Attempt)
	// Output:
	// interrupted: true
	// stopped: <nil>
	// available attempt 1
}

// A group handler runs several jobs in one call; each may end differently.
func ExampleHandleGroup() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := weir.NewClient(connect())
	_, err := client.EnqueueMany(ctx, []weir.NewJob{
		{Args: SendMail{To: "ada@example.org"}, Options: &weir.Options{Queue: "groups"}},
		{Args: SendMail{To: "nobody"}, Options: &weir.Options{Queue: "groups"}},
		{Args: SendMail{To: "grace@example.org"}, Options: &weir.Options{Queue: "groups"}},
	})
	if err != nil {
		log.Fatal(err)
	}
	handlers := weir.NewHandlers()
	options := weir.GroupOptions[SendMail]{Size: 3, Wait: time.Minute} // up to three jobs, or those that came within a minute
	weir.HandleGroup(handlers, options, func(ctx context.Context, jobs []*weir.GroupJob[SendMail]) error {
		fmt.Println(len(jobs), "jobs")
		for _, job := range jobs {
			if !strings.Contains(job.Args.To, "@") {
				job.End(weir.Fail(fmt.Errorf("%s is no address", job.Args.To)))
			}
		}
		stop()     // ends this example
		return nil // the others have completed
	})
	worker, err := client.NewWorker(weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"groups": 3}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}
	page, err := client.Jobs(context.Background(), weir.JobsParams{Queue: "groups"})
	if err != nil {
		log.Fatal(err)
	}
	count := map[weir.State]int{}
	for _, job := range page.Jobs {
		count[job.State]++
	}
	fmt.Println(count)
	// Output:
	// 3 jobs
	// map[completed:2 failed:1]
}
