package proof

import (
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// TestNumbersOfBatchesDoNotComeAgainAfterAFailover: if a failover loses a claim, no later batch gets its number; otherwise a worker that still
// holds the lost batch could end an attempt of another job.
func TestNumbersOfBatchesDoNotComeAgainAfterAFailover(t *testing.T) {
	t.Parallel()
	primary := pgtest.Server(t, nil)
	conn := connect(t, primary.URL("postgres"))
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	worker := startWorker(t, conn, "q")
	standby := pgtest.Standby(t, primary, nil)
	pgtest.Replayed(t, primary, standby)
	pgtest.CutOff(t, standby)
	lost := value[int64](t, conn, `SELECT weir.enqueue('q', 'lost')`)
	held := mustClaim(t, conn, worker, "q", 1)
	if len(held) != 1 || held[0].ID != lost {
		t.Fatalf("claimed %v", held)
	}
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	pgtest.Promote(t, standby)
	conn = connect(t, standby.URL("postgres"))
	exec(t, conn, `SELECT setval('weir.job_id', $1, false)`, lost) // as if the last WAL record of the sequence had been lost
	if id := value[int64](t, conn, `SELECT weir.enqueue('q', 'new')`); id != lost {
		t.Fatalf("the id of the new job is %d, that of the lost one was %d", id, lost)
	}
	got := mustClaim(t, conn, worker, "q", 1)
	if len(got) != 1 || got[0].Seq <= held[0].Seq {
		t.Fatalf("claimed %v; before the failover it was %v", got, held)
	}
	wantCode(t, "the end of the lost attempt", complete(t.Context(), conn, worker, held), "WR002")
	if state := value[string](t, conn, `SELECT state FROM weir.job_info($1)`, lost); state != "running" {
		t.Errorf("the new job is %s", state)
	}
	mustComplete(t, conn, worker, got)
}
