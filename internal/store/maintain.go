package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	sqlPromote       = `SELECT promoted, extract(epoch FROM next_due - clock_timestamp())::float8 FROM weir._promote($1, $2, make_interval(secs => $3))`
	sqlRotate        = `SELECT coalesce(weir._rotate(), '')`
	sqlRotateHistory = `SELECT coalesce(weir._rotate_history(), '')`
	sqlRotateLater   = `SELECT coalesce(weir._rotate_later(), '')`
	sqlRescue        = `SELECT worker, reason, coalesce(relogged, 0), more, coalesce(error, ''), relogged IS NULL AND error IS NULL, coalesce(jobs, '{}') FROM weir._rescue()`
	sqlMissesOne     = `SELECT weir._misses_one()`
	sqlSurvey        = `SELECT coalesce(weir._resurvey(), '')`
	sqlCountMinutes  = `SELECT coalesce(weir._count_minutes(), '')`
	sqlTidy          = `SELECT coalesce(weir._tidy(), '')`
	sqlFold          = `SELECT fired, busy, again, is_used FROM weir._fold_arrivals()`
	sqlRebase        = `SELECT weir.rebase()`
)

// Promote logs up to limit due jobs; next is the time until the next known job is due, nil if there is none.
func (s *Store) Promote(ctx context.Context, limit int) (promoted int, next *time.Duration, err error) {
	return s.promote(ctx, limit, time.Time{}, promoteAhead)
}

// promoteAhead is how far Promote looks ahead.
const promoteAhead = 10 * time.Second

// PromoteAhead is Promote, but it looks further ahead for the next job.
func (s *Store) PromoteAhead(ctx context.Context, limit int, ahead time.Duration) (promoted int, next *time.Duration, err error) {
	return s.promote(ctx, limit, time.Time{}, ahead)
}

// PromoteUpto is Promote as if the time were upto, which must not be in the past.
func (s *Store) PromoteUpto(ctx context.Context, limit int, upto time.Time) (promoted int, next *time.Duration, err error) {
	return s.promote(ctx, limit, upto, promoteAhead)
}

func (s *Store) promote(ctx context.Context, limit int, upto time.Time, ahead time.Duration) (promoted int, next *time.Duration, err error) {
	var seconds *float64
	var late *time.Time
	if !upto.IsZero() {
		late = &upto
	}
	if err = s.row(ctx, sqlPromote, []any{limit, late, ahead.Seconds()}, &promoted, &seconds); err == nil && seconds != nil {
		d := time.Duration(min(*seconds, 1e6) * float64(time.Second))
		next = &d
	}
	return promoted, next, err
}

// Rotate takes the next step in the life of the log's segments, and returns which, or "".
func (s *Store) Rotate(ctx context.Context) (did string, err error) {
	err = s.row(ctx, sqlRotate, nil, &did)
	return did, err
}

// RotateHistory is Rotate for failures and for the reports of attempts.
func (s *Store) RotateHistory(ctx context.Context) (did string, err error) {
	err = s.row(ctx, sqlRotateHistory, nil, &did)
	return did, err
}

// RotateLater is Rotate for jobs with a later run_at.
func (s *Store) RotateLater(ctx context.Context) (did string, err error) {
	err = s.row(ctx, sqlRotateLater, nil, &did)
	return did, err
}

// Rescued is the result of one rescue step for one worker.
type Rescued struct {
	Worker   int32
	Reason   string // why it ended
	Relogged int    // number of attempts logged again
	More     bool   // this worker may have more attempts
	Error    string // why the step failed, or ""
	Missed   bool   // it is to be checked again soon
	Jobs     []int64
}

// Rescue fences silent workers, and logs some of the unfinished attempts of fenced workers again.
func (s *Store) Rescue(ctx context.Context) ([]Rescued, error) {
	return rows(ctx, s, sqlRescue, nil, pgx.RowToStructByPos[Rescued])
}

// MissesOne reports whether one worker, chosen at random, seems to be lost. What it costs is bounded, however many workers there are.
func (s *Store) MissesOne(ctx context.Context) (misses bool, err error) {
	err = s.row(ctx, sqlMissesOne, nil, &misses)
	return misses, err
}

// Survey records in which lanes jobs wait, if there are many, for those who inspect them; it returns what it did, or "".
func (s *Store) Survey(ctx context.Context) (did string, err error) {
	err = s.row(ctx, sqlSurvey, nil, &did)
	return did, err
}

// CountMinutes counts what happened in the last minutes, for those who look at their history; it returns what it did, or "".
func (s *Store) CountMinutes(ctx context.Context) (did string, err error) {
	err = s.row(ctx, sqlCountMinutes, nil, &did)
	return did, err
}

// Tidy does one small chore, and returns which, or "".
func (s *Store) Tidy(ctx context.Context) (did string, err error) {
	err = s.row(ctx, sqlTidy, nil, &did)
	return did, err
}

// Fold counts what has arrived at flows, and calls back for those that have ended: ended is their number. busy: another session does, and may not see what is newest;
// again: what it has found is to be counted as well. used: there are flows.
func (s *Store) Fold(ctx context.Context) (ended int, busy, again, used bool, err error) {
	err = s.row(ctx, sqlFold, nil, &ended, &busy, &again, &used)
	return ended, busy, again, used, err
}

// Rebase starts the log over in another cluster; nil: there was no need. It has no time limit, whatever the role's statement_timeout.
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
