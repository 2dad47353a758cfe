package worker

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/weir-pg/weir/internal/store"
)

const (
	hintFrom  = 32          // queues: a claim of fewer looks at them all in no time
	fullEvery = time.Minute // a net: so often a claim looks everywhere
)

// hint narrows the claims of a worker of very many queues, most of which are idle, to what is new and what is left. It is a hint, and no
// more: a claim with one finds what was committed since the snapshot that was taken before the claim before, and what is in the queues
// that may have had more than their room. Without one it looks everywhere: at first, after any error, when a queue may have been resumed
// or made, and now and then. The fetcher owns it.
//
// The counter that tells of resumed queues moves before the commit. So a claim looks everywhere when it has moved, and once more whenever
// one of the transactions ends that may have moved it, however late: those below the bound that was read after the counter (see watch).
type hint struct {
	*session
	since  *string         // taken before the claim before; nil: look everywhere
	next   *string         // taken before the claim under way; nil: no hints are kept
	full   bool            // the claim under way looks everywhere
	left   map[string]bool // queues that may hold more than claims have found
	known  store.Probe     // what claims that looked everywhere have followed: the counter, and of the transactions below the bound which have ended
	fullAt time.Time
}

// begin is called before a claim, and returns what to claim with.
func (h *hint) begin(ctx context.Context) (since *string, backlog []string) {
	h.next = nil
	if len(h.queues) < hintFrom {
		return nil, nil
	}
	seen, ended, err := h.Store.Watch(ctx, h.known, 1, 0)
	if err != nil {
		h.forget() // the claim has the same trouble, and says so
		return nil, nil
	}
	moved := seen.Control != h.known.Control
	switch {
	case moved:
		h.known = seen
	case ended:
		h.known.Snapshot = seen.Snapshot // the bound stays: later transactions have moved nothing
	}
	now := time.Now()
	h.next = seen.Snapshot
	h.full = h.since == nil || moved || ended || now.Sub(h.fullAt) > fullEvery
	if h.full {
		h.fullAt = now
		return nil, nil
	}
	return h.since, slices.Collect(maps.Keys(h.left))
}

// end is called after a claim: got is what it found, by queue, where the room was limits.
func (h *hint) end(limits []int32, got map[string]int, err error) {
	if err != nil || h.next == nil {
		h.forget()
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

// forget has the next claim look everywhere: what was seen may have been another server's.
func (h *hint) forget() { h.since, h.known = nil, store.Probe{} }
