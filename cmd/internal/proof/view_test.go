package proof

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestTheQueryForKeysInUseFindsEveryJob: the query of docs/encryption.md finds the one job that is encrypted with an old key behind thousands of others, whatever unfinished state it is in.
func TestTheQueryForKeysInUseFindsEveryJob(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "encryption.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, inUse, _ := strings.Cut(string(page), "changes its state meanwhile\n")
	inUse, _, ok := strings.Cut(inUse, ";\nCOMMIT;")
	if !ok {
		t.Fatal("docs/encryption.md has no query for the keys in use")
	}
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q", "r")
	const others = `SELECT weir.enqueue_many(array_fill($1::text, ARRAY[3000]), array_fill('k'::text, ARRAY[3000]), array_fill('{"weir.encrypted": {"key": "new"}}'::jsonb, ARRAY[3000]))`
	check := func(when string) {
		t.Helper()
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(t.Context()) }()
		exec(t, tx, `SET TRANSACTION ISOLATION LEVEL REPEATABLE READ`)
		if got := column[string](t, tx, `SELECT key FROM (`+inUse+`) q ORDER BY key`); !slices.Equal(got, []string{"new", "old"}) {
			t.Errorf("%s, the keys in use are %q, want the new and the old one", when, got)
		}
	}
	exec(t, conn, others, "q")
	exec(t, conn, `SELECT weir.enqueue('q', 'k', '{"weir.encrypted": {"key": "old"}}', priority => 4)`)
	if n := value[int](t, conn, `SELECT count(*) FROM weir.available_jobs`); n != 3001 {
		t.Errorf("of 3,001 jobs, the view has %d", n)
	}
	check("while its job waits")
	all := claimAll(t, conn, worker, "q")
	check("while it runs")
	old := all[slices.IndexFunc(all, func(a attempt) bool {
		return value[string](t, conn, `SELECT args->'weir.encrypted'->>'key' FROM weir.job WHERE id = $1`, a.ID) == "old"
	})]
	exec(t, conn, others, "r")
	if refused, err := record(t.Context(), conn, worker, []attempt{old}, "retried", nil); err != nil || len(refused) > 0 {
		t.Fatal(refused, err)
	}
	check("while it waits to be tried again")
}

// TestAViewReadsOnlyWhatIsAskedFor: the first rows of a view cost about the same, however many jobs are behind them.
func TestAViewReadsOnlyWhatIsAskedFor(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	const few = `SELECT * FROM weir.available_jobs LIMIT 10`
	enqueueN(t, conn, "q", 100)
	small := settled(t, conn, few)
	enqueueN(t, conn, "q", 5000)
	large := settled(t, conn, few)
	t.Logf("ten rows read %d blocks of 100 jobs, and %d of 5,100", small, large)
	if large > small*3/2+100 {
		t.Errorf("ten rows read %d blocks of 100 jobs, and %d of 5,100", small, large)
	}
}
