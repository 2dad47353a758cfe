// Package seam lets packages weirtest and weirrelay use what the root package does not export: weirtest runs one attempt with a worker of the root package, or
// works all available jobs in the calling goroutine; weirrelay has workers that take up queues while they run. The root package, which every user of these imports, sets its variables.
package seam

import (
	"context"
	"time"

	"github.com/weir-pg/weir/internal/store"
	"github.com/weir-pg/weir/internal/worker"
)

// Done is called for each attempt whose end has been recorded; an error ends the draining.
type Done = func(t *worker.Task, r worker.Result, recorded store.Outcome, why error) error

var (
	// Attempt runs one attempt with a *weir.Worker: see [worker.Worker.Attempt].
	Attempt func(ctx context.Context, w any, t *worker.Task) worker.Result
	// Follow makes workers of a *weir.WorkerConfig, whose Queues may be empty, take up each other queue that fits, also those that come into being while they run. others are patterns of
	// these. They run at most about most jobs of all queues at once.
	Follow func(config any, fits func(queue string) bool, others []string, most int)
	// Drain works with a *weir.Worker: see [worker.Worker.Drain].
	Drain func(ctx context.Context, w any, upto time.Time, done Done) error
)
