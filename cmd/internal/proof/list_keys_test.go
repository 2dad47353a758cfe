package proof

import (
	"slices"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAQueuesListDoesNotReadTheKeysOfOthers: jobs of more keys than a page looks at are all listed, although another queue has more of them in front, and what a page reads is
// the same without that queue.
func TestAQueuesListDoesNotReadTheKeysOfOthers(t *testing.T) {
	pgtest.Alone(t, "what a query touches depends on the transactions of the whole server")
	const page = `SELECT * FROM weir.jobs_page(ARRAY['available'], queue => 'second')`
	blocks := map[int]int64{}
	for _, before := range []int{1, 2000} {
		conn := connect(t, pgtest.Database(t))
		enqueueForEach(t, conn, "first", before)
		enqueueForEach(t, conn, "second", 1200)
		blocks[before] = settled(t, conn, page)
		for queue, want := range map[string]int{"first": before, "second": 1200} {
			jobs, pages := list{states: []string{"available"}, queue: &queue}.all(t, conn, 100, nil)
			ids := listedIDs(jobs)
			slices.Sort(ids)
			if n := len(slices.Compact(ids)); n != want || len(jobs) != want {
				t.Errorf("beside %d keys of another queue, %d pages list %d jobs of %s (%d without those listed twice), want %d", before, pages, len(jobs), queue, n, want)
			}
		}
		if n := value[int](t, conn, `SELECT count(*) FROM weir.jobs('available', 'second')`); n != 100 {
			t.Errorf("beside %d keys of another queue, weir.jobs lists %d jobs, want 100", before, n)
		}
	}
	t.Logf("a page of one queue reads %d blocks beside a key of another queue, and %d beside 2,000", blocks[1], blocks[2000])
	if blocks[2000] > blocks[1]*3/2+1000 {
		t.Errorf("a page of one queue reads %d blocks beside a key of another queue, and %d beside 2,000", blocks[1], blocks[2000])
	}
}

// TestPagesListAKeysJobsOnceAfterARebase: the attempts of a job have one transaction id after a rebase. Whatever the size of the pages, the lists of its
// key have each job that has ended once.
func TestPagesListAKeysJobsOnceAfterARebase(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	want := map[string][]int64{}
	for i := range 16 {
		enqueueFor(t, conn, "q", "a", 1)
		end := []string{"completed", "cancelled"}[i%2]
		for put := range 1 + i/2%4 {
			a := mustClaim(t, conn, worker, "q", 1)[0]
			if put < i/2%4 {
				mustFinish(t, conn, worker, a, "released", time.Time{})
				continue
			}
			mustFinish(t, conn, worker, a, end, time.Time{})
			want[end] = append(want[end], a.ID)
		}
	}
	moveElsewhere(t, conn)
	exec(t, conn, `SELECT weir.rebase()`)
	queue, key := "q", "a"
	for state, ids := range want {
		for limit := 1; limit <= len(ids)+1; limit++ {
			jobs, _ := list{states: []string{state}, queue: &queue, key: &key}.all(t, conn, limit, nil)
			got := listedIDs(jobs)
			if slices.Sort(got); !slices.Equal(got, ids) {
				t.Errorf("in pages of %d, %s jobs are %v, want %v", limit, state, got, ids)
			}
		}
	}
}
