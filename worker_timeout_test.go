package weir_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAnAttemptHasAnHourUnlessToldOtherwise: attempts time out after an hour, unless the worker or the kind sets another timeout.
func TestAnAttemptHasAnHourUnlessToldOtherwise(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, c := range []struct {
		worker, kind time.Duration
		want         time.Duration // 0: none
	}{{0, 0, time.Hour}, {-1, 0, 0}, {0, -1, 0}, {time.Minute, 0, time.Minute}, {-1, time.Minute, time.Minute}} {
		got := make(chan time.Duration, 1)
		handlers := weir.NewHandlers()
		weir.HandleWith(handlers, weir.KindOptions{Timeout: c.kind}, func(ctx context.Context, _ *weir.Job[number]) error {
			left := time.Duration(0)
			if at, ok := ctx.Deadline(); ok {
				left = time.Until(at)
			}
			got <- left
			return nil
		})
		stop := r.work(nil, func(cfg *weir.WorkerConfig) { cfg.Timeout, cfg.Handlers = c.worker, handlers })
		r.enqueue(1, nil)
		// Attempts that start close together end together, at most a sixtieth late.
		if left := receive(t, got, "the job runs"); left > c.want+c.want/60 || left < c.want-deadline {
			t.Errorf("worker %v, kind %v: the attempt has %v, want %v", c.worker, c.kind, left, c.want)
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAnAttemptThatTakesTooLongIsEndedAndNamesItsTimeout: its context and contexts derived from it report the timeout, and the attempt has
// failed.
func TestAnAttemptThatTakesTooLongIsEndedAndNamesItsTimeout(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	type seen struct{ err, derived, cause error }
	got := make(chan seen, 1)
	r.work(func(ctx context.Context, job *weir.Job[number]) error {
		derived, cancel := context.WithCancel(ctx)
		defer cancel()
		<-ctx.Done()
		<-derived.Done()
		got <- seen{ctx.Err(), derived.Err(), context.Cause(ctx)}
		return derived.Err()
	}, func(c *weir.WorkerConfig) { c.Timeout = 20 * time.Millisecond })
	info := r.await(r.enqueue(1, &weir.Options{MaxAttempts: 1}), weir.StateFailed)
	if !strings.Contains(*info.Error, "longer than its timeout of 20ms") {
		t.Errorf("error %q", *info.Error)
	}
	s := receive(t, got, "the handler returns")
	if s.err != context.DeadlineExceeded || s.derived != context.DeadlineExceeded {
		t.Errorf("the context ended with %v, one derived from it with %v, want %v", s.err, s.derived, context.DeadlineExceeded)
	}
	if !errors.Is(s.cause, context.DeadlineExceeded) || !strings.Contains(s.cause.Error(), "its timeout of 20ms") {
		t.Errorf("the cause is %v", s.cause)
	}
}

// TestAnAttemptThatSucceedsPastItsTimeoutHasSucceeded: an attempt that returns no error after its timeout is completed, because its effects exist.
func TestAnAttemptThatSucceedsPastItsTimeoutHasSucceeded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.work(func(ctx context.Context, job *weir.Job[number]) error {
		<-ctx.Done()
		return nil
	}, func(c *weir.WorkerConfig) { c.Timeout = 20 * time.Millisecond })
	r.await(r.enqueue(1, &weir.Options{MaxAttempts: 1}), weir.StateCompleted)
}

// TestAHandlerThatIgnoresItsTimeoutIsLogged: with its job, kind, queue and running time, while the worker runs; and once more when it
// returns.
func TestAHandlerThatIgnoresItsTimeoutIsLogged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	log := &pgtest.Log{}
	leave := make(chan struct{})
	r.work(func(context.Context, *weir.Job[number]) error {
		<-leave
		return nil
	}, func(c *weir.WorkerConfig) { c.Timeout, c.Logger = 20*time.Millisecond, log.Logger() })
	id := r.enqueue(1, nil)
	saying := func(parts ...string) func() error {
		return func() error {
			for line := range strings.Lines(log.String()) {
				if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) }) {
					return nil
				}
			}
			return fmt.Errorf("no line with %q in:\n%s", parts, log)
		}
	}
	job := fmt.Sprintf("job=%d kind=number queue=default attempt=1", id)
	eventually(t, saying("a handler has not returned", job, "running=", "its timeout of 20ms"))
	close(leave)
	r.await(id, weir.StateCompleted)
	eventually(t, saying("has returned", job, "ran="))
}
