package weir

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/weir-pg/weir/internal/store"
)

// OperationKind says what an operation does to jobs.
type OperationKind string

const (
	OperationRetry  OperationKind = "retry"  // as Client.RetryWhere
	OperationDelete OperationKind = "delete" // as Client.DeleteWhere
	OperationMove   OperationKind = "move"   // as Client.MoveWhere
	OperationCancel OperationKind = "cancel" // as Client.CancelWhere, which is done at once
)

// OperationState is how far an operation is.
type OperationState string

const (
	OperationRunning OperationState = "running"
	OperationDone    OperationState = "done"
	OperationStopped OperationState = "stopped" // by Client.StopOperation
	OperationFailed  OperationState = "failed"
)

// Operation is a bulk operation for the background.
type Operation struct {
	What   OperationKind
	Filter JobFilter // with the fields that it may have for What
	To     MoveTo    // where jobs are moved, for OperationMove
	By     string    // who has begun it, up to 200 characters; "": the user of the database's session
}

// OperationInfo describes an operation.
type OperationInfo struct {
	ID         int64           `json:"id"`
	What       OperationKind   `json:"what"`
	Filter     json.RawMessage `json:"filter"` // the conditions, by the names of the arguments of weir.retry_where: {"queue": "mail"}
	ToQueue    string          `json:"to_queue,omitempty"`
	ToPriority int             `json:"to_priority,omitempty"`
	BeganAt    time.Time       `json:"began_at"`
	BeganBy    string          `json:"began_by"`
	State      OperationState  `json:"state"`
	Changed    *int64          `json:"changed,omitempty"` // jobs that it has retried, deleted or moved so far; nil: a cancellation, which counts nothing
	ChangedAt  time.Time       `json:"changed_at"`        // when it did its last step, or ended
	Error      string          `json:"error,omitempty"`   // why it has failed
	StoppedBy  string          `json:"stopped_by,omitempty"`
}

// BeginOperation begins a bulk operation that runs in the background of the database, and returns its number. The maintenance of workers does it, step by
// step: each step is a transaction of its own, which also records how far the operation is, so it continues after any crash, in another worker if need be,
// and changes each job once. It means the jobs that there are now: a job that fails later, even one that it has retried, is not retried. Without workers of this library, it
// waits until something calls weir.chores. Up to 100 operations may be unfinished at a time. BeginOperation returns ErrNotFound if the filter's queue does not
// exist. To wait for the jobs instead, use RetryWhere and its neighbours.
func (c *Client) BeginOperation(ctx context.Context, o Operation) (id int64, err error) {
	const what, role = "begin operation", "weir_operate"
	switch o.What {
	case OperationRetry, OperationDelete, OperationMove, OperationCancel:
	default:
		return 0, wrap(what, fmt.Errorf("unknown Operation.What %q: it is retry, delete, move or cancel", o.What), role)
	}
	where, err := o.Filter.where(string(o.What))
	if err != nil {
		return 0, wrap(what, err, role)
	}
	var priority *int
	if o.To.Priority != 0 {
		priority = &o.To.Priority
	}
	found, err := c.store.BeginOperation(ctx, string(o.What), where, o.By, o.To.Queue, priority)
	if err = orNotFound(found != nil, err, "queue", o.Filter.Queue); err != nil {
		return 0, wrap(what, err, role)
	}
	return *found, nil
}

// OperationsParams selects the operations to list. The zero value selects the newest.
type OperationsParams struct {
	Before int64 // only operations with smaller numbers, to continue a list; 0: all
	Limit  int   // maximum operations, 1 to 1,000; 0: 100
}

// Operations lists bulk operations, newest first: those of the last 30 days, but not many more than 1,000.
func (c *Client) Operations(ctx context.Context, p OperationsParams) ([]OperationInfo, error) {
	all, err := store.Operations[OperationInfo](ctx, c.store, p.Before, cmp.Or(p.Limit, 100))
	return all, wrap("list operations", err, "weir_operate")
}

// Operation describes a bulk operation. It returns ErrNotFound if its number is unknown, or of one that is not kept any more.
func (c *Client) Operation(ctx context.Context, id int64) (*OperationInfo, error) {
	var some []OperationInfo
	var err error
	if id > 0 {
		some, err = store.Operations[OperationInfo](ctx, c.store, id+1, 1)
	}
	if err == nil && (len(some) == 0 || some[0].ID != id) {
		err = notFound("operation", id)
	}
	if err != nil {
		return nil, wrap("show operation", err, "weir_operate")
	}
	return &some[0], nil
}

// StopOperation stops a bulk operation, and returns its state: OperationStopped, or another if it had ended. Once it returns, the operation changes
// no more jobs; what it has done stays done. by says who has stopped it; "": the user of the database's session. It returns ErrNotFound if the number is unknown.
func (c *Client) StopOperation(ctx context.Context, id int64, by string) (OperationState, error) {
	state, err := c.store.StopOperation(ctx, id, by)
	if err == nil && state == "" {
		err = notFound("operation", id)
	}
	return OperationState(state), wrap("stop operation", err, "weir_operate")
}
