package weir_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
)

// brokenError is an error whose methods need what it does not have, as those of a nil pointer do.
type brokenError struct{ cause *struct{ error } }

func (e *brokenError) Error() string { return e.cause.Error() }
func (e *brokenError) Unwrap() error { return e.cause.error }

// starts counts the calls of Start and of End by attempt.
type starts struct {
	mu    sync.Mutex
	count map[string][2]int
	ends  map[string]ended
}

func (s *starts) note(job weir.JobMeta, i int, e ended) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := fmt.Sprintf("attempt %d at job %d", job.Attempt, job.ID)
	n := s.count[key]
	n[i]++
	s.count[key] = n
	if i == 1 {
		s.ends[key] = e
	}
}

func (s *starts) hooks() weir.Hooks {
	s.count, s.ends = map[string][2]int{}, map[string]ended{}
	return weir.Hooks{
		Start: func(ctx context.Context, job weir.JobMeta) context.Context {
			s.note(job, 0, ended{})
			return context.WithValue(ctx, s, job.ID)
		},
		End: func(ctx context.Context, job weir.JobMeta, outcome weir.Outcome, _ time.Duration, err error) {
			if ctx.Value(s) != job.ID {
				err = errors.New("End has not received the context that Start returned")
			}
			s.note(job, 1, ended{job.ID, job.Attempt, outcome, err})
		},
	}
}

// TestEachStartIsFollowedByOneEnd: whatever the handler, its error, the retry policy or another hook does, each Start has one End with the recorded
// outcome; the job is retried with the queue's backoff, and does not fail because of a hook.
func TestEachStartIsFollowedByOneEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var outer, inner starts
	type value struct{}
	const startPanics, startExits, endPanics, endExits = 11, 12, 13, 14
	misbehave := func(ctx context.Context, n int) {
		switch ctx.Value(value{}) {
		case n:
			panic("ouch")
		case n + 1:
			runtime.Goexit()
		}
	}
	kinds := map[int64]int{} // a job's number; it is written before the job is enqueued
	var mu sync.Mutex
	numbered := func(ctx context.Context, job weir.JobMeta) context.Context {
		mu.Lock()
		defer mu.Unlock()
		return context.WithValue(ctx, value{}, kinds[job.ID])
	}
	stop := r.work(func(ctx context.Context, job *weir.Job[number]) error {
		if job.Attempt > 1 {
			return nil
		}
		switch job.Args.N {
		case 1:
			return errors.New("the retry policy does not expect this")
		case 2, 3:
			runtime.Goexit()
		case 4:
			return &brokenError{}
		case 5, 8:
			if err := pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error { return job.CompleteTx(ctx, tx) }); err != nil {
				return err
			}
			if job.Args.N == 8 {
				return &brokenError{}
			}
			panic("after the commit")
		case 6:
			return (*brokenError)(nil)
		case 7:
			return errors.New("the retry policy ends the goroutine")
		}
		return nil
	}, func(c *weir.WorkerConfig) {
		c.Hooks = []weir.Hooks{outer.hooks(), {
			Start: func(ctx context.Context, job weir.JobMeta) context.Context {
				ctx = numbered(ctx, job)
				if job.Attempt == 1 {
					misbehave(ctx, startPanics)
				}
				return ctx
			},
			End: func(ctx context.Context, job weir.JobMeta, _ weir.Outcome, _ time.Duration, _ error) {
				misbehave(numbered(ctx, job), endPanics)
			},
		}, inner.hooks()}
		c.Retry = func(_ int, err error) time.Duration {
			if strings.Contains(fmt.Sprint(err), "does not expect") {
				panic("no such error")
			}
			if strings.Contains(fmt.Sprint(err), "ends the goroutine") {
				runtime.Goexit()
			}
			return 20 * time.Millisecond
		}
	})
	want := map[string]weir.Outcome{}
	var wait []func()
	for n := range 15 {
		o, attempts, first := &weir.Options{}, 1, weir.OutcomeCompleted
		switch n {
		case 3:
			o.MaxAttempts, first = 1, weir.OutcomeFailed
		case 1, 2, 4, 6, 7, startExits:
			attempts, first = 2, weir.OutcomeRetried
		}
		mu.Lock() // no hook can look before the number is known
		id := r.enqueue(n, o)
		kinds[id] = n
		mu.Unlock()
		want[fmt.Sprintf("attempt 1 at job %d", id)] = first
		if attempts == 2 {
			want[fmt.Sprintf("attempt 2 at job %d", id)] = weir.OutcomeCompleted
		}
		wait = append(wait, func() {
			state := weir.StateCompleted
			if first == weir.OutcomeFailed {
				state = weir.StateFailed
			}
			if job := r.await(id, state); job.Attempt != attempts {
				t.Errorf("job %d ended with attempt %d, want %d", n, job.Attempt, attempts)
			}
		})
	}
	for _, ends := range wait {
		ends()
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	for name, s := range map[string]*starts{"outer": &outer, "inner": &inner} {
		for attempt, n := range s.count {
			if n != [2]int{1, 1} {
				t.Errorf("%s: Start and End were called %v times for %s (number %d)", name, n, attempt, kinds[s.ends[attempt].id])
			}
		}
		for attempt, outcome := range want {
			got, ok := s.ends[attempt]
			if name == "inner" && !ok && outcome == weir.OutcomeRetried {
				continue // a hook before it ended the goroutine
			}
			if got.outcome != outcome || outcome != weir.OutcomeCompleted && got.err == nil {
				t.Errorf("%s: End was called with %+v for %s, want %s", name, got, attempt, outcome)
			}
		}
	}
}

