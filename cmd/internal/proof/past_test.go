package proof

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAJobsPastCostsNothing: an inspection of a job, a page of a list, cancelling, retrying and recording touch about as many blocks after a job was
// snoozed or retried many times as after a few times.
func TestAJobsPastCostsNothing(t *testing.T) {
	pgtest.Alone(t, "what an inspection touches depends on the transactions of the whole server")
	const few, many = 30, 90
	for _, way := range []struct {
		name, outcome string
		after         time.Duration
	}{{"retried", "retried", 0}, {"snoozed", "snoozed", time.Millisecond}} {
		t.Run(way.name, func(t *testing.T) {
			conn := connect(t, pgtest.Database(t))
			worker := startWorker(t, conn, "q")
			exec(t, conn, `SELECT weir.enqueue('q', 'k', '{}', max_attempts => 1000, meta => '{"a": 1}') FROM generate_series(1, 20)`)
			putOff := func(times int) {
				t.Helper()
				for range times {
					var claimed []attempt
					until(t, "all jobs are claimed again", func() bool {
						promote(t, conn, 100)
						claimed = append(claimed, mustClaim(t, conn, worker, "q", 20)...)
						return len(claimed) == 20
					})
					var runAt *time.Time
					if way.after > 0 {
						at := value[time.Time](t, conn, `SELECT clock_timestamp() + $1::text::interval`, way.after.String())
						runAt = &at
					}
					if refused, err := record(t.Context(), conn, worker, claimed, way.outcome, runAt); err != nil || len(refused) > 0 {
						t.Fatal(refused, err)
					}
				}
				until(t, "all jobs are available again", func() bool {
					promote(t, conn, 100)
					return value[int](t, conn, `SELECT count(*) FROM weir.jobs('available')`) == 20
				})
				for next := int64(0); next >= 0; { // reconciles as workers do now and then; it holds nothing
					next = value[int64](t, conn, `SELECT coalesce(next, -1) FROM weir._reconcile($1, '{}', '{}', '{}', '{}', $2)`, worker, next)
				}
			}
			measure := func() map[string]int64 {
				t.Helper()
				cost := map[string]int64{}
				page := func(state string) {
					cost[state] = settled(t, conn, fmt.Sprintf(`SELECT * FROM weir.jobs_page(ARRAY['%s'], kinds => ARRAY['k'], meta => '{"a": 1}')`, state))
					cost["no "+state] = settled(t, conn, fmt.Sprintf(`SELECT * FROM weir.jobs_page(ARRAY['%s'], kinds => ARRAY['other'])`, state))
					cost["info of "+state] = settled(t, conn, `SELECT * FROM weir.job_info(3)`)
				}
				page("available")
				claimed := mustClaim(t, conn, worker, "q", 20)
				page("running")
				for _, a := range claimed[:8] {
					cost["record"] = buffers(t, conn, fmt.Sprintf(`SELECT * FROM weir._record(%d, '{%d}', '{%d}', '{1}', '{%d}', '{%s}', run_at => '{NULL}')`,
						worker, a.Lane, a.Seq, a.ID, way.outcome))
				}
				claimed = append(claimed[8:], mustClaim(t, conn, worker, "q", 20)...)
				if refused, err := record(t.Context(), conn, worker, claimed, "failed", nil); err != nil || len(refused) > 0 {
					t.Fatal(refused, err)
				}
				page("failed")
				for id := range 20 {
					cost["retry"] = buffers(t, conn, fmt.Sprintf(`SELECT weir.retry(%d)`, id+1))
				}
				for id := range 20 {
					cost["cancel"] = buffers(t, conn, fmt.Sprintf(`SELECT weir.cancel(%d)`, id+1))
				}
				page("cancelled")
				exec(t, conn, `SELECT weir.retry(n) FROM generate_series(1, 20) n`)
				return cost
			}
			putOff(few)
			before := measure()
			putOff(many)
			after := measure()
			t.Logf("blocks after %d times: %v, after %d more: %v", few, before, many, after)
			for look, n := range after {
				if was := before[look]; n > was*3/2+150 {
					t.Errorf("%s: %d blocks after %d times, %d after %d more", look, was, few, n, many)
				}
			}
		})
	}
}
