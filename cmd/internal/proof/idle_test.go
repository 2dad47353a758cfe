package proof

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestIdleLanesForgetWhatHasEnded: transactions that were in flight when a lane was last claimed from, and have ended, cost claims nothing for
// long, but those still in flight, or with unclaimed jobs, are remembered. The cost is counted in blocks.
func TestIdleLanesForgetWhatHasEnded(t *testing.T) {
	pgtest.Alone(t, "what a claim touches depends on the transactions of the whole server")
	const lanes, flights = 20, 30
	url := pgtest.Database(t)
	conn := connect(t, url)
	worker, names := manyQueues(t, conn, lanes)
	limits := slices.Repeat([]int32{10}, lanes)
	work := func() (all []attempt) {
		t.Helper()
		all, err := claim(t.Context(), conn, worker, names, limits)
		if err != nil {
			t.Fatal(err)
		}
		mustComplete(t, conn, worker, all)
		return all
	}
	idle := func() int {
		return blocks(t, conn, fmt.Sprintf(`SELECT c.* FROM (SELECT array_agg(name ORDER BY name) AS names FROM weir.queue) q, weir._claim(%d, q.names, array_fill(10, ARRAY[%d])) c`, worker, lanes))
	}
	tidied := func() string { return value[string](t, conn, `SELECT coalesce(weir._tidy(), '')`) }
	work()
	alone := idle()

	var inFlight []*pgx.Conn
	for range flights {
		c := connect(t, url)
		exec(t, c, `BEGIN`)
		exec(t, c, `SELECT pg_current_xact_id()`)
		inFlight = append(inFlight, c)
	}
	exec(t, conn, `SELECT weir.enqueue(name, 'k') FROM unnest($1::text[]) name`, names)
	if got := work(); len(got) != lanes {
		t.Fatalf("claimed %d jobs, want %d", len(got), lanes)
	}
	if did := tidied(); did != "" {
		t.Errorf("tidy did %q while all transactions are in flight", did)
	}
	late, left := inFlight[0], inFlight[1]
	exec(t, left, `SELECT weir.enqueue($1, 'left') FROM generate_series(1, 15)`, names[3])
	for _, c := range inFlight[1:] {
		exec(t, c, `COMMIT`)
	}
	before := idle() // this also claimed ten of the fifteen
	until(t, "idle lanes are trimmed", func() bool { return strings.HasPrefix(tidied(), "trimmed") })
	if did := tidied(); did != "" {
		t.Errorf("tidy did %q again", did)
	}
	if got := work(); len(got) != 5 || got[0].Kind != "left" {
		t.Errorf("claimed %v, want the remaining 5 jobs of a transaction", got)
	}
	after := idle()
	t.Logf("a claim that finds nothing touches %d blocks; after %d transactions that have ended, %d; once trimmed, %d", alone, flights-1, before, after)
	if after > alone*3/2 {
		t.Errorf("a claim that finds nothing touches %d blocks; after transactions that have ended, %d", alone, after)
	}
	exec(t, late, `SELECT weir.enqueue(name, 'late') FROM unnest($1::text[]) name`, names)
	exec(t, late, `COMMIT`)
	if got := work(); len(got) != lanes {
		t.Errorf("claimed %d jobs of the transaction that was still in flight, want %d", len(got), lanes)
	}
	if again := work(); len(again) != 0 {
		t.Errorf("claimed %v again", idsOf(again))
	}
	for _, id := range column[int64](t, conn, `SELECT id FROM weir.job`) {
		if state := value[string](t, conn, `SELECT state FROM weir.job_info($1)`, id); state != "completed" && state != "running" {
			t.Errorf("job %d is %s", id, state)
		}
	}
}
