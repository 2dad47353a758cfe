package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-pg/weir/internal/store"
)

type taskState int32

const (
	waiting taskState = iota
	running
	ended
)

// batch is one claimed batch and what is left of it.
type batch struct {
	key   store.Batch
	tasks []*Task
	left  int  // tasks whose end is not recorded yet
	lost  bool // claimed again under the same name after a crash: results are dropped
}

// session is the life of one worker id.
type session struct {
	*Worker
	id     int32
	queues []*queue // in the order of Worker.queues
	byName map[string]*queue

	mu      sync.Mutex
	batches map[store.Batch]*batch // and every task's state

	completer *completer
	runners   sync.WaitGroup
	room      chan struct{} // tells the fetcher that a queue has room again; never closed
	heard     chan struct{} // tells the keeper that weir.control has moved; never closed
	sharing   atomic.Int32  // how many workers share a queue with this one, by the last heartbeat
	stopping  atomic.Bool   // nothing more is started
	attends   atomic.Bool   // a session of the server speaks for it
	shaken    atomic.Bool   // a call failed that had nothing to do with what it said

	timeouts timeouts // every job's context derives from one of theirs

	lease  lease
	lapsed bool          // nothing is started, as the lease is about to end; guarded by mu
	cause  error         // why all jobs' contexts have ended, nil if they have not; guarded by mu
	fenced chan struct{} // closed once when the session is over
	fence  sync.Once
}

// newSession returns a session for an id that was asked for at that time.
func newSession(w *Worker, id int32, asked time.Time) *session {
	s := &session{
		Worker:  w,
		id:      id,
		byName:  map[string]*queue{},
		batches: map[store.Batch]*batch{},
		room:    make(chan struct{}, 1),
		heard:   make(chan struct{}, 1),
		fenced:  make(chan struct{}),
	}
	s.sharing.Store(1)
	s.completer = newCompleter(s)
	s.lease.begin(s, asked)
	for _, name := range w.queues {
		q := newQueue(name, w.Queues[name])
		q.start = func() { s.startRunner(q) }
		s.queues = append(s.queues, q)
		s.byName[name] = q
	}
	return s
}

// over ends the session: its id is of no use any more.
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
	// Everything but the fetcher outlives ctx, to finish what runs.
	lasting := context.WithoutCancel(ctx)
	live, die := context.WithCancel(lasting)
	defer die()
	s.timeouts = newTimeouts(lasting, live)
	defer s.lease.stop()

	var growers, helpers sync.WaitGroup
	growing, stopGrowing := context.WithCancel(live)
	defer stopGrowing()
	for _, q := range s.queues {
		growers.Go(func() { q.grow(growing) })
	}
	helpers.Go(func() { s.completer.run(live) })
	helpers.Go(func() { s.keep(live) })
	if s.Maintainer != nil {
		helpers.Go(func() { s.Maintainer.Run(live) })
	}

	fetching, stopFetching := context.WithCancel(ctx)
	defer stopFetching()
	go func() { // ends with fetching
		select {
		case <-s.fenced:
			stopFetching()
		case <-fetching.Done():
		}
	}()
	err = s.fetch(fetching) // returns when fetching ends, or with an error that waiting cannot cure
	s.stopping.Store(true)
	stopGrowing()
	growers.Wait()
	s.handBack()

	finished := make(chan struct{})
	go func() { // ends with the runners
		s.runners.Wait()
		close(finished)
	}()
	left := s.waitForJobs(finished)
	// A flush on its way when the connection fails is tried for as long again, and a little longer.
	s.completer.drain(s.StopTimeout + stopGrace)
	die()
	helpers.Wait()
	s.completer.abandon()

	select {
	case <-s.fenced:
		return true, err
	default:
	}
	s.leave()
	if left {
		err = errors.Join(err, fmt.Errorf("weir: jobs did not stop within %s of their context's end: they were given to other workers while they still ran here", stopGrace))
	}
	return false, err
}

// stopGrace is how long handlers may take to return once their context is cancelled.
const stopGrace = 5 * time.Second

// stopJobs ends the contexts of all jobs, those that start from now on too.
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

// waitForJobs waits for the runners to the deadline, cancels the jobs, and tells whether any is left.
func (s *session) waitForJobs(finished chan struct{}) (left bool) {
	deadline := time.NewTimer(s.StopTimeout)
	defer deadline.Stop()
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

// handBack ends every task that has not started.
func (s *session) handBack() {
	for _, q := range s.queues {
		for _, t := range q.takeAll() {
			if mine, _ := s.startTask(t, nil); mine {
				s.end(t, Result{Outcome: store.Released})
			}
		}
	}
}

// leave fences the session's own id and has what it left logged again, so that nobody waits for its lease to run out.
func (s *session) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), s.StopTimeout+stopGrace)
	defer cancel()
	wait := s.backoff()
	for fenced, more := false, true; more; {
		var err error
		if !fenced {
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

// add takes a claimed batch in. A batch of the same name is a claim that the server lost in a crash:
// its attempts were handed out again, in this one.
func (s *session) add(b *batch) {
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

// startTask takes a waiting task for the caller alone; mine is false if it is nobody's any more. From
// then on stop reaches its context. cancelled: it must not run.
func (s *session) startTask(t *Task, stop context.CancelCauseFunc) (mine, cancelled bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.state != waiting || t.batch.lost {
		return false, false
	}
	t.state, t.stop = running, stop
	switch {
	case stop == nil:
	case s.cause != nil:
		stop(s.cause)
	case s.lapsed:
		stop(ErrLapsed)
	}
	return true, t.Cancelled
}

// recorded takes ends off the books; batches without any left are forgotten.
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

// held names what is this session's and not recorded yet.
func (s *session) held() store.Held {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := store.Held{Lanes: []int32{}, Seqs: []int64{}, Sizes: []int32{}, IDs: []int64{}}
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
