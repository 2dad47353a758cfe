package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	sqlSetLimit   = `SELECT weir.set_limit($1, running => nullif($2::int, 0), rate => nullif($3::float8, 0), per => make_interval(secs => nullif($4::float8, 0)), burst => nullif($5::int, 0), per_key => $6, in_order => $7)`
	sqlClearLimit = `SELECT weir.clear_limit($1, $2)`
	sqlLimits     = `SELECT queue, coalesce(running, 0), coalesce(rate, 0), coalesce(per, '0'), coalesce(burst, 0), running_now, room, next_at, per_key, in_order FROM weir.limits()`
	sqlSetWeight  = `SELECT weir.set_weight($1, $2, $3)`
	sqlWeights    = `SELECT queue, key, weight FROM weir.weights()`
)

// Limit is a row of weir.limits. Zero is unlimited.
type Limit struct {
	Queue      string
	Running    int
	Starts     float64
	Per        time.Duration
	Burst      int
	RunningNow *int // nil with PerKey
	Room       *int
	NextAt     *time.Time
	PerKey     bool
	InOrder    bool
}

// SetLimit replaces the limits of l.Queue, or those of its keys. Zero is unlimited or, of Per and Burst, the default.
func (s *Store) SetLimit(ctx context.Context, l Limit) error {
	return s.exec(ctx, sqlSetLimit, l.Queue, l.Running, l.Starts, l.Per.Seconds(), l.Burst, l.PerKey, l.InOrder)
}

// ClearLimit removes the limits of a queue, of its keys, or both (nil); false: it had none.
func (s *Store) ClearLimit(ctx context.Context, queue string, perKey *bool) (found bool, err error) {
	err = s.row(ctx, sqlClearLimit, []any{queue, perKey}, &found)
	return found, err
}

// Limits lists limits by queue.
func Limits(ctx context.Context, s *Store) ([]Limit, error) {
	return rows(ctx, s, sqlLimits, nil, pgx.RowToStructByPos[Limit])
}

// SetWeight sets the weight of a queue's key.
func (s *Store) SetWeight(ctx context.Context, queue, key string, weight float64) error {
	return s.exec(ctx, sqlSetWeight, queue, key, weight)
}

// Weights lists the weights of keys, by queue and key.
func Weights[T any](ctx context.Context, s *Store) ([]T, error) {
	return rows(ctx, s, sqlWeights, nil, pgx.RowToStructByPos[T])
}
