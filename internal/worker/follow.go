package worker

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/store"
)

const (
	// followEvery is how often a worker asks whether there are queues that it does not know: a poll that reads no table.
	followEvery = time.Second
	// followPart bounds the time that reading their names takes, one part in so many.
	followPart = 20
)

// follower takes up queues that fit while the session runs. Its goroutine finds them, and the fetcher adds them between two claims: so the worker keeps its id, its lease, and the jobs that it
// has. Queues are never removed, and a worker that was fenced begins again with all that it has taken up.
//
// The counter that reports new queues moves before the commit. So the names are read when it has moved, and again whenever a transaction that may have moved it has ended, as in hint.
type follower struct {
	*session
	known  store.Probe     // state up to which names were read; the goroutine's, as what follows
	readAt time.Time       // when
	seen   map[string]bool // queues that it has decided about

	mu    sync.Mutex
	found []string // for the fetcher
	err   error    // of a look that repeating does not mend, for the fetcher
}

func newFollower(s *session) *follower {
	f := &follower{session: s, seen: map[string]bool{}}
	for _, name := range s.Worker.queues {
		f.seen[name] = true
	}
	return f
}

// run looks for queues until ctx ends.
func (f *follower) run(ctx context.Context) {
	wait := f.backoff()
	for pause := time.Duration(0); sleep.For(ctx, pause); {
		begun := time.Now()
		if err := f.look(ctx); err != nil {
			if ctx.Err() != nil {
				return
			}
			f.Outage.Failed("looks for queues", err)
			pause = max(wait.next(), followPart*time.Since(begun))
			continue
		}
		f.Outage.Worked("looks for queues")
		wait.reset()
		pause = max(f.slow(followEvery), followPart*time.Since(begun))
	}
}

// look reads the names of queues, if there may be new ones.
func (f *follower) look(ctx context.Context) error {
	ctx, cancel := outlasting(ctx, claimTimeout)
	defer cancel()
	seen, ended, err := f.Store.Watch(ctx, f.known, 1, 0)
	if err != nil {
		return err
	}
	moved := f.known.Upto == nil || seen.Control != f.known.Control
	if !moved && !ended && time.Since(f.readAt) < fullEvery {
		return nil
	}
	names, err := f.Store.QueueNames(ctx)
	if err != nil {
		if store.IsRefused(err) {
			f.give(nil, err)
		}
		return err
	}
	f.readAt = time.Now()
	if moved {
		f.known = seen
	} else {
		f.known.Snapshot = seen.Snapshot // the bound stays: later transactions have moved nothing
	}
	var found []string
	for _, name := range names {
		if !f.seen[name] {
			f.seen[name] = true
			if f.Fits(name) {
				found = append(found, name)
			}
		}
	}
	if len(found) > 0 {
		slices.Sort(found) // workers with the same names then find at once that they share some
		f.give(found, nil)
	}
	return nil
}

// give passes queues, or an error, to the fetcher.
func (f *follower) give(found []string, err error) {
	f.mu.Lock()
	f.found, f.err = append(f.found, found...), err
	f.mu.Unlock()
	f.tellRoom()
}

// hasNews reports whether join has something to do.
func (f *follower) hasNews() bool {
	if f == nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.found) > 0 || f.err != nil
}

// join adds the queues that were found to the session.
func (f *follower) join(h *hint) error {
	if !f.hasNews() {
		return nil
	}
	f.mu.Lock()
	found, err := f.found, f.err
	f.found = nil
	f.mu.Unlock()
	if err != nil {
		return err
	}
	f.Worker.queues = slices.Concat(f.Worker.queues, found)
	for _, name := range found {
		f.Queues[name] = f.Most
		f.start(f.addQueue(name))
		h.left[name] = true // its jobs may be older than what claims look for
	}
	f.Log.Info("weir: the worker takes up queues", "worker", f.id, "queues", found[:min(len(found), maxNamed)], "count", len(found))
	return nil
}
