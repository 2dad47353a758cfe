// Package weirtest is for tests of programs that use Weir.
//
// # What is enqueued
//
// A test that rolls its transaction back asserts on what the code under test has enqueued in it. Jobs that others enqueue meanwhile, in other
// tests or in a database that is in use, are not among them:
//
//	tx := weirtest.Tx(t, pool) // rolled back at the end of the test
//	signUp(ctx, tx, client, "ada@example.org")
//	job := weirtest.RequireEnqueuedTx(t, tx, SendMail{To: "ada@example.org"}, &weir.Options{Queue: "mail"})
//	weirtest.RequireNotEnqueuedTx[DeleteAccount](t, tx)
//
// [RequireEnqueued] and the others without Tx look at the jobs that wait anywhere in a database.
//
// # What a handler does
//
// [Work] runs a handler as a worker does: with its middleware, hooks, timeouts and retry policy, in the calling goroutine and without a database.
// It returns what would be recorded:
//
//	config := weir.WorkerConfig{Handlers: handlers}
//	result := weirtest.Work(t.Context(), t, config, &weir.Job[SendMail]{Args: SendMail{To: "nobody"}})
//	if result.Outcome != weir.OutcomeFailed { … }
//
// A job that RequireEnqueuedTx has returned can be run so, too, and with that all of a flow in one transaction.
//
// # All of it
//
// [Drain] works the jobs of a database one after the other, those that handlers enqueue too, and returns what happened. A claim sees only what
// is committed, and so does this: it can't be done in a transaction that is rolled back. Use a database of the test's own:
//
//	pool := weirtest.Pool(t) // on the server that DATABASE_URL names; copied from a template, and dropped at the end of the test
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

// bound is more than any one step of this package takes on a busy machine.
const bound = 2 * time.Minute

// Tx begins a transaction, on a pool or a connection, that is rolled back at the end of the test.
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
