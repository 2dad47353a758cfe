package proof

import (
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestTidyForgetsCancellationsPartByPart: tens of thousands of cancelled jobs that are due much later are examined in bounded steps, and the
// cancellations of jobs that have ended are deleted.
func TestTidyForgetsCancellationsPartByPart(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	worker := startWorker(t, conn, "q")
	far := func() {
		exec(t, conn, `INSERT INTO weir.cancellation (id) SELECT unnest(weir.enqueue_many(array_fill('q'::text, ARRAY[600]), array_fill('k'::text, ARRAY[600]),
			array_fill('{}'::jsonb, ARRAY[600]), run_at => array_fill(now() + interval '1 year', ARRAY[600])))`)
	}
	// The table is large, which is when it is tidied.
	exec(t, conn, `ALTER TABLE weir.cancellation SET (autovacuum_enabled = off)`)
	exec(t, conn, `INSERT INTO weir.cancellation (id) SELECT -i FROM generate_series(1, 30000) i`)
	exec(t, conn, `DELETE FROM weir.cancellation WHERE id < 0`)
	far()
	far()
	ended := enqueueN(t, conn, "q", 50)
	exec(t, conn, `SELECT weir.cancel(id) FROM unnest($1::bigint[]) id`, ended)
	for _, a := range claimAll(t, conn, worker, "q") {
		if a.Dropped == nil {
			t.Fatalf("job %d is not cancelled", a.ID)
		}
	}
	for _, id := range ended {
		exec(t, conn, `SELECT weir._record($1, ARRAY[b.lane], ARRAY[b.seq], ARRAY[1], ARRAY[$2::bigint], ARRAY['cancelled']) FROM weir.batch b WHERE $2 = ANY (b.ids)`, worker, id)
	}
	far()
	at, passes := int64(0), 0
	until(t, "the cancellations of ended jobs are deleted", func() bool {
		exec(t, conn, `SELECT weir._tidy()`)
		now := value[int64](t, conn, `SELECT coalesce(pg_sequence_last_value('weir.cancel_looked'), 0)`)
		if now < at {
			passes++
		} else if n := value[int](t, conn, `SELECT count(*) FROM weir.cancellation WHERE id > $1 AND id <= $2`, at, now); n > 1000 {
			t.Fatalf("one call examined %d cancellations", n)
		}
		at = now
		return value[int](t, conn, `SELECT count(*) FROM weir.cancellation WHERE id = ANY ($1)`, ended) == 0
	})
	if passes > 0 {
		t.Errorf("it took %d passes", passes+1)
	}
	if n := value[int](t, conn, `SELECT count(*) FROM weir.cancellation`); n != 1_800 {
		t.Errorf("%d cancellations are left, want 1800", n)
	}
}
