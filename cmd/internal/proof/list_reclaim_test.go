package proof

import (
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAPageThatWaitsForAReclaimIsComplete: a list that is asked for while a segment is being reclaimed waits, and then shows every job where it is.
func TestAPageThatWaitsForAReclaimIsComplete(t *testing.T) {
	for _, c := range []struct{ state, list string }{
		{"available", `SELECT jsonb_array_length(jobs) FROM weir.jobs_page(ARRAY[$1])`},
		{"available", `SELECT count(*) FROM weir.jobs($1)`},
		{"running", `SELECT jsonb_array_length(jobs) FROM weir.jobs_page(ARRAY[$1])`},
		{"running", `SELECT count(*) FROM weir.jobs($1)`},
	} {
		t.Run(c.state+" "+c.list, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			conn, reclaim, look := connect(t, url), connect(t, url), connect(t, url)
			exec(t, conn, `SELECT weir.set('completed_retention', '1 hour'), weir.set('retention_bytes', '1048576')`)
			worker := startWorker(t, conn, "q", "r", "filler")
			enqueueN(t, conn, "r", 10)
			mustClaim(t, conn, worker, "r", 10)
			enqueueN(t, conn, "q", 10)
			openNext(t, conn, worker)

			exec(t, reclaim, `BEGIN`)
			if !value[bool](t, reclaim, `SELECT weir._reclaim(1)`) {
				t.Fatal("the first segment is not reclaimed")
			}
			type answer struct {
				jobs int
				err  error
			}
			answers := make(chan answer, 1)
			go func() {
				var a answer
				a.err = look.QueryRow(t.Context(), c.list, c.state).Scan(&a.jobs)
				answers <- a
			}()
			blocked(t, conn, look)
			exec(t, reclaim, `COMMIT`)
			if a := <-answers; a.err != nil || a.jobs != 10 {
				t.Errorf("%d jobs, %v; want 10", a.jobs, a.err)
			}
		})
	}
}
