package worker

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/weir-pg/weir/internal/store"
)

const (
	hintFrom  = 32              // queues: a claim of fewer looks at them all in no time
	fullEvery = time.Minute     // a net: so often a claim looks everywhere
	unsettled = 5 * time.Second // after queues were paused, resumed or made: the counter that tells of it moves before the commit
)

// hint narrows the claims of a worker of very many queues, most of which are idle, to what is new and what is left. It is a hint, and no
// more: a claim with one finds what was committed since the snapshot that was taken before the claim before, and what is in the queues
// that may have had more than their room. Without one it looks everywhere: at first, after any error, when queues were paused, resumed
// or made, and now and then. The fetcher owns it.
type hint struct {
	*session
	since   *string         // taken before the claim before; nil: look everywhere
	next    *string         // taken before the claim under way; nil: no hints are kept
	full    bool            // the claim under way looks everywhere
	left    map[string]bool // queues that may hold more than claims have found
	control int64
	fullAt  time.Time
	calmAt  time.Time
}

// begin is called before a claim, and returns what to claim with.
func (h *hint) begin(ctx context.Context) (since *string, backlog []string) {
	h.next = nil
	if len(h.queues) < hintFrom {
		return nil, nil
	}
	seen, _, err := h.Store.Watch(ctx, store.Probe{}, 1, 0)
	if err != nil {
		h.since = nil // the claim has the same trouble, and says so
		return nil, nil
	}
	now := time.Now()
	if seen.Control != h.control {
		h.control, h.calmAt = seen.Control, now.Add(unsettled)
	}
	h.next = seen.Snapshot
	h.full = h.since == nil || now.Before(h.calmAt) || now.Sub(h.fullAt) > fullEvery
	if h.full {
		h.fullAt = now
		return nil, nil
	}
	return h.since, slices.Collect(maps.Keys(h.left))
}

// end is called after a claim: got is what it found, by queue, where the room was limits.
func (h *hint) end(limits []int32, got map[string]int, err error) {
	if err != nil || h.next == nil {
		h.since = nil
		return
	}
	if h.full {
		clear(h.left)
	}
	for i, q := range h.queues {
		if limits[i] == 0 || got[q.name] > 0 {
			h.left[q.name] = true
		} else {
			delete(h.left, q.name)
		}
	}
	h.since = h.next
}
