package weir

import (
	"context"
	"time"

	"github.com/weir-pg/weir/internal/store"
)

// HistoryParams selects what History returns. The zero value selects the last hour of all queues.
type HistoryParams struct {
	Queue string        // "": all queues together. A queue that does not exist has had nothing, and is no error
	Since time.Time     // zero: an hour before the last point. The last 72 hours are kept
	Step  time.Duration // the time between two points, in whole minutes, for up to 500 points; 0: a minute for up to 6 hours, 5 for 24 hours, 10 above
}

// HistoryPoint is what happened in one step of a history. Counts are of attempts.
type HistoryPoint struct {
	At        time.Time `json:"at"` // the beginning of the step
	Completed int64     `json:"completed"`
	Failed    int64     `json:"failed"` // for good
	Cancelled int64     `json:"cancelled"`
	Retried   int64     `json:"retried"` // and those that were lost with their worker
	Other     int64     `json:"other"`   // snoozed or released

	Waiting int64         `json:"waiting"` // the most jobs that waited at the end of a minute
	Oldest  time.Duration `json:"oldest"`  // the longest that the oldest of them had waited

	// For how long half and 95 % of the attempts that completed, failed or were retried had waited, and ran: estimates, within 20 %, from a
	// sample. 0: there were none.
	WaitP50 time.Duration `json:"wait_p50,omitempty"`
	WaitP95 time.Duration `json:"wait_p95,omitempty"`
	RunP50  time.Duration `json:"run_p50,omitempty"`
	RunP95  time.Duration `json:"run_p95,omitempty"`
}

// History returns what happened in a queue, or in all, in the last 72 hours, step by step. The last point is the last whole step that ended at least a
// minute ago: minutes are counted a minute after they are over. Counts are exact, except that an attempt is not counted if its end was committed more
// than a minute after it ended, as in a transaction of a handler that stays open after CompleteTx. Of more than a hundred queues in a minute, those with most are
// counted on their own, and the others only in all.
func (c *Client) History(ctx context.Context, p HistoryParams) ([]HistoryPoint, error) {
	var since *time.Time
	if !p.Since.IsZero() {
		since = &p.Since
	}
	var step *time.Duration
	if p.Step != 0 {
		step = &p.Step
	}
	points, err := store.History[HistoryPoint](ctx, c.store, p.Queue, since, step)
	return points, wrap("read the history", err, "weir_operate")
}
