package worker

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/outage"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/store"
)

// careless is an error whose method panics if it is nil.
type careless struct{ text string }

func (e *careless) Error() string { return e.text }

// TestHandlersThatDoNotReturnAreLoggedOnce: a handler that ignores the end of its context is logged once, some time later, and once when it
// returns; many of them in a few lines; and that no slot of their queue is left. Handlers that return in time are not logged. An error whose method panics
// harms nobody.
func TestHandlersThatDoNotReturnAreLoggedOnce(t *testing.T) {
	t.Parallel()
	const jobs = maxOverdue + 5
	log := &pgtest.Log{}
	entered, leave := make(chan struct{}), make(chan struct{})
	w := New(Config{Queues: map[string]int{"q": jobs, "other": 1}, Lease: time.Hour, Log: log.Logger(), Outage: outage.New(slog.New(slog.DiscardHandler)),
		Handler: func(ctx context.Context, task *Task, r *Result) {
			entered <- struct{}{}
			<-leave
			r.Outcome = store.Cancelled
			r.Err = (*careless)(nil)
		}})
	s := newSession(w, 1, time.Now())
	defer s.lease.stop()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.timeouts = newTimeouts(t.Context(), ctx)
	for id := range int64(jobs) {
		b := &batch{key: store.Batch{Lane: 1, Seq: id}, left: 1}
		b.tasks = []*Task{{Claim: store.Claim{Batch: b.key, ID: id, Queue: "q", Kind: "stubborn", Attempt: 1}, batch: b}}
		s.add(b)
		s.byName["q"].push(b.tasks)
	}
	s.byName["q"].mu.Lock()
	s.byName["q"].more(jobs)
	s.byName["q"].mu.Unlock()
	for range jobs {
		pgtest.Receive(t, entered, "a handler is called")
	}
	// Their time is over only now: a job whose time is over before it starts is released without a call of its handler.
	s.mu.Lock()
	for _, b := range s.batches {
		b.tasks[0].stop(&TimedOut{time.Nanosecond})
	}
	s.mu.Unlock()
	o := newOverdue(s)
	lines := func(part string) int { return strings.Count(log.String(), part) }
	begin := time.Now()
	o.check(begin)
	o.check(begin.Add(overdueAfter - 1))
	if text := log.String(); text != "" {
		t.Errorf("logged too early: %s", text)
	}
	for i := range 3 {
		o.check(begin.Add(overdueAfter + time.Duration(i)*overdueEvery))
	}
	for part, want := range map[string]int{"a handler has not returned": maxOverdue, "more handlers have not returned": 1, "occupy all slots of a queue": 1, "queue=q slots=15": 1,
		"queue=other": 0, "its timeout of 1ns": maxOverdue, "has returned": 0} {
		if got := lines(part); got != want {
			t.Errorf("%d lines with %q, want %d, in:\n%s", got, part, want, log)
		}
	}
	close(leave)
	s.runners.Wait()
	o.check(begin.Add(time.Hour))
	if got := lines("had not returned in time has returned"); got != maxOverdue {
		t.Errorf("%d returns were logged, want %d, in:\n%s", got, maxOverdue, log)
	}
	if len(o.since) > 0 || len(o.logged) > 0 || o.full["q"] {
		t.Errorf("the handlers that have returned are remembered: %v, %v, %v", o.since, o.logged, o.full)
	}
}
