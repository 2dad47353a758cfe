package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"
)

// State of a job.
type State string

// JobInfo is one job as its newest attempt stands: weir.job_look.
type JobInfo struct {
	ID              int64           `json:"id"`
	State           State           `json:"state"`
	Queue           string          `json:"queue"`
	Priority        int             `json:"priority"`
	Kind            string          `json:"kind"`
	Args            json.RawMessage `json:"args"`
	Meta            json.RawMessage `json:"meta,omitempty"`
	Attempt         int             `json:"attempt"`
	MaxAttempts     int             `json:"max_attempts"`
	EnqueuedAt      time.Time       `json:"enqueued_at"`
	RunAt           *time.Time      `json:"run_at,omitempty"`
	ClaimedAt       *time.Time      `json:"claimed_at,omitempty"`
	FinishedAt      *time.Time      `json:"finished_at,omitempty"`
	Worker          *int32          `json:"worker,omitempty"`
	CancelRequested bool            `json:"cancel_requested,omitempty"`
	Output          *string         `json:"output,omitempty"`
	Error           *string         `json:"error,omitempty"`
	Errors          []AttemptError  `json:"errors,omitempty"`
}

// AttemptError is why one attempt of a job did not complete.
type AttemptError struct {
	Attempt int       `json:"attempt"`
	At      time.Time `json:"at"`
	Outcome Outcome   `json:"outcome"`
	Error   string    `json:"error"`
}

// QueueInfo is one queue: weir.queues.
type QueueInfo struct {
	Name      string     `json:"name"`
	PausedAt  *time.Time `json:"paused_at,omitempty"`
	Available int64      `json:"available"` // at most 10,000 of each priority are counted
	Claimed   int64      `json:"claimed"`   // ever handed out
	LastClaim *time.Time `json:"last_claim,omitempty"`
	Workers   int64      `json:"workers"`
}

// WorkerInfo is one worker: weir.workers.
type WorkerInfo struct {
	ID        int32     `json:"id"`
	Name      string    `json:"name"`
	Queues    []string  `json:"queues"`
	State     string    `json:"state"` // alive, silent, ended
	StartedAt time.Time `json:"started_at"`
	SeenAt    time.Time `json:"seen_at"`
	Running   int       `json:"running"`
	Reason    *string   `json:"reason,omitempty"` // why it ended
}

// HubInfo is one hub: weir.hubs.
type HubInfo struct {
	Name        string    `json:"name"`
	Address     string    `json:"address"`
	SeenAt      time.Time `json:"seen_at"`
	Tick        int64     `json:"tick"`   // the newest it has dispatched
	Behind      int64     `json:"behind"` // ticks that it had not
	Subscribers int       `json:"subscribers"`
}

const (
	jobColumns = `id, state, queue, priority, kind, args, meta, attempt, max_attempts, enqueued_at, run_at, claimed_at, finished_at,
		worker, cancel_requested, output, error, errors`
	sqlJob     = `SELECT ` + jobColumns + ` FROM weir.job_info($1)`
	sqlJobs    = `SELECT ` + jobColumns + ` FROM weir.jobs($1, $2, $3)`
	sqlQueues  = `SELECT name, paused_at, available, claimed, last_claim, workers FROM weir.queues()`
	sqlWorkers = `SELECT id, name, queues, state, started_at, seen_at, running, reason FROM weir.workers()`
	sqlHubs    = `SELECT hub, address, seen_at, tick, behind, subscribers FROM weir.hubs()`
	sqlCancel  = `SELECT coalesce(weir.cancel($1), '')`
	sqlRetry   = `SELECT coalesce(weir.retry($1), '')`
	sqlPause   = `SELECT weir.pause($1)`
	sqlResume  = `SELECT weir.resume($1)`
	sqlSet     = `SELECT weir.set($1, $2)`
)

// Job looks one job up; nil if it is unknown or gone.
func (s *Store) Job(ctx context.Context, id int64) (*JobInfo, error) {
	found, err := rows(ctx, s, sqlJob, []any{id}, pgx.RowToStructByPos[JobInfo])
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], nil
}

// Jobs lists at most so many jobs in a state, of one queue or, with "", of all.
func (s *Store) Jobs(ctx context.Context, state State, queue string, most int) ([]JobInfo, error) {
	var name *string
	if queue != "" {
		name = &queue
	}
	return rows(ctx, s, sqlJobs, []any{string(state), name, most}, pgx.RowToStructByPos[JobInfo])
}

// Queues lists all queues.
func (s *Store) Queues(ctx context.Context) ([]QueueInfo, error) {
	return rows(ctx, s, sqlQueues, nil, pgx.RowToStructByPos[QueueInfo])
}

// Workers lists workers, newest first.
func (s *Store) Workers(ctx context.Context) ([]WorkerInfo, error) {
	return rows(ctx, s, sqlWorkers, nil, pgx.RowToStructByPos[WorkerInfo])
}

// Hubs lists hubs by name.
func (s *Store) Hubs(ctx context.Context) ([]HubInfo, error) {
	return rows(ctx, s, sqlHubs, nil, pgx.RowToStructByPos[HubInfo])
}

// Cancel returns cancelled, requested, the job's final state, or "" if it is unknown.
func (s *Store) Cancel(ctx context.Context, id int64) (answer string, err error) {
	err = s.row(ctx, sqlCancel, []any{id}, &answer)
	return answer, err
}

// Retry returns the job's state after it, or "" if it is unknown.
func (s *Store) Retry(ctx context.Context, id int64) (state State, err error) {
	err = s.row(ctx, sqlRetry, []any{id}, &state)
	return state, err
}

// Pause stops claims from a queue; false if there is none of that name.
func (s *Store) Pause(ctx context.Context, queue string) (found bool, err error) {
	err = s.row(ctx, sqlPause, []any{queue}, &found)
	return found, err
}

// Resume undoes Pause.
func (s *Store) Resume(ctx context.Context, queue string) (found bool, err error) {
	err = s.row(ctx, sqlResume, []any{queue}, &found)
	return found, err
}

// Set changes a setting.
func (s *Store) Set(ctx context.Context, name, value string) error {
	return s.exec(ctx, sqlSet, name, value)
}
