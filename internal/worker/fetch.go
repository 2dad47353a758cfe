package worker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/store"
)

// claimAnyway is how often an idle worker claims even if nothing indicates work, as a safety net for wake.go. A worker that has been idle for
// long does so less often, down to once in claimAtLeast, and so does each worker of a large fleet: see slow.
const (
	claimAnyway  = time.Second
	claimAtLeast = 5 * time.Second
)

// Of the idle workers that share a queue, about this many let the server poll for them continuously: together they poll once in Poll. The
// others poll for themselves, less and less often, until all of them together poll once in slowly. So a fleet costs no more than a few workers.
const (
	watchers = 4
	slowly   = 50 * time.Millisecond
)

// staysAfter is how long a worker may find no room, or jobs that limits withhold, until it is known that it is not idle. Other workers' claims take room for moments.
const staysAfter = time.Second

// lookAtLeast is how often each worker of a large fleet claims from a queue whose limits withheld all jobs from its last claim.
const lookAtLeast = 10 * time.Second

// gather is how long jobs may gather after a claim that emptied the lanes, while more keep arriving: a claim of one job costs as much as
// one of twenty. Where claims take longer, because others claim too or the server is busy, they gather for as long as the last claim took.
const (
	gather     = 10 * time.Millisecond
	gatherMost = 100 * time.Millisecond
)

// missedMost limits how often the pause doubles after which a worker tries again to have its turn, when others are before it; turn limits the pause. A try
// in vain costs the server nearly as much as a claim: with short pauses, those of a large fleet would take the time of the claims that they wait for.
const missedMost = 10

// claimTimeout is how long a claim waits for its answer before it counts as failed. One that follows such a failure waits longer, as long as the worker
// passes for well: the first after a transaction with very many keys takes a while, and starts from the beginning if it is given up.
const (
	claimTimeout     = 30 * time.Second
	longClaimTimeout = stuckAfter - 10*time.Second
)

// fetch claims until ctx ends.
func (s *session) fetch(ctx context.Context) error {
	var limits []int32
	watch := &watch{store: s.Store, known: s.Known}
	if s.Known.Snapshot != nil {
		s.mayHaveBegun() // by a transaction that has ended, of which no poll tells again
	}
	hint := &hint{session: s, left: map[string]bool{}}
	hub := &hubWait{session: s}
	defer hub.stop()
	wait := s.backoff()
	busy := time.Now() // when the last job was claimed
	idle := busy       // when there was last something to do, or to wait for
	first := busy      // when it began
	moved := true      // something may have been logged since the previous claim
	reconciler := &reconciler{session: s}
	defer s.Health.claims.Rest()
	for ctx.Err() == nil {
		s.Health.claims.Rest()
		if !s.waitForRoom(ctx, reconciler) || !s.lease.hold(ctx) {
			break
		}
		s.Health.claims.Beat()
		err := reconciler.compare(ctx)
		compared := err == nil
		if compared {
			err = s.follows.join(hint)
		}
		if err != nil {
			if s.endedBy(err) {
				return nil
			}
			if compared && store.IsRefused(err) {
				return fmt.Errorf("weir: take up queues: %w", err)
			}
			s.Outage.Failed("claims", err)
			wait.sleep(ctx)
			continue
		}
		if ctx.Err() != nil || !s.hasAny() { // comparing may take long
			continue
		}
		select {
		case <-s.released: // the claim sees what was recorded before it
			s.lookEverywhere()
		default:
		}
		now, wanted, full, part := time.Now(), 0, false, s.part()
		limits = slices.Grow(limits[:0], len(s.queues))[:len(s.queues)]
		for i, q := range s.queues {
			free, looks := 0, !now.Before(q.lookAt)
			if looks {
				free = q.reserve()
			}
			full = full || free == 0 && (looks || q.free() == 0) // shared slots may have become free since: the claim does not look there all the same
			if q.part > 0 {
				free = min(free, q.part, part)
			}
			limits[i] = int32(free)
			wanted += free
		}
		if wanted == 0 { // limits withhold all that it could claim
			s.Health.claims.Rest()
			s.waitForLook(ctx, min(time.Until(s.nextLook()), s.Lease/4))
			continue
		}
		began := time.Now()
		got, more, withheld, err := s.claim(ctx, limits, hint)
		took := time.Since(began)
		if err != nil {
			reconciler.doubt()
			if ctx.Err() != nil {
				// The claim may have been made on the server; leave releases its jobs.
				break
			}
			if s.endedBy(err) {
				return nil
			}
			if store.IsRefused(err) {
				return fmt.Errorf("weir: claim: %w", err)
			}
			s.Outage.Failed("claims", err)
			wait.sleep(ctx)
			continue
		}
		wait.reset()
		s.Outage.Worked("claims")
		if s.Maintainer != nil && (moved || got > 0) {
			s.Maintainer.Poke()
		}
		moved = true
		if got > 0 {
			busy = time.Now()
			idle = busy
			s.worked = true
			s.stays()
			if !s.awaitsTurn() {
				s.owes, s.missed = false, max(s.missed-1, 0)
			}
			reconciler.claims++
			hub.stop()                        // jobs that arrive now are for other waiters
			s.Outage.Worked("polls for work") // none is needed
		}
		if got > 0 && (more || got >= min(wanted/2, store.MaxBatch)) {
			continue
		}
		if got > 0 || more {
			// The lanes are empty for now, or others got the jobs of those that were visited. Under a steady flow, more jobs gather within a moment; claim
			// them together. What a limit withholds is there already.
			s.letGather(ctx, min(max(gather, took), gatherMost))
			continue
		}
		s.Health.claims.Rest()
		switch {
		case s.owes && soon(withheld):
			s.missed = min(s.missed+1, missedMost)
			if s.awaitsTurn() && !s.looksElsewhere() {
				continue
			}
		case !s.awaitsTurn():
			s.owes, s.missed = false, max(s.missed-1, 0)
		}
		var quiet time.Time // when the worker will have been idle for long enough
		switch {
		case s.Idle == 0:
		case full || len(withheld) > 0 || !s.nextLook().IsZero() || s.unrecorded() > 0:
			if idle = time.Now(); idle.Sub(first) > staysAfter {
				s.stays()
			}
		case watch.known.Snapshot == nil: // it has not polled yet
		case time.Since(idle) > s.idleAfter():
			s.rested = watch.known
			return ErrIdle
		default:
			quiet = idle.Add(s.idleAfter())
		}
		if len(withheld) == 0 && s.nextLook().IsZero() && hub.rest(ctx, watch) { // a hub tells of new jobs, not of limits that have room again
			continue
		}
		if moved, err = s.rest(ctx, watch, full, busy, earlier(earlier(s.due(withheld), s.nextLook()), quiet)); err != nil {
			if ctx.Err() != nil {
				break
			}
			moved = true
			if store.IsRefused(err) {
				return fmt.Errorf("weir: poll for work: %w", err)
			}
			s.Outage.Failed("polls for work", err)
			wait.sleep(ctx)
			continue
		}
		s.Outage.Worked("polls for work")
	}
	return nil
}

