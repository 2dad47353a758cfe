package store

import (
	"context"
	"time"
)

const (
	sqlWhere       = `nullif($1, ''), $2::text[], $3::text::jsonb, $4::integer, $5::timestamptz, $6::timestamptz, key => nullif($7, '')`
	sqlCancelWhere = `SELECT weir.cancel_where(` + sqlWhere + `)`
	sqlEnded       = `, error => nullif($8, ''), shape => nullif($9, ''), finished_after => $10::timestamptz, finished_before => $11::timestamptz, after => nullif($12, '')`
	sqlRetryWhere  = `SELECT retried, coalesce(next, '') FROM weir.retry_where(` + sqlWhere + sqlEnded + `, states => $13::text[])`
	sqlDeleteWhere = `SELECT deleted, coalesce(next, '') FROM weir.delete_where(` + sqlWhere + sqlEnded + `)`
	sqlMoveWhere   = `SELECT moved, coalesce(next, '') FROM weir.move_where(` + sqlWhere + `, to_queue => nullif($8, ''), to_priority => $9::integer, after => nullif($10, ''))`
)

// Where selects the jobs of a bulk operation. Zero values exclude nothing.
type Where struct {
	Queue          string
	Kinds          []string
	Meta           *string // a JSON object
	Priority       *int
	EnqueuedAfter  *time.Time
	EnqueuedBefore *time.Time
	Key            string
	Error          string
	Shape          string
	FinishedAfter  *time.Time
	FinishedBefore *time.Time
	States         []string
	After          string // next of the previous step
}

func (w Where) args(more ...any) []any {
	var kinds []string // NULL, unless there is one: an empty list is refused
	if len(w.Kinds) > 0 {
		kinds = w.Kinds
	}
	return append([]any{w.Queue, kinds, w.Meta, w.Priority, w.EnqueuedAfter, w.EnqueuedBefore, w.Key}, more...)
}

// ended are the arguments for jobs that have ended.
func (w Where) ended(more ...any) []any {
	return append(w.args(w.Error, w.Shape, w.FinishedAfter, w.FinishedBefore, w.After), more...)
}

// CancelWhere returns the number of the cancellation; nil: the queue does not exist.
func (s *Store) CancelWhere(ctx context.Context, w Where) (no *int64, err error) {
	err = s.row(ctx, sqlCancelWhere, w.args(), &no)
	return no, err
}

// CancelWhereTx is CancelWhere in the caller's transaction.
func CancelWhereTx(ctx context.Context, tx Querier, w Where) (no *int64, err error) {
	err = tx.QueryRow(ctx, sqlCancelWhere, w.args()...).Scan(&no)
	return no, err
}

// RetryWhere does one step, and returns how many jobs it has retried, and the value of After for the next step; "": there is none.
func (s *Store) RetryWhere(ctx context.Context, w Where) (retried int64, next string, err error) {
	err = s.row(ctx, sqlRetryWhere, w.ended(w.States), &retried, &next)
	return retried, next, err
}

// DeleteWhere does one step, and returns how many jobs it has deleted, and the value of After for the next step; "": there is none.
func (s *Store) DeleteWhere(ctx context.Context, w Where) (deleted int64, next string, err error) {
	err = s.row(ctx, sqlDeleteWhere, w.ended(), &deleted, &next)
	return deleted, next, err
}

// MoveWhere does one step, and returns how many jobs it has moved, and the value of After for the next step; "": there is none.
func (s *Store) MoveWhere(ctx context.Context, w Where, queue string, priority *int) (moved int64, next string, err error) {
	err = s.row(ctx, sqlMoveWhere, w.args(queue, priority, w.After), &moved, &next)
	return moved, next, err
}
