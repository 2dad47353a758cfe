package worker

import (
	"context"

	"github.com/weir-pg/weir/internal/store"
)

// Attempt runs one attempt as a worker does, in the calling goroutine and without a database. It is for tests. It returns the result that a
// worker would record, after calling Result.Told with it.
func (w *Worker) Attempt(ctx context.Context, t *Task) (r Result) {
	if w.Timeout != nil {
		if limit := w.Timeout(t.Kind); limit > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeoutCause(ctx, limit, &TimedOut{limit})
			defer cancel()
		}
	}
	defer func() { // even if the handler ends this goroutine, as t.Fatal does
		if r.Outcome == store.Retried && t.Attempt >= t.MaxAttempts {
			r.Outcome = store.Failed
		}
		if r.Told != nil {
			r.Told(r.Outcome, nil)
		}
	}()
	w.Handler(ctx, t, &r)
	return r
}
