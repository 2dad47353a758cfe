// Package weirtest helps you test programs that use Weir: code that enqueues jobs, and code that runs them. docs/testing.md is the guide to
// it.
//
// # Check what is enqueued
//
// In a transaction that you roll back, check the jobs that the code under test has enqueued in it. Jobs of other transactions are never
// visible, so tests can run in parallel, on a database that is in use:
//
//	tx := weirtest.Tx(t, pool) // rolled back at the end of the test
//	signUp(ctx, tx, client, "ada@example.org")
//	job := weirtest.RequireEnqueuedTx(t, tx, SendMail{To: "ada@example.org"}, &weir.Options{Queue: "mail"})
//	weirtest.RequireNotEnqueuedTx[DeleteAccount](t, tx)
//
// [RequireEnqueued] and the other functions without Tx check all waiting jobs of a database.
//
// # Run one handler
//
// [Work] runs a handler as a worker would, with its middleware, hooks, timeouts and retry policy, in the calling goroutine and without a
// database. It returns what a worker would record:
//
//	config := weir.WorkerConfig{Handlers: handlers}
//	result := weirtest.Work(t.Context(), t, config, &weir.Job[SendMail]{Args: SendMail{To: "nobody"}})
//	if result.Outcome != weir.OutcomeFailed { … }
//
// To test a whole flow in one transaction, pass it a job returned by RequireEnqueuedTx.
//
// # Work everything
//
// [Drain] works the jobs of a database one at a time, including those that handlers enqueue, and returns how each ended. Workers claim only
// committed jobs, so Drain can't work inside a transaction that you roll back. Give the test its own database:
//
//	pool := weirtest.Pool(t) // on the server in DATABASE_URL; copied from a template, and dropped at the end of the test
//	client := weir.NewClient(pool)
//	…
//	ended := weirtest.Drain(t.Context(), t, client, config, nil)
package weirtest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// bound is longer than any single step of this package takes on a busy machine.
const bound = 2 * time.Minute

// Tx begins a transaction, on a pool or a connection, and rolls it back at the end of the test.
func Tx(t testing.TB, on interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}) pgx.Tx {
	t.Helper()
	tx, err := on.Begin(t.Context())
	if err != nil {
		t.Fatalf("weirtest: begin a transaction: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), bound)
		defer cancel()
		_ = tx.Rollback(ctx) // it may have been ended already
	})
	return tx
}
