package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	sqlBeginOperation = `SELECT weir.begin_operation($1, $2::text::jsonb, nullif($3, ''), nullif($4, ''), $5::integer)`
	sqlStopOperation  = `SELECT coalesce(weir.stop_operation($1::bigint, nullif($2, '')), '')`
	sqlOperations     = `SELECT id, what, filter, coalesce(to_queue, ''), coalesce(to_priority, 0), began_at, began_by, state, changed, changed_at, coalesce(error, ''), coalesce(stopped_by, '')
		FROM weir.operations(nullif($1::bigint, 0), $2)`
	sqlStepOperations = `SELECT coalesce(operation, 0), coalesce(changed, 0), coalesce(state, ''), is_open FROM weir._step_operations()`
)

// conditions is the filter as weir.begin_operation takes it.
func (w Where) conditions() (string, error) {
	meta := json.RawMessage(nil)
	if w.Meta != nil {
		meta = json.RawMessage(*w.Meta)
	}
	text, err := json.Marshal(struct {
		Queue          string          `json:"queue,omitempty"`
		Kinds          []string        `json:"kinds,omitempty"`
		Meta           json.RawMessage `json:"meta,omitempty"`
		Priority       *int            `json:"priority,omitempty"`
		EnqueuedAfter  *time.Time      `json:"enqueued_after,omitempty"`
		EnqueuedBefore *time.Time      `json:"enqueued_before,omitempty"`
		Key            string          `json:"key,omitempty"`
		Error          string          `json:"error,omitempty"`
		Shape          string          `json:"shape,omitempty"`
		FinishedAfter  *time.Time      `json:"finished_after,omitempty"`
		FinishedBefore *time.Time      `json:"finished_before,omitempty"`
		States         []string        `json:"states,omitempty"`
	}{w.Queue, w.Kinds, meta, w.Priority, w.EnqueuedAfter, w.EnqueuedBefore, w.Key, w.Error, w.Shape, w.FinishedAfter, w.FinishedBefore, w.States})
	return string(text), err
}

// BeginOperation returns the number of the operation; nil: the queue does not exist.
func (s *Store) BeginOperation(ctx context.Context, what string, w Where, by, toQueue string, toPriority *int) (id *int64, err error) {
	filter, err := w.conditions()
	if err == nil {
		err = s.row(ctx, sqlBeginOperation, []any{what, filter, by, toQueue, toPriority}, &id)
	}
	return id, err
}

// StopOperation returns the state of the operation, or "" if its number is unknown.
func (s *Store) StopOperation(ctx context.Context, id int64, by string) (state string, err error) {
	err = s.row(ctx, sqlStopOperation, []any{id, by}, &state)
	return state, err
}

// Operations lists operations, newest first, up to limit of those before a number; 0: from the newest one on. The fields of T are the columns, in order.
func Operations[T any](ctx context.Context, s *Store, before int64, limit int) ([]T, error) {
	return rows(ctx, s, sqlOperations, []any{before, limit}, pgx.RowToStructByPos[T])
}

// OperationStep is a step of an operation.
type OperationStep struct {
	Operation int64 // 0: there was nothing to do
	Changed   int64 // jobs
	State     string
	Open      bool // some operation has not ended
}

// StepOperations does a step of an operation that has not ended.
func (s *Store) StepOperations(ctx context.Context) (did OperationStep, err error) {
	err = s.row(ctx, sqlStepOperations, nil, &did.Operation, &did.Changed, &did.State, &did.Open)
	return did, err
}
