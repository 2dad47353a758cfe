package proof

import (
	"fmt"
	"slices"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAQueuesListDoesNotReadTheFinishedJobsOfOthers: thousands of jobs that another queue holds make no page of a queue's list longer, and hide none of its jobs, however they have been
// cancelled or have failed.
func TestAQueuesListDoesNotReadTheFinishedJobsOfOthers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ how, state, do string }{
		{"cancelled by filter and passed", "cancelled", `SELECT weir.cancel_where($1)`},
		{"cancelled by filter and not passed", "cancelled", `SELECT weir.cancel_where($1)`},
		{"cancelled one by one and passed", "cancelled", `SELECT weir.cancel(j.id) FROM weir.job j JOIN weir.queue q ON q.id = j.lane >> 39 WHERE q.name = $1`},
		{"cancelled one by one and not passed", "cancelled", `SELECT weir.cancel(j.id) FROM weir.job j JOIN weir.queue q ON q.id = j.lane >> 39 WHERE q.name = $1`},
		{"failed", "failed", ``},
	} {
		t.Run(c.how, func(t *testing.T) {
			t.Parallel()
			blocks := map[int]int64{}
			for _, others := range []int{1, 6000} {
				conn := connect(t, pgtest.Database(t))
				worker := startWorker(t, conn, "small", "large")
				var want []int64
				for _, queue := range []string{"small", "large"} {
					n := others
					if queue == "small" {
						n = 2
					}
					ids := enqueueN(t, conn, queue, n)
					if want == nil {
						want = ids
					}
					if c.do != "" {
						exec(t, conn, c.do, queue)
					}
					if c.how == "cancelled by filter and not passed" || c.how == "cancelled one by one and not passed" {
						continue
					}
					for claimed := range slices.Chunk(claimAll(t, conn, worker, queue), 10) {
						outcome := "cancelled"
						if c.do == "" {
							outcome = "failed"
						}
						if refused, err := record(t.Context(), conn, worker, claimed, outcome, nil); err != nil || len(refused) > 0 {
							t.Fatal(refused, err)
						}
					}
				}
				for _, queue := range []string{"small", "missing"} {
					page := fmt.Sprintf(`SELECT * FROM weir.jobs_page(ARRAY['%s'], queue => '%s', max_rows => 1000)`, c.state, queue)
					blocks[others] += settled(t, conn, page)
					got, pages := list{states: []string{c.state}, queue: &queue}.all(t, conn, 100, nil)
					ids := listedIDs(got)
					if slices.Sort(ids); queue == "small" && !slices.Equal(ids, want) || queue == "missing" && len(ids) > 0 {
						t.Errorf("beside %d jobs, the list of %s has the jobs %v, want %v", others, queue, ids, want)
					}
					if pages != 1 {
						t.Errorf("beside %d jobs, the list of %s has %d pages", others, queue, pages)
					}
				}
			}
			t.Logf("a page of two queues reads %d blocks beside a job of another queue, and %d beside 6,000", blocks[1], blocks[6000])
			if blocks[6000] > blocks[1]*3/2+100 {
				t.Errorf("a page of two queues reads %d blocks beside a job of another queue, and %d beside 6,000", blocks[1], blocks[6000])
			}
		})
	}
}

// TestASmallPageThatFindsNothingReadsNoMoreThanALargeOne: a page of one job looks at as many jobs in vain as a page of many, and doesn't read them in steps of a few for that, each of
// which would take apart the same results again.
func TestASmallPageThatFindsNothingReadsNoMoreThanALargeOne(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	enqueueN(t, conn, "q", 3000)
	mustComplete(t, conn, worker, claimAll(t, conn, worker, "q"))
	page := func(rows int) string {
		return fmt.Sprintf(`SELECT * FROM weir.jobs_page(ARRAY['completed'], queue => 'q', kinds => ARRAY['other'], max_rows => %d)`, rows)
	}
	small, large := settled(t, conn, page(1)), settled(t, conn, page(1000))
	t.Logf("a page that finds nothing reads %d blocks if it has room for one job, and %d for 1,000", small, large)
	if small > large*5/4 {
		t.Errorf("a page that finds nothing reads %d blocks if it has room for one job, and %d for 1,000", small, large)
	}
}

// TestAListPassesOverWhatIsCancelled: weir.jobs returns a waiting job behind tens of thousands that a filter has cancelled.
func TestAListPassesOverWhatIsCancelled(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	for range 3 {
		exec(t, conn, `SELECT weir.enqueue_many(array_fill('q'::text, ARRAY[8000]), array_fill('gone'::text, ARRAY[8000]), array_fill('{}'::jsonb, ARRAY[8000]))`)
	}
	exec(t, conn, `SELECT weir.cancel_where('q')`)
	last := value[int64](t, conn, `SELECT weir.enqueue('q', 'k')`)
	if got := column[int64](t, conn, `SELECT id FROM weir.jobs('available', 'q')`); !slices.Equal(got, []int64{last}) {
		t.Errorf("the waiting jobs are %v, want %d", got, last)
	}
}
