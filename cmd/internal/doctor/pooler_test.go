package doctor_test

import (
	"strings"
	"testing"

	"github.com/weir-pg/weir/cmd/internal/doctor"
	"github.com/weir-pg/weir/internal/bouncer"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAPoolerIsNotTakenForThePostmaster: it answers at once, however long its own clients and those of the server wait. One that ignores what the doctor sets for its
// sessions, and keeps a session of the server for each, lets it in.
func TestAPoolerIsNotTakenForThePostmaster(t *testing.T) {
	t.Parallel()
	through := pgtest.BouncerWith(t, bouncer.Config{Target: alone(t), Sessions: 10, Mode: "session", Ignores: []string{
		"default_transaction_read_only", "statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "search_path", "max_parallel_workers_per_gather", "jit",
	}})
	live, file := recorded(t, doctor.Config{URL: through}, examineFor)
	expectSame(t, live, file)
	if unseen := strings.Join(live.Unseen, "\n"); !live.Incomplete || !strings.Contains(unseen, "at the pooler that answers in its place") {
		t.Errorf("incomplete: %t; what could not be seen:\n%s", live.Incomplete, unseen)
	}
	for _, w := range live.Well {
		if w.Check == "postmaster" {
			t.Errorf("of a postmaster that nobody has asked: %s", w.Fact)
		}
	}
}
