package main

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/cmd/internal/bench"
	"github.com/weir-pg/weir/internal/pgtest"
)

// benchReport runs a bench on a database, or with "" on a private server, and returns its JSON, decoded twice.
func benchReport(t *testing.T, url string, args ...string) (bench.Report, map[string]any) {
	t.Helper()
	var out, errs bytes.Buffer
	if err := runBench(t, url, &out, &errs, append(args, "--json")...); err != nil {
		t.Fatalf("weir bench %s: %v\n%s", strings.Join(args, " "), err, errs.String())
	}
	var report bench.Report
	var fields map[string]any
	for _, into := range []any{&report, &fields} {
		if err := json.Unmarshal(out.Bytes(), into); err != nil {
			t.Fatalf("not one JSON object: %v\n%s", err, out.String())
		}
	}
	if report.Bench != args[0] || report.Engine != "weir" || report.Server.Version == "" || report.Machine.Cores < 1 ||
		report.Server.Settings["fsync"] == "" || report.Server.Private != (url == "") {
		t.Errorf("the report does not say what was measured where: %s", out.String())
	}
	if errs.Len() == 0 && url == "" {
		t.Error("no progress on standard error")
	}
	return report, fields
}

func runBench(t *testing.T, url string, out, errs *bytes.Buffer, args ...string) error {
	t.Helper()
	var line benchCmd
	s := &streams{out: out, err: errs}
	parser, err := kong.New(&line, kong.BindTo(t.Context(), (*context.Context)(nil)), kong.Bind(s))
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		t.Fatal(err)
	}
	return parsed.Run(&database{url: url, err: errs})
}

func hasFields(t *testing.T, fields map[string]any, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, ok := fields[name]; !ok {
			t.Errorf("the JSON lacks %s: %v", name, fields)
		}
	}
}

func noneDeadIn(t *testing.T, phases ...*bench.Figures) {
	t.Helper()
	for _, f := range phases {
		if f == nil || f.DeadTuples == nil || *f.DeadTuples != 0 {
			t.Errorf("dead tuples were left, or not counted: %+v", f)
		}
	}
}

func TestBenchDrainWorksEveryJob(t *testing.T) {
	t.Parallel()
	r, fields := benchReport(t, pgtest.Database(t), "drain", "--jobs", "3000", "--rounds", "2")
	hasFields(t, fields, "jobs", "seconds", "jobs_per_second", "wal_bytes_per_job", "dead_tuples", "rate", "targets")
	if r.Jobs != 3000 || r.JobsPerSecond <= 0 || r.Rate.Samples != 2 || *r.WALBytesPerJob <= 0 {
		t.Errorf("%+v", r.Figures)
	}
	noneDeadIn(t, r.Figures)
}

func TestBenchSteadyComparesWithPlainInserts(t *testing.T) {
	t.Parallel()
	r, fields := benchReport(t, pgtest.Database(t), "steady", "--seconds", "1")
	hasFields(t, fields, "jobs", "seconds", "jobs_per_second", "wal_bytes_per_job", "p50_ms", "p99_ms", "dead_tuples", "plain", "ratio")
	if r.Jobs <= 0 || r.Plain.Jobs <= 0 || r.Ratio.Median <= 0 || *r.P99 < *r.P50 {
		t.Errorf("%+v %+v %+v", r.Figures, r.Plain, r.Ratio)
	}
	noneDeadIn(t, r.Figures)
}

// This one runs on a private server, whose processes can be watched.
func TestBenchLatencyMeasuresStartAndIdling(t *testing.T) {
	t.Parallel()
	r, fields := benchReport(t, "", "latency", "--seconds", "1")
	hasFields(t, fields, "jobs", "p50_ms", "p99_ms", "dead_tuples", "idle")
	if r.Jobs < 3 || *r.P50 <= 0 || r.Idle.Queues != 10 || r.Server.Settings["synchronous_commit"] != "on" || r.Server.Settings["fsync"] != "on" {
		t.Errorf("%+v %+v %+v", r.Figures, r.Idle, r.Server)
	}
	noneDeadIn(t, r.Figures)
}

