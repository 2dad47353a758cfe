package proof

import (
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestLateJobsComeWithFreshOnes: jobs of a transaction that committed late share a batch with those that came after, because nearly every claim
// finds a late one under load; and every job is found in its batch.
func TestLateJobsComeWithFreshOnes(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, late := connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q")
	claimed := func(limit int32) []attempt {
		t.Helper()
		got, err := claim(t.Context(), conn, worker, []string{"q"}, []int32{limit})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	exec(t, late, `BEGIN`)
	exec(t, late, `SELECT weir.enqueue('q', 'late') FROM generate_series(1, 3)`)
	exec(t, conn, `SELECT weir.enqueue('q', 'early')`)
	early := claimed(10)
	if len(early) != 1 {
		t.Fatalf("claimed %v, want the committed jobs", early)
	}
	// Another attempt at a job lies between the late ones and the fresh ones.
	if _, err := finish(t.Context(), conn, worker, early[0], "retried", time.Time{}); err != nil {
		t.Fatal(err)
	}
	if again := claimed(10); len(again) != 1 || again[0].ID != early[0].ID {
		t.Fatalf("claimed %v, want the next attempt at job %d", again, early[0].ID)
	}
	exec(t, late, `COMMIT`)
	exec(t, conn, `SELECT weir.enqueue('q', 'fresh') FROM generate_series(1, 2)`)
	if part := claimed(2); len(part) != 2 || part[0].Kind != "late" || part[1].Kind != "late" {
		t.Fatalf("claimed %v, want two of the late jobs first", part)
	}
	got := claimed(10)
	if len(got) != 3 || got[0].Kind != "late" || got[1].Kind != "fresh" || got[2].Kind != "fresh" || got[0].Seq != got[2].Seq {
		t.Fatalf("claimed %v, want the last late job and both fresh ones in one batch", got)
	}
	for _, a := range got {
		if state := value[string](t, conn, `SELECT state FROM weir.job_info($1)`, a.ID); state != "running" {
			t.Errorf("job %d is shown as %s, want running", a.ID, state)
		}
	}
	mustComplete(t, conn, worker, got)
	if left := claimed(10); len(left) != 0 {
		t.Errorf("claimed %v again", left)
	}
}
