// Package wake tells workers that wait at a hub when there is work in their queues, so that they need not look themselves.
//
// Only those are woken who are waiting, and of them no more than there are new jobs: a worker that is busy does not wait, and a fleet
// is not set in motion for one job. Whom a wake-up does not reach finds the job when it looks by itself, some seconds later.
//
// A wait says, by a token, since when: the token of the wait before, which the worker got before it last looked for work. What was
// committed after that is news, also when it came while the worker was looking. So no commit falls between two waits.
package wake

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weir-pg/weir/internal/store"
)

const (
	looks    = 66                   // in one call, a fifth of a second
	pause    = 3 * time.Millisecond // between looks
	calm     = 16                   // looks before a commit alone counts, when no job has been logged for
	recent   = time.Second          // so long
	pace     = 2 * time.Millisecond // between two answers under load
	idle     = time.Minute          // without waiters, until the hub stops looking
	retry    = time.Second          // after a failure
	answers  = 10 * time.Second     // a database that does not answer for so long is not there
	mostSeen = 10_000               // queues remembered
)

// Jobs tells waiters of queues with fresh jobs. Make it with New, and Run it.
type Jobs struct {
	store *store.Store
	log   *slog.Logger
	id    string // of this process's tokens

	mu      sync.Mutex
	waiting map[string][]*waiter // by queue, longest waiting first
	seen    map[string]uint64    // the count at which a queue had fresh jobs
	count   uint64               // of looks that found some
	floor   uint64               // tokens before it are of no use: nobody looked then
	waited  time.Time            // when somebody last waited
	looking chan struct{}        // closed while Run looks
	needed  chan struct{}        // wakes Run
}

type waiter struct {
	queues []string
	woken  chan string // the queue; has room for one
}

// New returns a Jobs that Run brings to life.
func New(s *store.Store, log *slog.Logger) *Jobs {
	return &Jobs{
		store: s, log: log, id: strconv.FormatInt(time.Now().UnixNano(), 36),
		waiting: map[string][]*waiter{}, seen: map[string]uint64{}, looking: make(chan struct{}), needed: make(chan struct{}, 1),
	}
}

// Run looks for fresh jobs while somebody waits, until ctx ends.
func (j *Jobs) Run(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-j.needed:
		case <-ctx.Done():
			return
		}
		err := j.look(ctx)
		j.stopped()
		if err != nil && ctx.Err() == nil {
			j.log.Warn("weir: the hub can't look for jobs, workers look by themselves", "error", err)
			select {
			case <-time.After(retry):
			case <-ctx.Done():
			}
			j.need() // while somebody waits
		}
	}
}

// look looks until nobody has waited for a while.
func (j *Jobs) look(ctx context.Context) error {
	at, err := j.fresh(ctx, store.Fresh{}, store.Look{Looks: 1, Pause: pause})
	if err != nil {
		return err
	}
	j.started()
	var logged time.Time
	for j.wanted() {
		l := store.Look{Looks: looks, Pause: pause}
		if time.Since(logged) > recent {
			l.Patience = calm
		}
		now, err := j.fresh(ctx, at, l)
		if err != nil {
			return err
		}
		if now.Logged(at) {
			logged = time.Now()
		}
		at = now
		if len(now.Queues) == 0 {
			continue
		}
		j.wake(now)
		select {
		case <-time.After(pace):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (j *Jobs) fresh(ctx context.Context, since store.Fresh, l store.Look) (store.Fresh, error) {
	ctx, cancel := context.WithTimeout(ctx, answers)
	defer cancel()
	return j.store.FreshQueues(ctx, since, l)
}

func (j *Jobs) started() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.count++
	j.floor = j.count
	clear(j.seen)
	close(j.looking)
}

func (j *Jobs) stopped() {
	j.mu.Lock()
	defer j.mu.Unlock()
	select {
	case <-j.looking:
		j.looking = make(chan struct{})
	default:
	}
	// Whoever waits is told to look himself, for nobody does it for him.
	for _, all := range j.waiting {
		for _, w := range all {
			w.wake("")
		}
	}
}

func (j *Jobs) wanted() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.waiting) > 0 || time.Since(j.waited) < idle
}

// wake tells as many waiters of each queue as it has jobs, the longest waiting first.
func (j *Jobs) wake(f store.Fresh) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.count++
	if len(j.seen) > mostSeen {
		clear(j.seen)
		j.floor = j.count
	}
	for i, queue := range f.Queues {
		j.seen[queue] = j.count
		most := f.Counts[i]
		for _, w := range j.waiting[queue] {
			if most == 0 {
				break
			}
			if w.wake(queue) {
				most--
			}
		}
	}
}

// wake tells whether the waiter had not been woken yet.
func (w *waiter) wake(queue string) bool {
	select {
	case w.woken <- queue:
		return true
	default:
		return false
	}
}

func (j *Jobs) need() {
	select {
	case j.needed <- struct{}{}:
	default:
	}
}

// Wait returns when jobs were committed for one of the queues since the token was given out, with those of the queues that are known to
// have some, and the token to wait with next. Without a token, or with that of another hub, it returns at once. When ctx ends first
// it returns no queue and the same token.
func (j *Jobs) Wait(ctx context.Context, queues []string, since string) (ready []string, token string, err error) {
	j.mu.Lock()
	j.waited = time.Now()
	j.mu.Unlock()
	if err := j.untilLooking(ctx); err != nil {
		return nil, since, err
	}
	w := &waiter{queues: queues, woken: make(chan string, 1)}
	j.mu.Lock()
	if at, ok := j.parse(since); !ok {
		ready = slices.Clone(queues)
	} else {
		for _, q := range queues {
			if j.seen[q] > at {
				ready = append(ready, q)
			}
		}
	}
	if len(ready) > 0 {
		defer j.mu.Unlock()
		return ready, j.token(), nil
	}
	for _, q := range queues {
		j.waiting[q] = append(j.waiting[q], w)
	}
	j.mu.Unlock()

	var queue string
	select {
	case queue = <-w.woken:
	case <-ctx.Done():
		err = ctx.Err()
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, q := range queues {
		all := slices.DeleteFunc(j.waiting[q], func(other *waiter) bool { return other == w })
		if len(all) == 0 {
			delete(j.waiting, q)
		} else {
			j.waiting[q] = all
		}
	}
	j.waited = time.Now()
	if err == nil && ctx.Err() != nil {
		w.woken <- queue // it has left in the same moment
		err = ctx.Err()
	}
	if err != nil {
		select {
		case other := <-w.woken: // a wake-up is not lost with who leaves
			for _, next := range j.waiting[other] {
				if next.wake(other) {
					break
				}
			}
		default:
		}
		return nil, since, err
	}
	if queue == "" {
		return nil, "", nil
	}
	return []string{queue}, j.token(), nil
}

func (j *Jobs) untilLooking(ctx context.Context) error {
	j.need()
	j.mu.Lock()
	looking := j.looking
	j.mu.Unlock()
	select {
	case <-looking:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// token stands for now. The caller holds mu.
func (j *Jobs) token() string { return j.id + "-" + strconv.FormatUint(j.count, 36) }

func (j *Jobs) parse(token string) (at uint64, ok bool) {
	id, count, _ := strings.Cut(token, "-")
	at, err := strconv.ParseUint(count, 36, 64)
	return at, err == nil && id == j.id && at >= j.floor
}
