package proof

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestARebaseKeepsHowJobsEnded: after a rebase, jobs have the same state, errors and output, and inspecting one, or reading a page of completed jobs,
// touches about as many blocks as before, however many have completed; a second rebase changes nothing.
func TestARebaseKeepsHowJobsEnded(t *testing.T) {
	pgtest.Alone(t, "what an inspection touches depends on the transactions of the whole server")
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	output := strings.Repeat("o", 7000) // a page for each result
	for n := range 300 {
		enqueueN(t, conn, "q", 1)
		done := mustClaim(t, conn, worker, "q", 1)
		for _, outcome := range []string{"retried", "released", "snoozed"} {
			if n%10 != 0 {
				break
			}
			if refused, err := record(t.Context(), conn, worker, done, outcome, nil); err != nil || len(refused) > 0 {
				t.Fatal(refused, err)
			}
			done = mustClaim(t, conn, worker, "q", 1)
		}
		a := done[0]
		exec(t, conn, `SELECT * FROM weir._record($1, ARRAY[$2::bigint], ARRAY[$3::bigint], ARRAY[1], ARRAY[$4::bigint], outputs => ARRAY[$5 || $4])`, worker, a.Lane, a.Seq, a.ID, output)
	}
	// One of three jobs that were worked at the same time is still open.
	ids := enqueueN(t, conn, "q", 3)
	mustComplete(t, conn, worker, mustClaim(t, conn, worker, "q", 3)[:2])

	shown := func() []string {
		// A rebase forgets when jobs were claimed, and that the open one was claimed.
		return column[string](t, conn, `SELECT (to_jsonb(i) - 'claimed_at')::text FROM generate_series(1::bigint, $1) n, weir.job_info(n) i WHERE n < $1 ORDER BY i.id`, ids[2])
	}
	page := `SELECT * FROM weir.jobs_page(ARRAY['completed'], max_rows => 50)`
	ofQueue := `SELECT * FROM weir.jobs_page(ARRAY['completed'], 'q', max_rows => 50)`
	retried := value[int64](t, conn, `SELECT max(id) FROM weir.job WHERE attempt = 2`)
	info := fmt.Sprintf(`SELECT * FROM weir.job_info(%d)`, retried)
	was := shown()
	before := []int64{settled(t, conn, page), settled(t, conn, ofQueue), settled(t, conn, info)}
	for range 2 {
		moveElsewhere(t, conn)
		if n := value[int](t, conn, `SELECT weir.rebase()`); n != 1 {
			t.Errorf("rebase logged %d attempts again, want 1", n)
		}
		is := shown()
		if len(is) != len(was) || len(was) != 302 {
			t.Fatalf("%d jobs are shown, and %d were before the rebase, want 302", len(is), len(was))
		}
		for i := range is {
			if is[i] != was[i] {
				t.Errorf("the job is %s, and was %s before the rebase", is[i], was[i])
			}
		}
		after := []int64{settled(t, conn, page), settled(t, conn, ofQueue), settled(t, conn, info)}
		t.Logf("a page of all, a page of a queue and a job touch %v blocks, and %v before the rebase", after, before)
		for i := range after {
			if after[i] > before[i]*5/4+50 {
				t.Errorf("a page of all, a page of a queue and a job touch %v blocks, and %v before the rebase", after, before)
				break
			}
		}
	}
}
