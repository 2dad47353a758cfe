package proof

import (
	"fmt"
	"math"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestEveryBackoffLastsToTheLastAttempt: no backoff or limit that a queue may have is too large for any attempt, or for any number of releases.
func TestEveryBackoffLastsToTheLastAttempt(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := value[int32](t, conn, `SELECT weir.start('w', ARRAY['q'])`)
	const year = 365.25 * 86400
	for _, c := range []struct {
		backoff, limit string
		first, most    float64 // the same in seconds
	}{
		{"1 year", "1 year", year, year},
		{"72 minutes", "1 year", 72 * 60, year},
		{"1 year", "0 s", year, 0},
		{"0 s", "1 year", 0, year},
		{"1 us", "1 hour", 1e-6, 3600},
		{"360 days -1 year", "1 year", 0, year}, // a negative number of seconds, but equal to 0 as an interval
	} {
		if !value[bool](t, conn, `SELECT weir.set('q', 'backoff', $1) AND weir.set('q', 'backoff_limit', $2)`, c.backoff, c.limit) {
			t.Fatal("the queue does not exist")
		}
		for _, tries := range []int{1, 31, 32, 33, 64, 65, 999, 1000} {
			what := fmt.Sprintf("backoff %s, limit %s, %d tries", c.backoff, c.limit, tries)
			failed := value[int64](t, conn, `SELECT weir.enqueue('q', 'k', max_attempts => 1000)`)
			exec(t, conn, `UPDATE weir.job SET attempt = $2 WHERE id = $1`, failed, tries)
			released := value[int64](t, conn, `SELECT weir.enqueue('q', 'k', max_attempts => 1000)`)
			exec(t, conn, `UPDATE weir.job SET put_off = $2 WHERE id = $1`, released, tries-1)
			outcome := map[int64]string{failed: "failed", released: "released"}
			var all ends
			until(t, "both are taken", func() bool {
				for _, got := range take(t, conn, worker, atOnce(10)) {
					if outcome[got.ID] != "" { // others are those of earlier cases, which were due at once
						all = append(all, map[string]any{"token": got.Token, "outcome": outcome[got.ID]})
					} else if refused := recordEnds(t, conn, worker, ends{{"token": got.Token}}); len(refused) > 0 {
						t.Fatalf("refused: %v", refused)
					}
				}
				return len(all) == 2
			})
			if refused := recordEnds(t, conn, worker, all); len(refused) > 0 {
				t.Fatalf("%s: refused: %v", what, refused)
			}
			for id := range outcome {
				if id == failed && tries == 1000 {
					if is := stateOf(t, conn, id); is != "failed 1000" {
						t.Errorf("%s: the job is %q", what, is)
					}
					continue
				}
				// job_info has no run_at for a job that is available.
				after := value[float64](t, conn, `SELECT coalesce(extract(epoch FROM max(l.run_at - i.finished_at)), 0)::float8
					FROM weir.later l JOIN (SELECT max(r.finished_at) AS finished_at FROM weir.result r WHERE $1 = ANY (r.ids)) i ON l.id = $1`, id)
				if want := min(math.Ldexp(c.first, tries-1), c.most); after < want*0.75-60 || after > want*1.25+1 {
					t.Errorf("%s: the job that has %s waits for %g s, want about %g", what, outcome[id], after, want)
				}
			}
		}
	}
}
