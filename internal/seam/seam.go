// Package seam is how package weirtest reaches what the root package does not export: a worker of the root package, told to run one attempt, or
// to work what there is by the calling goroutine. The root package, which every user of weirtest imports, fills it in.
package seam

import (
	"context"
	"time"

	"github.com/weir-pg/weir/internal/store"
	"github.com/weir-pg/weir/internal/worker"
)

// Done is told of an attempt whose end is recorded; an error ends the draining.
type Done = func(t *worker.Task, r worker.Result, recorded store.Outcome, why error) error

var (
	// Attempt runs one attempt with a *weir.Worker: see [worker.Worker.Attempt].
	Attempt func(ctx context.Context, w any, t *worker.Task) worker.Result
	// Drain works with a *weir.Worker: see [worker.Worker.Drain].
	Drain func(ctx context.Context, w any, upto time.Time, done Done) error
)
