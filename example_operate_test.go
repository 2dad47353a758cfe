package weir_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"time"

	"github.com/weir-pg/weir"
)

// CancelJob cancels a waiting job at once. It ends the context of a running one.
func ExampleClient_CancelJob() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := weir.NewClient(connect())
	enqueue := func(to string) int64 {
		job, err := client.Enqueue(ctx, SendMail{To: to}, &weir.Options{Queue: "cancel-job"})
		if err != nil {
			log.Fatal(err)
		}
		return job.ID
	}
	waiting := enqueue("ada@example.org")
	state, err := client.CancelJob(ctx, waiting)
	fmt.Println(state, err)

	enqueue("grace@example.org")
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[SendMail]) error {
		state, err := client.CancelJob(ctx, job.ID) // usually called by another process
		fmt.Println(state, err)
		<-ctx.Done()
		fmt.Println(context.Cause(ctx))
		stop() // ends this example
		return ctx.Err()
	})
	run(ctx, client, "cancel-job", handlers)
	// Output:
	// cancelled <nil>
	// running <nil>
	// weir: the job was cancelled
	// attempt 1: cancelled (context canceled)
}

// RetryJob runs a job in a final state again.
func ExampleClient_RetryJob() {
	ctx := context.Background()
	client := weir.NewClient(connect())
	enqueued, err := client.Enqueue(ctx, SendMail{To: "ada@example.org"}, &weir.Options{Queue: "retry-job"})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := client.CancelJob(ctx, enqueued.ID); err != nil {
		log.Fatal(err)
	}
	state, err := client.RetryJob(ctx, enqueued.ID)
	fmt.Println(state, err)
	// Output: available <nil>
}

// No jobs are claimed from a paused queue. Running jobs continue, and jobs may still be enqueued.
func ExampleClient_PauseQueue() {
	ctx := context.Background()
	client := weir.NewClient(connect())
	if _, err := client.Enqueue(ctx, SendMail{To: "ada@example.org"}, &weir.Options{Queue: "pause"}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(client.PauseQueue(ctx, "pause"))
	fmt.Println(client.ResumeQueue(ctx, "pause"))
	fmt.Println(client.PauseQueue(ctx, "puase"))
	// Output:
	// <nil>
	// <nil>
	// weir: pause queue: queue "puase": not found
}

// A queue's backoff is the delay after a failure before the job is tried again.
func ExampleClient_SetQueue() {
	ctx := context.Background()
	client := weir.NewClient(connect())
	if _, err := client.Enqueue(ctx, SendMail{To: "ada@example.org"}, &weir.Options{Queue: "backoff"}); err != nil {
		log.Fatal(err)
	}
	// 5 seconds after the first failure, then 10, 20, … up to 10 minutes; each plus or minus a quarter.
	if err := client.SetQueue(ctx, "backoff", "backoff", "5 seconds"); err != nil {
		log.Fatal(err)
	}
	if err := client.SetQueue(ctx, "backoff", "backoff_limit", "10 minutes"); err != nil {
		log.Fatal(err)
	}
	settings, err := client.Settings(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, s := range settings {
		if s.Queue == "backoff" {
			fmt.Println(s.Name, s.Value)
		}
	}
	// Output:
	// ageing 00:00:00
	// backoff 00:00:05
	// backoff_form exponential
	// backoff_limit 00:10:00
}

// With ageing, jobs of lower priorities don't wait forever. Here, one of every four jobs is chosen by age, in which a job with priority 2 comes before
// jobs with priority 1 that were enqueued 10 minutes after it, and one with priority 4 before those of half an hour later.
func ExampleClient_SetQueue_ageing() {
	ctx := context.Background()
	client := weir.NewClient(connect())
	if _, err := client.Enqueue(ctx, SendMail{To: "ada@example.org"}, &weir.Options{Queue: "aged", Priority: 4}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(client.SetQueue(ctx, "aged", "ageing", "10 minutes"))
	// Output: <nil>
}

// Failed jobs, grouped by what went wrong.
func ExampleClient_FailureGroups() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := weir.NewClient(connect())
	for _, to := range []string{"ada@example.org", "grace@example.org"} {
		if _, err := client.Enqueue(ctx, SendMail{To: to}, &weir.Options{Queue: "failure-groups"}); err != nil {
			log.Fatal(err)
		}
	}
	handlers := weir.NewHandlers()
	ran := 0
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[SendMail]) error {
		if ran++; ran == 2 {
			stop() // ends this example
		}
		return weir.Fail(fmt.Errorf("no mailbox for %s", job.Args.To))
	})
	worker, err := client.NewWorker(weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"failure-groups": 1}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}
	page, err := client.FailureGroups(context.Background(), weir.FailureGroupsParams{Queue: "failure-groups"})
	if err != nil {
		log.Fatal(err)
	}
	for _, g := range page.Groups {
		fmt.Println(g.Jobs, g.Kind, g.Shape)
	}
	// Output: 2 send_mail no mailbox for <email>
}

