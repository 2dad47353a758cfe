package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/cmd/internal/lab"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAScenarioThatFailsIsReportedAndTheNextOneRuns: with what it has measured before, in all formats, and the command fails.
func TestAScenarioThatFailsIsReportedAndTheNextOneRuns(t *testing.T) {
	t.Parallel()
	url := pgtest.Empty(t)
	pool := pgtest.Pool(t, url)
	for _, sql := range []string{
		`CREATE SCHEMA broken`,
		`CREATE FUNCTION broken.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'out of order'; END $$`,
		`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = broken, pg_catalog, public', current_database()); END $$`,
	} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	var line cli
	parser, err := newParser(&line)
	if err != nil {
		t.Fatal(err)
	}
	k, err := parser.Parse([]string{"lab", "all", "--database", url})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	flags := labFlags{AllowNonempty: true, JSON: filepath.Join(dir, "lab.json"), Report: filepath.Join(dir, "lab.html")}
	var out, errs bytes.Buffer
	err = flags.runAll(t.Context(), &streams{out: &out, err: &errs}, &database{url: url}, k, "weir lab all", []configured{
		{Config: lab.Config{Scenario: "notify", Duration: 200 * time.Millisecond, Notify: lab.NotifySize{Clients: 3, Rounds: 1}}},
		{Config: lab.Config{Scenario: "tree", Duration: 200 * time.Millisecond, Tree: lab.TreeSize{Workers: 2, Parents: 1, Children: 10}}},
	})
	if err == nil || exitCode(t.Context(), err) != exitFailure || !strings.Contains(err.Error(), "notify: insert + pg_notify: ERROR: out of order") {
		t.Errorf("the lab ends with %v", err)
	}
	if !strings.Contains(errs.String(), "weir: lab: notify: failed") || !strings.Contains(errs.String(), "weir: lab: tree: ") {
		t.Errorf("meanwhile it says:\n%s", errs.String())
	}
	if !regexp.MustCompile(`(?s)^notify: .*\nFAILED: insert \+ pg_notify: ERROR: out of order .*\ninsert +baseline .*\nNo verdict: .*\ntree: .*\nas it was +collapse `).MatchString(out.String()) {
		t.Errorf("it prints:\n%s", out.String())
	}
	text, err := os.ReadFile(flags.JSON)
	if err != nil {
		t.Fatal(err)
	}
	var r lab.Report
	if err := json.Unmarshal(text, &r); err != nil || len(r.Results) != 2 {
		t.Fatalf("%v:\n%s", err, text)
	}
	if failed := r.Results[0]; !strings.HasPrefix(failed.Failed, "insert + pg_notify: ") || len(failed.Ways) != 1 || failed.Way("insert") == nil || r.Results[1].Failed != "" {
		t.Errorf("the JSON has %+v and %+v", failed, r.Results[1])
	}
	if text, err = os.ReadFile(flags.Report); err != nil {
		t.Fatal(err)
	}
	if head, _, _ := strings.Cut(string(text), "<main>"); !strings.Contains(head, `<a href="#notify">notify</a>: insert &#43; pg_notify: `) {
		t.Errorf("the head of the page does not list what failed")
	}
}
