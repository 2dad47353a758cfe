package proof

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestTwinsAreSetAside: many first uses of a name at once make as many ids; once their jobs are done, a claim costs no more for them. A job
// that comes to one of them all the same, from a transaction that knows no other, is found.
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
		t.Errorf("claimed %d, want %d", len(got), twins-1)
	} else {
		before := claimBlocks(worker, "new")
		if did := value[string](t, conn, `SELECT coalesce(weir._tidy(), '')`); did != "" {
			t.Errorf("tidy %q while jobs of the twins run", did)
		}
		mustComplete(t, conn, worker, got)
		until(t, "the twins are set aside", func() bool { return value[string](t, conn, `SELECT coalesce(weir._tidy(), '')`) == "set twins aside" })
		after := claimBlocks(worker, "new")
		t.Logf("a claim touches %d blocks of a queue without twins, %d of one with %d, %d once they are set aside", single, before, twins, after)
		if after > 2*single {
			t.Errorf("a claim touches %d blocks of a queue without twins, %d of one whose twins are set aside", single, after)
		}
	}
	// The last of them has its own twin alone in its sight, and goes on with it.
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
