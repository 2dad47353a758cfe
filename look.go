package weir

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/weir-pg/weir/internal/store"
)

// State of a job.
type State string

const (
	StateAvailable State = "available" // may be claimed
	StateRunning   State = "running"   // a worker has it
	StateLater     State = "later"     // waits for its RunAt, or for its next attempt
	StateCompleted State = "completed" // final
	StateFailed    State = "failed"    // final: its attempts are used up, or Fail was returned
	StateCancelled State = "cancelled" // final
)

// States are all of them.
var States = []State{StateAvailable, StateRunning, StateLater, StateCompleted, StateFailed, StateCancelled}

// Outcome is how an attempt ended.
type Outcome string

const (
	OutcomeCompleted Outcome = "completed"
	OutcomeFailed    Outcome = "failed"    // for good
	OutcomeCancelled Outcome = "cancelled" // for good
	OutcomeRetried   Outcome = "retried"   // failed, and another attempt follows
	OutcomeSnoozed   Outcome = "snoozed"   // put off by the handler
	OutcomeReleased  Outcome = "released"  // handed back by a worker that stopped
	OutcomeLost      Outcome = "lost"      // its worker was lost
)

// JobInfo is a job as its newest attempt stands.
type JobInfo struct {
	ID              int64           `json:"id"`
	State           State           `json:"state"`
	Queue           string          `json:"queue"`
	Priority        int             `json:"priority"`
	Kind            string          `json:"kind"`
	Args            json.RawMessage `json:"args"`
	Meta            json.RawMessage `json:"meta,omitempty"` // nil: none was given
	Attempt         int             `json:"attempt"`        // from 1
	MaxAttempts     int             `json:"max_attempts"`
	EnqueuedAt      time.Time       `json:"enqueued_at"`
	RunAt           *time.Time      `json:"run_at,omitempty"`           // of one that is later
	ClaimedAt       *time.Time      `json:"claimed_at,omitempty"`       // when the newest attempt was handed out
	FinishedAt      *time.Time      `json:"finished_at,omitempty"`      // when it ended
	Worker          *int32          `json:"worker,omitempty"`           // that has it, or had it last
	CancelRequested bool            `json:"cancel_requested,omitempty"` // Client.CancelJob was called
	Output          *string         `json:"output,omitempty"`           // as the handler set it
	Error           *string         `json:"error,omitempty"`            // of the last attempt that did not complete
	Errors          []AttemptError  `json:"errors,omitempty"`           // of all attempts that are still kept, oldest first
}

// AttemptError is why an attempt of a job did not complete.
type AttemptError struct {
	Attempt int       `json:"attempt"`
	At      time.Time `json:"at"`
	Outcome Outcome   `json:"outcome"`
	Error   string    `json:"error"`
}

// QueueInfo is a queue. Jobs that were cancelled count until a worker or the clock has met them. Up to some 10,000 jobs are counted; past that
// Approximate is set, and the count errs by some percent.
type QueueInfo struct {
	Name        string     `json:"name"`
	PausedAt    *time.Time `json:"paused_at,omitempty"`   // nil: it is not paused
	Available   int64      `json:"available"`             // jobs that may be claimed
	Running     int64      `json:"running"`               // jobs that workers have claimed and not ended
	Later       int64      `json:"later"`                 // jobs that wait for their RunAt
	Approximate bool       `json:"approximate"`           // one of these three is an estimate: there is too much to count it all
	ReadySince  *time.Time `json:"ready_since,omitempty"` // when the available job that has waited longest became available; nil: none waits
	Claimed     int64      `json:"claimed"`               // attempts ever handed out
	LastClaim   *time.Time `json:"last_claim,omitempty"`
	Workers     int64      `json:"workers"` // that work it now
}

// WorkerInfo is a worker.
type WorkerInfo struct {
	ID        int32     `json:"id"`
	Name      string    `json:"name"`
	Queues    []string  `json:"queues"`
	State     string    `json:"state"` // alive, silent, ended
	StartedAt time.Time `json:"started_at"`
	SeenAt    time.Time `json:"seen_at"`          // when it was last known to be alive
	Running   int       `json:"running"`          // how many attempts it had at its last heartbeat
	Reason    *string   `json:"reason,omitempty"` // why it ended
}

