// Package wake tells workers that wait at a hub when there is work in their queues, so that they need not look themselves.
//
// Only those are woken who are waiting, and of them no more than there are new jobs: a worker that is busy does not wait, and a fleet
// is not set in motion for one job. Whom a wake-up does not reach finds the job when it looks by itself, some seconds later.
//
// A wait says, by a token, since when: the token of the wait before, which the worker got before it last looked for work. What was
// committed after that is news, also when it came while the worker was looking. So no commit falls between two waits.
package wake

import (
	"container/list"
	"context"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weir-pg/weir/internal/pulse"
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

	stuckAfter = 3 * answers
)

// Jobs tells waiters of queues with fresh jobs. Make it with New, and Run it.
type Jobs struct {
	store *store.Store
	log   *slog.Logger
	id    string // of this process's tokens

	pulse pulse.Pulse

	// Nothing is waited for while it is held.
	mu      sync.Mutex
	waiting map[string]*list.List // of *waiter, by queue, longest waiting first
	seen    map[string]uint64     // the count at which a queue had fresh jobs
	count   uint64                // of looks that found some
	floor   uint64                // tokens before it are of no use: nobody looked then
	waited  time.Time             // when somebody last waited
	looking chan struct{}         // closed while Run looks
	needed  chan struct{}         // wakes Run
}

// New returns a Jobs that Run brings to life.
func New(s *store.Store, log *slog.Logger) *Jobs {
	return &Jobs{
		store: s, log: log, id: strconv.FormatInt(time.Now().UnixNano(), 36),
		waiting: map[string]*list.List{}, seen: map[string]uint64{}, looking: make(chan struct{}), needed: make(chan struct{}, 1),
	}
}

// Run looks for fresh jobs while somebody waits, until ctx ends.
func (j *Jobs) Run(ctx context.Context) {
	defer j.pulse.Rest()
	for ctx.Err() == nil {
		j.pulse.Rest()
		select {
		case <-j.needed:
		case <-ctx.Done():
			return
		}
		j.pulse.Beat()
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
		j.pulse.Beat()
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
		for all.Len() > 0 {
			j.take(all.Front().Value.(*waiter)).answer("", nil, "")
		}
	}
}

// Stuck says that the looking stands still; nil while it goes on, and while nobody waits.
func (j *Jobs) Stuck() error { return j.pulse.Stuck("the looking for jobs", stuckAfter) }

func (j *Jobs) wanted() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.waiting) > 0 || time.Since(j.waited) < idle
}

func (j *Jobs) need() {
	select {
	case j.needed <- struct{}{}:
	default:
	}
}

// token stands for now. The caller holds mu.
func (j *Jobs) token() string { return j.id + "-" + strconv.FormatUint(j.count, 36) }

func (j *Jobs) parse(token string) (at uint64, ok bool) {
	id, count, _ := strings.Cut(token, "-")
	at, err := strconv.ParseUint(count, 36, 64)
	return at, err == nil && id == j.id && at >= j.floor
}
