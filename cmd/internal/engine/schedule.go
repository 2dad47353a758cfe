package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/sleep"
)

// schedules is the prefix of the names of a bench's schedules, and the queue for their jobs.
const schedules = "weir bench schedules"

// Schedule declares n schedules, each of which is due once a minute, at times spread over the minute. They fire, for nobody, until drop is called, which
// must be called even after an error. It also works the jobs, which would otherwise be copied from one segment to the next.
func Schedule(ctx context.Context, pool *pgxpool.Pool, n int) (drop func() error, err error) {
	drop = func() error {
		ctx := context.WithoutCancel(ctx)
		if _, err := pool.Exec(ctx, `SELECT weir.drop_schedule(name) FROM weir.schedule WHERE name LIKE $1 || ' %'`, schedules); err != nil {
			return fmt.Errorf("drop the schedules: %w", err)
		}
		return workAll(ctx, pool, schedules)
	}
	_, err = pool.Exec(ctx, `SELECT weir.set_schedule($1 || ' ' || i, i % 60 || ' * * * * *', $1, 'bench') FROM generate_series(1, $2::integer) i`, schedules, n)
	if err != nil {
		return drop, fmt.Errorf("declare %d schedules: %w", n, err)
	}
	return drop, nil
}

// workAll works the jobs of a queue until there are none.
func workAll(ctx context.Context, pool *pgxpool.Pool, queue string) error {
	stop, failed := load.Start(ctx, client{weir.NewClient(pool), pool, Engine{Log: io.Discard}}, load.Work{Queues: map[string]int{queue: 1000}})
	for {
		page, err := weir.NewClient(pool).Jobs(ctx, weir.JobsParams{Queue: queue, States: []weir.State{weir.StateAvailable, weir.StateRunning}, Limit: 1})
		if err != nil || len(page.Jobs) == 0 && page.Next == "" {
			return errors.Join(err, stop())
		}
		select {
		case err := <-failed:
			return fmt.Errorf("work the jobs of queue %s: %w", queue, err)
		default:
			sleep.For(ctx, 20*time.Millisecond)
		}
	}
}
