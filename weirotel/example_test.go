package weirotel_test

import (
	"context"
	"log"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/weirotel"
)

type mail struct {
	To string `json:"to"`
}

func (mail) Kind() string { return "mail" }

// A job is one trace from where it is enqueued to where it is worked. The spans and metrics go to OpenTelemetry's global providers, which the
// program sets up with the SDK, or to those in Config.
func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	telemetry, err := weirotel.New(weirotel.Config{})
	if err != nil {
		log.Fatal(err)
	}
	client := weir.NewClient(pool).WithMiddleware(telemetry.Enqueue)
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(context.Context, *weir.Job[mail]) error { return nil })
	worker, err := client.NewWorker(weir.WorkerConfig{
		Handlers: handlers,
		Queues:   map[string]int{"mail": 8},
		Hooks:    []weir.Hooks{telemetry.Hooks()},
	})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := client.Enqueue(ctx, mail{"ada@example.org"}, &weir.Options{Queue: "mail"}); err != nil {
		log.Fatal(err)
	}
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
