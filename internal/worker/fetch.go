package worker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/store"
)

// lookAnyway is how often an idle worker claims though nothing points to work: a net under wake.go. One that has had nothing to do for long
// does so more rarely, down to lookAtLeast, and so does each of a large fleet, see slow.
const (
	lookAnyway  = time.Second
	lookAtLeast = 5 * time.Second
)

// Of the workers that share a queue and have nothing to do, about so many let the server look for them all
// the time: together they look every Poll. The others, but for the first, look less and less often by
// themselves, down to one look of any of them in slowly: a fleet costs what a few workers cost.
const (
	watchers = 4
	slowly   = 50 * time.Millisecond
)

// gather is how long jobs may gather after a claim that emptied the lanes, when more keep coming: a
// claim costs as much for one job as for twenty.
const gather = 10 * time.Millisecond

// claimTimeout is when a claim without an answer counts as failed.
const claimTimeout = 30 * time.Second

// fetch claims until ctx ends.
func (s *session) fetch(ctx context.Context) error {
	limits := make([]int32, len(s.queues))
	watch := &watch{store: s.Store}
	hint := &hint{session: s, left: map[string]bool{}}
	hub := &hubWait{session: s}
	defer hub.stop()
	wait := s.backoff()
	busy := time.Now() // when there last was a job
	moved := true      // something may have been logged since the claim before
	books := &books{session: s}
	defer s.Health.claims.Rest()
	for ctx.Err() == nil {
		s.Health.claims.Rest()
		if !s.waitForRoom(ctx, books) || !s.lease.hold(ctx) {
			break
		}
		s.Health.claims.Beat()
		if err := books.compare(ctx); err != nil {
			if s.endedBy(err) {
				return nil
			}
			s.Outage.Failed("claims", err)
			wait.sleep(ctx)
			continue
		}
		if ctx.Err() != nil || !s.hasRoom() { // comparing took its time
			continue
		}
		wanted, full := 0, false
		for i, q := range s.queues {
			free := q.free()
			limits[i] = int32(free)
			wanted += free
			full = full || free == 0
		}
		got, err := s.claim(ctx, limits, hint)
		if err != nil {
			books.doubt()
			if ctx.Err() != nil {
				// The claim may have been made all the same; leave fences this id and logs it again.
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
			books.claims++
			hub.stop()                        // others wait for what comes now
			s.Outage.Worked("looks for work") // none is needed
		}
		if got > 0 && got >= min(wanted/2, store.BatchMost) {
			continue
		}
		if got > 0 {
			// The lanes are empty for now. Under a steady flow, claim at once what gathers in a moment.
			if !sleep.For(ctx, gather) {
				break
			}
			continue
		}
		s.Health.claims.Rest()
		if hub.rest(ctx, watch) {
			continue
		}
		if moved, err = s.rest(ctx, watch, full, busy); err != nil && ctx.Err() == nil {
			moved = true
			if store.IsRefused(err) {
				return fmt.Errorf("weir: look for work: %w", err)
			}
			s.Outage.Failed("looks for work", err)
			wait.sleep(ctx)
			continue
		}
		s.Outage.Worked("looks for work")
	}
	return nil
}

// claim makes one claim and hands its tasks to the runners.
func (s *session) claim(ctx context.Context, limits []int32, h *hint) (got int, err error) {
	// A claim on its way when the worker stops is waited for: what it hands out is handed back.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), claimTimeout)
	defer cancel()
	since, backlog := h.begin(ctx)
	byQueue := map[string]int{}
	defer func() { h.end(limits, byQueue, err) }()
	started := time.Now()
	var batches []*batch
	var tasks []Task // allocated many at a time
	err = s.Store.Claim(ctx, s.id, s.Worker.queues, limits, since, backlog, func(c store.Claim) {
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
		return 0, err
	}
	if s.Hooks.Claimed != nil && got > 0 {
		s.Hooks.Claimed(got, time.Since(started))
	}
	for _, b := range batches {
		s.add(b)
		q := s.byName[b.tasks[0].Queue]
		byQueue[q.name] += len(b.tasks)
		q.push(b.tasks)
	}
	return got, nil
}

// waitForRoom waits until a claim is worth its while, or the books are to be compared; false when ctx ends first.
func (s *session) waitForRoom(ctx context.Context, books *books) bool {
	look := time.NewTicker(s.Lease / 4)
	defer look.Stop()
	for ctx.Err() == nil {
		if s.hasRoom() || books.due() {
			return true
		}
		select {
		case <-s.room:
		case <-look.C:
		case <-ctx.Done():
			return false
		}
	}
	return false
}

// hasRoom tells whether a claim is worth its while: jobs can run, and the results of those that have run are not too far behind.
func (s *session) hasRoom() bool {
	if s.completer.full() {
		return false
	}
	for _, q := range s.queues {
		if q.worthwhile() {
			return true
		}
	}
	return false
}

// pause is the time between two looks of this worker, shared among so many.
func (s *session) pause(among int32) time.Duration {
	return sleep.Jitter(min(s.Poll*time.Duration(max(among, 1)), lookAnyway/2))
}

// slow is this worker's share of what a fleet does once in slowly, or least if that is more.
func (s *session) slow(least time.Duration) time.Duration {
	return sleep.Jitter(max(least, slowly*time.Duration(s.sharing.Load())))
}

// drowsy stretches the time between two looks of a worker whose last job was so long ago, up to three times as far after half a minute: most of
// what an idle one costs is waking up to look.
func drowsy(pause, idle time.Duration) time.Duration {
	return pause + min(idle/4000, 2*pause)
}

// watchFor is how long a worker lets the server do the looking in one call: it holds a connection
// and a snapshot for so long, and a worker that stops waits for it.
const watchFor = 200 * time.Millisecond

// rest waits until something points to work, and tells whether that was so; or until a queue that was full has room, or it is time to claim
// anyway. since is when this worker last had a job.
func (s *session) rest(ctx context.Context, w *watch, full bool, since time.Time) (changed bool, err error) {
	looked := time.Now()
	anyway := min(max(lookAnyway, looked.Sub(since)/8), lookAtLeast)
	for until := looked.Add(s.slow(anyway)); time.Now().Before(until); {
		sharing := s.sharing.Load()
		looks, pause := 1, s.pause(min(sharing, watchers))
		pause = drowsy(pause, time.Since(since))
		switch {
		case full:
			if !s.sleepOrRoom(ctx, s.pause(sharing)) {
				return false, nil
			}
		case sharing <= watchers || rand.Int32N(sharing) < watchers:
			looks = max(int(watchFor/pause), 1)
		default:
			if !s.sleepOrRoom(ctx, s.pause(sharing)) {
				return false, nil
			}
			if idle := time.Since(since) / 8; time.Since(looked) < min(idle, s.slow(0)) {
				continue
			}
		}
		changed, control, err := w.look(context.WithoutCancel(ctx), looks, pause)
		if err != nil || ctx.Err() != nil {
			return false, err
		}
		looked = time.Now()
		if control {
			select {
			case s.heard <- struct{}{}:
			default:
			}
		}
		if changed {
			return true, nil
		}
	}
	return false, nil
}

// sleepOrRoom waits; false: ctx has ended, or a queue that was full, and may have work waiting, has room.
func (s *session) sleepOrRoom(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.room:
		return false
	case <-ctx.Done():
		return false
	}
}

// endedBy ends the session if the error says that its id is of no use any more.
func (s *session) endedBy(err error) bool {
	if store.IsFenced(err) || store.IsMoved(err) {
		s.over(err)
		return true
	}
	return false
}
