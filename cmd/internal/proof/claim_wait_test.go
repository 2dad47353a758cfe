package proof

import (
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestFewClaimsWaitForOthers: while others have a queue's gate or its turns, four claims wait for them, and the next is told when to try again. In a fleet of
// hundreds, each would otherwise wait for longer than deadlock_timeout, and searching for deadlocks would take all of the server's time.
func TestFewClaimsWaitForOthers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ setUp, lock string }{
		"a gate": {`SELECT weir.set_limit('q', running => 5), weir.enqueue_many(array_fill('q'::text, ARRAY[9]), array_fill('k'::text, ARRAY[9]))`,
			`SELECT pg_advisory_xact_lock(1464158558, (SELECT gate FROM weir.queue_limit))`},
		"turns": {`SELECT weir.enqueue_many(array_fill('q'::text, ARRAY[9]), array_fill('k'::text, ARRAY[9]), key => array_fill('a'::text, ARRAY[9]))`,
			`SELECT pg_advisory_xact_lock(1464158559, hashtext('q'))`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			conn := connect(t, url)
			exec(t, conn, c.setUp)
			holder, err := connect(t, url).Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			exec(t, holder, c.lock)
			type claimed struct {
				jobs   int
				isTold bool
				err    error
			}
			claim := func(done chan<- claimed) {
				conn, worker := connect(t, url), startWorker(t, conn, "q")
				go func() {
					var c claimed
					c.err = conn.QueryRow(t.Context(), `SELECT count(id), coalesce(bool_or(queue = 'q' AND id IS NULL AND ready_at IS NOT NULL), false) FROM weir._claim($1, ARRAY['q'], ARRAY[1])`, worker).
						Scan(&c.jobs, &c.isTold)
					done <- c
				}()
			}
			const waiting = 4
			waited, refused := make(chan claimed, waiting), make(chan claimed, 1)
			for range waiting {
				claim(waited)
			}
			pgtest.Until(t, "four claims wait", func() bool {
				return value[int](t, conn, `SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) == waiting
			})
			claim(refused)
			if got := pgtest.Receive(t, refused, "a fifth claim"); got.err != nil || got.jobs != 0 || !got.isTold {
				t.Errorf("a fifth claim got %d jobs, told when to try again: %v, %v", got.jobs, got.isTold, got.err)
			}
			if err := holder.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			for range waiting {
				if got := pgtest.Receive(t, waited, "a claim that has waited"); got.err != nil || got.jobs != 1 {
					t.Errorf("a claim that has waited got %d jobs, %v", got.jobs, got.err)
				}
			}
		})
	}
}
