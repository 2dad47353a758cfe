package weir_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
)

// SendMail is a kind of job.
type SendMail struct {
	To string `json:"to"`
}

func (SendMail) Kind() string { return "send_mail" }

// connect returns a pool of connections to a database with Weir's schema. In your program: pgxpool.New(ctx, os.Getenv("DATABASE_URL")).
func connect() *pgxpool.Pool { return examples() }

// examples have a database of their own.
var examples = sync.OnceValue(func() *pgxpool.Pool {
	slog.SetLogLoggerLevel(slog.LevelError) // keeps the log out of the examples' output
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, pgtest.Shared("examples"))
	if err != nil {
		panic(err)
	}
	if _, err := pool.Exec(ctx, `CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, buyer text NOT NULL, mails integer NOT NULL DEFAULT 0)`); err != nil {
		panic(err)
	}
	return pool
})

// A client enqueues a job, and a worker runs it.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := weir.NewClient(connect())

	if _, err := client.Enqueue(ctx, SendMail{To: "ada@example.org"}, &weir.Options{Queue: "first"}); err != nil {
		log.Fatal(err)
	}

	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[SendMail]) error {
		fmt.Println("mail to", job.Args.To)
		stop() // ends this example
		return nil
	})
	worker, err := client.NewWorker(weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"first": 8}})
	if err != nil {
		log.Fatal(err)
	}
	if err := worker.Run(ctx); err != nil { // until ctx ends
		log.Fatal(err)
	}
	// Output: mail to ada@example.org
}

// A program that works jobs until Ctrl-C or SIGTERM, and then stops gracefully.
func ExampleWorker() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[SendMail]) error {
		fmt.Println("mail to", job.Args.To, "attempt", job.Attempt)
		return nil
	})
	worker, err := weir.NewClient(pool).NewWorker(weir.WorkerConfig{
		Handlers:    handlers,
		Queues:      map[string]int{"mail": 8},
		StopTimeout: time.Minute, // time for running jobs to finish
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
