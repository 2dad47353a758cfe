// Package wake notifies workers that wait at a hub when there is work in their queues, so that they need not poll for themselves.
//
// It wakes only workers that are waiting, and no more of them than there are new jobs: busy workers don't wait, and one job does not wake a
// whole fleet. If a wake-up does not reach its worker, a worker finds the job some seconds later, when it polls for itself.
//
// The token of a wait defines where it starts: it is the token of the previous wait, which the worker received before it last polled for work.
// Jobs committed after that are news, even if they were committed while the worker was polling. So no commit falls between two waits.
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
	polls   = 66                   // on the server in one call, a fifth of a second
	pause   = 3 * time.Millisecond // between polls
	calm    = 16                   // polls of a call that ignore commits alone, if no job was logged within recent
	recent  = time.Second
	pace    = 2 * time.Millisecond // between answers under load
	idle    = time.Minute          // time without waiters until the hub stops polling
	retry   = time.Second          // pause after a failure
	answers = 10 * time.Second     // a database that does not answer within this counts as unreachable
	maxSeen = 10_000               // queues remembered

	stuckAfter = 3 * answers
)

// Jobs notifies waiters of queues with fresh jobs. Create it with New, then call Run.
type Jobs struct {
	store *store.Store
	log   *slog.Logger
	id    string // the prefix of this process's tokens

	pulse pulse.Pulse

	// Nothing waits while holding mu.
	mu      sync.Mutex
	waiting map[string]*list.List // of *waiter, by queue, longest waiting first
	seen    map[string]uint64     // the count at which a queue last had fresh jobs
	count   uint64                // polls that found fresh jobs, and starts of polling
	floor   uint64                // tokens before it are invalid: commits since then may have been missed
	waited  time.Time             // when a wait last began or ended
	polling chan struct{}         // closed while Run polls
	needed  chan struct{}         // wakes Run
}

// New returns a Jobs, which works while Run runs.
func New(s *store.Store, log *slog.Logger) *Jobs {
	return &Jobs{
		store: s, log: log, id: strconv.FormatInt(time.Now().UnixNano(), 36),
		waiting: map[string]*list.List{}, seen: map[string]uint64{}, polling: make(chan struct{}), needed: make(chan struct{}, 1),
	}
}

// Run polls for fresh jobs while there are waiters, until ctx ends.
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
		err := j.poll(ctx)
		j.stopped()
		if err != nil && ctx.Err() == nil {
			j.log.Warn("weir: the hub can't poll for jobs: workers poll for themselves", "error", err)
			select {
			case <-time.After(retry):
			case <-ctx.Done():
			}
			j.need() // there may be waiters
		}
	}
}

// poll polls until there have been no waiters for a while.
func (j *Jobs) poll(ctx context.Context) error {
	at, err := j.fresh(ctx, store.Fresh{}, store.Poll{Polls: 1, Pause: pause})
	if err != nil {
		return err
	}
	j.started()
	var logged time.Time
	for j.wanted() {
		j.pulse.Beat()
		l := store.Poll{Polls: polls, Pause: pause}
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

func (j *Jobs) fresh(ctx context.Context, since store.Fresh, l store.Poll) (store.Fresh, error) {
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
	close(j.polling)
}

func (j *Jobs) stopped() {
	j.mu.Lock()
	defer j.mu.Unlock()
	select {
	case <-j.polling:
		j.polling = make(chan struct{})
	default:
	}
	// Answer all waiters, so that their workers poll for themselves.
	for _, all := range j.waiting {
		for all.Len() > 0 {
			j.take(all.Front().Value.(*waiter)).answer("", nil, "")
		}
	}
}

// Stuck returns an error if polling makes no progress; nil otherwise, and while there are no waiters.
func (j *Jobs) Stuck() error { return j.pulse.Stuck("the hub's polling for jobs", stuckAfter) }

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

// token returns a token for the current count. The caller holds mu.
func (j *Jobs) token() string { return j.id + "-" + strconv.FormatUint(j.count, 36) }

func (j *Jobs) parse(token string) (at uint64, ok bool) {
	id, count, _ := strings.Cut(token, "-")
	at, err := strconv.ParseUint(count, 36, 64)
	return at, err == nil && id == j.id && at >= j.floor
}
