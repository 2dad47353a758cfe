package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-pg/weir/internal/clock"
	"github.com/weir-pg/weir/internal/store"
)

type taskState int32

const (
	waiting taskState = iota
	running
	ended
)

// batch is a claimed batch.
type batch struct {
	key     store.Batch
	tasks   []*Task
	left    int // number of tasks whose end is not recorded
	reports *reports
	lost    bool // its key was claimed again after a crash of the server: its results are dropped
}

// session is the life of one worker id.
type session struct {
	*Worker
	id     int32
	queues []*queue          // in the order of Worker.queues; the fetcher adds some, under mu
	byName map[string]*queue // the fetcher's

	mu      sync.Mutex
	batches map[store.Batch]*batch // guarded by mu, with the state of every task
	all     atomic.Int64           // jobs in flight, if Most bounds them
	grown   int                    // queues whose part is more than the least; the fetcher's
	follows *follower              // nil: the queues are fixed
	start   func(q *queue)         // starts what a queue needs that is added while the session runs

	completer *completer
	reports   *reports
	runners   sync.WaitGroup
	room      chan struct{} // signals the fetcher that a queue has room again; never closed
	limited   atomic.Bool   // limits withheld jobs from the last claim: ends of this worker's attempts may make room
	patience  time.Duration // for the next claim; the fetcher's
	owes      bool          // this worker has freed slots, and has not looked since whether there are jobs for them; the fetcher's
	missed    int           // how often it has tried in vain to have its turn, because others were before it, less one for each try that was not
	worked    bool          // it has claimed a job; the fetcher's
	doubtful  bool          // a claim without an answer may have been made; the fetcher's, and leave's after it
	released  chan struct{} // signals the fetcher that ends were recorded since its last claim began; never closed
	heard     chan struct{} // signals the keeper that weir.control has moved; never closed
	sharing   atomic.Int32  // number of workers that share a queue with this one, by the last heartbeat
	stopping  atomic.Bool   // no more jobs start
	attends   atomic.Bool   // a session of the server attends for it
	shaken    atomic.Bool   // a call failed for a reason other than its arguments

	timeouts timeouts // every job's context derives from one of its contexts

	lease  lease
	lapsed bool          // no jobs start, because the lease is about to end; guarded by mu
	cause  error         // why all jobs' contexts have ended; nil: they have not; guarded by mu
	fenced chan struct{} // closed once when the session is over
	fence  sync.Once
}

// newSession returns a session for a worker id that was requested at the time asked.
func newSession(w *Worker, id int32, asked time.Time) *session {
	s := &session{
		Worker:   w,
		id:       id,
		byName:   map[string]*queue{},
		batches:  map[store.Batch]*batch{},
		room:     make(chan struct{}, 1),
		heard:    make(chan struct{}, 1),
		released: make(chan struct{}, 1),
		fenced:   make(chan struct{}),
		patience: claimTimeout,
	}
	s.sharing.Store(1)
	s.completer = newCompleter(s)
	s.reports = newReports(s)
	s.lease.begin(s, clock.At(asked))
	for _, name := range w.queues {
		s.addQueue(name)
	}
	if w.Fits != nil {
		s.follows = newFollower(s)
	}
	return s
}

// addQueue adds a queue of Worker.Queues.
func (s *session) addQueue(name string) *queue {
	q := newQueue(name, s.Queues[name])
	q.start = func() { s.startRunner(q) }
	if s.Slots != nil {
		q.slots = func() int { return s.Slots(q.name) }
	}
	if s.Room != nil {
		q.room = s.Room[name]
		q.slots = func() int { return int(q.inFlight.Load()) + q.room.Free() }
	}
	if s.Most > 0 {
		q.all, q.part = &s.all, s.firstPart()
	}
	s.mu.Lock()
	s.queues = append(s.queues, q)
	s.mu.Unlock()
	s.byName[name] = q
	return q
}

// everyQueue returns the queues as they are now, for others than the fetcher.
func (s *session) everyQueue() []*queue {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queues
}

