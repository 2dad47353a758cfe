package proof

import (
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAJobThatAStoppedWorkerHeldSaysWhyItWasReleased: not that the worker did not know of it.
func TestAJobThatAStoppedWorkerHeldSaysWhyItWasReleased(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	id := value[int64](t, conn, `SELECT weir.enqueue('q', 'k')`)
	worker := value[int32](t, conn, `SELECT weir.start('w', ARRAY['q'])`)
	if n := value[int](t, conn, `SELECT count(*) FROM weir.take($1)`, worker); n != 1 {
		t.Fatalf("took %d jobs, want 1", n)
	}
	until(t, "the worker has stopped", func() bool { return value[bool](t, conn, `SELECT weir.stop($1)`, worker) })
	if is := value[string](t, conn, `SELECT concat_ws(' ', state, attempt, error) FROM weir.job_info($1)`, id); is != "available 1 the worker was stopped" {
		t.Errorf("the job is %q", is)
	}
}
