package weir_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"sync"
	"time"

	"github.com/weir-pg/weir"
)

// At most 20 mails are sent at a time, by all workers together, and at most 100 are started in a minute.
func ExampleClient_SetLimit() {
	ctx := context.Background()
	client := weir.NewClient(connect())
	err := client.SetLimit(ctx, "limited", weir.Limit{Running: 20, Rate: weir.Rate{Starts: 100, Per: time.Minute, Burst: 10}})
	if err != nil {
		log.Fatal(err)
	}
	limits, err := client.Limits(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, l := range limits {
		if l.Queue == "limited" {
			fmt.Printf("%d of %d run, %v in %v, %d may start now\n", *l.RunningNow, l.Running, l.Rate.Starts, l.Rate.Per, *l.Room)
		}
	}
	if err := client.ClearLimit(ctx, "limited"); err != nil {
		log.Fatal(err)
	}
	fmt.Println("there is a limit to clear:", !errors.Is(client.ClearLimit(ctx, "limited"), weir.ErrNotFound))
	// Output:
	// 0 of 20 run, 100 in 1m0s, 10 may start now
	// there is a limit to clear: false
}

// Tenants share a queue: their jobs take turns, one tenant counts twice, and at most 5 jobs of each run at a time.
func ExampleClient_SetWeight() {
	ctx := context.Background()
	client := weir.NewClient(connect())
	_, err := client.EnqueueMany(ctx, []weir.NewJob{
		{Args: SendMail{To: "ada@example.org"}, Options: &weir.Options{Queue: "shared", Key: "acme"}},
		{Args: SendMail{To: "grace@example.org"}, Options: &weir.Options{Queue: "shared", Key: "globex"}},
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := client.SetWeight(ctx, "shared", "acme", 2); err != nil {
		log.Fatal(err)
	}
	if err := client.SetLimit(ctx, "shared", weir.Limit{PerKey: true, Running: 5}); err != nil {
		log.Fatal(err)
	}
	weights, err := client.Weights(ctx)
	fmt.Println(weights, err)
	limits, err := client.Limits(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, l := range limits {
		if l.Queue == "shared" {
			fmt.Println("per key:", l.PerKey, l.Running)
		}
	}
	fmt.Println(client.ClearKeyLimit(ctx, "shared"))
	// Output:
	// [{shared acme 2}] <nil>
	// per key: true 5
	// <nil>
}

// The jobs of each order run in the order in which they were enqueued, one at a time, also when one is tried again; those of other orders run
// meanwhile.
func ExampleLimit_inOrder() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := weir.NewClient(connect())
	if err := client.SetLimit(ctx, "orders", weir.Limit{PerKey: true, InOrder: true}); err != nil {
		log.Fatal(err)
	}
	for _, step := range []string{"reserve", "charge", "ship"} {
		for _, order := range []string{"order 1", "order 2"} {
			if _, err := client.Enqueue(ctx, Step{step}, &weir.Options{Queue: "orders", Key: order}); err != nil {
				log.Fatal(err)
			}
		}
	}
	var mu sync.Mutex
	steps := map[string][]string{}
	handlers := weir.NewHandlers()
	retry := func(int, error) time.Duration { return 0 }
	weir.HandleWith(handlers, weir.KindOptions{Retry: retry}, func(ctx context.Context, job *weir.Job[Step]) error {
		mu.Lock()
		defer mu.Unlock()
		steps[job.Key] = append(steps[job.Key], fmt.Sprint(job.Args.Name, " ", job.Attempt))
		if job.Args.Name == "charge" && job.Attempt == 1 {
			return errors.New("declined")
		}
		if len(steps["order 1"]) == 4 && len(steps["order 2"]) == 4 {
			stop() // ends this example
		}
		return nil
	})
	worker, err := client.NewWorker(weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"orders": 10}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println(steps)
	// Output:
	// map[order 1:[reserve 1 charge 1 charge 2 ship 1] order 2:[reserve 1 charge 1 charge 2 ship 1]]
}

// Step is a step of an order.
type Step struct{ Name string }

func (Step) Kind() string { return "step" }