// over ends the session: its id is no longer valid.
func (s *session) over(err error) {
	s.fence.Do(func() {
		s.Log.Warn("weir: the session is over", "worker", s.id, "error", err)
		s.Health.enter(Fenced, err)
		s.stopJobs(ErrFenced)
		close(s.fenced)
	})
}

// run works until ctx ends or the session is over; again is true in the second case.
func (s *session) run(ctx context.Context) (again bool, err error) {
	// Everything but the fetcher outlives ctx, to finish running jobs.
	lasting := context.WithoutCancel(ctx)
	live, die := context.WithCancel(lasting)
	defer die()
	s.timeouts = newTimeouts(lasting, live)
	defer s.lease.stop()

	var growers, helpers sync.WaitGroup
	growing, stopGrowing := context.WithCancel(live)
	defer stopGrowing()
	s.start = func(q *queue) { growers.Go(func() { q.grow(growing) }) }
	for _, q := range s.queues {
		s.start(q)
	}
	helpers.Go(func() { s.completer.run(live) })
	helpers.Go(func() { s.reports.run(live) })
	helpers.Go(func() { s.keep(live) })
	helpers.Go(func() { newOverdue(s).run(live) })
	if s.Maintainer != nil {
		helpers.Go(func() { s.Maintainer.Run(live) })
	}

	fetching, stopFetching := context.WithCancel(ctx)
	defer stopFetching()
	if s.follows != nil {
		helpers.Go(func() { s.follows.run(fetching) })
	}
	go func() { // ends with fetching
		select {
		case <-s.fenced:
			stopFetching()
		case <-fetching.Done():
		}
	}()
	err = s.fetch(fetching) // returns when fetching ends, or with an error that waiting cannot fix
	s.stopping.Store(true)
	stopFetching()
	stopGrowing()
	growers.Wait()
	s.releaseWaiting()

	finished := make(chan struct{})
	go func() { // ends with the runners
		s.runners.Wait()
		close(finished)
	}()
	left := s.waitForJobs(finished)
	if left {
		s.logLeft()
	}
	// If the connection fails during the last calls, they are retried for the same time again, and a little longer.
	over := time.Now().Add(s.StopTimeout + stopGrace)
	s.completer.drain(time.Until(over))
	die()
	helpers.Wait()
	s.completer.abandon()

	select {
	case <-s.fenced:
		return true, err
	default:
	}
	if least := time.Now().Add(stopGrace); over.Before(least) {
		over = least // a job that a handler's open transaction may still complete has used up the time, say: the others need not wait for the lease
	}
	s.leave(over)
	if left {
		err = errors.Join(err, fmt.Errorf("weir: jobs did not stop within %s after their context ended: they were given to other workers while still running here", stopGrace))
	}
	return false, err
}

// stopGrace is how long handlers may take to return after their context was cancelled.
const stopGrace = 5 * time.Second

// outlasting returns the context of a call that takes no longer than limit. When the worker stops, its answer is waited for, but no longer than stopGrace: a server that is silent must
// not hold up the stop, and what the call has claimed all the same is released by leave, or logged again by the rescuer.
func outlasting(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	lasting, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	forget := context.AfterFunc(ctx, func() { time.AfterFunc(stopGrace, cancel) })
	return lasting, func() {
		forget()
		cancel()
	}
}

// stopJobs ends the contexts of all jobs, including those that start later.
func (s *session) stopJobs(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause != nil {
		return
	}
	s.cause = cause
	for _, b := range s.batches {
		for _, t := range b.tasks {
			if t.stop != nil {
				t.stop(cause)
			}
		}
	}
}

// waitForJobs waits for the runners until the deadline, then cancels the jobs; it reports whether any is left.
func (s *session) waitForJobs(finished chan struct{}) (left bool) {
	deadline := time.NewTimer(s.StopTimeout)
	defer deadline.Stop()
	if s.Linger {
		deadline.Stop()
	}
	select {
	case <-finished:
		return false
	case <-deadline.C:
	case <-s.fenced:
	}
	s.stopJobs(ErrStopping)
	grace := time.NewTimer(stopGrace)
	defer grace.Stop()
	select {
	case <-finished:
		return false
	case <-grace.C:
		return true
	}
}

