package worker

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/weir-pg/weir/internal/store"
)

const (
	hintFrom  = 32          // number of queues: a claim from fewer of them checks all of them quickly
	fullEvery = time.Minute // interval of full claims, as a safety net
)

// hint narrows the claims of a worker with very many queues, most of which are idle, to new jobs and jobs left over. It is an optimization
// only: a claim with a hint finds jobs committed since the snapshot that was taken before the previous claim, and jobs in queues that may
// have held more than there was room for. A claim without a hint checks all queues: the first claim, one after any error, one after a queue
// may have been resumed or created, and one every fullEvery. The fetcher owns the hint.
//
// The counter that reports resumed queues moves before the commit. So when it has moved, the next claim is full; and another full claim
// follows whenever a transaction that may have moved it ends, however late. Those are the transactions below the bound that was read after
// the counter (see watch).
type hint struct {
	*session
	since  *string         // snapshot taken before the previous claim; nil: claim from all queues
	next   *string         // snapshot taken before the claim in progress; nil: hints are not used
	full   bool            // the claim in progress checks all queues
	left   map[string]bool // queues that may hold more than claims have found
	known  store.Probe     // state up to which full claims have followed: the counter, and which transactions below the bound have ended
	fullAt time.Time
}

// begin is called before a claim, and returns the claim's arguments.
func (h *hint) begin(ctx context.Context) (since *string, backlog []string) {
	h.next = nil
	if len(h.queues) < hintFrom {
		return nil, nil
	}
	seen, ended, err := h.Store.Watch(ctx, h.known, 1, 0)
	if err != nil {
		h.forget() // the claim will fail too, and report it
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

// end is called after a claim. got is the number of jobs found by queue; limits was the room in each; withheld are queues that hold more, for
// their limits are reached. more: not all of them were visited.
func (h *hint) end(limits []int32, got map[string]int, withheld []store.Withheld, more bool, err error) {
	if err != nil || h.next == nil {
		h.forget()
		return
	}
	defer func() {
		for _, w := range withheld {
			h.left[w.Queue] = true
		}
	}()
	if more {
		// The next claim looks where this one did: everywhere, or after the same snapshot.
		if h.full {
			h.since = nil
		}
		for name := range got {
			h.left[name] = true
		}
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

// forget makes the next claim a full one: the recorded state may be that of another server.
func (h *hint) forget() { h.since, h.known = nil, store.Probe{} }
