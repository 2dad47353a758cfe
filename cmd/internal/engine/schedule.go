package engine

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
)

// schedules is the prefix of the names of a bench's schedules, and the queue for their jobs, which nobody works.
const schedules = "weir bench schedules"

// Schedule declares n schedules, each of which is due once a minute, at times spread over the minute. They fire until drop is called, which must be called
// even after an error.
func Schedule(ctx context.Context, pool *pgxpool.Pool, n int) (drop func() error, err error) {
	drop = func() error {
		ctx := context.WithoutCancel(ctx)
		if _, err := pool.Exec(ctx, `SELECT weir.drop_schedule(name) FROM weir.schedule WHERE name LIKE $1 || ' %'`, schedules); err != nil {
			return fmt.Errorf("drop the schedules: %w", err)
		}
		_, err := pool.Exec(ctx, `SELECT weir.cancel_where($1)`, schedules)
		return err
	}
	_, err = pool.Exec(ctx, `SELECT weir.set_schedule($1 || ' ' || i, i % 60 || ' * * * * *', $1, 'bench') FROM generate_series(1, $2::integer) i`, schedules, n)
	if err != nil {
		return drop, fmt.Errorf("declare %d schedules: %w", n, err)
	}
	return drop, nil
}