// releaseWaiting releases every task that has not started.
func (s *session) releaseWaiting() {
	for _, q := range s.queues {
		s.release(q, q.takeAll())
	}
}

// releaseStuck releases the tasks of each queue that wait behind long jobs.
func (s *session) releaseStuck() {
	for _, q := range s.everyQueue() {
		if waiting := q.stuck(); len(waiting) > 0 {
			s.release(q, waiting)
			if q.worthwhile() {
				s.tellRoom()
			}
		}
	}
}

// release releases tasks that no runner has taken.
func (s *session) release(q *queue, waiting []*Task) {
	for _, t := range waiting {
		if mine, _ := s.startTask(t, nil, nil, time.Time{}); mine {
			s.end(t, Result{Outcome: store.Released})
		}
	}
	q.flies(-len(waiting))
	if q.room != nil {
		q.room.Dropped(len(waiting))
	}
}

// leave fences the session's own id and logs its remaining jobs again, so that they need not wait for its lease to run out, unless that takes too long. Before that, it releases what a claim
// without an answer has claimed: those jobs have not begun, and an attempt that is logged again because its worker is lost is used up.
func (s *session) leave(over time.Time) {
	ctx, cancel := context.WithDeadline(context.Background(), over)
	defer cancel()
	wait := s.backoff()
	for fenced, more := false, true; more; {
		var err error
		if s.doubtful {
			_, err = s.releaseUnknown(ctx)
			s.doubtful = err != nil && !store.IsRefused(err)
		}
		if !s.doubtful && !fenced {
			fenced, err = s.Store.Fence(ctx, s.id, "stopped")
		}
		if fenced && err == nil {
			if more, err = s.Store.Settle(ctx, s.id); err == nil {
				wait.reset()
				continue
			}
		}
		if ctx.Err() != nil || store.IsRefused(err) {
			return // the rescuer does it
		}
		wait.sleep(ctx)
	}
}

// add registers a claimed batch. If a batch with the same key exists, the server lost its claim in a crash, and the new batch contains the
// same jobs again.
func (s *session) add(b *batch) {
	b.reports = s.reports
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.batches[b.key]; old != nil {
		old.lost = true
		for _, t := range old.tasks {
			if t.stop != nil {
				t.stop(ErrFenced)
			}
		}
	}
	s.batches[b.key] = b
}

// startTask assigns a waiting task to the caller; mine is false if the task is no longer available. From then on, stop ends ctx, the task's
// context; both are nil if the task is only to be released. dropped is not nil if the task must not run.
func (s *session) startTask(t *Task, ctx context.Context, stop context.CancelCauseFunc, now time.Time) (mine bool, dropped *string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.state != waiting || t.batch.lost {
		return false, nil
	}
	t.state, t.ctx, t.stop, t.started = running, ctx, stop, now
	switch {
	case stop == nil:
	case s.cause != nil:
		stop(s.cause)
	case s.lapsed:
		stop(ErrLapsed)
	}
	return true, t.Dropped
}

// recorded removes tasks whose end was recorded, and batches without any tasks left.
func (s *session) recorded(tasks []*Task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range tasks {
		t.recorded = true
		t.batch.left--
		if t.batch.left == 0 && s.batches[t.batch.key] == t.batch {
			delete(s.batches, t.batch.key)
		}
	}
}

// held returns the attempts that this session has and that are not recorded yet.
func (s *session) held() store.Held {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := store.Held{Lanes: []int64{}, Seqs: []int64{}, Sizes: []int32{}, IDs: []int64{}}
	for key, b := range s.batches {
		h.Lanes, h.Seqs, h.Sizes = append(h.Lanes, key.Lane), append(h.Seqs, key.Seq), append(h.Sizes, int32(b.left))
		for _, t := range b.tasks {
			if !t.recorded {
				h.IDs = append(h.IDs, t.ID)
			}
		}
	}
	return h
}
