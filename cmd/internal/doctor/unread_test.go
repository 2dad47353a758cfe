package doctor_test

import (
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/cmd/internal/doctor"
)

// examineWhile is examine, which a second after its start does something to the server.
func examineWhile(t *testing.T, url string, do func()) doctor.Report {
	t.Helper()
	done := false
	d, err := doctor.Open(t.Context(), doctor.Config{URL: url, Progress: func(time.Duration, int) {
		if !done {
			do()
			done = true
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	r, err := d.Run(t.Context(), examineFor)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// expectUnread fails unless the report says that these checks could not judge, and not that all is well.
func expectUnread(t *testing.T, r doctor.Report, reason string, checks ...string) {
	t.Helper()
	unseen := strings.Join(r.Unseen, "\n")
	if !r.Incomplete || !strings.Contains(unseen, reason) {
		t.Errorf("incomplete: %t, want true, and among what is not checked %q:\n%s", r.Incomplete, reason, describe(r))
	}
	_, unjudged, _ := strings.Cut(unseen, "because of what could not be read, not judged: ")
	unjudged, _, _ = strings.Cut(unjudged, "\n")
	for _, check := range checks {
		for _, w := range r.Well {
			if w.Check == check {
				t.Errorf("it has not read what it judges, and says: %s", w.Fact)
			}
		}
		if !strings.Contains(", "+unjudged+", ", ", "+check+", ") {
			t.Errorf("that %s could not be judged is not said: %q", check, unjudged)
		}
	}
}

// TestCountersThatWereNotReadAreNotWell: what was read once or not at all does not show that nothing has grown, nor that it has.
func TestCountersThatWereNotReadAreNotWell(t *testing.T) {
	t.Parallel()
	url := alone(t)
	conn, holder := connect(t, url), connect(t, url)
	execute(t, conn, "CREATE TABLE stock (id int)", "INSERT INTO stock SELECT generate_series(1, 20000)", "DELETE FROM stock WHERE id > 10")
	r := examine(t, url, time.Second)
	if r.Incomplete || strings.Contains(strings.Join(r.Unseen, "\n"), "not judged") {
		t.Errorf("all was read:\n%s", describe(r))
	}

	// Its sessions end, as they do when the server restarts: the statement after that fails, and those after it are run by another session. Whether the server counts
	// from zero nobody can tell.
	r = examineWhile(t, url, func() {
		execute(t, conn, "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = '"+doctor.ApplicationName+"'")
	})
	expectUnread(t, r, "the server's counters: ", "churn", "postmaster", "multixact", "commits", "horizon", "deadlocks", "checkpoints", "autovacuum")

	r = examineWhile(t, url, func() { execute(t, holder, "BEGIN", "LOCK TABLE pg_namespace IN ACCESS EXCLUSIVE MODE") })
	expectUnread(t, r, "the counters of tables: ", "autovacuum", "scans")
	for _, f := range r.Findings {
		if f.Code != doctor.WaitsUnexplained { // others may wait for the catalog
			t.Errorf("of counters that were read once: %s: %s", f.Code, f.Summary)
		}
	}
	execute(t, holder, "ROLLBACK")
}
