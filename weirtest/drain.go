package weirtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/sealed"
	"github.com/weir-pg/weir/internal/seam"
	"github.com/weir-pg/weir/internal/store"
	"github.com/weir-pg/weir/internal/worker"
)

// DrainOptions specify how far Drain goes. The zero value, or nil, means the defaults.
type DrainOptions struct {
	// Until makes Drain work jobs that are scheduled up to this time, as if the time had come, whether they were enqueued for later,
	// retried or snoozed. A job that is retried or snoozed again waits for the next Drain, so each Drain runs one attempt of it. Jobs of
	// all queues become due, so use Until only in a database that belongs to the test. Default: now.
	Until time.Time
	// Limit is the maximum number of attempts: if more would run, the test fails. It stops handlers that enqueue their own kind again and
	// again. Default 1,000.
	Limit int
}

// Ended is an attempt that Drain has worked, and how it ended.
type Ended struct {
	weir.JobMeta
	Args json.RawMessage
	Result
}

// Drain works the available jobs of the configured queues until none is left, and returns how each attempt ended, in order. Jobs run and
// are recorded as in a worker, but in the calling goroutine, so that handlers may call t.Fatal, and one at a time: queue by queue in the
// order of their names, and by priority. Drain also works jobs that handlers enqueue to run at once. Jobs that become due while it runs,
// such as a retry after a second, wait for the next Drain. The handlers' contexts derive from ctx; if ctx ends, the test fails.
//
// Workers claim only committed jobs: Drain does not see those of an open transaction, so you can't use it in tests that roll back. [Pool]
// returns a database for one test.
func Drain(ctx context.Context, t testing.TB, client *weir.Client, config weir.WorkerConfig, o *DrainOptions) []Ended {
	t.Helper()
	if o == nil {
		o = &DrainOptions{}
	}
	limit := o.Limit
	if limit == 0 {
		limit = 1000
	}
	if limit < 0 {
		t.Fatalf("weirtest: DrainOptions.Limit must not be negative, got %d", limit)
	}
	config.Hubs = nil
	config.Queues = maps.Clone(config.Queues)
	for queue, n := range config.Queues {
		config.Queues[queue] = min(n, 1) // so that no job waits for others to form a group
	}
	w, err := client.NewWorker(config)
	if err != nil {
		t.Fatalf("weirtest: %v", err)
	}
	var all []Ended
	err = seam.Drain(ctx, w, o.Until, func(task *worker.Task, r worker.Result, recorded store.Outcome, why error) error {
		if r.Outcome != recorded && why == nil && recorded == store.Completed {
			r.Err = nil
		}
		all = append(all, Ended{
			JobMeta: weir.JobMeta{
				ID: task.ID, Kind: task.Kind, Queue: task.Queue, Priority: task.Priority, Key: task.Key, Attempt: int(task.Attempt), PutOff: int(task.PutOff),
				MaxAttempts: int(task.MaxAttempts), EnqueuedAt: task.EnqueuedAt, ReadyAt: task.Ready(), Meta: task.Meta,
				Encrypted: r.Seal != nil || sealed.Is(task.Args),
			},
			Args:   task.Args,
			Result: resultOf(r, recorded, why),
		})
		if len(all) < limit {
			return nil
		}
		return errLimit
	})
	switch {
	case errors.Is(err, errLimit):
		if left := waiting(ctx, client, config); left != "" {
			t.Fatalf("weirtest: %d attempts have run, and %s: does a handler enqueue its own kind, or retry at once? See DrainOptions.Limit; the last was job %d of kind %s, which %s",
				limit, left, all[limit-1].ID, all[limit-1].Kind, all[limit-1].Outcome)
		}
	case err != nil:
		t.Fatalf("weirtest: drain: %v", err)
	case ctx.Err() != nil:
		t.Fatalf("weirtest: drain: %v after %d attempts", context.Cause(ctx), len(all))
	}
	return all
}

var errLimit = errors.New("limit reached")

// waiting describes the jobs that are still available, for error messages.
func waiting(ctx context.Context, client *weir.Client, config weir.WorkerConfig) string {
	for queue := range config.Queues {
		list := weir.JobsParams{States: []weir.State{weir.StateAvailable}, Queue: queue, Limit: 1}
		for more := true; more; more = list.After != "" {
			page, err := client.Jobs(ctx, list)
			if err != nil {
				return err.Error()
			}
			if len(page.Jobs) > 0 {
				return fmt.Sprintf("more wait in queue %s", queue)
			}
			list.After = page.Next
		}
	}
	return ""
}
