package guard

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

func TestWhatProtectsNothingIsLogged(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Server(t, nil).URL("postgres"))
	exec := func(sql string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec("CREATE TABLE jobs_1 ()")
	p := DefaultPolicy()
	p.Protect.Tables = []string{"public.jobs_?", "public.typo", "jobs_1"}
	p.Protect.Probes = []Probe{{Name: "next job", SQL: "SELECT FROM typo", SlowerThan: Duration{time.Second}}}
	var log strings.Builder
	g, err := New(Config{Primary: Server{Name: "primary", DB: pool}, Policy: p, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	poll := func(missing []string, logged ...string) {
		t.Helper()
		log.Reset()
		r, err := g.Poll(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(r.Missing, missing) {
			t.Errorf("%q are missing, want %q", r.Missing, missing)
		}
		for _, what := range logged {
			if !strings.Contains(log.String(), what) {
				t.Errorf("the log has no %s:\n%s", what, log.String())
			}
		}
		if got := strings.Count(log.String(), "\n"); got != len(logged) {
			t.Errorf("%d lines are logged, want %d:\n%s", got, len(logged), log.String())
		}
	}
	poll([]string{"public.typo", "jobs_1"}, "write schema.table, as it is in this database, with * and ? as wildcards\" table=public.typo database=postgres",
		"table=jobs_1", `a probe fails, and shows nothing until it does not" probe="next job" database=postgres error="ERROR: relation \"typo\" does not exist`)
	poll([]string{"public.typo", "jobs_1"})
	exec("CREATE TABLE typo ()")
	poll([]string{"jobs_1"}, "protects again: table public.typo", "protects again: probe next job")
	exec("DROP TABLE typo")
	poll([]string{"public.typo", "jobs_1"}, "table=public.typo", "a probe fails")
}
