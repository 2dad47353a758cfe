package weir_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
)

// A test binary started with these variables is a worker whose jobs never end; or, with the last one, what moves slots.
const (
	workEnv  = "WEIR_TEST_WORK"
	leaseEnv = "WEIR_TEST_WORK_LEASE"
	moveEnv  = "WEIR_TEST_MOVE"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(workEnv); url != "" {
		fmt.Fprintln(os.Stderr, workForEver(url))
		os.Exit(1)
	}
	if os.Getenv(moveEnv) != "" {
		if err := moveForEver(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	pgtest.Main(m)
}

func workForEver(url string) error {
	lease, err := time.ParseDuration(os.Getenv(leaseEnv))
	if err != nil {
		return err
	}
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		return err
	}
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, _ *weir.Job[number]) error { <-ctx.Done(); return ctx.Err() })
	worker, err := weir.NewClient(pool).NewWorker(weir.WorkerConfig{Name: "process", Handlers: handlers, Queues: map[string]int{"default": 1}, Lease: lease})
	if err != nil {
		return err
	}
	return worker.Run(context.Background())
}
