// Package sleep waits for a time or the end of a context, and says for how long where many do the same.
package sleep

import (
	"context"
	"math/rand/v2"
	"time"
)

// For waits for d. It returns false, at once, when ctx has ended or ends meanwhile.
func For(ctx context.Context, d time.Duration) bool { return Until(ctx, d, nil) }

// Until waits for d, or less if early can be received from first. It returns false, at once, when ctx has ended or ends meanwhile.
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

// Jitter returns d, up to a quarter more or less, so that those who began together do not stay together. For "full jitter", from nothing to
// d, there is rand.N(d).
func Jitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return d - d/4 + rand.N(d/2+1)
}
