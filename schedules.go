package weir

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/weir-pg/weir/internal/sealed"
	"github.com/weir-pg/weir/internal/store"
)

// Missed says what a schedule does about due times that nobody fired for more than a minute, because no worker ran. Those of the last minute are fired
// one by one in any case.
type Missed string

const (
	MissedOne  Missed = "one"  // enqueues one job for all of them, with the newest of these due times
	MissedAll  Missed = "all"  // enqueues a job for each
	MissedNone Missed = "none" // passes over them
)

// Schedule enqueues a job again and again: exactly one for each due time of an expression.
type Schedule struct {
	Name string // 1 to 128 characters
	// Schedule is a cron expression of five fields (minute, hour, day, month, weekday), of six with the second first, @hourly and the like, or an
	// interval: "every 90 seconds", "every 2 weeks from 2026-01-05 09:00". See docs/schedules.md, also for what happens when clocks change.
	Schedule string
	TimeZone string        // whose clock counts, as PostgreSQL names it: "Europe/Berlin"; default "UTC"
	Missed   Missed        // default MissedOne
	Jitter   time.Duration // each job is enqueued up to this much later, at random; at most a day
	Args     Args          // of the jobs
	Options  *Options      // of the jobs; without RunAt, Unique, Flow and Once: each due time has exactly one job, and doesn't wait for the last one to end
}

// ScheduleInfo describes a schedule.
type ScheduleInfo struct {
	Name        string          `json:"name"`
	State       string          `json:"state"` // active or paused
	Schedule    string          `json:"schedule"`
	TimeZone    string          `json:"time_zone"`
	NextAt      *time.Time      `json:"next_at,omitempty"`  // the first due time that has not been fired, without its jitter; nil: it is paused
	LastAt      *time.Time      `json:"last_at,omitempty"`  // the last due time that was fired, or was missed and passed over
	LastJob     *int64          `json:"last_job,omitempty"` // the last job that a due time has enqueued
	Queue       string          `json:"queue"`
	Kind        string          `json:"kind"`
	Args        json.RawMessage `json:"args"` // {"encrypted": "id of the key"} if they are
	Priority    int             `json:"priority"`
	MaxAttempts int             `json:"max_attempts"`
	Meta        json.RawMessage `json:"meta,omitempty"`
	Missed      Missed          `json:"missed"`
	Jitter      float64         `json:"jitter,omitempty"` // in seconds
	Error       string          `json:"error,omitempty"`  // why it can't be fired: PostgreSQL does not know its time zone any more
	Key         string          `json:"key,omitempty"`    // of the jobs
}

// SetSchedule declares a schedule, and reports whether that changed anything. Declaring the same again writes nothing, so every process of a fleet can
// declare its schedules when it starts. A changed one continues with its new definition; a paused one stays paused. It needs the role weir_operate.
func (c *Client) SetSchedule(ctx context.Context, s Schedule) (changed bool, err error) {
	err = c.store.Direct(ctx, func(q store.Querier) error {
		changed, err = c.codecs.setSchedule(ctx, q, s)
		return err
	})
	return changed, err
}

// SetScheduleTx is SetSchedule in your transaction, which must be READ COMMITTED: it takes effect when you commit.
func (c *Client) SetScheduleTx(ctx context.Context, tx Tx, s Schedule) (changed bool, err error) {
	if tx == nil {
		return false, errNoTx
	}
	return c.codecs.setSchedule(ctx, tx, s)
}

func (c codecs) setSchedule(ctx context.Context, tx Tx, s Schedule) (changed bool, err error) {
	what := fmt.Sprintf("set schedule %q", s.Name)
	given := NewJob{Args: s.Args, Options: s.Options, plain: true}
	if once := given.options().Once; once != "" {
		return false, fmt.Errorf("weir: %s: its options, or the defaults of its kind, have Once %q: each due time has a job, and is no member of a flow", what, once)
	}
	job, err := given.encode(ctx, codecs{})
	if err == nil && !job.RunAt.IsZero() {
		err = errors.New("its options have a RunAt: the schedule says when its jobs run")
	} else if err == nil && job.Unique != nil {
		err = fmt.Errorf("its options, or the defaults of kind %s, have Unique: each due time has a job, whatever other jobs there are", job.Kind)
	} else if err == nil && job.Flow != 0 {
		err = fmt.Errorf("its options, or the defaults of kind %s, have Flow %d: jobs of schedules are members of no flow; let them create one", job.Kind, job.Flow)
	}
	if err == nil && c.of(job.Kind) != nil {
		job.Args, err = c.encodeScheduled(ctx, tx, s.Name, job)
	}
	if err == nil {
		err = checkArgs(job)
	}
	if err != nil {
		return false, wrap(what, err, "weir_operate")
	}
	change, err := store.SetSchedule(ctx, tx, store.Schedule{Name: s.Name, Schedule: s.Schedule, TimeZone: s.TimeZone, Missed: string(s.Missed), Jitter: s.Jitter, Job: job})
	return change != "unchanged" && err == nil, wrap(what, err, "weir_operate")
}