// idleAfter is how long the worker must have had nothing to do to be idle.
func (s *session) idleAfter() time.Duration {
	if s.Look > 0 && !s.worked {
		return s.Look
	}
	return s.Idle
}

// stays tells that the worker will not be idle soon.
func (s *session) stays() {
	if s.Hooks.Stays != nil {
		s.Hooks.Stays()
	}
}

// claim makes one claim, and passes its tasks to the runners. more: it has not visited all lanes with jobs.
func (s *session) claim(ctx context.Context, limits []int32, h *hint) (got int, more bool, withheld []store.Withheld, err error) {
	ctx, cancel := outlasting(ctx, s.patience) // so that the jobs of a claim in progress can be released
	defer cancel()
	defer func() {
		if err == nil {
			s.patience = claimTimeout
		} else if ctx.Err() != nil {
			s.patience = longClaimTimeout
		}
	}()
	since, backlog := h.begin(ctx)
	byQueue := map[string]int{}
	defer func() {
		h.end(limits, byQueue, withheld, more, err)
		for i, q := range s.queues {
			q.settle(int(limits[i]), byQueue[q.name])
		}
	}()
	started := time.Now()
	var batches []*batch
	var tasks []Task // allocated many at a time
	more, withheld, err = s.Store.Claim(ctx, s.id, s.Worker.queues, limits, since, backlog, func(c store.Claim) {
		if len(batches) == 0 || batches[len(batches)-1].key != c.Batch {
			batches = append(batches, &batch{key: c.Batch})
		}
		b := batches[len(batches)-1]
		if len(tasks) == cap(tasks) {
			tasks = make([]Task, 0, min(max(2*cap(tasks), 1), 128))
		}
		tasks = append(tasks, Task{Claim: c, Worker: s.id, batch: b, place: int32(len(b.tasks))})
		b.tasks = append(b.tasks, &tasks[len(tasks)-1])
		b.left++
		got++
	})
	if err != nil {
		return 0, false, nil, err
	}
	s.lookLater(withheld, got)
	if s.Hooks.Claimed != nil && got > 0 {
		s.Hooks.Claimed(got, time.Since(started))
	}
	for _, b := range batches {
		s.add(b)
		q := s.byName[b.tasks[0].Queue]
		byQueue[q.name] += len(b.tasks)
		q.push(b.tasks)
	}
	for i, q := range s.queues {
		if limits[i] > 0 {
			q.filled = byQueue[q.name] == int(limits[i])
			s.adjust(q, byQueue[q.name], int(limits[i]))
		}
	}
	return got, more, withheld, nil
}

