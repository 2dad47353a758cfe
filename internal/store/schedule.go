package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	sqlSetSchedule = `SELECT weir.set_schedule($1, $2, $3, $4, $5::jsonb, nullif($6, ''), nullif($7, ''), $8::float8 * interval '1 second', $9, $10, $11::jsonb, nullif($12, ''))`
	sqlSchedules   = `SELECT name, state, schedule, time_zone, next_at, last_at, last_job, queue, kind, args, priority, max_attempts, meta, missed,
		extract(epoch FROM jitter)::float8, coalesce(error, ''), coalesce(key, '') FROM weir.schedules(name => nullif($1, ''), after => $2, max_rows => $3)`
	sqlDropSchedule   = `SELECT weir.drop_schedule($1)`
	sqlPauseSchedule  = `SELECT weir.pause_schedule($1)`
	sqlResumeSchedule = `SELECT weir.resume_schedule($1)`
	sqlRunSchedule    = `SELECT weir.run_schedule($1)`
	sqlScheduledArgs  = `SELECT (SELECT args::text FROM weir.schedules($1) WHERE kind = $2)`
	sqlNextTimes      = `SELECT weir.next_times($1, nullif($2, ''), $3, $4)`
)

// Schedule is a schedule to declare. Zero fields mean the defaults of weir.set_schedule.
type Schedule struct {
	Name     string
	Schedule string
	TimeZone string
	Missed   string
	Jitter   time.Duration
	Job      Job // without RunAt
}

// SetSchedule declares a schedule, in q's transaction or in one of its own, and returns created, changed or unchanged. It passes only plain scalars, so
// that it works with any driver behind q.
func SetSchedule(ctx context.Context, q Querier, s Schedule) (change string, err error) {
	j := s.Job.withDefaults()
	var meta any
	if j.Meta != nil {
		meta = string(j.Meta)
	}
	err = q.QueryRow(ctx, sqlSetSchedule, s.Name, s.Schedule, j.Queue, j.Kind, string(j.Args), s.TimeZone, s.Missed, s.Jitter.Seconds(), j.Priority, j.MaxAttempts, meta, j.Key).Scan(&change)
	return change, err
}

// ScheduledArgs returns the args of the schedule called name, if its jobs are of this kind; nil: there is none.
func ScheduledArgs(ctx context.Context, q Querier, name, kind string) (args *string, err error) {
	err = q.QueryRow(ctx, sqlScheduledArgs, name, kind).Scan(&args)
	return args, err
}

// Schedules lists schedules by name, up to limit of those after a name, or the one called name.
func Schedules[T any](ctx context.Context, s *Store, name, after string, limit int) ([]T, error) {
	return rows(ctx, s, sqlSchedules, []any{name, after, limit}, pgx.RowToStructByPos[T])
}

// DropSchedule drops a schedule; false: it does not exist.
func (s *Store) DropSchedule(ctx context.Context, name string) (found bool, err error) {
	err = s.row(ctx, sqlDropSchedule, []any{name}, &found)
	return found, err
}

// PauseSchedule pauses a schedule; false: it does not exist.
func (s *Store) PauseSchedule(ctx context.Context, name string) (found bool, err error) {
	err = s.row(ctx, sqlPauseSchedule, []any{name}, &found)
	return found, err
}

// ResumeSchedule resumes a schedule; false: it does not exist.
func (s *Store) ResumeSchedule(ctx context.Context, name string) (found bool, err error) {
	err = s.row(ctx, sqlResumeSchedule, []any{name}, &found)
	return found, err
}

// RunSchedule enqueues a job of a schedule; nil: it does not exist.
func (s *Store) RunSchedule(ctx context.Context, name string) (id *int64, err error) {
	err = s.row(ctx, sqlRunSchedule, []any{name}, &id)
	return id, err
}

// NextTimes returns due times of an expression after a time; nil: now.
func (s *Store) NextTimes(ctx context.Context, schedule, timeZone string, after *time.Time, count int) ([]time.Time, error) {
	return rows(ctx, s, sqlNextTimes, []any{schedule, timeZone, after, count}, pgx.RowTo[time.Time])
}
