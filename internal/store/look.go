package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	jobColumns = `id, state, queue, priority, coalesce(key, ''), coalesce(flow, 0), kind, args, meta, attempt, max_attempts, enqueued_at, run_at, claimed_at, finished_at,
		worker, cancel_requested, output, error, errors, percent, message, log`
	sqlJob     = `SELECT ` + jobColumns + ` FROM weir.job_info($1)`
	sqlJobJSON = `SELECT (SELECT to_jsonb(j)::text FROM weir.job_info($1::bigint) j)`
	sqlGlances = `SELECT j.id, j.queue, j.state, j.attempt, coalesce(j.worker, 0), j.cancel_requested, CASE WHEN $2 THEN j.error END, CASE WHEN $2 THEN j.output END
		FROM unnest($1::bigint[]) i(id) CROSS JOIN LATERAL weir.job_info(i.id) j`
	sqlEnqueued = `SELECT coalesce(json_agg(j ORDER BY j.id), '[]')::text FROM weir.enqueued($1) j`
	sqlJobs     = `SELECT jobs::text, coalesce(next, '') FROM weir.jobs_page($1::text[], nullif($2, ''), $3::text[], $4::text::jsonb, nullif($5, ''), $6, nullif($7, ''), nullif($8::bigint, 0),
		nullif($9, ''), $10::timestamptz, $11::timestamptz, nullif($12, ''), $13::timestamptz, $14::timestamptz)`
	sqlQueues  = `SELECT name, paused_at, available, running, scheduled, approximate, ready_since, claimed, last_claim, workers FROM weir.queues()`
	sqlWorkers = `SELECT id, name, queues, state, started_at, seen_at, running, reason FROM weir.workers()`
	sqlHubs    = `SELECT hub, address, seen_at, tick, behind, subscribers, channels, messages_per_second, deliveries_per_second FROM weir.hubs()`
	sqlHistory = `SELECT at, completed, failed, cancelled, retried, other, waiting, oldest, coalesce(wait_p50, '0'), coalesce(wait_p95, '0'), coalesce(run_p50, '0'), coalesce(run_p95, '0')
		FROM weir.history(nullif($1, ''), $2, $3)`
	sqlStorage  = `SELECT log, coalesce(segment, 0), coalesce(state, ''), since, opened_at, reclaim_at, bytes, index_bytes, coalesce(max_bytes, 0), holders FROM weir.storage()`
	sqlCancel   = `SELECT coalesce(weir.cancel($1::bigint), '')`
	sqlRetry    = `SELECT coalesce(weir.retry($1::bigint), '')`
	sqlDelete   = `SELECT coalesce(weir.delete($1::bigint), '')`
	sqlPause    = `SELECT weir.pause($1)`
	sqlResume   = `SELECT weir.resume($1)`
	sqlSet      = `SELECT weir.set($1, $2)`
	sqlSetQueue = `SELECT weir.set($1, $2, $3)`
	sqlSetRule  = `SELECT weir.set_retry_rule($1, nullif($2, ''), nullif($3, ''), nullif($4, ''), nullif($5, ''), $6, $7, nullif($8, ''))`
	sqlDropRule = `SELECT weir.drop_retry_rule($1)`
	sqlRules    = `SELECT name, action, coalesce(queue, ''), coalesce(kind, ''), coalesce(error, ''), backoff, backoff_limit, coalesce(backoff_form, '') FROM weir.retry_rules()`
	sqlGroups   = `SELECT coalesce(kind, ''), coalesce(shape, ''), jobs, first_at, last_at, coalesce(job_id, 0), coalesce(error, ''), rest FROM weir.failure_groups(nullif($1, ''), nullif($2, ''), $3, $4, $5, nullif($6, ''))`
	sqlSettings = `SELECT coalesce(queue, ''), name, value FROM weir.settings()`
)

