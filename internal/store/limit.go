package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	sqlSetLimit   = `SELECT weir.set_limit($1, running => nullif($2::int, 0), rate => nullif($3::float8, 0), per => make_interval(secs => nullif($4::float8, 0)), burst => nullif($5::int, 0))`
	sqlClearLimit = `SELECT weir.clear_limit($1)`
	sqlLimits     = `SELECT queue, coalesce(running, 0), coalesce(rate, 0), coalesce(per, '0'), coalesce(burst, 0), coalesce(running_now, 0), coalesce(room, 0), next_at FROM weir.limits()`
)

// Limit is a row of weir.limits. Zero is unlimited.
type Limit struct {
	Queue      string
	Running    int
	Starts     float64
	Per        time.Duration
	Burst      int
	RunningNow int
	Room       int
	NextAt     *time.Time
}

// SetLimit replaces the limits of a queue. Zero is unlimited or, of per and burst, the default.
func (s *Store) SetLimit(ctx context.Context, queue string, running int, starts float64, per time.Duration, burst int) error {
	return s.exec(ctx, sqlSetLimit, queue, running, starts, per.Seconds(), burst)
}

// ClearLimit removes the limits of a queue; false: it had none.
func (s *Store) ClearLimit(ctx context.Context, queue string) (found bool, err error) {
	err = s.row(ctx, sqlClearLimit, []any{queue}, &found)
	return found, err
}

// Limits lists limits by queue.
func Limits(ctx context.Context, s *Store) ([]Limit, error) {
	return rows(ctx, s, sqlLimits, nil, pgx.RowToStructByPos[Limit])
}
