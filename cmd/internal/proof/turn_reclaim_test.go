package proof

import (
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestTurnsThatReclaimingRepeatsAreHadOnce: if a closed segment holds the turns of very many keys, one step of reclaiming only repeats them in another
// segment, and leaves the rest to later ones. In between, each key still has one turn: none of its jobs starts twice, and no slot of a limit is lost.
func TestTurnsThatReclaimingRepeatsAreHadOnce(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]string{"no limit": "", "a limit of keys": "running => 3, per_key => true", "a limit of the queue": "running => 200"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, pgtest.Database(t))
			smallSegments(t, conn)
			worker := startWorker(t, conn, "q", "filler")
			if limit != "" {
				exec(t, conn, `SELECT weir.set_limit('q', `+limit+`)`)
			}
			for range 4 {
				exec(t, conn, `SELECT weir.enqueue_many(array_fill('q'::text, ARRAY[2500]), array_fill('k'::text, ARRAY[2500]), key => ARRAY(SELECT 'key ' || n FROM generate_series(1, 2500) n))`)
			}
			seen := map[int64]bool{}
			claim := func() (n int) {
				got := mustClaim(t, conn, worker, "q", 100)
				for _, a := range got {
					if seen[a.ID] {
						t.Fatalf("job %d starts a second time, after %d jobs", a.ID, len(seen))
					}
					seen[a.ID] = true
				}
				mustComplete(t, conn, worker, got)
				return len(got)
			}
			for len(seen) < 2600 {
				claim()
			}
			openNext(t, conn, worker)
			repeated := 0
			for round := 0; repeated == 0; round++ {
				exec(t, conn, `SELECT weir.enqueue_many(array_fill('filler'::text, ARRAY[500]), array_fill('k'::text, ARRAY[500]), array_fill(jsonb_build_object('pad', repeat('x', 500)), ARRAY[500]))`)
				mustComplete(t, conn, worker, claimAll(t, conn, worker, "filler"))
				exec(t, conn, `SELECT weir._rotate()`)
				repeated = value[int](t, conn, `SELECT count(*) FROM (SELECT lane, seq FROM weir.turn GROUP BY lane, seq HAVING count(*) > 1) d`)
				if round > 400 {
					t.Fatal("no turn was repeated")
				}
			}
			for n := 1; n > 0; {
				n = claim()
			}
			if len(seen) != 10_000 {
				t.Errorf("%d jobs have started, want 10000; %d turns were repeated", len(seen), repeated)
			}
		})
	}
}
