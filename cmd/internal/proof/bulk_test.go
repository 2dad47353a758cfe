package proof

import (
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// deadLetters fails n jobs of a queue for good, each with its error.
func deadLetters(t *testing.T, conn *pgx.Conn, worker int32, queue string, n int, reason string) (ids []int64) {
	t.Helper()
	enqueueN(t, conn, queue, n)
	got := mustClaim(t, conn, worker, queue, int32(n))
	exec(t, conn, `SELECT weir._record($1, ARRAY[$2::bigint], ARRAY[$3::bigint], ARRAY[cardinality($4::bigint[])], $4, array_fill('failed'::text, ARRAY[cardinality($4)]), array_fill($5::text, ARRAY[cardinality($4)]))`,
		worker, got[0].Lane, got[0].Seq, idsOf(got), reason) // a claim from one lane is one batch
	return idsOf(got)
}

// runSteps repeats a bulk operation to its end, and returns how many jobs it has changed in how many steps.
func runSteps(t *testing.T, conn *pgx.Conn, operation, filter string) (done, steps int) {
	t.Helper()
	next := ""
	for steps = 1; ; steps++ {
		var n int
		if err := conn.QueryRow(t.Context(), fmt.Sprintf(`SELECT r.n, coalesce(r.next, '') FROM weir.%s(%s, after => nullif($1, '')) r(n, next)`, operation, filter), next).Scan(&n, &next); err != nil {
			t.Fatal(err)
		}
		if done += n; next == "" {
			return done, steps
		}
	}
}

// TestDeadLettersAreRetriedAndDeletedByFilter: those that match, each once, and no others.
func TestDeadLettersAreRetriedAndDeletedByFilter(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q", "other")
	refused := deadLetters(t, conn, worker, "q", 12, "connection refused")
	unknown := deadLetters(t, conn, worker, "q", 7, "no such account")
	other := deadLetters(t, conn, worker, "other", 3, "connection refused")

	if n, steps := runSteps(t, conn, "retry_where", `'q', error => 'refused', max_rows => 5`); n != 12 || steps < 4 {
		t.Errorf("retried %d jobs in %d steps, want 12 in at least 4", n, steps)
	}
	if n, _ := runSteps(t, conn, "retry_where", `'q', error => 'refused'`); n != 0 {
		t.Errorf("retried %d jobs again", n)
	}
	if n, _ := runSteps(t, conn, "delete_where", `'q', max_rows => 2`); n != 7 {
		t.Errorf("deleted %d jobs, want 7", n)
	}
	for _, id := range unknown {
		wantState(t, conn, id, "unknown")
		if !value[bool](t, conn, `SELECT weir.retry($1) IS NULL`, id) {
			t.Errorf("job %d was deleted, and could be retried", id)
		}
	}
	for _, id := range refused {
		wantState(t, conn, id, "available")
	}
	for _, id := range other {
		wantState(t, conn, id, "failed")
	}
	got := mustClaim(t, conn, worker, "q", 100)
	if len(got) != 12 || got[0].Attempt != 2 {
		t.Errorf("claimed %v", got)
	}
	for _, a := range got {
		fail(t, conn, worker, a)
	}
	if n := len(column[int64](t, conn, `SELECT id FROM weir.jobs('failed', 'q')`)); n != 12 {
		t.Errorf("%d jobs of q are failed, want 12", n)
	}
}

// TestARunOfRetriesThatIsEndedIsContinuedByAnother: what a killed run has not done, the next one does, and what it has done, not again.
func TestARunOfRetriesThatIsEndedIsContinuedByAnother(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, killed := connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q")
	deadLetters(t, conn, worker, "q", 30, "x")
	next := value[string](t, killed, `SELECT next FROM weir.retry_where('q', max_rows => 10)`)
	exec(t, killed, `BEGIN`)
	exec(t, killed, `SELECT weir.retry_where('q', max_rows => 10, after => $1)`, next)
	exec(t, conn, `SELECT pg_terminate_backend($1)`, killed.PgConn().PID())
	if n, _ := runSteps(t, conn, "retry_where", `'q', max_rows => 7`); n != 20 {
		t.Errorf("the second run retried %d jobs, want 20", n)
	}
	if got := mustClaim(t, conn, worker, "q", 100); len(got) != 30 {
		t.Errorf("%d attempts are claimed, want 30", len(got))
	}
}

// TestBulkRetriesAtTheSameTimeRetryEachJobOnce: two runs, cancellations and claims do not deadlock, and no job is retried twice.
func TestBulkRetriesAtTheSameTimeRetryEachJobOnce(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	worker := startWorker(t, conn, "q", "r")
	deadLetters(t, conn, worker, "q", 120, "x")
	exec(t, conn, `SELECT weir.enqueue_many(array_agg((ARRAY['q', 'r'])[1 + n % 2]), array_agg('w'::text), priority => array_agg(1 + n % 4)) FROM generate_series(1, 160) n`)
	exec(t, conn, `SELECT weir.cancel_where(kinds => '{w}')`)
	var wg sync.WaitGroup
	total := make([]int, 3)
	runs := []*pgx.Conn{connect(t, url), connect(t, url), connect(t, url)}
	claims := connect(t, url)
	var live []attempt
	stop := make(chan bool)
	wg.Go(func() {
		for {
			got, err := claim(t.Context(), claims, worker, []string{"q", "r"}, []int32{3, 3})
			if err != nil {
				t.Error(err)
				return
			}
			live = append(live, got...)
			select {
			case <-stop:
				if len(got) == 0 {
					return
				}
			default:
			}
		}
	})
	var runners sync.WaitGroup
	for i := range runs {
		runners.Go(func() {
			total[i], _ = runSteps(t, runs[i], "retry_where", `enqueued_before => now(), states => '{failed, cancelled}', max_rows => 40`)
		})
	}
	runners.Wait()
	close(stop)
	wg.Wait()
	seen := map[int64]int{}
	for _, a := range live {
		seen[a.ID]++
	}
	for id, n := range seen {
		if n != 1 {
			t.Errorf("job %d was claimed %d times", id, n)
		}
	}
	if sum := total[0] + total[1] + total[2]; sum != len(seen) || sum < 120 {
		t.Errorf("retried %v, and claimed %d jobs", total, len(seen))
	}
}
