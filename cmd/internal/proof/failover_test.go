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

// TestALimitHoldsAfterAFailover: what the new server knows of counts, although it has lost ends and releases; an attempt whose end was lost holds its place
// until it has ended again, or its worker is fenced; of a claim that was lost nothing is counted, and nothing stays counted.
func TestALimitHoldsAfterAFailover(t *testing.T) {
	t.Parallel()
	primary := pgtest.Server(t, nil)
	conn := connect(t, primary.URL("postgres"))
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	exec(t, conn, `SELECT weir.set_limit('q', running => 3)`)
	worker, other := startWorker(t, conn, "q"), startWorker(t, conn, "q")
	enqueueN(t, conn, "q", 20)
	first := mustClaim(t, conn, worker, "q", 2)
	dies := mustClaim(t, conn, other, "q", 1)
	standby := pgtest.Standby(t, primary, nil)
	pgtest.Replayed(t, primary, standby)
	pgtest.CutOff(t, standby)
	mustComplete(t, conn, worker, first[:1])
	lost := wantClaimed(t, "after an end that will be lost", conn, worker, "q", 1)
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	pgtest.Promote(t, standby)
	conn = connect(t, standby.URL("postgres"))
	wantCounted := func(when string, n int) {
		t.Helper()
		if got := runningNow(t, conn, "q"); got != n {
			t.Errorf("%s: %d are counted, want %d", when, got, n)
		}
	}
	wantCounted("after the failover", 3)
	wantClaimed(t, "at the limit", conn, worker, "q", 0)
	wantCode(t, "the end of an attempt that the new server does not know", complete(t.Context(), conn, worker, lost), "WR002")
	wantCounted("after an end that was refused", 3)
	mustComplete(t, conn, worker, first[:1])
	again := wantClaimed(t, "after the end was recorded again", conn, worker, "q", 1)
	exec(t, conn, `SELECT weir._fence($1, '')`, other)
	until(t, "what the fenced worker ran is logged again", func() bool {
		exec(t, conn, `SELECT weir._rescue()`)
		return runningNow(t, conn, "q") == 2
	})
	if n := value[int](t, conn, `SELECT count(*) FROM weir.job WHERE id = $1`, dies[0].ID); n != 2 {
		t.Errorf("the job of the fenced worker was logged %d times, want 2", n)
	}
	again = append(again, wantClaimed(t, "after a worker was fenced", conn, worker, "q", 1)...)
	mustComplete(t, conn, worker, append(first[1:], again...))
	wantCounted("when nothing runs", 0)
	mustComplete(t, conn, worker, wantClaimed(t, "when nothing runs", conn, worker, "q", 3))
	wantCounted("in the end", 0)
}
