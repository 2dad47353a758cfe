package worker

import (
	"context"
	"fmt"
	"time"
)

// A handler that ignores its context occupies a slot until it returns, and nobody would notice. So a handler that has not returned
// overdueAfter after its context ended is logged once, and once more when it returns. There is no timer for that: all running jobs are
// checked every overdueEvery.
const (
	overdueAfter = 10 * time.Second
	overdueEvery = 2 * time.Second
	maxOverdue   = 10 // jobs logged one by one at each check; the others are counted
)

// overdue finds handlers that do not return. It is owned by one goroutine.
type overdue struct {
	*session
	since  map[*Task]time.Time // when the ended context of a running job was first seen
	logged map[*Task]bool      // or counted
	full   map[string]bool     // queues of which all slots were logged as occupied
}

func newOverdue(s *session) *overdue {
	return &overdue{s, map[*Task]time.Time{}, map[*Task]bool{}, map[string]bool{}}
}

// run checks until ctx ends.
func (o *overdue) run(ctx context.Context) {
	every := time.NewTicker(overdueEvery)
	defer every.Stop()
	for {
		select {
		case now := <-every.C:
			o.check(now)
			o.releaseStuck()
		case <-ctx.Done():
			return
		}
	}
}

// late is a handler that does not return.
type late struct {
	task  *Task
	ran   time.Duration
	cause error
}

// check logs the handlers that have just become overdue.
func (o *overdue) check(now time.Time) {
	all, stuck := o.find(now)
	for i, l := range all {
		if i == maxOverdue {
			o.Log.Warn("weir: more handlers have not returned, although their jobs' contexts have ended", "jobs", len(all)-i)
			break
		}
		o.Log.Warn("weir: a handler has not returned, although its job's context has ended: it occupies a slot of the worker until it does",
			append(l.task.attrs(), "running", l.ran.Round(time.Second), "cause", l.cause)...)
	}
	for _, q := range o.everyQueue() {
		name, full := q.name, stuck[q.name] >= q.concurrency
		if full && !o.full[name] {
			o.Log.Error("weir: handlers that have not returned occupy all slots of a queue: this worker runs no more of its jobs. Restart the process, and make the handlers end with their context",
				"queue", name, "slots", q.concurrency)
		}
		o.full[name] = full
	}
}

// find returns the handlers that have just become overdue, and how many are overdue in each queue.
func (o *overdue) find(now time.Time) (all []late, stuck map[string]int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	since, logged, stuck := map[*Task]time.Time{}, map[*Task]bool{}, map[string]int{}
	for _, b := range o.batches {
		for _, t := range b.tasks {
			if t.state != running || t.ctx == nil || t.ctx.Err() == nil {
				continue
			}
			first, known := o.since[t]
			if !known {
				first = now
			}
			since[t] = first
			if now.Sub(first) < overdueAfter {
				continue
			}
			stuck[t.Queue]++
			logged[t] = true
			if o.logged[t] {
				continue
			}
			t.overdue = len(all) < maxOverdue
			all = append(all, late{t, now.Sub(t.started), context.Cause(t.ctx)})
		}
	}
	o.since, o.logged = since, logged
	return all, stuck
}

// logLeft logs the jobs that still run when their session ends.
func (s *session) logLeft() {
	var left []late
	s.mu.Lock()
	now := time.Now()
	for _, b := range s.batches {
		for _, t := range b.tasks {
			if t.state == running && t.ctx != nil {
				t.overdue = t.overdue || len(left) < maxOverdue
				left = append(left, late{t, now.Sub(t.started), context.Cause(t.ctx)})
			}
		}
	}
	s.mu.Unlock()
	for i, l := range left {
		if i == maxOverdue {
			s.Log.Warn("weir: more jobs still run here", "jobs", len(left)-i)
			break
		}
		s.Log.Warn("weir: a job is given to other workers while it still runs here, because its handler has not returned", append(l.task.attrs(), "running", l.ran.Round(time.Second), "cause", l.cause)...)
	}
}

// logReturned logs that a handler that was logged as overdue has returned.
func (s *session) logReturned(t *Task, r Result) {
	attrs := append(t.attrs(), "ran", time.Since(t.started).Round(time.Second))
	if r.Err != nil {
		attrs = append(attrs, "error", clean(fmt.Sprint(r.Err), 1000)) // Sprint, because an Error method may panic
	}
	s.Log.Warn("weir: a handler that had not returned in time has returned", attrs...)
}

func (t *Task) attrs() []any {
	return []any{"job", t.ID, "kind", t.Kind, "queue", t.Queue, "attempt", t.Attempt}
}
