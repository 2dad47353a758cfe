package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	sqlFlow       = `SELECT weir.flow($1, $2::text::jsonb, $3::text::jsonb, $4::timestamptz)`
	sqlSeal       = `SELECT weir.seal($1::bigint)`
	flowColumns   = `id, name, state, generation, jobs, unfinished, completed, failed, cancelled, created_at, deadline, finished_at`
	sqlFlowInfo   = `SELECT ` + flowColumns + ` FROM weir.flow_info($1)`
	sqlFlows      = `SELECT ` + flowColumns + ` FROM weir.flows(nullif($1::bigint, 0), $2::int)`
	sqlCancelFlow = `SELECT coalesce(weir.cancel_flow($1::bigint), '')`
	sqlRetryFlow  = `SELECT retried, coalesce(next, '') FROM weir.retry_flow($1, nullif($2, ''))`
)

// CreateFlow creates a flow in the caller's transaction, and returns its id. Callbacks are jobs as JSON; "": none.
func CreateFlow(ctx context.Context, q Querier, name, onDone, onSuccess string, deadline time.Time) (id int64, err error) {
	orNull := func(text string) *string {
		if text == "" {
			return nil
		}
		return &text
	}
	var at any
	if !deadline.IsZero() {
		at = deadline
	}
	err = q.QueryRow(ctx, sqlFlow, name, orNull(onDone), orNull(onSuccess), at).Scan(&id)
	return id, err
}

// SealFlow seals a flow; false: it was sealed.
func SealFlow(ctx context.Context, q Querier, id int64) (sealed bool, err error) {
	err = q.QueryRow(ctx, sqlSeal, id).Scan(&sealed)
	return sealed, err
}

// FlowInfo returns a flow; none: it is unknown. The fields of T are the columns, in order.
func FlowInfo[T any](ctx context.Context, s *Store, id int64) ([]T, error) {
	return rows(ctx, s, sqlFlowInfo, []any{id}, pgx.RowToStructByPos[T])
}

// Flows lists flows with smaller ids than after, newest first; 0: the newest.
func Flows[T any](ctx context.Context, s *Store, after int64, limit int) ([]T, error) {
	return rows(ctx, s, sqlFlows, []any{after, limit}, pgx.RowToStructByPos[T])
}

// CancelFlow returns the flow's new state; "": it is unknown.
func CancelFlow(ctx context.Context, q Querier, id int64) (state string, err error) {
	err = q.QueryRow(ctx, sqlCancelFlow, id).Scan(&state)
	return state, err
}

// RetryFlow does one step, and returns how many members it has retried, and what to pass as after for the next step; "": there is none.
func (s *Store) RetryFlow(ctx context.Context, id int64, after string) (retried int64, next string, err error) {
	err = s.row(ctx, sqlRetryFlow, []any{id, after}, &retried, &next)
	return retried, next, err
}

// CallbackJSON returns a job as weir.flow takes it.
func (j Job) CallbackJSON() jobJSON { return j.json() }
