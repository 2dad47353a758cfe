package store

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// TestEveryCallOfAWorkerEnds: a call of a worker or its chores that gets no answer counts as failed after a time limit, even if the
// caller's context has none.
func TestEveryCallOfAWorkerEnds(t *testing.T) {
	t.Parallel()
	own, err := OpenOwn(pgtest.Pool(t, pgtest.Database(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	for name, s := range map[string]*Store{"work": own.Work, "keep": own.Keep} {
		if s.bound != ownCall {
			t.Errorf("%s: calls are bounded by %v, want %v", name, s.bound, ownCall)
		}
		if _, _, err := s.Promote(t.Context(), 1); err != nil { // connects
			t.Fatal(err)
		}
		s.bound = 200 * time.Millisecond
		if err := s.exec(t.Context(), `SELECT pg_sleep(300)`); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: a call without an answer: %v", name, err)
		}
	}
}
