package proof

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestOnlyQueuesWithoutATraceOfJobsAreNeverUsed: not those whose jobs wait, are scheduled, or ended long ago and are gone.
func TestOnlyQueuesWithoutATraceOfJobsAreNeverUsed(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	smallSegments(t, conn)
	worker := startWorker(t, conn, "done", "empty", "filler")
	exec(t, conn, `SELECT weir.enqueue('waits', 'k'), weir.enqueue('scheduled', 'k', run_at => now() + interval '1 day')`)
	enqueueN(t, conn, "done", 3)
	mustComplete(t, conn, worker, mustClaim(t, conn, worker, "done", 3))
	openNext(t, conn, worker)
	rotateUntil(t, conn, "reclaimed job 1")
	if n := value[int](t, conn, `SELECT count(*) FROM weir.jobs('completed', 'done')`); n > 0 {
		t.Errorf("%d jobs are left of the segment that was reclaimed", n)
	}
	got := value[[]string](t, conn, `SELECT weir._never_used(ARRAY['waits', 'scheduled', 'unknown', 'done', 'empty'])`)
	if want := []string{"empty", "unknown"}; !slices.Equal(got, want) {
		t.Errorf("%q were never used, want %q", got, want)
	}
}

// TestAQueueWhoseSegmentIsBeingEmptiedWasUsed: a look at the names that waits for a segment to be emptied sees what was carried out of it.
func TestAQueueWhoseSegmentIsBeingEmptiedWasUsed(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, reader := connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q")
	enqueueN(t, conn, "q", 1)
	mustComplete(t, conn, worker, mustClaim(t, conn, worker, "q", 1))
	exec(t, conn, `BEGIN`)
	exec(t, conn, `LOCK TABLE weir.job_1, weir.batch_1, weir.result_1 IN ACCESS EXCLUSIVE MODE`)
	type answer struct {
		names []string
		err   error
	}
	got := make(chan answer, 1)
	go func() {
		var a answer
		a.err = reader.QueryRow(t.Context(), `SELECT weir._never_used(ARRAY['q'])`).Scan(&a.names)
		got <- a
	}()
	until(t, "the reader waits", func() bool {
		return value[bool](t, conn, `SELECT EXISTS (SELECT FROM pg_locks l WHERE l.pid = $1 AND NOT l.granted)`, reader.PgConn().PID())
	})
	exec(t, conn, `SELECT weir._carry_states(1, 2, ARRAY(SELECT DISTINCT b.lane FROM weir.batch b))`)
	exec(t, conn, `TRUNCATE weir.job_1, weir.batch_1, weir.result_1`)
	exec(t, conn, `COMMIT`)
	if a := pgtest.Receive(t, got, "the reader returns"); a.err != nil || len(a.names) > 0 {
		t.Errorf("never used: %q, %v; want none", a.names, a.err)
	}
}

// TestStartWarnsOfQueuesThatWereNeverUsed: by name, and in any isolation.
func TestStartWarnsOfQueuesThatWereNeverUsed(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	enqueueN(t, conn, "mail", 1)
	var warned []string
	config := conn.Config().Copy()
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { warned = append(warned, n.Message) }
	worker, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer worker.Close(t.Context())
	for _, isolation := range []string{"read committed", "serializable"} {
		warned = nil
		exec(t, worker, `SET default_transaction_isolation = '`+isolation+`'`)
		exec(t, worker, `SELECT weir.start('w', ARRAY['mail', 'mial'])`)
		if want := []string{`weir: no job was ever enqueued to queue "mial": check its name, unless its first jobs are still to come`}; !slices.Equal(warned, want) {
			t.Errorf("%s: it warns %q, want %q", isolation, warned, want)
		}
	}
}
