package weir

import (
	"context"
	"time"

	"github.com/weir-pg/weir/internal/store"
)

// Limit limits what the whole fleet does with a queue's jobs, of all priorities. It is exact: attempts count from their claim until their end is
// recorded, even if processes are killed in between.
type Limit struct {
	Running int  `json:"running,omitempty"` // the most attempts that run at a time; 0: unlimited
	Rate    Rate `json:"rate,omitzero"`     // how many start in a time; the zero value: unlimited
}

// Rate limits how many attempts start in a time. Over time it is kept to within 2%; no stretch of time sees more than it allows and one burst.
type Rate struct {
	Starts float64       `json:"starts"`          // so many in each Per
	Per    time.Duration `json:"per,omitempty"`   // 0: one second
	Burst  int           `json:"burst,omitempty"` // how many may start at once after a pause; 0: as many as start in half a second, at least 1
}

// QueueLimit is the limit of a queue, and what it counts at the moment.
type QueueLimit struct {
	Queue string `json:"queue"`
	Limit
	RunningNow int        `json:"running_now"`
	Room       int        `json:"room"`              // how many more may start at this moment
	NextAt     *time.Time `json:"next_at,omitempty"` // when one may, if Room is 0 and only the rate is the reason
}

// SetLimit replaces the limits of a queue, which need not exist yet. From the moment it returns no attempt starts beyond them; those that run count,
// and none is interrupted. Setting the same limits again does nothing, so each process may do so when it starts.
func (c *Client) SetLimit(ctx context.Context, queue string, l Limit) error {
	return wrap("set the limit of queue "+queue, c.store.SetLimit(ctx, queue, l.Running, l.Rate.Starts, l.Rate.Per, l.Rate.Burst), "weir_operate")
}

// ClearLimit removes the limits of a queue. It returns ErrNotFound if it has none.
func (c *Client) ClearLimit(ctx context.Context, queue string) error {
	found, err := c.store.ClearLimit(ctx, queue)
	return wrap("clear limit", orNotFound(found, err, "limit of queue", queue), "weir_operate")
}

// Limits lists the limits of queues, by the names of the queues.
func (c *Client) Limits(ctx context.Context) ([]QueueLimit, error) {
	found, err := store.Limits(ctx, c.store)
	all := make([]QueueLimit, len(found))
	for i, l := range found {
		all[i] = QueueLimit{Queue: l.Queue, Limit: Limit{Running: l.Running, Rate: Rate{Starts: l.Starts, Per: l.Per, Burst: l.Burst}},
			RunningNow: l.RunningNow, Room: l.Room, NextAt: l.NextAt}
	}
	return all, wrap("list limits", err, "weir_operate")
}
