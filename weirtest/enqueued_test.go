package weirtest_test

import (
	"database/sql"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirtest"
)

// TestWhatATransactionEnqueuesIsAssertedOnAndRolledBack: assertions see the transaction's own jobs, and failures list what was enqueued and how it differs.
func TestWhatATransactionEnqueuesIsAssertedOnAndRolledBack(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	client := weir.NewClient(pool)
	if _, err := client.Enqueue(t.Context(), sendMail{To: "somebody else"}, nil); err != nil {
		t.Fatal(err)
	}
	at := time.Now().Add(time.Hour)
	t.Run("in a transaction", func(t *testing.T) {
		tx := weirtest.Tx(t, pool)
		weirtest.RequireNotEnqueuedTx[sendMail](t, tx)
		weirtest.RequireManyEnqueuedTx(t, tx, nil)
		for _, job := range []weir.NewJob{
			{Args: sendMail{To: "ada"}, Options: &weir.Options{Queue: "mail", Priority: 1, Key: "acme", RunAt: at, Meta: map[string]any{"tenant": 7, "trace": "x"}}},
			{Args: sendMail{To: "bob"}},
			{Args: charge{5}},
		} {
			if _, err := client.EnqueueTx(t.Context(), tx, job.Args, job.Options); err != nil {
				t.Fatal(err)
			}
		}
		job := weirtest.RequireEnqueuedTx(t, tx, sendMail{To: "ada"}, &weir.Options{Queue: "mail", Priority: 1, Key: "acme", RunAt: at, MaxAttempts: 25, Meta: map[string]any{"tenant": 7}})
		if job.ID == 0 || job.Args.To != "ada" || job.Queue != "mail" || job.Priority != 1 || job.Key != "acme" || job.Attempt != 1 || job.RunAt.Sub(at).Abs() > time.Millisecond {
			t.Errorf("found %+v", job)
		}
		if job := weirtest.RequireEnqueuedTx(t, tx, charge{5}, nil); job.Queue != "money" || job.MaxAttempts != 3 || !job.RunAt.IsZero() {
			t.Errorf("found %+v", job)
		}
		if all := weirtest.EnqueuedTx[sendMail](t, tx); len(all) != 2 || all[0].Args.To != "ada" || all[1].Args.To != "bob" {
			t.Errorf("found %+v", all)
		}
		weirtest.RequireManyEnqueuedTx(t, tx, []weir.NewJob{{Args: charge{5}}, {Args: sendMail{To: "bob"}}, {Args: sendMail{To: "ada"}}})

		wantFailure(t, func(t testing.TB) { weirtest.RequireEnqueuedTx(t, tx, sendMail{To: "eve"}, nil) },
			`no such job was enqueued in this transaction:`, `send_mail  {"to":"eve"}`, `{"to":"ada"}  queue mail  priority 1  max_attempts 25  key acme  run_at `, `(differs in args)`, `(differs in kind)`)
		wantFailure(t, func(t testing.TB) {
			weirtest.RequireEnqueuedTx(t, tx, sendMail{To: "ada"}, &weir.Options{Queue: "post", Priority: 2, Key: "globex", MaxAttempts: 1, RunAt: at.Add(time.Minute), Meta: map[string]any{"tenant": 8}})
		}, `meta {"tenant":8}`, `(differs in queue, priority, max_attempts, key, run_at, meta.tenant)`)
		wantFailure(t, func(t testing.TB) { weirtest.RequireNotEnqueuedTx[sendMail](t, tx) }, "want no job of kind send_mail, but 2 were enqueued in this transaction", `"bob"`)
		wantFailure(t, func(t testing.TB) {
			weirtest.RequireManyEnqueuedTx(t, tx, []weir.NewJob{{Args: charge{5}}, {Args: charge{5}}, {Args: sendMail{To: "ada"}}})
		}, "3 jobs were enqueued in this transaction, want 3", "missing is\n    charge", `not wanted is`, `"bob"`)

		if _, err := client.EnqueueTx(t.Context(), tx, sendMail{To: "bob"}, &weir.Options{Queue: "mail"}); err != nil {
			t.Fatal(err)
		}
		wantFailure(t, func(t testing.TB) { weirtest.RequireEnqueuedTx(t, tx, sendMail{To: "bob"}, nil) }, "2 such jobs were enqueued in this transaction, want one")
		// A job that matches several wanted jobs is paired so that all of them have one.
		weirtest.RequireManyEnqueuedTx(t, tx, []weir.NewJob{{Args: charge{5}}, {Args: sendMail{To: "bob"}},
			{Args: sendMail{To: "bob"}, Options: &weir.Options{Queue: "default"}}, {Args: sendMail{To: "ada"}}})
		if _, err := client.CancelJobTx(t.Context(), tx, weirtest.RequireEnqueuedTx(t, tx, charge{5}, nil).ID); err != nil {
			t.Fatal(err)
		}
		weirtest.RequireNotEnqueuedTx[charge](t, tx)
	})
	weirtest.RequireManyEnqueued(t, client, []weir.NewJob{{Args: sendMail{To: "somebody else"}}})
	if all := weirtest.Enqueued[sendMail](t, client); len(all) != 1 {
		t.Errorf("the waiting jobs are %v", all)
	}
	weirtest.RequireEnqueued(t, client, sendMail{To: "somebody else"}, nil)
	weirtest.RequireNotEnqueued[charge](t, client)
	wantFailure(t, func(t testing.TB) { weirtest.RequireEnqueued(t, client, charge{1}, nil) }, "no such job was enqueued in this database")
}

// TestWhatATransactionOfDatabaseSQLEnqueuesIsAssertedOn: assertions work in transactions of database/sql.
func TestWhatATransactionOfDatabaseSQLEnqueuesIsAssertedOn(t *testing.T) {
	t.Parallel()
	at := pgtest.Database(t)
	db, err := sql.Open("pgx", at)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	plain, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Rollback()
	tx := weir.SQLTx(plain)
	if _, err := weir.NewClient(nil).EnqueueTx(t.Context(), tx, sendMail{To: "ada"}, nil); err != nil {
		t.Fatal(err)
	}
	weirtest.RequireEnqueuedTx(t, tx, sendMail{To: "ada"}, nil)
}

// TestAJobThatIsDueAlreadyMatchesItsRunAt: a RunAt in the past matches a job without one, because both run at once.
func TestAJobThatIsDueAlreadyMatchesItsRunAt(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	tx := weirtest.Tx(t, pool)
	past := time.Now().Add(-time.Hour)
	if _, err := weir.NewClient(pool).EnqueueTx(t.Context(), tx, charge{1}, &weir.Options{RunAt: past}); err != nil {
		t.Fatal(err)
	}
	weirtest.RequireEnqueuedTx(t, tx, charge{1}, &weir.Options{RunAt: past})
	wantFailure(t, func(t testing.TB) {
		weirtest.RequireEnqueuedTx(t, tx, charge{1}, &weir.Options{RunAt: time.Now().Add(time.Hour)})
	}, "differs in run_at")
}
