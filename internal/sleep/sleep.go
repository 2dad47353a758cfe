// Package sleep waits for a time or for the end of a context, and adds jitter to the intervals of processes that do the same work.
package sleep

import (
	"context"
	"math/rand/v2"
	"time"
)

// For waits for d. It returns false, immediately, if ctx has ended or ends in the meantime.
func For(ctx context.Context, d time.Duration) bool { return Until(ctx, d, nil) }

// Until waits for d, or until early can be received from. It returns false, immediately, if ctx has ended or ends in the meantime.
func Until(ctx context.Context, d time.Duration, early <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-early:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// Jitter returns d plus or minus up to a quarter, so that processes that started together do not stay in step. For "full jitter", from
// zero to d, use rand.N(d).
func Jitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return d - d/4 + rand.N(d/2+1)
}
