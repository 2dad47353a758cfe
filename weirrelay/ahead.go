package weirrelay

import (
	"context"
	"sync/atomic"
)

// ahead is what was read, and waits to be sent: up to so many items, and about so many bytes, because a target may stand still for long.
type ahead struct {
	items chan item
	most  int64
	bytes atomic.Int64
	taken chan struct{} // tells put that there may be room
}

func newAhead(items, bytes int) *ahead {
	return &ahead{items: make(chan item, items), most: int64(bytes), taken: make(chan struct{}, 1)}
}

// put waits for room. It returns false if ctx ends first. One goroutine calls it.
func (a *ahead) put(ctx context.Context, i item) bool {
	for a.bytes.Load() >= a.most {
		select {
		case <-a.taken:
		case <-ctx.Done():
			return false
		}
	}
	a.bytes.Add(i.size())
	select {
	case a.items <- i:
		return true
	case <-ctx.Done():
		return false
	}
}

// took makes room, once an item was received from items.
func (a *ahead) took(i item) {
	a.bytes.Add(-i.size())
	select {
	case a.taken <- struct{}{}:
	default:
	}
}

func (i item) size() int64 {
	if i.Message == nil {
		return 0
	}
	return int64(len(i.Message.Payload))
}