// HubInfo is a hub.
type HubInfo struct {
	Name        string    `json:"name"`
	Address     string    `json:"address"`
	SeenAt      time.Time `json:"seen_at"`
	Tick        int64     `json:"tick"`   // the newest that it has dispatched
	Behind      int64     `json:"behind"` // how many ticks it had not
	Subscribers int       `json:"subscribers"`
}

// Setting is a setting of the database, or of a queue.
type Setting struct {
	Queue string `json:"queue,omitempty"` // "": of the database
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Job looks a job up. ErrNotFound: its id is unknown, or its retention is over.
func (c *Client) Job(ctx context.Context, id int64) (*JobInfo, error) {
	found, err := store.LookUp[JobInfo](ctx, c.store, id)
	if err == nil && len(found) == 0 {
		err = notFound("job", id)
	}
	if err != nil {
		return nil, wrap("look up job", err, "weir_work")
	}
	return &found[0], nil
}

// JobTx looks a job up in a transaction of yours, which sees what it has enqueued itself. ErrNotFound: as Job.
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
	info.withoutNull()
	return &info, nil
}

// JobsParams says which jobs to list. The zero value lists all.
type JobsParams struct {
	States []State  // one after the other, in this order; none: all of them, in the order of States
	Queue  string   // "": of all queues
	Kinds  []string // none: of all kinds; 1,000 at most
	Meta   any      // anything that encodes to a JSON object: jobs whose meta contains it; nil: whatever they have
	After  string   // JobsPage.Next of the page before; "": the first page
	Limit  int      // of jobs on a page, 1 to 1,000; 0: 100
}

// JobsPage is a page of a list of jobs.
type JobsPage struct {
	Jobs []JobInfo `json:"jobs"`
	Next string    `json:"next,omitempty"` // for JobsParams.After of the page that follows; "": this was the last
}

// Jobs lists jobs, a page at a time: available ones in the order they will be claimed, later ones by RunAt, the others newest first (of completed
// ones about so, as they were recorded). A job that stays in its state while pages are read is on exactly one of them, whatever else comes and goes; one
// that comes into a state meanwhile may be on none.
//
// What a page looks at is bounded. So one that Kinds or Meta leave little of may have fewer jobs than Limit, or none, and still a Next: go on until Next is "".
func (c *Client) Jobs(ctx context.Context, p JobsParams) (*JobsPage, error) {
	const what, role = "list jobs", "weir_work"
	if p.Limit == 0 {
		p.Limit = 100
	}
	list := store.List{Queue: p.Queue, Kinds: p.Kinds, After: p.After, Limit: p.Limit}
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
		page.Jobs[i].withoutNull()
	}
	return page, nil
}

// withoutNull has no Meta where none was given: in JSON that is a null.
func (j *JobInfo) withoutNull() {
	if string(j.Meta) == "null" {
		j.Meta = nil
	}
}

// Queues lists all queues by name, with how many jobs they have in each state that is not final.
func (c *Client) Queues(ctx context.Context) ([]QueueInfo, error) {
	queues, err := store.Queues[QueueInfo](ctx, c.store)
	return queues, wrap("list queues", err, "weir_operate")
}

// Workers lists workers, newest first, those that have ended too.
func (c *Client) Workers(ctx context.Context) ([]WorkerInfo, error) {
	workers, err := store.Workers[WorkerInfo](ctx, c.store)
	return workers, wrap("list workers", err, "weir_operate")
}

// Hubs lists the hubs that were alive within the last five minutes.
func (c *Client) Hubs(ctx context.Context) ([]HubInfo, error) {
	hubs, err := store.Hubs[HubInfo](ctx, c.store)
	return hubs, wrap("list hubs", err, "weir_operate")
}

// Settings lists the settings of the database, then those of each queue.
func (c *Client) Settings(ctx context.Context) ([]Setting, error) {
	settings, err := store.Settings[Setting](ctx, c.store)
	return settings, wrap("list settings", err, "weir_operate")
}
