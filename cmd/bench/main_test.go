package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestMain also runs the child process of the benches of the hub.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "__child" {
		main()
		return
	}
	pgtest.Main(m)
}

// report runs a command on a database, or on a private server for "", and returns its JSON, decoded in two ways.
func report(t *testing.T, url string, args ...string) (load.Report, map[string]any) {
	t.Helper()
	var out, errs bytes.Buffer
	if err := run(t.Context(), append(args, "--json", "--database", url), &streams{out: &out, errs: &errs}); err != nil {
		t.Fatalf("bench %s: %v\n%s", strings.Join(args, " "), err, errs.String())
	}
	t.Log(errs.String())
	t.Log(errs.String())
	var report load.Report
	var fields map[string]any
	for _, into := range []any{&report, &fields} {
		if err := json.Unmarshal(out.Bytes(), into); err != nil {
			t.Fatalf("the output is not a single JSON object: %v\n%s", err, out.String())
		}
	}
	if report.Bench != args[0] || report.Engine != "weir" || report.Server.Version == "" || report.Server.Private != (url == "") {
		t.Errorf("the report lacks what was measured, or where: %s", out.String())
	}
	return report, fields
}

func hasFields(t *testing.T, fields map[string]any, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, ok := fields[name]; !ok {
			t.Errorf("the JSON has no %s: %v", name, fields)
		}
	}
}

func noneDeadIn(t *testing.T, phases ...*load.Figures) {
	t.Helper()
	for _, f := range phases {
		if f == nil || f.DeadTuples == nil || *f.DeadTuples != 0 {
			t.Errorf("dead tuples were left or not counted: %+v", f)
		}
	}
}
