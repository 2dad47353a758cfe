package proof

import (
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAPageThatWaitsForAReclaimIsComplete: a page that is asked for while a segment is being reclaimed waits, and then shows every job where it is.
func TestAPageThatWaitsForAReclaimIsComplete(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	exec(t, conn, `SELECT weir.set('completed_retention', '1 hour'), weir.set('retention_bytes', '1048576')`)
	worker := startWorker(t, conn, "q", "r", "filler")
	enqueueN(t, conn, "r", 7)
	mustClaim(t, conn, worker, "r", 7)
	enqueueN(t, conn, "q", 10)
	openNext(t, conn, worker)
	for state, want := range map[string]int{"available": 10, "running": 7} {
		reclaim, look := connect(t, url), connect(t, url)
		exec(t, reclaim, `BEGIN`)
		if !value[bool](t, reclaim, `SELECT weir._reclaim((last_value + 2)::integer % 4 + 1) FROM weir.active_job`) { // the one before it
			t.Fatal("the segment before the active one is not reclaimed")
		}
		type page struct {
			jobs int
			next *string
			err  error
		}
		pages := make(chan page)
		go func() {
			var p page
			p.err = look.QueryRow(t.Context(), `SELECT jsonb_array_length(jobs), next FROM weir.jobs_page(ARRAY[$1], queue => $2)`, state, map[string]string{"available": "q", "running": "r"}[state]).Scan(&p.jobs, &p.next)
			pages <- p
		}()
		blocked(t, conn, look)
		exec(t, reclaim, `COMMIT`)
		if p := <-pages; p.err != nil || p.jobs != want {
			t.Errorf("%s: the page has %d jobs, %v; want %d", state, p.jobs, p.err, want)
		}
		openNext(t, conn, worker)
	}
}
