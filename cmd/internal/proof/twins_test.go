package proof

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestTwinsAreSetAside: many simultaneous first uses of a queue name create as many ids, which cost claims nothing once their jobs are done; a job
// that still arrives in one of them, from a transaction that sees no other, is found.
func TestTwinsAreSetAside(t *testing.T) {
	pgtest.Alone(t, "what a claim touches depends on the transactions of the whole server")
	url := pgtest.Database(t)
	conn := connect(t, url)
	worker := startWorker(t, conn, "single")
	claimBlocks := func(worker int32, queue string) int {
		exec(t, conn, `SELECT weir.enqueue($1, 'k')`, queue)
		mustComplete(t, conn, worker, mustClaim(t, conn, worker, queue, 1))
		return blocks(t, conn, fmt.Sprintf(`SELECT * FROM weir._claim(%d, ARRAY['%s'], ARRAY[1])`, worker, queue))
	}
	single := claimBlocks(worker, "single")

	const twins = 20
	var users []*pgx.Conn
	for range twins {
		c := connect(t, url)
		exec(t, c, `BEGIN ISOLATION LEVEL REPEATABLE READ`)
		exec(t, c, `SELECT weir.enqueue('new', 'k')`)
		users = append(users, c)
	}
	last := users[0]
	for _, c := range users[1:] {
		exec(t, c, `COMMIT`)
	}
	worker = startWorker(t, conn, "new")
	if got := claimAll(t, conn, worker, "new"); len(got) != twins-1 {
		t.Errorf("claimed %d jobs, want %d", len(got), twins-1)
	} else {
		before := claimBlocks(worker, "new")
		if did := value[string](t, conn, `SELECT coalesce(weir._tidy(), '')`); did != "" {
			t.Errorf("tidy did %q while jobs of the twins are running", did)
		}
		mustComplete(t, conn, worker, got)
		until(t, "the twins are set aside", func() bool { return value[string](t, conn, `SELECT coalesce(weir._tidy(), '')`) == "set twins aside" })
		after := claimBlocks(worker, "new")
		t.Logf("a claim touches %d blocks in a queue without twins, %d in one with %d, and %d once they are set aside", single, before, twins, after)
		if after > 2*single {
			t.Errorf("a claim touches %d blocks in a queue without twins, and %d in one whose twins are set aside", single, after)
		}
	}
	// The last of these transactions sees only its own twin, and continues to use it.
	exec(t, last, `SELECT weir.enqueue('new', 'late') FROM generate_series(1, 3)`)
	exec(t, last, `COMMIT`)
	found := 0
	until(t, "the late jobs are found", func() bool {
		value[string](t, conn, `SELECT coalesce(weir._tidy(), '')`)
		got := claimAll(t, conn, worker, "new")
		mustComplete(t, conn, worker, got)
		found += len(got)
		return found == 4
	})
}
