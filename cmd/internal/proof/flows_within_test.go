package proof

import (
	"slices"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestRunningJobsAreThoseThatAreListed: jobs of tasks and of flows within a flow are counted with its own, at any depth, as the list of its running jobs has them.
func TestRunningJobsAreThoseThatAreListed(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	flow, other := newFlow(t, conn, "f"), newFlow(t, conn, "other")
	tasks := addTasks(t, conn, flow, "a", "b<a")
	foldAll(t, conn) // enqueues the first
	within := value[int64](t, conn, `SELECT weir.flow('within', parent => $1)`, tasks[0])
	addTo(t, conn, flow, 1)
	addTo(t, conn, within, 2)
	addTo(t, conn, other, 1)
	if n := len(mustClaim(t, conn, worker, "q", 100)); n != 5 {
		t.Fatalf("%d jobs were claimed, want 5", n)
	}
	for of, want := range map[int64]int{flow: 4, tasks[0]: 3, tasks[1]: 0, within: 2, other: 1, 99: 0} {
		if n := value[int](t, conn, `SELECT weir.flow_running($1)`, of); n != want {
			t.Errorf("%d jobs of flow %d run, want %d", n, of, want)
		}
		if n := value[int](t, conn, `SELECT jsonb_array_length(jobs) FROM weir.jobs_page(ARRAY['running'], flow => $1)`, of); n != want {
			t.Errorf("%d running jobs of flow %d are listed, want %d", n, of, want)
		}
	}
}

// TestFlowsWithinAFlowAreListed: those of a parent, page by page, without its tasks and without those that are within them.
func TestFlowsWithinAFlowAreListed(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	flow := newFlow(t, conn, "f")
	tasks := addTasks(t, conn, flow, "a")
	foldAll(t, conn) // starts it
	within := column[int64](t, conn, `SELECT weir.flow('within ' || n, parent => $1) FROM generate_series(1, 3) n`, flow)
	deeper := value[int64](t, conn, `SELECT weir.flow('deeper', parent => $1)`, within[0])
	of := value[int64](t, conn, `SELECT weir.flow('of the task', parent => $1)`, tasks[0])
	slices.Reverse(within)
	for _, c := range []struct {
		parent, after int64
		want          []int64
	}{{flow, 0, within[:2]}, {flow, within[1], within[2:]}, {within[2], 0, []int64{deeper}}, {tasks[0], 0, []int64{of}}, {deeper, 0, nil}, {99, 0, nil}} {
		if got := column[int64](t, conn, `SELECT id FROM weir.flows(nullif($1::bigint, 0), 2, parent => $2)`, c.after, c.parent); !slices.Equal(got, c.want) {
			t.Errorf("after %d, the flows within %d are %v, want %v", c.after, c.parent, got, c.want)
		}
	}
}
