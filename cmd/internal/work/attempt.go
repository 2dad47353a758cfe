package work

import (
	"encoding/json"
	"time"

	"github.com/weir-pg/weir/internal/store"
	"github.com/weir-pg/weir/internal/worker"
)

// Why a session is told to interrupt an attempt.
const (
	Cancelled = "cancelled" // its job was cancelled
	Lost      = "lost"      // another worker has it, or will get it
)

// attempt is an attempt that this hub holds for a session. Dispatcher.mu guards it.
type attempt struct {
	key
	task    *worker.Task
	token   string
	queue   *queue
	place   int64               // in the order of those that wait for a session
	session *Session            // nil: nobody was free for it yet
	given   time.Time           // when it was given to the session
	since   time.Time           // the same, or when it was last named by the session
	answers int                 // to calls that it was in
	unnamed bool                // its session does not name it, and was not told it again: an open connection does not renew it
	point   json.RawMessage     // the checkpoint of earlier attempts
	reason  string              // why it is to be interrupted; "": it is not
	ended   func(worker.Result) // is told its end, once, while mu is held
	over    bool                // its end was sent
	found   bool                // it had ended before, in the database; written before told is called
	told    []func(settlement)  // who wants to know how its end was recorded
	again   []*attempt          // the same, claimed once more: a crash of the database has lost the claim
}

// settlement is how an attempt has ended in the database.
type settlement struct {
	outcome store.Outcome // Lost: it is another worker's
	why     error         // why it is not that of its end here; nil: it may be
	found   bool          // it had ended before: here, in a call whose answer was lost, or at another hub
}

// finish ends the attempt for its handler; false: it has ended before. The caller holds mu.
func (a *attempt) finish(r worker.Result) bool {
	if a.over {
		return false
	}
	a.over = true
	a.ended(r)
	return true
}

// Job is a job as remote workers get it.
type Job struct {
	Token       string          `json:"token"`
	ID          int64           `json:"id"`
	Queue       string          `json:"queue"`
	Priority    int             `json:"priority"`
	Kind        string          `json:"kind"`
	Args        json.RawMessage `json:"args"`
	Meta        json.RawMessage `json:"meta"`
	Key         *string         `json:"key"`
	Flow        *int64          `json:"flow"`
	Attempt     int32           `json:"attempt"`
	MaxAttempts int32           `json:"max_attempts"`
	EnqueuedAt  time.Time       `json:"enqueued_at"`
	Checkpoint  json.RawMessage `json:"checkpoint,omitempty"`
}

// job describes the attempt to its session.
func (a *attempt) job() Job {
	t := a.task
	j := Job{
		Token: a.token, ID: t.ID, Queue: t.Queue, Priority: t.Priority, Kind: t.Kind, Args: t.Args, Meta: t.Meta, Attempt: t.Attempt, MaxAttempts: t.MaxAttempts,
		EnqueuedAt: t.EnqueuedAt.UTC(), Checkpoint: a.point,
	}
	if t.Key != "" {
		j.Key = &t.Key
	}
	if t.Flow != 0 {
		j.Flow = &t.Flow
	}
	return j
}

// size is about how long the job is as JSON.
func (a *attempt) size() int { return len(a.task.Args) + len(a.task.Meta) + len(a.point) + 400 }

// Interrupted names an attempt to interrupt.
type Interrupted struct {
	Token  string `json:"token"`
	Reason string `json:"reason"`
}
