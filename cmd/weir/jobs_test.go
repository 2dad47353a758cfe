package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAnEmptyListCostsNoCountOfJobs: whether the queue of an empty list exists is found without counting any queue's jobs, and a server that does
// not say so in time does not hold up the list.
func TestAnEmptyListCostsNoCountOfJobs(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	admin, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(t.Context())
	exec := func(sql string) {
		t.Helper()
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	as := asRole(t, admin, database, "weir_operate")
	list := func(queue string, wantCode int, want string) {
		t.Helper()
		var out, errs bytes.Buffer
		if code := run([]string{"jobs", "list", "--database", as, "--queue", queue, "--kind", "none"}, strings.NewReader(""), &out, &errs); code != wantCode || errs.String() != want {
			t.Errorf("exit code %d: %q, want %q", code, errs.String(), want)
		}
	}
	exec(`SELECT weir.enqueue('q', 'k')`)
	exec(`REVOKE EXECUTE ON FUNCTION weir.queues FROM weir_operate`)
	list("nosuch", exitNotFound, "weir: queue \"nosuch\" does not exist: see weir queues list\n")
	list("q", exitOK, "weir: no jobs\n")
	exec(`CREATE OR REPLACE FUNCTION weir.settings() RETURNS TABLE (queue text, name text, value text) LANGUAGE sql AS
		$$ SELECT NULL::text, NULL::text, NULL::text FROM pg_sleep(3600) $$`) // a server that does not answer
	list("nosuch", exitOK, "weir: no jobs\n")
}
