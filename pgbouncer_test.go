package weir_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// TestWorksThroughPgBouncerInTransactionMode: a worker and clients behind a real PgBouncer lose no job and hold no session lock.
func TestWorksThroughPgBouncerInTransactionMode(t *testing.T) {
	t.Parallel()
	direct := newRig(t)
	through := pgtest.Bouncer(t, direct.url)
	pool := pgtest.Pool(t, through) // configured as by a user, with prepared statements
	r := &rig{t: t, url: through, pool: pool, client: weir.NewClient(pool)}
	var failed atomic.Int32
	r.work(func(_ context.Context, job *weir.Job[number]) error {
		if job.Args.N%10 == 0 && job.Attempt == 1 {
			failed.Add(1)
			return errors.New("the first attempt fails")
		}
		return nil
	}, func(c *weir.WorkerConfig) { c.Queues = map[string]int{"default": 50} })
	const n = 500
	for i := range n {
		direct.enqueue(i, nil)
	}
	eventually(t, func() error {
		queues, err := direct.client.Queues(t.Context())
		if err != nil {
			return err
		}
		if queues[0].Claimed < n+n/10 {
			return fmt.Errorf("%d attempts were claimed, want %d", queues[0].Claimed, n+n/10)
		}
		running, err := direct.client.Jobs(t.Context(), weir.JobsParams{States: []weir.State{weir.StateRunning}})
		if err == nil && len(running.Jobs) > 0 {
			err = fmt.Errorf("%d jobs are still running", len(running.Jobs))
		}
		return err
	})
	var attended bool
	if err := direct.pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM weir.attendance WHERE worker <> 0) OR EXISTS (SELECT FROM weir._attending())`).Scan(&attended); err != nil || attended {
		t.Errorf("a worker holds a session lock through the pooler (%v)", err)
	}
	if failed.Load() != n/10 {
		t.Errorf("%d first attempts failed, want %d", failed.Load(), n/10)
	}
	var completed int
	for list := (weir.JobsParams{States: []weir.State{weir.StateCompleted}, Queue: "default"}); ; {
		page, err := direct.client.Jobs(t.Context(), list)
		if err != nil {
			t.Fatal(err)
		}
		if completed += len(page.Jobs); page.Next == "" {
			break
		}
		list.After = page.Next
	}
	if completed != n {
		t.Errorf("%d jobs completed, want %d", completed, n)
	}
	// Enqueueing through it works too, from many goroutines, so that they switch connections.
	ids := make(chan int64, 100)
	for i := range cap(ids) {
		go func() {
			job, err := r.client.Enqueue(t.Context(), number{1001 + i*10}, nil)
			if err != nil {
				t.Error(err)
			}
			ids <- job.ID
		}()
	}
	for range cap(ids) {
		direct.await(receive(t, ids, "an id"), weir.StateCompleted)
	}
}

// TestCallsInYourTransactionThroughPgBouncerSayWhatToConfigure: behind a pooler that mixes up prepared statements, Weir's calls in a
// transaction of a connection that prepares statements fail with an error that says what to configure. With that configuration, they succeed.
func TestCallsInYourTransactionThroughPgBouncerSayWhatToConfigure(t *testing.T) {
	t.Parallel()
	direct := newRig(t)
	through := pgtest.Bouncer(t, direct.url)
	pool := pgtest.Pool(t, through)
	r := &rig{t: t, url: through, pool: pool, client: weir.NewClient(pool)} // of which the worker is, so it prepares statements
	configured := pgtest.Pool(t, configuredForPooler(through))
	other := direct.enqueue(1, &weir.Options{Queue: "other"})
	calls := func(job *weir.Job[number]) map[string]func(context.Context, pgx.Tx) error {
		return map[string]func(context.Context, pgx.Tx) error{
			"complete": func(ctx context.Context, tx pgx.Tx) error { return job.CompleteTx(ctx, tx) },
			"enqueue": func(ctx context.Context, tx pgx.Tx) error {
				_, err := r.client.EnqueueTx(ctx, tx, number{2}, &weir.Options{Queue: "other"})
				return err
			},
			"enqueue many": func(ctx context.Context, tx pgx.Tx) error {
				_, err := r.client.EnqueueManyTx(ctx, tx, []weir.NewJob{{Args: number{3}, Options: &weir.Options{Queue: "other"}}, {Args: number{4}, Options: &weir.Options{Queue: "other"}}})
				return err
			},
			"publish": func(ctx context.Context, tx pgx.Tx) error {
				return r.client.PublishTx(ctx, tx, "news", []byte("text"), nil)
			},
			"look up": func(ctx context.Context, tx pgx.Tx) error {
				_, err := r.client.JobTx(ctx, tx, other)
				return err
			},
			"retry": func(ctx context.Context, tx pgx.Tx) error {
				_, err := r.client.RetryJobTx(ctx, tx, other)
				return err
			},
			"cancel": func(ctx context.Context, tx pgx.Tx) error {
				_, err := r.client.CancelJobTx(ctx, tx, other)
				return err
			},
		}
	}
	r.work(func(ctx context.Context, job *weir.Job[number]) error {
		if job.Attempt > 1 {
			return weir.Fail(errors.New("the first attempt was not completed"))
		}
		for name, call := range calls(job) {
			inEverySession(t, through, call)
			err := pgx.BeginFunc(ctx, pgtest.Pool(t, through), func(tx pgx.Tx) error { return call(ctx, tx) })
			if err == nil || !strings.Contains(err.Error(), "default_query_exec_mode=exec") {
				t.Errorf("%s, on a connection that prepares statements: %v; want an error that says what to configure", name, err)
			}
		}
		return pgx.BeginFunc(ctx, configured, func(tx pgx.Tx) error {
			for name, call := range calls(job) {
				if err := call(ctx, tx); err != nil {
					t.Errorf("%s, configured as the error says: %v", name, err)
					return err
				}
			}
			return nil
		})
	}, nil)
	direct.await(direct.enqueue(0, nil), weir.StateCompleted)
}

// configuredForPooler returns the URL of a pooler in transaction mode, for a connection that prepares no statements.
func configuredForPooler(through string) string { return through + "&default_query_exec_mode=exec" }

// inEverySession runs statements in each session of a PgBouncer, on connections that prepare them there, and rolls them back: other
// processes of an application that have run the same statements before.
func inEverySession(t *testing.T, through string, run func(context.Context, pgx.Tx) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	txs := make([]pgx.Tx, pgtest.BouncerSessions)
	for i := range txs { // all at once, so that each has a session of its own
		conn, err := pgx.Connect(ctx, through)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close(context.WithoutCancel(ctx))
		if txs[i], err = conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: "BEGIN; SET LOCAL idle_in_transaction_session_timeout = 0; SET LOCAL statement_timeout = 0"}); err != nil {
			t.Error(err)
			return
		}
	}
	for _, tx := range txs { // one after the other, because they may lock the same
		if err := run(ctx, tx); err != nil {
			t.Errorf("on a connection that prepares statements, in a session where nobody has: %v", err)
		}
		if err := tx.Rollback(ctx); err != nil {
			t.Error(err)
		}
	}
}

// TestMigratesThroughPgBouncerInTransactionMode: migrations run through a pooler that mixes the state of sessions.
func TestMigratesThroughPgBouncerInTransactionMode(t *testing.T) {
	t.Parallel()
	through := pgtest.Bouncer(t, pgtest.Empty(t))
	var conns []*pgx.Conn // they share one session of the server, and the state that each leaves in it
	for range 2 {
		conn, err := pgx.Connect(t.Context(), through)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.WithoutCancel(t.Context()))
		conns = append(conns, conn)
	}
	for round := range 3 {
		for i, conn := range conns {
			if err := schema.Up(t.Context(), conn); err != nil {
				t.Fatalf("round %d: up by %d: %v", round, i, err)
			}
			all, err := schema.Status(t.Context(), conn)
			if err != nil || all[len(all)-1].AppliedAt.IsZero() {
				t.Fatalf("round %d: status by %d: %v, %v", round, i, all, err)
			}
		}
		if err := schema.Down(t.Context(), conns[0], round%2); err != nil {
			t.Fatalf("round %d: down: %v", round, err)
		}
	}
}