// waitForRoom waits until a claim is worthwhile, or a comparison with the database is due; false: ctx ended first.
func (s *session) waitForRoom(ctx context.Context, reconciler *reconciler) bool {
	check := time.NewTicker(s.Lease / 4)
	defer check.Stop()
	if s.Hooks.Stays != nil {
		defer time.AfterFunc(staysAfter, s.Hooks.Stays).Stop()
	}
	var late <-chan time.Time // some slots are free, and short jobs did not make more of them: those that run may be long
	for ctx.Err() == nil {
		if s.hasRoom() || s.follows.hasNews() || reconciler.due() {
			return true
		}
		if late == nil && s.hasAny() {
			late = time.After(gather)
		}
		select {
		case <-s.room:
		case <-late:
			if late = nil; s.hasAny() {
				return true
			}
		case <-check.C:
		case <-ctx.Done():
			return false
		}
	}
	return false
}

// hasRoom reports whether a claim is worthwhile: jobs can run, and not too many results are unrecorded.
func (s *session) hasRoom() bool {
	return !s.completer.full() && s.roomy() && slices.ContainsFunc(s.queues, (*queue).worthwhile)
}

// hasAny reports whether a claim is possible: any job can run, and not too many results are unrecorded.
func (s *session) hasAny() bool {
	return !s.completer.full() && s.left() > 0 && slices.ContainsFunc(s.queues, (*queue).hasSlot)
}

// pause is the time between two polls of this worker, when among workers share the polling.
func (s *session) pause(among int32) time.Duration {
	return sleep.Jitter(min(s.Poll*time.Duration(max(among, 1)), claimAnyway/2))
}

// slow returns the pause at which the workers of a fleet together act once in slowly, but at least least.
func (s *session) slow(least time.Duration) time.Duration {
	return sleep.Jitter(max(least, slowly*time.Duration(s.sharing.Load())))
}

// turn is the pause at which the workers that share a queue together try once in gather to have a turn.
func (s *session) turn() time.Duration { return gather * time.Duration(s.sharing.Load()) }

// drowsy lengthens the pause between the polls of a worker that has been idle for some time, up to three times after half a minute: most of
// the cost of an idle worker is waking up to poll.
func drowsy(pause, idle time.Duration) time.Duration {
	return pause + min(idle/4000, 2*pause)
}

// due returns when a rate may allow jobs that it has withheld; zero: that is for others to find out. In a fleet, about as many workers claim at
// that time as let the server poll for them.
func (s *session) due(withheld []store.Withheld) (at time.Time) {
	if sharing := s.sharing.Load(); sharing > watchers && rand.Int32N(sharing) >= watchers {
		return at
	}
	for _, w := range withheld {
		if w.For != nil && (at.IsZero() || time.Until(at) > *w.For) {
			at = time.Now().Add(max(*w.For, 0))
		}
	}
	return at
}

// watchFor is how long a worker lets the server poll in one call. The call holds a connection and a snapshot for that time, and a worker
// that stops waits for it.
const watchFor = 200 * time.Millisecond

// rest waits until something indicates work, and reports whether it did; or until a full queue has room, or it is time to claim anyway.
// since is when this worker last had a job, due when a rate may allow some or it has been idle for long enough, if it is not zero.
func (s *session) rest(ctx context.Context, w *watch, full bool, since, due time.Time) (changed bool, err error) {
	polled := time.Now()
	anyway := min(max(claimAnyway, polled.Sub(since)/8), claimAtLeast)
	until := polled.Add(s.slow(anyway))
	if !due.IsZero() && due.Before(until) {
		until = due
	}
	for time.Now().Before(until) && !s.follows.hasNews() {
		sharing := s.sharing.Load()
		polls, pause := 1, s.pause(min(sharing, watchers))
		pause = drowsy(pause, time.Since(since))
		left := max(time.Until(until), time.Millisecond)
		switch {
		case full:
			if !s.waitOr(ctx, min(s.pause(sharing), left), atOnce) {
				return false, nil
			}
		case sharing <= watchers || rand.Int32N(sharing) < watchers:
			pause = min(pause, left)
			polls = max(int(min(watchFor, left)/pause), 1)
		default:
			if !s.waitOr(ctx, min(s.pause(sharing), left), atOnce) {
				return false, nil
			}
			if idle := time.Since(since) / 8; time.Since(polled) < min(idle, s.slow(0)) {
				continue
			}
		}
		changed, control, err := w.pollOn(ctx, polls, pause)
		if err != nil || ctx.Err() != nil {
			return false, err
		}
		polled = time.Now()
		if control {
			s.controlMoved()
		}
		if changed {
			return true, nil
		}
	}
	return false, nil
}

