package weir

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/weir-pg/weir/internal/store"
)

// Limit limits what the whole fleet does with a queue's jobs, of all priorities, or with those of each of its keys ([Options].Key). It is exact:
// attempts count from their claim until their end is recorded, even if processes are killed in between.
type Limit struct {
	Running int  `json:"running,omitempty"` // the most attempts that run at a time; 0: unlimited
	Rate    Rate `json:"rate,omitzero"`     // how many start in a time; the zero value: unlimited

	PerKey  bool `json:"per_key,omitempty"`  // it is a limit of each key, besides that of the queue as a whole; Running is at most 1000
	InOrder bool `json:"in_order,omitempty"` // with PerKey: a key's jobs run one after the other, also if one is tried again; Running is 1, or 0 for 1
}

// Rate limits how many attempts start in a time. Over time it is kept to within 2%; no stretch of time sees more than it allows and one burst.
type Rate struct {
	Starts float64       `json:"starts"`          // so many in each Per
	Per    time.Duration `json:"per,omitempty"`   // 0: one second
	Burst  int           `json:"burst,omitempty"` // how many may start at once after a pause; 0: as many as start in half a second, at least 1
}

// QueueLimit is the limit of a queue, and what it counts at the moment; or, with PerKey, that of its keys, which are not counted here.
type QueueLimit struct {
	Queue string `json:"queue"`
	Limit
	RunningNow *int       `json:"running_now,omitempty"` // nil with PerKey, and so is Room
	Room       *int       `json:"room,omitempty"`        // how many more may start at this moment
	NextAt     *time.Time `json:"next_at,omitempty"`     // when one may, if Room is 0 and only the rate is the reason
}

// SetLimit replaces the limits of a queue, which need not exist yet; or, with PerKey, the limits of its keys. From the moment it returns no attempt
// starts beyond them; those that run count, and none is interrupted. Setting the same limits again does nothing, so each process may do so when it
// starts.
func (c *Client) SetLimit(ctx context.Context, queue string, l Limit) error {
	err := l.check()
	if queue == "" {
		err = errNoQueue
	}
	if err == nil {
		err = c.store.SetLimit(ctx, store.Limit{Queue: queue, Running: l.Running, Starts: l.Rate.Starts, Per: l.Rate.Per, Burst: l.Rate.Burst, PerKey: l.PerKey, InOrder: l.InOrder})
	}
	return wrap(fmt.Sprintf("set the limit of queue %q", queue), err, "weir_operate")
}

// check refuses what the database would refuse in its own terms, or what doesn't fit into an integer of SQL. The database checks the rest.
func (l Limit) check() error {
	most := math.MaxInt32
	if l.PerKey {
		most = 1000
	}
	switch {
	case l.Running < 0 || int64(l.Running) > int64(most):
		return fmt.Errorf("running must be 1 to %d, or 0 for unlimited, got %d", most, l.Running)
	case l.Rate.Burst < 0 || l.Rate.Burst > 1_000_000:
		return fmt.Errorf("burst must be 1 to 1000000, or 0 for the default, got %d", l.Rate.Burst)
	case l.Rate.Starts == 0 && (l.Rate.Per != 0 || l.Rate.Burst != 0):
		return errors.New("Limit.Rate has a Per or a Burst, and no Starts: set Starts to how many may start in each Per")
	case l.Rate.Per < 0 || l.Rate.Per > longest:
		return fmt.Errorf("Rate.Per is %s: it must be at most a year, or 0 for one second", l.Rate.Per)
	case l.InOrder && (!l.PerKey || l.Running > 1):
		return errors.New("Limit.InOrder is for the jobs of each key, one at a time: set PerKey, and Running to 1 or 0")
	case l.Running == 0 && l.Rate.Starts == 0 && !l.InOrder:
		return errors.New("the limit is empty: set Running, Rate or InOrder; to remove limits, call ClearLimit or ClearKeyLimit")
	}
	return nil
}

var errNoQueue = errors.New("the queue has no name: give one of 1 to 128 characters")

// longest is the longest interval that is called a year.
const longest = 366 * 24 * time.Hour

// ClearLimit removes all limits of a queue, those of its keys included. It returns ErrNotFound if it has none.
func (c *Client) ClearLimit(ctx context.Context, queue string) error {
	return c.clearLimit(ctx, queue, nil)
}

// ClearKeyLimit removes the limits of a queue's keys, and keeps those of the queue as a whole. It returns ErrNotFound if they have none.
func (c *Client) ClearKeyLimit(ctx context.Context, queue string) error {
	return c.clearLimit(ctx, queue, new(true))
}

func (c *Client) clearLimit(ctx context.Context, queue string, perKey *bool) error {
	found, err := c.store.ClearLimit(ctx, queue, perKey)
	return wrap("clear limit", orNotFound(found, err, "limit of queue", queue), "weir_operate")
}

// Limits lists the limits of queues, by the names of the queues; those of its keys follow a queue's own.
func (c *Client) Limits(ctx context.Context) ([]QueueLimit, error) {
	found, err := store.Limits(ctx, c.store)
	all := make([]QueueLimit, len(found))
	for i, l := range found {
		all[i] = QueueLimit{Queue: l.Queue, Limit: Limit{Running: l.Running, Rate: Rate{Starts: l.Starts, Per: l.Per, Burst: l.Burst}, PerKey: l.PerKey, InOrder: l.InOrder},
			RunningNow: l.RunningNow, Room: l.Room, NextAt: l.NextAt}
	}
	return all, wrap("list limits", err, "weir_operate")
}

// KeyWeight is the weight of a key.
type KeyWeight struct {
	Queue  string  `json:"queue"`
	Key    string  `json:"key"`
	Weight float64 `json:"weight"`
}

// SetWeight sets how many jobs a key of a queue gets to start in relation to the other keys, while they have jobs that wait: 0.01 to 1000. 1 is the
// weight of keys for which none was set, and removes it. It counts from each key's next turn on. The queue and the key need not exist yet.
func (c *Client) SetWeight(ctx context.Context, queue, key string, weight float64) error {
	var err error
	switch {
	case queue == "":
		err = errNoQueue
	case key == "":
		err = errors.New("it needs a key: \"\" is none")
	case !(weight >= 0.01 && weight <= 1000): // also NaN
		err = fmt.Errorf("a weight must be 0.01 to 1000, got %v: 1 is the weight of keys for which none was set", weight)
	default:
		err = c.store.SetWeight(ctx, queue, key, weight)
	}
	return wrap(fmt.Sprintf("set the weight of key %q of queue %q", key, queue), err, "weir_operate")
}

// Weights lists the weights of keys, by queue and key.
func (c *Client) Weights(ctx context.Context) ([]KeyWeight, error) {
	all, err := store.Weights[KeyWeight](ctx, c.store)
	return all, wrap("list weights", err, "weir_operate")
}
