package proof

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAStepOfABulkOperationCostsTheSameHoweverManyJobsThereAre: the last step of retrying or moving all jobs touches as many blocks as the first. With -long, of 200,000
// jobs, twenty steps of each operation are measured, with claims from another queue beside them.
func TestAStepOfABulkOperationCostsTheSameHoweverManyJobsThereAre(t *testing.T) {
	t.Parallel()
	jobs, each, steps := 500, 100, 5
	if *longFlag > 0 {
		jobs, each, steps = 200_000, 500, 20
	}
	url := pgtest.Database(t)
	conn := connect(t, url)
	worker := startWorker(t, conn, "q", "other")
	exec(t, conn, `SELECT weir.set('retention_bytes', '68719476736')`)
	for done := 0; done < jobs; done += 10_000 {
		enqueueN(t, conn, "q", min(10_000, jobs-done))
	}
	began := time.Now()
	for failed := 0; failed < jobs; {
		got := mustClaim(t, conn, worker, "q", 900)
		if refused, err := record(t.Context(), conn, worker, got, "failed", nil); err != nil || len(refused) > 0 {
			t.Fatal(err, refused)
		}
		failed += len(got)
	}
	t.Logf("%d jobs failed in %s", jobs, time.Since(began))
	exec(t, conn, `CREATE TEMP TABLE step (n integer, next text)`)
	for _, c := range []struct{ operation, filter string }{
		{"retry_where", `'q'`}, {"move_where", `'q', to_queue => 'r'`},
	} {
		stop := claimsBeside(t, url, worker)
		var touched []int
		var longest time.Duration
		total, next, began, cpu := 0, "", time.Now(), sessionCPU(conn)
		for {
			at := time.Now()
			touched = append(touched, blocks(t, conn, fmt.Sprintf(`INSERT INTO step SELECT r.n, r.next FROM weir.%s(%s, after => nullif('%s', ''), max_rows => %d) r(n, next)`, c.operation, c.filter, next, each)))
			longest = max(longest, time.Since(at))
			total += value[int](t, conn, `SELECT n FROM step`)
			next = value[string](t, conn, `SELECT coalesce(next, '') FROM step`)
			exec(t, conn, `TRUNCATE step`)
			if next == "" || total >= steps*each {
				break
			}
		}
		took := time.Since(began)
		t.Logf("%s(%s): %d jobs in %d steps and %s: %.0f jobs a second, %.0f µs of CPU each; the longest step %s; blocks: first %d, last full one %d; %s", c.operation, c.filter, total, len(touched),
			took.Round(time.Millisecond), float64(total)/took.Seconds(), (sessionCPU(conn)-cpu).Seconds()*1e6/float64(total), longest.Round(time.Millisecond), touched[0], touched[steps-1], stop())
		if total != steps*each {
			t.Errorf("%s changed %d of %d jobs", c.operation, total, steps*each)
		}
		if first, last := touched[0], slices.Max(touched[:steps]); last > 2*first {
			t.Errorf("%s: a step touches %d blocks, and the first one %d", c.operation, last, first)
		}
	}
}

// claimsBeside claims jobs of another queue, one at a time, until stop is called, which says how long claims took. It does so only with -long.
func claimsBeside(t *testing.T, url string, worker int32) (stop func() string) {
	t.Helper()
	if *longFlag == 0 {
		return func() string { return "" }
	}
	conn := connect(t, url)
	over := make(chan bool)
	var took []time.Duration
	var wg sync.WaitGroup
	wg.Go(func() { // ends with stop
		for {
			select {
			case <-over:
				return
			case <-time.After(10 * time.Millisecond):
			}
			_ = enqueueN(t, conn, "other", 1)
			at := time.Now()
			got := mustClaim(t, conn, worker, "other", 1)
			took = append(took, time.Since(at))
			mustComplete(t, conn, worker, got)
		}
	})
	return func() string {
		close(over)
		wg.Wait()
		slices.Sort(took)
		return fmt.Sprintf("%d claims beside it: median %s, p99 %s, longest %s", len(took), took[len(took)/2], took[len(took)*99/100], took[len(took)-1])
	}
}

// sessionCPU returns how much CPU time a server's session has used, or 0 where that is not known.
func sessionCPU(conn *pgx.Conn) time.Duration {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", conn.PgConn().PID()))
	_, after, found := strings.Cut(string(text), ") ")
	fields := strings.Fields(after)
	if !found || len(fields) < 13 {
		return 0
	}
	var user, system time.Duration
	_, _ = fmt.Sscan(fields[11]+" "+fields[12], &user, &system)
	return (user + system) * 10 * time.Millisecond
}
