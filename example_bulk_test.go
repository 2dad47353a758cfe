package weir_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/weir-pg/weir"
)

// CancelWhere cancels all unfinished jobs that a filter selects, at once and whatever their number. Jobs enqueued later are not affected.
func ExampleClient_CancelWhere() {
	ctx := context.Background()
	client := weir.NewClient(connect())
	options := &weir.Options{Queue: "cancel-where", Meta: map[string]string{"tenant": "acme"}}
	before, err := client.Enqueue(ctx, SendMail{To: "ada@example.org"}, options)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(client.CancelWhere(ctx, weir.JobFilter{Queue: "cancel-where", Meta: map[string]string{"tenant": "acme"}}))
	after, err := client.Enqueue(ctx, SendMail{To: "grace@example.org"}, options)
	if err != nil {
		log.Fatal(err)
	}
	for _, enqueued := range []weir.Enqueued{before, after} {
		job, err := client.Job(ctx, enqueued.ID)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(job.State)
	}
	// Output:
	// <nil>
	// cancelled
	// available
}

// RetryWhere retries dead letters, here those of a queue whose last error contains a text.
func ExampleClient_RetryWhere() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := failedMail(ctx, stop, "retry-where")
	n, err := client.RetryWhere(context.Background(), weir.JobFilter{Queue: "retry-where", Error: "no such account"}, func(retried int64) {
		fmt.Println("so far:", retried)
	})
	fmt.Println(n, err)
	// Output:
	// attempt 1: failed (no such account)
	// so far: 1
	// 1 <nil>
}

// DeleteWhere deletes dead letters.
func ExampleClient_DeleteWhere() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := failedMail(ctx, stop, "delete-where")
	fmt.Println(client.DeleteWhere(context.Background(), weir.JobFilter{Queue: "delete-where"}, nil))
	// Output:
	// attempt 1: failed (no such account)
	// 1 <nil>
}

// MoveWhere moves jobs that have not started.
func ExampleClient_MoveWhere() {
	ctx := context.Background()
	client := weir.NewClient(connect())
	enqueued, err := client.Enqueue(ctx, SendMail{To: "ada@example.org"}, &weir.Options{Queue: "move-where"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(client.MoveWhere(ctx, weir.JobFilter{Queue: "move-where"}, weir.MoveTo{Queue: "moved", Priority: 4}, nil))
	job, err := client.Job(ctx, enqueued.ID)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(job.Queue, job.Priority)
	// Output:
	// 1 <nil>
	// moved 4
}

// failedMail enqueues a mail that fails for good, and works it.
func failedMail(ctx context.Context, stop func(), queue string) *weir.Client {
	client := weir.NewClient(connect())
	if _, err := client.Enqueue(ctx, SendMail{To: "nobody@example.org"}, &weir.Options{Queue: queue, MaxAttempts: 1}); err != nil {
		log.Fatal(err)
	}
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[SendMail]) error {
		stop()
		return errors.New("no such account")
	})
	run(ctx, client, queue, handlers)
	return client
}

// BeginOperation lets workers do a bulk operation in the background. Whoever has begun it need not wait.
func ExampleClient_BeginOperation() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := failedMail(ctx, stop, "operation")
	id, err := client.BeginOperation(context.Background(), weir.Operation{
		What:   weir.OperationRetry,
		Filter: weir.JobFilter{Queue: "operation", Shape: "no such account"},
		By:     "ada",
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("begun:", id > 0)

	// A worker does it.
	ctx, stop = context.WithCancel(context.Background())
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[SendMail]) error {
		defer stop()
		return nil
	})
	run(ctx, client, "operation", handlers)

	o, err := client.Operation(context.Background(), id)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(o.What, string(o.Filter), "by", o.BeganBy, "has changed", *o.Changed)
	// Output:
	// attempt 1: failed (no such account)
	// begun: true
	// attempt 2: completed (<nil>)
	// retry {"queue": "operation", "shape": "no such account"} by ada has changed 1
}