// lookLater notes from which queues limits have withheld jobs. Whoever ends one of their jobs claims the next: if all others claimed, too, whenever a slot
// becomes free, a large fleet would do little else. They look together once in slowly, in case nobody does; and once in gather for jobs that they only
// could not have because others were before them.
func (s *session) lookLater(withheld []store.Withheld, got int) {
	limited, now, sharing := false, time.Now(), s.sharing.Load()
	for _, w := range withheld {
		q := s.byName[w.Queue]
		q.awaits = false
		switch {
		case w.For == nil:
			limited = true
			if sharing > 1 {
				q.lookAt = now.Add(min(s.slow(s.Poll), lookAtLeast)) // a limit may have been raised
			}
		case isSoon(w) && got == 0 && s.owes:
			q.awaits, q.lookAt = true, now.Add(sleep.Jitter(min(gather<<s.missed, s.turn())))
		case isSoon(w) && got == 0 && sharing > watchers:
			q.lookAt = now.Add(sleep.Jitter(s.turn()))
		}
	}
	s.limited.Store(limited || !s.nextLook().IsZero())
}

// soon reports whether a claim is to be tried again at once: others were before it.
func soon(withheld []store.Withheld) bool { return slices.ContainsFunc(withheld, isSoon) }

func isSoon(w store.Withheld) bool { return w.For != nil && *w.For <= gather }

// lookEverywhere lets the next claim look at all queues: ends of this worker's attempts were recorded. It tries until it has its turn.
func (s *session) lookEverywhere() {
	s.owes = true
	now := time.Now()
	for _, q := range s.queues {
		if !q.awaitsTurn(now) {
			q.lookAt = time.Time{}
		}
	}
}

// awaitsTurn reports whether others were before this worker at its last try in some queue, and it leaves that to them for a while.
func (s *session) awaitsTurn() bool {
	now := time.Now()
	return slices.ContainsFunc(s.queues, func(q *queue) bool { return q.awaitsTurn(now) })
}

// nextLook returns when to claim again from a queue whose limits withhold jobs; zero: there is none.
func (s *session) nextLook() (at time.Time) {
	now := time.Now()
	for _, q := range s.queues {
		if now.Before(q.lookAt) {
			at = earlier(at, q.lookAt)
		}
	}
	return at
}

// looksElsewhere reports whether the next claim may get jobs from queues whose limits withhold none.
func (s *session) looksElsewhere() bool {
	now := time.Now()
	return slices.ContainsFunc(s.queues, func(q *queue) bool { return q.free() > 0 && !now.Before(q.lookAt) })
}

// waitForLook waits for a while, but not while a queue has room and may be looked at.
func (s *session) waitForLook(ctx context.Context, d time.Duration) {
	if !s.looksElsewhere() {
		s.waitOr(ctx, d, func(bool) bool { return s.looksElsewhere() })
	}
}

// letGather lets jobs gather for a while, but not while a queue has room that had more jobs than room at its last claim.
func (s *session) letGather(ctx context.Context, d time.Duration) {
	s.waitOr(ctx, d, func(freed bool) bool {
		return freed || s.roomy() && slices.ContainsFunc(s.queues, func(q *queue) bool { return q.filled && q.worthwhile() })
	})
}

// earlier returns the earlier of two times that are not zero.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// slotsFreed signals that ends of this worker's attempts were recorded since its last claim began, if limits withheld jobs from that claim; else nil.
// Only this worker can know at once: in a large fleet, most of the others sleep.
func (s *session) slotsFreed() <-chan struct{} {
	if s.limited.Load() {
		return s.released
	}
	return nil
}

// waitOr waits for a while; false: ctx ended, or jobs that may be waiting can be claimed. It asks claimable whenever a queue has room or, which freed says,
// slots of a limit were freed.
func (s *session) waitOr(ctx context.Context, d time.Duration, claimable func(freed bool) bool) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		freed := false
		select {
		case <-s.room:
		case <-s.slotsFreed():
			s.lookEverywhere()
			freed = true
		case <-timer.C:
			return true
		case <-ctx.Done():
			return false
		}
		if claimable(freed) || s.follows.hasNews() {
			return false
		}
	}
}

// atOnce ends a wait at the first signal.
func atOnce(bool) bool { return true }

// endedBy ends the session if the error means that its id is no longer valid, and reports whether it does.
func (s *session) endedBy(err error) bool {
	if store.IsFenced(err) || store.IsMoved(err) {
		s.over(err)
		return true
	}
	return false
}
