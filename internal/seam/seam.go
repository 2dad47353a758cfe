// Package seam lets package weirtest use what the root package does not export: it runs one attempt with a worker of the root package, or
// works all available jobs in the calling goroutine. The root package, which every user of weirtest imports, sets its variables.
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
	// Drain works with a *weir.Worker: see [worker.Worker.Drain].
	Drain func(ctx context.Context, w any, upto time.Time, done Done) error
)