func TestBenchPinnedTellsBeforeFromDuring(t *testing.T) {
	t.Parallel()
	for _, pin := range []string{"read", "write"} {
		r, fields := benchReport(t, pgtest.Database(t), "pinned", "--rate", "200", "--seconds", "1", "--pin", pin)
		hasFields(t, fields, "before", "during", "ratio")
		for name, f := range map[string]*bench.Figures{"before": r.Before, "during": r.During} {
			hasFields(t, fields[name].(map[string]any), "jobs", "seconds", "jobs_per_second", "p50_ms", "p99_ms", "claim_p50_ms", "dead_tuples")
			if f.Jobs <= 0 || f.JobsPerSecond <= 0 {
				t.Errorf("%s: %+v", name, f)
			}
		}
		noneDeadIn(t, r.Before, r.During)
	}
}

func TestBenchWorkersShareOneQueue(t *testing.T) {
	pgtest.Alone(t, "each worker has a second to get its share")
	r, fields := benchReport(t, pgtest.Database(t), "workers", "--workers", "5", "--seconds", "1")
	hasFields(t, fields, "jobs", "seconds", "jobs_per_second", "dead_tuples", "shares")
	if s := r.Shares; r.Jobs <= 0 || s.Workers != 5 || s.Least <= 0 || s.Least > 0.2 || s.Greatest < 0.2 || s.Greatest > 1 {
		t.Errorf("%+v %+v", r.Figures, r.Shares)
	}
	noneDeadIn(t, r.Figures)
}

func TestBenchAgeTakesTheTimeOfEverything(t *testing.T) {
	t.Parallel()
	r, fields := benchReport(t, pgtest.Database(t), "age", "--jobs", "2000", "--queues", "3", "--scheduled", "500", "--failing", "10")
	hasFields(t, fields, "jobs", "seconds", "operations", "targets")
	for _, what := range []string{"job_info", "job_info of retried", "cancel", "jobs(completed)", "jobs(later) of a queue", "claim from all queues",
		"rotate", "reclaim", "claim while segments come back"} {
		if !slices.ContainsFunc(r.Operations, func(o bench.Operation) bool {
			return o.What == what && o.Times > 0 && o.Median > 0 && o.Max >= o.Median
		}) {
			t.Errorf("%s is missing among %+v", what, r.Operations)
		}
	}
}

func TestBenchMemoryRunsAllJobsAtOnce(t *testing.T) {
	t.Parallel()
	r, fields := benchReport(t, pgtest.Database(t), "memory", "--jobs", "100")
	hasFields(t, fields, "jobs", "dead_tuples", "memory")
	if r.Memory.Running != 100 || r.Memory.RSS < 1<<20 {
		t.Errorf("%+v", r.Memory)
	}
	noneDeadIn(t, r.Figures)
}

func TestBenchRefusesADatabaseWithUnfinishedJobs(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	if _, err := weir.NewClient(pgtest.Pool(t, url)).Enqueue(t.Context(), benchJob{}, nil); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	err := runBench(t, url, &out, &errs, "drain", "--jobs", "10")
	if err == nil || !strings.Contains(err.Error(), "--yes") || out.Len() > 0 {
		t.Errorf("got %v, want an error that names --yes", err)
	}
	benchReport(t, url, "drain", "--jobs", "10", "--yes")
}

// TestBenchSaysWhoseRoleItTakes: only the schema's owner can bring it up to date, and who is somebody else is told before anything is done.
func TestBenchSaysWhoseRoleItTakes(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	admin, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(context.WithoutCancel(t.Context()))
	var out, errs bytes.Buffer
	err = runBench(t, asRole(t, admin, database, "weir_operate"), &out, &errs, "drain", "--jobs", "10")
	if err == nil || exitCode(t.Context(), err) != exitUsage || !strings.Contains(err.Error(), "as "+admin.Config().User+" rather than as") {
		t.Errorf("got %v, want to be told whose role it takes", err)
	}
	if err := runBench(t, database, &out, &errs, "drain", "--jobs", "10", "--rounds", "1"); err != nil || !strings.Contains(errs.String(), "as "+admin.Config().User+", who owns") {
		t.Errorf("%v; it says:\n%s", err, errs.String())
	}
}
