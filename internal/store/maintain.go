package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	sqlPromote     = `SELECT promoted, extract(epoch FROM next_due - clock_timestamp())::float8 FROM weir._promote($1, $2)`
	sqlRotate      = `SELECT coalesce(weir._rotate(), '')`
	sqlRotateLater = `SELECT coalesce(weir._rotate_later(), '')`
	sqlRescue      = `SELECT worker, reason, coalesce(relogged, 0), more, coalesce(error, ''), relogged IS NULL AND NOT more AND error IS NULL, coalesce(jobs, '{}') FROM weir._rescue()`
	sqlSurvey      = `SELECT coalesce(weir._resurvey(), '')`
	sqlTidy        = `SELECT coalesce(weir._tidy(), '')`
	sqlRebase      = `SELECT weir.rebase()`
)

// Promote logs up to most due jobs; next is how long until the next one known is due, nil for none.
func (s *Store) Promote(ctx context.Context, most int) (promoted int, next *time.Duration, err error) {
	return s.PromoteUpto(ctx, most, time.Time{})
}

// PromoteUpto is Promote as if it were as late as a time that is not past.
func (s *Store) PromoteUpto(ctx context.Context, most int, upto time.Time) (promoted int, next *time.Duration, err error) {
	var seconds *float64
	var late *time.Time
	if !upto.IsZero() {
		late = &upto
	}
	if err = s.row(ctx, sqlPromote, []any{most, late}, &promoted, &seconds); err == nil && seconds != nil {
		d := time.Duration(min(*seconds, 1e6) * float64(time.Second))
		next = &d
	}
	return promoted, next, err
}

// Rotate takes the next step in the life of the log's segments and says which, or "".
func (s *Store) Rotate(ctx context.Context) (did string, err error) {
	err = s.row(ctx, sqlRotate, nil, &did)
	return did, err
}

// RotateLater is Rotate for jobs with a later run_at.
func (s *Store) RotateLater(ctx context.Context) (did string, err error) {
	err = s.row(ctx, sqlRotateLater, nil, &did)
	return did, err
}

// Rescued is what a step of rescue did for one worker.
type Rescued struct {
	Worker   int32
	Reason   string // why it ended
	Relogged int    // attempts
	More     bool   // there may be more of this worker
	Error    string // why nothing could be done for it, or ""
	Missed   bool   // its session has ended, and it may still come back
	Jobs     []int64
}

// Rescue fences silent workers, and takes a step in logging again what fenced ones have left.
func (s *Store) Rescue(ctx context.Context) ([]Rescued, error) {
	return rows(ctx, s, sqlRescue, nil, pgx.RowToStructByPos[Rescued])
}

// Survey notes in which lanes jobs wait, where there are many, for those who look; it says what it did, or "".
func (s *Store) Survey(ctx context.Context) (did string, err error) {
	err = s.row(ctx, sqlSurvey, nil, &did)
	return did, err
}

// Tidy does one small chore and says which, or "".
func (s *Store) Tidy(ctx context.Context) (did string, err error) {
	err = s.row(ctx, sqlTidy, nil, &did)
	return did, err
}

// Rebase starts the log anew in another cluster; nil: there was no need. It takes as long as it takes, whatever statement_timeout the
// role has.
func (s *Store) Rebase(ctx context.Context) (relogged *int64, err error) {
	err = s.call(ctx, func(mode pgx.QueryExecMode) error {
		return pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `SET LOCAL statement_timeout = 0`, mode); err != nil {
				return err
			}
			return tx.QueryRow(ctx, sqlRebase, mode).Scan(&relogged)
		})
	})
	return relogged, err
}