// encodeScheduled encrypts the args of a schedule's jobs. If the schedule already has the same, encrypted with the same key, it returns what is stored:
// they would be encrypted differently each time, and declaring the same again must change nothing.
func (c codecs) encodeScheduled(ctx context.Context, tx Tx, name string, job store.Job) ([]byte, error) {
	stored, err := store.ScheduledArgs(ctx, tx, name, job.Kind)
	if err != nil {
		return nil, err
	}
	encoded, err := c.encodeArgs(ctx, job.Kind, job.Args)
	if err != nil || stored == nil || keyOf([]byte(*stored)) != keyOf(encoded) {
		return encoded, err
	}
	if plain, err := c.decode(ctx, sealed.Args, 0, job.Kind, []byte(*stored)); err == nil && bytes.Equal(plain, job.Args) {
		return []byte(*stored), nil
	}
	return encoded, nil
}

// DropSchedule drops a schedule: it enqueues no more jobs. It returns ErrNotFound if the schedule does not exist.
func (c *Client) DropSchedule(ctx context.Context, name string) error {
	found, err := c.store.DropSchedule(ctx, name)
	return wrap("drop schedule", orNotFound(found, err, "schedule", name), "weir_operate")
}

// PauseSchedule pauses a schedule: it enqueues no more jobs until it is resumed, even if it is declared again. It returns ErrNotFound if the schedule
// does not exist.
func (c *Client) PauseSchedule(ctx context.Context, name string) error {
	found, err := c.store.PauseSchedule(ctx, name)
	return wrap("pause schedule", orNotFound(found, err, "schedule", name), "weir_operate")
}

// ResumeSchedule undoes PauseSchedule. What was due in between is not fired. It returns ErrNotFound if the schedule does not exist.
func (c *Client) ResumeSchedule(ctx context.Context, name string) error {
	found, err := c.store.ResumeSchedule(ctx, name)
	return wrap("resume schedule", orNotFound(found, err, "schedule", name), "weir_operate")
}

// RunSchedule enqueues a job of a schedule now, even if the schedule is paused; its due times stay as they are. It returns ErrNotFound if the schedule
// does not exist.
func (c *Client) RunSchedule(ctx context.Context, name string) (Enqueued, error) {
	id, err := c.store.RunSchedule(ctx, name)
	if err = wrap("run schedule", orNotFound(id != nil, err, "schedule", name), "weir_operate"); err != nil {
		return Enqueued{}, err
	}
	return Enqueued{ID: *id}, nil
}

// Schedules lists all schedules by name.
func (c *Client) Schedules(ctx context.Context) (all []ScheduleInfo, err error) {
	const page = 1000
	for after := ""; ; after = all[len(all)-1].Name {
		some, err := store.Schedules[ScheduleInfo](ctx, c.store, "", after, page)
		if err != nil {
			return nil, wrap("list schedules", err, "weir_operate")
		}
		for i := range some {
			some[i].Args = shownArgs(some[i].Args)
		}
		if all = append(all, some...); len(some) < page {
			return all, nil
		}
	}
}

// Schedule describes a schedule. It returns ErrNotFound if the schedule does not exist.
func (c *Client) Schedule(ctx context.Context, name string) (*ScheduleInfo, error) {
	some, err := store.Schedules[ScheduleInfo](ctx, c.store, name, "", 1)
	if err = wrap("show schedule", orNotFound(name != "" && len(some) > 0, err, "schedule", name), "weir_operate"); err != nil {
		return nil, err
	}
	some[0].Args = shownArgs(some[0].Args)
	return &some[0], nil
}

// NextTimes returns the next due times of an expression after a time, up to 10,000 of them, to try it. The zero time means now; timeZone is as in
// Schedule.
func (c *Client) NextTimes(ctx context.Context, schedule, timeZone string, after time.Time, count int) ([]time.Time, error) {
	var from *time.Time
	if !after.IsZero() {
		from = &after
	}
	times, err := c.store.NextTimes(ctx, schedule, timeZone, from, count)
	return times, wrap("next times", err, "weir_operate")
}

// Due returns the schedule that has enqueued the job, and the due time for which it did, or the time at which it was run by hand. Both are zero if the
// job is not of a schedule. Use the due time to tell what to work on: the job may start later, and be tried again.
func (j *JobMeta) Due() (schedule string, due time.Time) {
	var meta struct {
		Schedule string    `json:"schedule"`
		Due      time.Time `json:"due"`
	}
	if json.Unmarshal(j.Meta, &meta) != nil {
		return "", time.Time{}
	}
	return meta.Schedule, meta.Due
}
