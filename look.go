package weir

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/weir-pg/weir/internal/store"
)

// State is the state of a job.
type State string

const (
	StateAvailable State = "available" // may be claimed
	StateRunning   State = "running"   // claimed by a worker
	StateScheduled State = "scheduled" // waits for its RunAt, or for its next attempt
	StateCompleted State = "completed" // final
	StateFailed    State = "failed"    // final: its attempts are used up, or the handler returned Fail
	StateCancelled State = "cancelled" // final
)

// States lists all states.
var States = []State{StateAvailable, StateRunning, StateScheduled, StateCompleted, StateFailed, StateCancelled}

// Outcome is how an attempt ended.
type Outcome string

const (
	OutcomeCompleted Outcome = "completed"
	OutcomeFailed    Outcome = "failed"    // for good
	OutcomeCancelled Outcome = "cancelled" // for good
	OutcomeRetried   Outcome = "retried"   // failed, and another attempt follows
	OutcomeSnoozed   Outcome = "snoozed"   // postponed by the handler
	OutcomeReleased  Outcome = "released"  // released by its worker, which stopped or had no handler
	OutcomeLost      Outcome = "lost"      // its worker was lost
)

// JobInfo describes a job, as of its latest attempt.
type JobInfo struct {
	ID              int64           `json:"id"`
	State           State           `json:"state"`
	Queue           string          `json:"queue"`
	Priority        int             `json:"priority"`
	Key             string          `json:"key,omitempty"`  // "": the job has none
	Flow            int64           `json:"flow,omitempty"` // 0: it is a member of none
	Kind            string          `json:"kind"`
	Args            json.RawMessage `json:"args"`
	Meta            json.RawMessage `json:"meta,omitempty"` // nil: the job has none
	Attempt         int             `json:"attempt"`        // from 1
	MaxAttempts     int             `json:"max_attempts"`
	EnqueuedAt      time.Time       `json:"enqueued_at"`
	RunAt           *time.Time      `json:"run_at,omitempty"`           // only in StateScheduled
	ClaimedAt       *time.Time      `json:"claimed_at,omitempty"`       // when the latest attempt was claimed
	FinishedAt      *time.Time      `json:"finished_at,omitempty"`      // when the job reached a final state
	Worker          *int32          `json:"worker,omitempty"`           // the worker of the latest attempt
	CancelRequested bool            `json:"cancel_requested,omitempty"` // Client.CancelJob was called
	Output          *string         `json:"output,omitempty"`           // the text passed to JobMeta.SetOutput
	Error           *string         `json:"error,omitempty"`            // of the latest attempt that did not complete
	Errors          []AttemptError  `json:"errors,omitempty"`           // of the last attempts, oldest first: up to 25 from Client.Job, one in a list
	Percent         *float64        `json:"percent,omitempty"`          // as passed to JobMeta.SetProgress, 0 to 100; nil: no attempt has
	Message         *string         `json:"message,omitempty"`          // as passed to JobMeta.SetProgress
	Log             []LogLine       `json:"log,omitempty"`              // the last 1,000 lines of its attempts' logs, oldest first; only from Client.Job

	// Encrypted is the id of the key that Args are encrypted with; "": they are not. Args are {"encrypted": id} then. An output or an error
	// that is encrypted is replaced as well, by a text that names the key. Client.Decrypt decrypts all of them.
	Encrypted string `json:"encrypted,omitempty" db:"-"`

	stored *JobInfo // as it is in the database, if something was hidden
}

// AttemptError describes an attempt that did not complete.
type AttemptError struct {
	Attempt int       `json:"attempt"`
	At      time.Time `json:"at"`
	Outcome Outcome   `json:"outcome"`
	Error   string    `json:"error"`
}

