package proof

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAGroupOfFailuresIsRetriedAndDeletedAsAWhole: a shape selects the jobs that weir.failure_groups counts, also of long texts, and no others.
func TestAGroupOfFailuresIsRetriedAndDeletedAsAWhole(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	for i := range 6 {
		deadLetters(t, conn, worker, "q", 1, fmt.Sprintf("user %d of %q not found", i, "acme"))
		deadLetters(t, conn, worker, "q", 1, "Traceback (most recent call last):\n"+strings.Repeat("  File \"x.py\", line 1\n", 200)+fmt.Sprintf("KeyError: '%d'", i))
		deadLetters(t, conn, worker, "q", 1, "no route")
	}
	groups := column[string](t, conn, `SELECT shape FROM weir.failure_groups() WHERE kind = 'k' ORDER BY shape`)
	if len(groups) != 3 {
		t.Fatalf("the groups are %q", groups)
	}
	for _, shape := range groups {
		operation := "retry_where"
		if shape == "no route" {
			operation = "delete_where"
		}
		if n, _ := runSteps(t, conn, operation, fmt.Sprintf(`kinds => '{k}', max_rows => 4, shape => '%s'`, strings.ReplaceAll(shape, "'", "''"))); n != 6 {
			t.Errorf("%s of %q changed %d jobs, want 6", operation, shape, n)
		}
	}
	if left := column[string](t, conn, `SELECT shape FROM weir.failure_groups()`); len(left) != 0 {
		t.Errorf("the groups %q are left", left)
	}
}

// TestFailuresOfATimeAreRetriedAndDeleted: those that ended at a time or later, or before it; of a job that was cancelled and that no worker has passed, the time when
// it was enqueued counts.
func TestFailuresOfATimeAreRetriedAndDeleted(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	early := deadLetters(t, conn, worker, "q", 3, "x")
	exec(t, conn, `SELECT weir.cancel(weir.enqueue('r', 'k'))`)
	between := value[string](t, conn, `SELECT clock_timestamp()::text`)
	deadLetters(t, conn, worker, "q", 4, "x")
	exec(t, conn, `SELECT weir.cancel(weir.enqueue('r', 'k')), weir.cancel(weir.enqueue('r', 'k'))`)
	for _, c := range []struct {
		operation, filter string
		want              int
	}{
		{"retry_where", `finished_after => '` + between + `', finished_before => '` + between + `'`, 0},
		{"retry_where", `finished_after => '` + between + `', states => '{cancelled}'`, 2},
		{"retry_where", `'r', finished_before => '` + between + `', states => '{cancelled}'`, 1},
		{"delete_where", `finished_before => '` + between + `'`, 3},
		{"retry_where", `finished_after => '` + between + `'`, 4},
	} {
		if n, _ := runSteps(t, conn, c.operation, c.filter); n != c.want {
			t.Errorf("%s(%s) changed %d jobs, want %d", c.operation, c.filter, n, c.want)
		}
	}
	wantState(t, conn, early[0], "unknown")
}