// A retry rule says what follows an error, for workers in every language.
func ExampleClient_SetRetryRule() {
	ctx := context.Background()
	client := weir.NewClient(connect())
	often, pause := 10*time.Second, 5*time.Minute
	for _, rule := range []weir.RetryRule{
		{Name: "no-such-address", Kind: "send_mail", Error: "^550 ", Action: weir.RetryActionFail},
		{Name: "too-many", Error: "429 Too Many Requests", Action: weir.RetryActionSnooze, Backoff: &pause},
		{Name: "mail", Kind: "send_mail", Backoff: &often, BackoffForm: weir.BackoffLinear},
	} {
		if err := client.SetRetryRule(ctx, rule); err != nil {
			log.Fatal(err)
		}
	}
	rules, err := client.RetryRules(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, rule := range rules {
		fmt.Println(rule.Name, rule.Action, client.DropRetryRule(ctx, rule.Name))
	}
	// Output:
	// no-such-address fail <nil>
	// too-many snooze <nil>
	// mail retry <nil>
}

// Check for a missing job, and for other errors, with errors.Is.
func ExampleClient_Job() {
	ctx := context.Background()
	client := weir.NewClient(connect())
	_, err := client.Job(ctx, 1_000_000_000)
	switch {
	case errors.Is(err, weir.ErrNotInstalled):
		fmt.Println("run `weir migrate up`")
	case errors.Is(err, weir.ErrNotFound):
		fmt.Println("never enqueued, or its retention is over")
	}
	fmt.Println(err)
	// Output:
	// never enqueued, or its retention is over
	// weir: look up job: job 1000000000: not found
}

// Jobs lists jobs one page at a time, filtered by state, queue, kind and meta.
func ExampleClient_Jobs() {
	ctx := context.Background()
	client := weir.NewClient(connect())
	for n := range 5 {
		_, err := client.Enqueue(ctx, Invoice{Order: int64(n)}, &weir.Options{Queue: "list", Meta: map[string]string{"tenant": []string{"acme", "umbrella"}[n%2]}})
		if err != nil {
			log.Fatal(err)
		}
	}
	list := weir.JobsParams{
		States: []weir.State{weir.StateAvailable, weir.StateFailed},
		Queue:  "list",
		Meta:   map[string]string{"tenant": "acme"},
		Limit:  2,
	}
	for {
		page, err := client.Jobs(ctx, list)
		if err != nil {
			log.Fatal(err)
		}
		for _, job := range page.Jobs {
			fmt.Println(job.State, job.Kind, string(job.Args))
		}
		if page.Next == "" {
			break
		}
		list.After = page.Next
	}
	// Output:
	// available invoice {"Order": 0}
	// available invoice {"Order": 2}
	// available invoice {"Order": 4}
}

// Queues reports how many jobs wait in each queue, and since when.
func ExampleClient_Queues() {
	ctx := context.Background()
	client := weir.NewClient(connect())
	if _, err := client.Enqueue(ctx, SendMail{To: "ada@example.org"}, &weir.Options{Queue: "depth"}); err != nil {
		log.Fatal(err)
	}
	if _, err := client.Enqueue(ctx, SendMail{To: "bob@example.org"}, &weir.Options{Queue: "depth", RunAt: time.Now().Add(time.Hour)}); err != nil {
		log.Fatal(err)
	}
	queues, err := client.Queues(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, queue := range queues {
		if queue.Name == "depth" {
			fmt.Println("available:", queue.Available, "scheduled:", queue.Scheduled, "approximate:", queue.Approximate)
			fmt.Println("waiting for more than a minute:", queue.ReadySince != nil && time.Since(*queue.ReadySince) > time.Minute)
		}
	}
	// Output:
	// available: 1 scheduled: 1 approximate: false
	// waiting for more than a minute: false
}
