package worker

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-pg/weir/internal/clock"
	"github.com/weir-pg/weir/internal/outage"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/store"
)

// suspend lets time pass by the clock on the wall alone.
func (l *lease) suspend(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent.Wall = l.sent.Wall.Add(-d)
	l.soon.Wall = l.soon.Wall.Add(-d)
}

// leased is a session with a job that runs, and one that waits.
type leased struct {
	*session
	waits   *Task
	ctx     context.Context // of the job that runs
	handled chan struct{}   // the other one has started
}

func newLeased(t *testing.T) *leased {
	handled := make(chan struct{}, 1)
	s := newSession(New(Config{
		Lease: 30 * time.Second, Queues: map[string]int{"q": 2}, Log: slog.New(slog.DiscardHandler), Handler: func(context.Context, *Task, *Result) { handled <- struct{}{} },
	}), 1, time.Now())
	t.Cleanup(s.lease.stop)
	s.timeouts = newTimeouts(t.Context(), t.Context())
	b := &batch{tasks: []*Task{{}, {}}}
	for _, task := range b.tasks {
		task.batch = b
	}
	s.add(b)
	ctx, stop := context.WithCancelCause(t.Context())
	s.startTask(b.tasks[0], ctx, stop, time.Now())
	return &leased{s, b.tasks[1], ctx, handled}
}

// starts starts the job that waits, as soon as that may start; the channel is closed when it has ended.
func (l *leased) starts() <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.runJob(l.queues[0], l.waits)
	}()
	return ended
}

// TestAWorkerWhoseMachineWasSuspendedAsksAtOnce: whether it still has its jobs. Until it knows, it starts none, and when no answer comes, those that run are interrupted.
func TestAWorkerWhoseMachineWasSuspendedAsksAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLeased(t)
		time.Sleep(5 * time.Second)
		if len(l.lease.asks) > 0 {
			t.Fatal("it asks without need")
		}
		l.lease.suspend(time.Hour)
		ended := l.starts()
		synctest.Wait()
		if len(l.lease.asks) == 0 || len(l.handled) > 0 || l.ctx.Err() != nil {
			t.Errorf("%d heartbeats are to be sent, %d jobs have started, and one has ended with %v", len(l.lease.asks), len(l.handled), l.ctx.Err())
		}
		time.Sleep(doubtFor + lookEvery)
		<-ended
		if cause := context.Cause(l.ctx); !errors.Is(cause, ErrLapsed) {
			t.Errorf("the cause is %v, want ErrLapsed", cause)
		}
		if len(l.handled) > 0 {
			t.Error("a job has started")
		}
		l.lease.renew(clock.Now())
		if !l.lease.hold(t.Context()) {
			t.Error("it does not go on when a heartbeat arrives")
		}
	})
}

// TestAWorkerWhoseMachineWasSuspendedNoticesIt though it starts no job: within a second, by itself; also if a session that attended was lost just before.
func TestAWorkerWhoseMachineWasSuspendedNoticesIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLeased(t)
		l.lease.shorten(clock.Now().Add(2 * time.Second))
		l.lease.suspend(3 * time.Second)
		time.Sleep(lookEvery)
		synctest.Wait()
		if len(l.lease.asks) == 0 {
			t.Error("no heartbeat is to be sent")
		}
	})
}

// TestAClockThatIsSetEndsNoLease of a worker whose heartbeats are answered, in either direction; and an answer to one that was sent before says nothing.
func TestAClockThatIsSetEndsNoLease(t *testing.T) {
	t.Parallel()
	for _, by := range []time.Duration{time.Hour, -time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			l := newLeased(t)
			l.lease.suspend(by)
			before := l.lease.sent
			ended := l.starts()
			time.Sleep(time.Second)
			l.lease.renew(before)
			synctest.Wait()
			if len(l.handled) > 0 {
				t.Error("a job starts after an old answer")
			}
			l.lease.renew(clock.Now())
			<-ended
			if len(l.handled) == 0 {
				t.Error("the job that waits does not start")
			}
			time.Sleep(20 * time.Second)
			synctest.Wait()
			if l.ctx.Err() != nil {
				t.Errorf("the job that runs is interrupted: %v", context.Cause(l.ctx))
			}
		})
	}
}

// TestAJobOfASuspendedMachineEndsWhenItWakes, if others have it by then: its worker, whose next heartbeat would be due in more than a minute, hears of it at once.
func TestAJobOfASuspendedMachineEndsWhenItWakes(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	st, log := store.New(pool, 0), slog.New(slog.NewTextHandler(t.Output(), nil))
	started, causes := make(chan struct{}, 1), make(chan error, 1)
	w := New(Config{
		Name: "suspended", Queues: map[string]int{"q": 1}, Lease: 5 * time.Minute, StopTimeout: time.Second, Poll: time.Millisecond, Store: st, Keep: st, Log: log, Outage: outage.New(log),
		Handler: func(ctx context.Context, _ *Task, r *Result) {
			started <- struct{}{}
			<-ctx.Done()
			causes <- context.Cause(ctx)
			r.Outcome = store.Released
		},
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	if _, err := pool.Exec(t.Context(), `SELECT weir.enqueue('q', 'k')`); err != nil {
		t.Fatal(err)
	}
	pgtest.Receive(t, started, "the job starts")
	s := w.now.Load()
	if fenced, err := st.Fence(t.Context(), s.id, "silent"); err != nil || !fenced {
		t.Fatalf("%v, %v", fenced, err)
	}
	s.lease.suspend(time.Hour)
	if cause := pgtest.Receive(t, causes, "the job is interrupted"); !errors.Is(cause, ErrFenced) && !errors.Is(cause, ErrLapsed) { // the latter if the server is slow
		t.Errorf("the cause is %v, want ErrFenced", cause)
	}
	pgtest.Until(t, "the worker has begun again", func() bool { return w.now.Load() != s })
	stop()
	if err := pgtest.Receive(t, ended, "the worker ends"); err != nil {
		t.Error(err)
	}
}
