// Package turn lets a few do something at a time, without those who are slow at it keeping the others from it.
package turn

import (
	"context"
	"sync"
	"time"
)

// Take waits for one of some places, as many as the channel holds, until ctx ends, which ok tells. The caller leaves it when done, and counts no longer than most in any case.
func Take(ctx context.Context, places chan struct{}, most time.Duration) (leave func(), ok bool) {
	select {
	case places <- struct{}{}:
	case <-ctx.Done():
		return nil, false
	}
	once := sync.OnceFunc(func() { <-places })
	late := time.AfterFunc(most, once)
	return func() { late.Stop(); once() }, true
}