// TestHooksOfAWorkerEndNothingByPanicking: after a hook has panicked the worker continues, and the log says which hook panicked and where.
func TestHooksOfAWorkerEndNothingByPanicking(t *testing.T) {
	t.Parallel()
	for name, misbehave := range map[string]func(){"panic": func() { panic("ouch") }, "exit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			log := &pgtest.Log{}
			recorded := make(chan struct{}, 10)
			stop := r.work(func(context.Context, *weir.Job[number]) error { return nil }, func(c *weir.WorkerConfig) {
				c.Logger = log.Logger()
				c.Hooks = []weir.Hooks{
					{Claimed: func(int, time.Duration) { misbehave() }, Recorded: func(int, time.Duration) { misbehave() }},
					{Recorded: func(int, time.Duration) { recorded <- struct{}{} }},
				}
			})
			for n := range 3 {
				r.await(r.enqueue(n, nil), weir.StateCompleted)
				receive(t, recorded, "the next hook is called")
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
			for _, hook := range []string{"Hooks.Claimed panicked", "Hooks.Recorded panicked"} {
				if text := log.String(); name == "panic" && (!strings.Contains(text, hook) || !strings.Contains(text, "worker_guard_test.go")) {
					t.Errorf("the log lacks %q with its stack:\n%s", hook, text)
				}
			}
		})
	}
}

// TestATokenFunctionThatPanicsEndsNothing: a worker whose token function panics polls, as it does without a hub.
func TestATokenFunctionThatPanicsEndsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	asked := make(chan struct{}, 1000)
	r.work(func(context.Context, *weir.Job[number]) error { return nil }, func(c *weir.WorkerConfig) {
		c.Hubs = []string{"http://127.0.0.1:1"}
		c.HubToken = func(context.Context) (string, error) {
			select {
			case asked <- struct{}{}:
			default:
			}
			panic("no token today")
		}
	})
	receive(t, asked, "the token is asked for")
	r.await(r.enqueue(1, nil), weir.StateCompleted)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := weir.Subscribe(ctx, weir.SubscribeConfig{
		Hubs: []string{"http://127.0.0.1:1"}, Channels: []string{"a"}, Logger: quiet(),
		Token: func(context.Context) (string, error) { cancel(); panic("no token today") },
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the subscription ended with %v, want the context's error", err)
	}
}
