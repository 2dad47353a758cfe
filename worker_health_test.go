package weir_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
)

// healthy waits until a worker is healthy, or unhealthy for that reason, and returns its error.
func healthy(t *testing.T, w *weir.Worker, reason weir.HealthReason) (ill *weir.HealthError) {
	t.Helper()
	eventually(t, func() error {
		err := w.Health()
		ill = nil
		if errors.As(err, &ill) && ill.Reason == reason || err == nil && reason == "" {
			return nil
		}
		return fmt.Errorf("its health is %s, want %q", fmt.Sprint(err), reason)
	})
	return ill
}

// TestHealthFollowsWhatTheServerAnswers: Health is right from before the worker starts until after it has stopped.
func TestHealthFollowsWhatTheServerAnswers(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil)
	url := server.URL("postgres")
	migrate(t, url)
	r := newRigOn(t, url)
	handlers := weir.NewHandlers()
	started, release := make(chan bool, 1), make(chan bool)
	weir.Handle(handlers, func(context.Context, *weir.Job[number]) error {
		started <- true
		<-release
		return nil
	})
	worker, err := r.client.NewWorker(weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"default": 1}, Logger: quiet(), Lease: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if ill := healthy(t, worker, weir.HealthNotRunning); !ill.Since.IsZero() {
		t.Errorf("the worker was never started, but Health says that it has not run since %v", ill.Since)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(ctx) }() // ends with ctx; awaited below
	healthy(t, worker, "")

	began := time.Now()
	if err := server.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ill := healthy(t, worker, weir.HealthUnreachable); ill.Since.Before(began.Add(-deadline)) || ill.Since.After(time.Now()) || ill.Err == nil {
		t.Errorf("an outage that began at %v is reported since %v: %v", began, ill.Since, ill.Err)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	healthy(t, worker, "")

	r.enqueue(1, nil)
	receive(t, started, "the job starts")
	stop()
	healthy(t, worker, weir.HealthStopping)
	close(release)
	if err := receive(t, ended, "the worker stops"); err != nil {
		t.Error(err)
	}
	healthy(t, worker, weir.HealthNotRunning)
}

// TestAFencedWorkerIsNotHealthyUntilItHasStartedAgain: Health reports HealthFenced until then.
func TestAFencedWorkerIsNotHealthyUntilItHasStartedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	handlers := weir.NewHandlers()
	started, release := make(chan bool, 2), make(chan bool)
	weir.Handle(handlers, func(context.Context, *weir.Job[number]) error {
		started <- true
		<-release
		return nil
	})
	worker, err := r.client.NewWorker(weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"default": 1}, Logger: quiet(), Lease: 3 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(ctx) }() // ends with ctx; awaited below
	r.enqueue(1, nil)
	receive(t, started, "the job starts")
	eventually(t, func() error { // it waits for a claim of the worker to end
		var done bool
		err := r.pool.QueryRow(t.Context(), `SELECT coalesce(bool_and(weir._fence(id)), true) FROM weir.worker WHERE NOT fenced`).Scan(&done)
		if err == nil && !done {
			err = errors.New("the worker is not fenced yet")
		}
		return err
	})
	healthy(t, worker, weir.HealthFenced) // until its handler returns
	close(release)
	healthy(t, worker, "")
	stop()
	if err := receive(t, ended, "the worker stops"); err != nil {
		t.Error(err)
	}
}

// TestAWorkerThatCannotStartSaysWhy: after Run has returned, Health still reports what is missing.
func TestAWorkerThatCannotStartSaysWhy(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Empty(t))
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(context.Context, *weir.Job[number]) error { return nil })
	worker, err := weir.NewClient(pool).NewWorker(weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"default": 1}, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	if err := worker.Run(t.Context()); !errors.Is(err, weir.ErrNotInstalled) {
		t.Fatal(err)
	}
	if ill := healthy(t, worker, weir.HealthNotRunning); ill.Err == nil || ill.Since.IsZero() {
		t.Errorf("Health reports %v: %v", ill.Since, ill.Err)
	}
}
