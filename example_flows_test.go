package weir_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir"
)

// A crawl: each page adds those that it links to, each of which is read once, and when all of them have been, a report is enqueued.
func ExampleClient_Flow() {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	client := weir.NewClient(connect())
	links := map[string][]string{"/": {"/docs", "/blog"}, "/docs": {"/", "/docs/flows"}, "/blog": {"/docs/flows"}}
	var pages atomic.Int64
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[ReadPage]) error {
		pages.Add(1)
		for _, link := range links[job.Args.Path] {
			if _, err := client.Enqueue(ctx, ReadPage{Path: link}, &weir.Options{Queue: "crawl", Flow: job.Flow, Once: link}); err != nil {
				return err
			}
		}
		return nil
	})
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[CrawlReport]) error {
		flow := job.EndedFlow()
		fmt.Printf("%s: %d pages read, %d of %d jobs completed\n", flow.Name, pages.Load(), flow.Completed, flow.Jobs)
		stop() // ends this example
		return nil
	})
	_, err := client.Flow(ctx, weir.Flow{Name: "crawl", OnSuccess: weir.NewJob{Args: CrawlReport{}, Options: &weir.Options{Queue: "crawl"}}},
		weir.NewJob{Args: ReadPage{Path: "/"}, Options: &weir.Options{Queue: "crawl", Once: "/"}})
	if err != nil {
		log.Fatal(err)
	}
	worker, err := client.NewWorker(weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"crawl": 4}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// crawl: 4 pages read, 4 of 4 jobs completed
}

// A flow that is open takes members until it is sealed. It is cancelled with one row, however many they are, and can be retried.
func ExampleClient_CancelFlow() {
	ctx := context.Background()
	client := weir.NewClient(connect())
	flow, err := client.Flow(ctx, weir.Flow{Name: "mailing", Open: true})
	if err != nil {
		log.Fatal(err)
	}
	for _, to := range []string{"ada@example.org", "grace@example.org"} {
		if _, err := client.Enqueue(ctx, SendMail{To: to}, &weir.Options{Queue: "mailing", Flow: flow}); err != nil {
			log.Fatal(err)
		}
	}
	if err := client.SealFlow(ctx, flow); err != nil {
		log.Fatal(err)
	}
	info, err := client.FlowInfo(ctx, flow)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(info.Name, info.State, info.Unfinished, "of", info.Jobs)
	fmt.Println(client.CancelFlow(ctx, flow))
	page, err := client.Jobs(ctx, weir.JobsParams{Queue: "mailing", Flow: flow, States: []weir.State{weir.StateCancelled}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(page.Jobs), "cancelled")
	fmt.Println(client.RetryFlow(ctx, flow, nil))
	_, err = client.FlowInfo(ctx, -1)
	fmt.Println(errors.Is(err, weir.ErrNotFound))
	// Output:
	// mailing running 2 of 2
	// cancelling <nil>
	// 2 cancelled
	// 2 <nil>
	// true
}

// ReadPage reads a page of a site.
type ReadPage struct{ Path string }

func (ReadPage) Kind() string { return "read_page" }

// CrawlReport reports what was read.
type CrawlReport struct{}

func (CrawlReport) Kind() string { return "crawl_report" }

// Tasks come after each other, and read the outputs of those that they come after.
func ExampleClient_AddTasks() {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	client := weir.NewClient(connect())
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[ReadPage]) error {
		job.SetOutput(fmt.Sprintf(`{"words": %d}`, len(job.Args.Path)))
		return nil
	})
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[CrawlReport]) error {
		total := 0
		for _, page := range []string{"home", "docs"} {
			read, err := weir.TaskOutput[struct{ Words int }](ctx, client, job.Task().Flow, page)
			if err != nil {
				return err
			}
			total += read.Words
		}
		fmt.Println(job.Task().Name, total)
		stop() // ends this example
		return nil
	})
	queue := &weir.Options{Queue: "site"}
	_, err := client.Flow(ctx, weir.Flow{Name: "site", Tasks: []weir.Task{
		{Name: "home", Job: weir.NewJob{Args: ReadPage{Path: "/"}, Options: queue}},
		{Name: "docs", Job: weir.NewJob{Args: ReadPage{Path: "/docs"}, Options: queue}, After: []string{"home"}},
		{Name: "report", Job: weir.NewJob{Args: CrawlReport{}, Options: queue}, After: []string{"home", "docs"}},
	}})
	if err != nil {
		log.Fatal(err)
	}
	worker, err := client.NewWorker(weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"site": 4}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// report 6
}

// Members add to counters of their flow in the transactions in which they complete, so that each counts once.
func ExampleClient_IncrementTx() {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	pool := connect()
	client := weir.NewClient(pool)
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[ReadPage]) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			return errors.Join(client.IncrementTx(ctx, tx, job.Flow, "characters", int64(len(job.Args.Path))), job.CompleteTx(ctx, tx))
		})
	})
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[CrawlReport]) error {
		fmt.Println(job.EndedFlow().Counters)
		stop() // ends this example
		return nil
	})
	_, err := client.Flow(ctx, weir.Flow{Name: "count", OnDone: weir.NewJob{Args: CrawlReport{}, Options: &weir.Options{Queue: "count"}}},
		weir.NewJob{Args: ReadPage{Path: "/"}, Options: &weir.Options{Queue: "count"}}, weir.NewJob{Args: ReadPage{Path: "/docs"}, Options: &weir.Options{Queue: "count"}})
	if err != nil {
		log.Fatal(err)
	}
	worker, err := client.NewWorker(weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"count": 4}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// map[characters:6]
}
