package weir_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/weir-pg/weir"
)

// A job that waits is cancelled at once. One that runs is told, through its context.
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
		state, err := client.CancelJob(ctx, job.ID) // somebody else would
		fmt.Println(state, err)
		<-ctx.Done()
		fmt.Println(context.Cause(ctx))
		stop() // this example is over
		return ctx.Err()
	})
	run(ctx, client, "cancel-job", handlers)
	// Output:
	// cancelled <nil>
	// running <nil>
	// weir: the job was cancelled
	// attempt 1: cancelled (context canceled)
}

// A job that has ended is run once more.
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

// A queue that is paused hands out no jobs. Those that run go on, and others may be enqueued.
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
	// weir: pause queue: queue puase: not found
}

// A queue's backoff says how long after a failure a job is tried again.
func ExampleClient_SetQueue() {
	ctx := context.Background()
	client := weir.NewClient(connect())
	if _, err := client.Enqueue(ctx, SendMail{To: "ada@example.org"}, &weir.Options{Queue: "backoff"}); err != nil {
		log.Fatal(err)
	}
	// 5 seconds after the first failure, then 10, 20, … up to 10 minutes; each a quarter more or less.
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
	// backoff 00:00:05
	// backoff_limit 00:10:00
}

// Jobs that are not there, and what else goes wrong, are errors to ask about.
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
