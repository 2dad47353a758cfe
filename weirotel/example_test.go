package weirotel_test

import (
	"context"
	"log"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/weirotel"
)

// A program that enqueues, works, and observes its queues.
func Example() {
	ctx, pool, handlers := context.Background(), (*pgxpool.Pool)(nil), weir.NewHandlers()
	run := func() error {
		telemetry, err := weirotel.New(weirotel.Config{}) // to OpenTelemetry's global providers
		if err != nil {
			return err
		}
		client := weir.NewClient(pool).WithMiddleware(telemetry.Enqueue)
		queues, err := telemetry.Observe(client)
		if err != nil {
			return err
		}
		defer func() {
			if err := queues.Unregister(); err != nil {
				log.Print(err)
			}
		}()
		worker, err := client.NewWorker(weir.WorkerConfig{
			Handlers: handlers,
			Queues:   map[string]int{"mail": 8},
			Hooks:    []weir.Hooks{telemetry.Hooks()},
		})
		if err != nil {
			return err
		}
		return worker.Run(ctx)
	}
	_ = run
}
