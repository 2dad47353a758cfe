package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	sqlFlow     = `SELECT weir.flow($1, $2::text::jsonb, $3::text::jsonb, $4::timestamptz, nullif($5::bigint, 0), $6::boolean)`
	sqlSeal     = `SELECT weir.seal($1::bigint)`
	flowColumns = `id, name, state, generation, jobs, unfinished, completed, failed, cancelled, created_at, deadline, finished_at,
		coalesce(parent, 0), is_task, coalesce(job, 0), fail_fast, counters,
		CASE WHEN on_done IS NOT NULL THEN jsonb_build_object('queue', on_done->>'queue', 'kind', on_done->>'kind') END,
		CASE WHEN on_success IS NOT NULL THEN jsonb_build_object('queue', on_success->>'queue', 'kind', on_success->>'kind') END`
	sqlFlowInfo   = `SELECT ` + flowColumns + ` FROM weir.flow_info($1)`
	sqlRunning    = `SELECT weir.flow_running($1)`
	sqlFlows      = `SELECT ` + flowColumns + ` FROM weir.flows(nullif($1::bigint, 0), $2::int, nullif($3::bigint, 0))`
	sqlCancelFlow = `SELECT coalesce(weir.cancel_flow($1::bigint), '')`
	sqlAddTasks   = `SELECT array_to_json(weir.add_tasks($1::bigint, $2::text::jsonb))::text`
	sqlTasks      = `SELECT id, name, state, coalesce(job, 0), queue, kind, after_tasks, waits_for, ignore_failed, generation, jobs, unfinished FROM weir.tasks($1, nullif($2::bigint, 0), $3::int)`
	sqlIncrement  = `SELECT weir.increment($1::bigint, $2, $3::bigint)::text`
	sqlOutputs    = `SELECT no, job, coalesce(task_name, ''), coalesce(kind, ''), output FROM weir.flow_outputs($1, nullif($2, ''), $3::bigint, $4::int)`
	sqlRetryFlow  = `SELECT retried, coalesce(next, '') FROM weir.retry_flow($1, nullif($2, ''))`
)

// CreateFlow creates a flow in the caller's transaction, and returns its id. Callbacks are jobs as JSON; "": none.
func CreateFlow(ctx context.Context, q Querier, name, onDone, onSuccess string, deadline time.Time, parent int64, failFast bool) (id int64, err error) {
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
	err = q.QueryRow(ctx, sqlFlow, name, orNull(onDone), orNull(onSuccess), at, parent, failFast).Scan(&id)
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

// Flows lists flows within parent (0: within none) with smaller ids than after, newest first; 0: the newest.
func Flows[T any](ctx context.Context, s *Store, parent, after int64, limit int) ([]T, error) {
	return rows(ctx, s, sqlFlows, []any{after, limit, parent}, pgx.RowToStructByPos[T])
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

// Task is a task of a flow to be added.
type Task struct {
	Name         string   `json:"task"`
	After        []string `json:"after,omitempty"`
	IgnoreFailed bool     `json:"ignore_failed,omitempty"`
	jobJSON
}

// NewTask returns a task with its job.
func NewTask(name string, after []string, ignoreFailed bool, j Job) Task {
	return Task{name, after, ignoreFailed, j.json()}
}

// AddTasks adds tasks to a flow in the caller's transaction, and returns their ids. It passes them as JSON, and gets JSON, for any driver behind q.
func AddTasks(ctx context.Context, q Querier, flow int64, tasks []Task) (ids []int64, err error) {
	text, err := json.Marshal(tasks)
	if err != nil {
		return nil, err
	}
	var answer string
	if err := q.QueryRow(ctx, sqlAddTasks, flow, string(text)).Scan(&answer); err != nil {
		return nil, err
	}
	return ids, json.Unmarshal([]byte(answer), &ids)
}

// Tasks lists tasks of a flow with greater ids than after. The fields of T are the columns, in order.
func Tasks[T any](ctx context.Context, s *Store, flow, after int64, limit int) ([]T, error) {
	return rows(ctx, s, sqlTasks, []any{flow, after, limit}, pgx.RowToStructByPos[T])
}

// Increment adds to a counter of a flow in the caller's transaction.
func Increment(ctx context.Context, q Querier, flow int64, counter string, n int64) error {
	var text string
	return q.QueryRow(ctx, sqlIncrement, flow, counter, n).Scan(&text)
}

// FlowOutputs returns up to limit outputs of a flow's members with greater numbers than after; of one task, if it is not "".
func FlowOutputs[T any](ctx context.Context, s *Store, flow int64, task string, after int64, limit int) ([]T, error) {
	return rows(ctx, s, sqlOutputs, []any{flow, task, after, limit}, pgx.RowToStructByPos[T])
}

// FlowRunning returns how many jobs of a flow, and of what is within it, are running.
func (s *Store) FlowRunning(ctx context.Context, flow int64) (n int64, err error) {
	err = s.row(ctx, sqlRunning, []any{flow}, &n)
	return n, err
}