// QueueInfo describes a queue. A cancelled job is still counted until a worker reaches it or its time comes. Counts are exact up to about
// 10,000 jobs; above that, Approximate is set, and counts may be off by some percent. It is also set, and Running may be too low, if a worker of the
// queue has claimed so many batches lately that only the newest are read.
type QueueInfo struct {
	Name        string     `json:"name"`
	PausedAt    *time.Time `json:"paused_at,omitempty"`   // nil: not paused
	Available   int64      `json:"available"`             // jobs that may be claimed
	Running     int64      `json:"running"`               // jobs that are claimed and have not finished
	Scheduled   int64      `json:"scheduled"`             // jobs that wait for their RunAt or their next attempt
	Approximate bool       `json:"approximate"`           // Available, Running or Scheduled is an estimate
	ReadySince  *time.Time `json:"ready_since,omitempty"` // when the job that has waited longest became available; nil: none is available
	Claimed     int64      `json:"claimed"`               // attempts claimed since the queue was created
	LastClaim   *time.Time `json:"last_claim,omitempty"`
	Workers     int64      `json:"workers"` // workers that are alive and work the queue; none that is silent for longer than its lease
}

// WorkerInfo describes a worker.
type WorkerInfo struct {
	ID        int32     `json:"id"`
	Name      string    `json:"name"`
	Queues    []string  `json:"queues"`
	State     string    `json:"state"` // alive, silent, ended
	StartedAt time.Time `json:"started_at"`
	SeenAt    time.Time `json:"seen_at"`          // when it was last known to be alive
	Running   int       `json:"running"`          // attempts it was running at its last heartbeat
	Reason    *string   `json:"reason,omitempty"` // why it ended
}

// HubInfo describes a hub.
type HubInfo struct {
	Name        string    `json:"name"`
	Address     string    `json:"address"`
	SeenAt      time.Time `json:"seen_at"`
	Tick        int64     `json:"tick"`   // the newest tick that the hub has dispatched
	Behind      int64     `json:"behind"` // number of newer ticks in the log
	Subscribers int       `json:"subscribers"`

	Channels            int     `json:"channels"`              // with subscribers; patterns are not counted
	MessagesPerSecond   float64 `json:"messages_per_second"`   // that the hub has read or received, each counted once, in the seconds before SeenAt
	DeliveriesPerSecond float64 `json:"deliveries_per_second"` // to its subscribers
}

// SegmentState is the state of a segment.
type SegmentState string

const (
	SegmentActive SegmentState = "active" // new rows go there
	SegmentClosed SegmentState = "closed" // kept until its ReclaimAt, at least
	SegmentFree   SegmentState = "free"   // emptied, or never used
)

// StorageInfo describes what a segment of one of Weir's logs takes on disk; or, without a Segment, what other tables do.
type StorageInfo struct {
	Log        string       `json:"log"`               // job, later (scheduled jobs), failure, report or message; flow or control, which have no segments
	Segment    int          `json:"segment,omitempty"` // 1 to 4; 0: these tables have none, and only Bytes and IndexBytes are set
	State      SegmentState `json:"state,omitempty"`
	Since      *time.Time   `json:"since,omitempty"`      // when it came to be so; nil: it was never used
	OpenedAt   *time.Time   `json:"opened_at,omitempty"`  // when its oldest rows came, apart from those that were carried into it
	ReclaimAt  *time.Time   `json:"reclaim_at,omitempty"` // until when it is kept; nil: it is not closed, or waits until its scheduled jobs are due
	Bytes      int64        `json:"bytes"`                // with indexes and TOAST
	IndexBytes int64        `json:"index_bytes"`
	MaxBytes   int64        `json:"max_bytes,omitempty"` // from this size on, the next segment is opened, if one is free
	Holders    []int32      `json:"holders,omitempty"`   // pids of transactions that keep it from being reclaimed; 0: a prepared one
}