// LookUp returns one job. The fields of T are the columns, in order. No row: the job is unknown or deleted.
func LookUp[T any](ctx context.Context, s *Store, id int64) ([]T, error) {
	return rows(ctx, s, sqlJob, []any{id}, pgx.RowToStructByPos[T])
}

// LookUpTx returns one job as JSON, in the caller's transaction; nil: the job is unknown or deleted.
func LookUpTx(ctx context.Context, tx Querier, id int64) (text *string, err error) {
	err = tx.QueryRow(ctx, sqlJobJSON, id).Scan(&text)
	return text, err
}

// LookUpJSON returns one job as JSON; "": the job is unknown or deleted.
func (s *Store) LookUpJSON(ctx context.Context, id int64) (text string, err error) {
	var found *string
	if err = s.row(ctx, sqlJobJSON, []any{id}, &found); found != nil {
		text = *found
	}
	return text, err
}

// Glance is what matters of a job to those who hold an attempt of it.
type Glance struct {
	ID        int64
	Queue     string
	State     string
	Attempt   int32
	Worker    int32 // that has claimed it last; 0: none since it became available
	Cancelled bool
	Error     *string // of the last attempt that has ended
	Output    *string
}

// Glances returns the jobs that are known among ids; with how their last attempts have ended, if texts is true.
func (s *Store) Glances(ctx context.Context, ids []int64, texts bool) ([]Glance, error) {
	return rows(ctx, s, sqlGlances, []any{ids, texts}, pgx.RowToStructByPos[Glance])
}

// EnqueuedTx lists up to limit jobs that the caller's transaction has enqueued, as a JSON array.
func EnqueuedTx(ctx context.Context, tx Querier, limit int) (text string, err error) {
	err = tx.QueryRow(ctx, sqlEnqueued, limit).Scan(&text)
	return text, err
}

// List selects the jobs that Jobs lists. Zero values exclude nothing.
type List struct {
	States []string
	Queue  string
	Kinds  []string
	Meta   []byte // a JSON object
	Key    string
	Flow   int64
	Text   string // part of the args
	After  string // next of the previous page
	Limit  int

	EnqueuedAfter, EnqueuedBefore time.Time

	Shape                         string // of the error
	FinishedAfter, FinishedBefore time.Time
}

// Jobs returns a page of jobs as a JSON array, and the value of After for the next page; "": there are no more.
func (s *Store) Jobs(ctx context.Context, l List) (jobs []byte, next string, err error) {
	var meta *string
	if l.Meta != nil {
		text := string(l.Meta)
		meta = &text
	}
	err = s.row(ctx, sqlJobs, []any{l.States, l.Queue, l.Kinds, meta, l.After, l.Limit, l.Key, l.Flow, l.Text, orNull(l.EnqueuedAfter), orNull(l.EnqueuedBefore),
		l.Shape, orNull(l.FinishedAfter), orNull(l.FinishedBefore)}, &jobs, &next)
	return jobs, next, err
}

// Queues lists all queues.
func Queues[T any](ctx context.Context, s *Store) ([]T, error) {
	return rows(ctx, s, sqlQueues, nil, pgx.RowToStructByPos[T])
}

// History returns what happened in a queue, or in all (""), step by step. Without since and step, the function's own count.
func History[T any](ctx context.Context, s *Store, queue string, since *time.Time, step *time.Duration) ([]T, error) {
	return rows(ctx, s, sqlHistory, []any{queue, since, step}, pgx.RowToStructByPos[T])
}

// Workers lists workers, newest first.
func Workers[T any](ctx context.Context, s *Store) ([]T, error) {
	return rows(ctx, s, sqlWorkers, nil, pgx.RowToStructByPos[T])
}

// Hubs lists hubs by name.
func Hubs[T any](ctx context.Context, s *Store) ([]T, error) {
	return rows(ctx, s, sqlHubs, nil, pgx.RowToStructByPos[T])
}

// Storage lists the segments of each log, then the other tables.
func Storage[T any](ctx context.Context, s *Store) ([]T, error) {
	return rows(ctx, s, sqlStorage, nil, pgx.RowToStructByPos[T])
}