// Setting is a setting of the database or of a queue.
type Setting struct {
	Queue string `json:"queue,omitempty"` // "": a setting of the database
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Job returns a job. It returns ErrNotFound if the id is unknown, or the job's retention is over.
func (c *Client) Job(ctx context.Context, id int64) (*JobInfo, error) {
	found, err := store.LookUp[JobInfo](ctx, c.store, id)
	if err == nil && len(found) == 0 {
		err = notFound("job", id)
	}
	if err != nil {
		return nil, wrap("look up job", err, "weir_work")
	}
	found[0].tidy()
	return &found[0], nil
}

// JobTx returns a job, in your transaction, which sees the jobs that it has enqueued itself. It returns ErrNotFound as Job does.
func (c *Client) JobTx(ctx context.Context, tx Tx, id int64) (*JobInfo, error) {
	text, err := store.LookUpTx(ctx, tx, id)
	if err == nil && text == nil {
		err = notFound("job", id)
	}
	var info JobInfo
	if err == nil {
		err = json.Unmarshal([]byte(*text), &info)
	}
	if err != nil {
		return nil, wrap("look up job", err, "weir_work")
	}
	info.tidy()
	return &info, nil
}

// JobsParams selects the jobs to list. The zero value lists all jobs.
type JobsParams struct {
	States []State  // listed one after the other, in this order; none: all, in the order of the variable States
	Queue  string   // "": all queues. A queue that does not exist has no jobs, and is no error
	Kinds  []string // up to 1,000; none: all kinds
	Meta   any      // only jobs whose meta contains this, any value that encodes to a JSON object; nil: all jobs
	Key    string   // "": all keys, and jobs without one. Of one Queue, only the key's own jobs are read
	Flow   int64    // only jobs of this flow, and of the tasks and flows within it; 0: all jobs
	Text   string   // only jobs whose args contain this text, up to 1,000 characters, A to Z and a to z alike; "": all jobs. See Jobs
	After  string   // JobsPage.Next of the previous page; "": the first page
	Limit  int      // maximum jobs on a page, 1 to 1,000; 0: 100

	EnqueuedAfter  time.Time // only jobs enqueued then or later; zero: all jobs
	EnqueuedBefore time.Time // only jobs enqueued before; zero: all jobs

	Shape          string    // only jobs whose error has this shape, as FailureGroup.Shape; States must be StateFailed alone. "": all jobs
	FinishedAfter  time.Time // only jobs that ended then or later; zero: all jobs
	FinishedBefore time.Time // only jobs that ended before; zero: all jobs
}

// JobsPage is one page of a list of jobs.
type JobsPage struct {
	Jobs []JobInfo `json:"jobs"`
	Next string    `json:"next,omitempty"` // pass it as JobsParams.After to get the next page; "": this is the last page
}

// Jobs lists jobs, one page at a time: available jobs in the order in which they will be claimed, scheduled jobs by RunAt, the others newest
// first (completed jobs approximately, in the order in which they were recorded). A job that stays in its state while you read the pages is
// on exactly one of them, whatever jobs come and go; but a cancelled one may be on two, if the record of its cancellation is tidied away in
// between. A job that enters a state during that time may be on no page. Failed jobs are listed while their copies are kept, which is less than
// failed_retention if they need more than a quarter of retention_bytes.
//
// Text is compared with the args as PostgreSQL writes them: {"path": "a.txt", "size": 3}, with a space behind each colon and comma, fields in an order of
// their own, and quotes within texts as \". Encrypted args match no text.
//
// Jobs examines a limited number of jobs for each page. If Kinds, Meta, Key, Flow, Text, Shape or the times match few of them, a page may hold fewer jobs than Limit, even
// none, and still have a Next: continue until Next is "".
func (c *Client) Jobs(ctx context.Context, p JobsParams) (*JobsPage, error) {
	const what, role = "list jobs", "weir_work"
	if p.Limit == 0 {
		p.Limit = 100
	}
	list := store.List{Queue: p.Queue, Kinds: p.Kinds, Key: p.Key, Flow: p.Flow, Text: p.Text, After: p.After, Limit: p.Limit, EnqueuedAfter: p.EnqueuedAfter, EnqueuedBefore: p.EnqueuedBefore,
		Shape: p.Shape, FinishedAfter: p.FinishedAfter, FinishedBefore: p.FinishedBefore}
	for _, s := range p.States {
		list.States = append(list.States, string(s))
	}
	if p.Meta != nil {
		text, err := json.Marshal(p.Meta)
		if err != nil {
			return nil, wrap(what, fmt.Errorf("encode JobsParams.Meta: %w", err), role)
		}
		list.Meta = text
	}
	text, next, err := c.store.Jobs(ctx, list)
	page := &JobsPage{Next: next}
	if err == nil {
		err = json.Unmarshal(text, &page.Jobs)
	}
	if err != nil {
		return nil, wrap(what, err, role)
	}
	for i := range page.Jobs {
		page.Jobs[i].tidy()
	}
	return page, nil
}

// tidy hides what is encrypted, and sets Meta to nil if the job has none: in JSON that is a null.
func (j *JobInfo) tidy() {
	j.hide()
	if string(j.Meta) == "null" {
		j.Meta = nil
	}
}

// Queues lists all queues by name, with the number of jobs in each state that is not final.
func (c *Client) Queues(ctx context.Context) ([]QueueInfo, error) {
	queues, err := store.Queues[QueueInfo](ctx, c.store)
	return queues, wrap("list queues", err, "weir_operate")
}

// Workers lists workers, newest first, including those that have ended.
func (c *Client) Workers(ctx context.Context) ([]WorkerInfo, error) {
	workers, err := store.Workers[WorkerInfo](ctx, c.store)
	return workers, wrap("list workers", err, "weir_operate")
}

// Hubs lists the hubs that were alive within the last five minutes.
func (c *Client) Hubs(ctx context.Context) ([]HubInfo, error) {
	hubs, err := store.Hubs[HubInfo](ctx, c.store)
	return hubs, wrap("list hubs", err, "weir_operate")
}

// Storage lists the segments of each log, then what other tables take on disk. It reads the sizes of files, so it costs the same whatever is in them.
func (c *Client) Storage(ctx context.Context) ([]StorageInfo, error) {
	all, err := store.Storage[StorageInfo](ctx, c.store)
	return all, wrap("look at storage", err, "weir_operate")
}

// Settings lists the settings of the database, then those of each queue.
func (c *Client) Settings(ctx context.Context) ([]Setting, error) {
	settings, err := store.Settings[Setting](ctx, c.store)
	return settings, wrap("list settings", err, "weir_operate")
}

// FailureGroupsParams selects the failed jobs to group. The zero value selects all.
type FailureGroupsParams struct {
	Queue  string    // "": all queues. A queue that does not exist has no jobs, and is no error
	Kind   string    // "": all kinds
	Key    string    // "": all keys, and jobs without one
	Since  time.Time // only jobs that failed then or later; zero: all
	Before time.Time // only jobs that failed before; zero: all. FailureGroupsPage.Rest, to continue
	Limit  int       // maximum groups, 1 to 10,000; 0: 100
}

// FailureGroup is a number of failed jobs of one kind whose errors have the same shape.
type FailureGroup struct {
	Kind    string    `json:"kind"`
	Shape   string    `json:"shape"` // the error without what differs from job to job: "user <n> not found"
	Jobs    int64     `json:"jobs"`
	FirstAt time.Time `json:"first_at"`
	LastAt  time.Time `json:"last_at"`
	JobID   int64     `json:"job_id"` // one of the last
	Error   string    `json:"error"`  // its error, up to 1,000 characters
}

// FailureGroupsPage is what FailureGroups returns.
type FailureGroupsPage struct {
	Groups []FailureGroup `json:"groups"`        // the largest first
	Rest   time.Time      `json:"rest,omitzero"` // failures before this time were not looked at; zero: all were
}

// FailureGroups groups the jobs that have failed for good, and have not been retried, by kind and by the shape of their errors. It looks at the
// newest 5,000 failures (of a Key in a Queue, at the newest 5,000 of that key). If there are more, pass Rest as Before to continue with the next 5,000.
func (c *Client) FailureGroups(ctx context.Context, p FailureGroupsParams) (*FailureGroupsPage, error) {
	found, err := store.FailureGroups(ctx, c.store, p.Queue, p.Kind, p.Key, p.Since, p.Before, cmp.Or(p.Limit, 100))
	if err != nil {
		return nil, wrap("group failures", err, "weir_operate")
	}
	page := &FailureGroupsPage{}
	for _, g := range found {
		if g.Rest != nil {
			page.Rest = *g.Rest
		}
		if g.Jobs > 0 {
			page.Groups = append(page.Groups, FailureGroup{g.Kind, g.Shape, g.Jobs, *g.FirstAt, *g.LastAt, g.JobID, *hidden(&g.Error)})
		}
	}
	return page, nil
}