// Settings lists the settings of the database, then those of queues.
func Settings[T any](ctx context.Context, s *Store) ([]T, error) {
	return rows(ctx, s, sqlSettings, nil, pgx.RowToStructByPos[T])
}

// FailureGroup is a row of weir.failure_groups; without Jobs, it only has Rest.
type FailureGroup struct {
	Kind, Shape     string
	Jobs            int64
	FirstAt, LastAt *time.Time
	JobID           int64
	Error           string
	Rest            *time.Time
}

// FailureGroups groups failed jobs. Zero times exclude nothing.
func FailureGroups(ctx context.Context, s *Store, queue, kind, key string, since, before time.Time, limit int) ([]FailureGroup, error) {
	return rows(ctx, s, sqlGroups, []any{queue, kind, orNull(since), orNull(before), limit, key}, pgx.RowToStructByPos[FailureGroup])
}

// orNull is NULL for the zero time.
func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// RetryRules lists the retry rules, in the order in which they are tried.
func RetryRules[T any](ctx context.Context, s *Store) ([]T, error) {
	return rows(ctx, s, sqlRules, nil, pgx.RowToStructByPos[T])
}

// SetRetryRule creates or replaces a retry rule.
func (s *Store) SetRetryRule(ctx context.Context, name, action, queue, kind, errorLike string, backoff, limit *time.Duration, form string) error {
	return s.exec(ctx, sqlSetRule, name, action, queue, kind, errorLike, backoff, limit, form)
}

// DropRetryRule drops a retry rule; false: there is none of that name.
func (s *Store) DropRetryRule(ctx context.Context, name string) (found bool, err error) {
	err = s.row(ctx, sqlDropRule, []any{name}, &found)
	return found, err
}

// Cancel returns cancelled, requested, the job's final state, or "" if it is unknown.
func (s *Store) Cancel(ctx context.Context, id int64) (answer string, err error) {
	err = s.row(ctx, sqlCancel, []any{id}, &answer)
	return answer, err
}

// CancelTx is Cancel in the caller's transaction.
func CancelTx(ctx context.Context, tx Querier, id int64) (answer string, err error) {
	err = tx.QueryRow(ctx, sqlCancel, id).Scan(&answer)
	return answer, err
}

// Retry returns the job's new state, or "" if it is unknown.
func (s *Store) Retry(ctx context.Context, id int64) (state string, err error) {
	err = s.row(ctx, sqlRetry, []any{id}, &state)
	return state, err
}

// RetryTx is Retry in the caller's transaction.
func RetryTx(ctx context.Context, tx Querier, id int64) (state string, err error) {
	err = tx.QueryRow(ctx, sqlRetry, id).Scan(&state)
	return state, err
}

// Delete deletes a failed job, and returns "deleted"; otherwise the job's state, or "" if it is unknown.
func (s *Store) Delete(ctx context.Context, id int64) (state string, err error) {
	err = s.row(ctx, sqlDelete, []any{id}, &state)
	return state, err
}

// Pause stops claims from a queue; false: the queue does not exist.
func (s *Store) Pause(ctx context.Context, queue string) (found bool, err error) {
	err = s.row(ctx, sqlPause, []any{queue}, &found)
	return found, err
}

// Resume undoes Pause.
func (s *Store) Resume(ctx context.Context, queue string) (found bool, err error) {
	err = s.row(ctx, sqlResume, []any{queue}, &found)
	return found, err
}

// Set changes a setting of the database.
func (s *Store) Set(ctx context.Context, name, value string) error {
	return s.exec(ctx, sqlSet, name, value)
}

// SetQueue changes a setting of a queue, which is created if the name is new.
func (s *Store) SetQueue(ctx context.Context, queue, name, value string) error {
	var known bool
	return s.row(ctx, sqlSetQueue, []any{queue, name, value}, &known)
}
