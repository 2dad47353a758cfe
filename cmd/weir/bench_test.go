package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/cmd/internal/engine"
	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestABenchRefusesNumbersThatItCannotMeasure: before it connects or starts a server, and names the flag and the value.
func TestABenchRefusesNumbersThatItCannotMeasure(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"drain", "--limit", "-5"}, {"drain", "--jobs", "0"}, {"drain", "--rounds", "-1"}, {"drain", "--job-time", "-1s"},
		{"drain", "--schedules", "-2"}, {"drain", "--servers", "11"}, {"features", "--jobs", "0"}, {"fair", "--tenants", "1"}, {"fair", "--jobs", "99"}, {"fair", "--rate", "0"}, {"fair", "--per-key", "1001"}, {"fair", "--rounds", "0"},
		{"fair", "--seconds", "0"}, {"chord", "--members", "0"}, {"chord", "--rounds", "0"}, {"chord", "--small-members", "0"}, {"chord", "--small-rounds", "-1"},
		{"tree", "--nodes", "0"}, {"tree", "--processes", "0"}, {"tree", "--concurrency", "0"}, {"tree", "--connections", "0"}, {"tree", "--duplicates", "0.95"}, {"tree", "--fan-out", "0"}, {"tree", "--rounds", "0"}, {"tree", "--lab-time", "-1s"},
		{"dag", "--tasks", "10001"}, {"dag", "--layers", "0"}, {"dag", "--rounds", "0"}, {"steady", "--seconds", "0"}, {"latency", "--seconds", "-3"}} {
		err := runBench(t, "postgres://127.0.0.1:1/nowhere", &bytes.Buffer{}, &bytes.Buffer{}, args[0], args[1]+"="+args[2])
		if want := args[1] + " must"; err == nil || !strings.Contains(err.Error(), want) || !strings.HasSuffix(err.Error(), "got "+args[2]) {
			t.Errorf("weir bench %v: %v, want %q and the value", args, err, want)
		}
	}
}

// benchReport runs a bench on a database, or if url is "" on a private server, and returns its JSON, decoded twice.
func benchReport(t *testing.T, url string, args ...string) (load.Report, map[string]any) {
	t.Helper()
	var out, errs bytes.Buffer
	if err := runBench(t, url, &out, &errs, append(args, "--json")...); err != nil {
		t.Fatalf("weir bench %s: %v\n%s", strings.Join(args, " "), err, errs.String())
	}
	t.Log(errs.String())
	var report load.Report
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

func noneDeadIn(t *testing.T, phases ...*load.Figures) {
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

// TestBenchDrainSpreadsOverServers: as many jobs over one server and over two, all of them done, by one process.
func TestBenchDrainSpreadsOverServers(t *testing.T) {
	t.Parallel()
	r, _ := benchReport(t, "", "drain", "--jobs", "3001", "--rounds", "2", "--servers", "2")
	if len(r.Over) != 2 || r.Over[0].Servers != 1 || r.Over[1].Servers != 2 {
		t.Fatalf("%+v", r.Over)
	}
	for _, o := range r.Over {
		if o.Jobs != 3001 || o.JobsPerSecond <= 0 || o.Ratio.Samples != 2 || o.Ratio.Median <= 0 || o.Connections < o.Servers {
			t.Errorf("over %d servers: %+v, %d connections, ratio %+v", o.Servers, o.Figures, o.Connections, o.Ratio)
		}
	}
	var out, errs bytes.Buffer
	for _, args := range [][]string{{"--unique"}, {"--keys", "3"}} {
		if err := runBench(t, "", &out, &errs, append([]string{"drain", "--servers", "2"}, args...)...); err == nil || !strings.Contains(err.Error(), "--servers is about plain jobs") {
			t.Errorf("%v: %v", args, err)
		}
	}
	if err := runBench(t, "postgres://127.0.0.1:1/nowhere", &out, &errs, "drain", "--servers", "2"); err == nil || !strings.Contains(err.Error(), "--servers starts private servers") {
		t.Errorf("with a database: %v", err)
	}
}

// TestBenchDrainComparesFeaturesWithPlainJobs: with flags for features, as many plain jobs are drained, and each feature gets its queue's limits.
func TestBenchDrainComparesFeaturesWithPlainJobs(t *testing.T) {
	t.Parallel()
	for what, args := range map[string][]string{
		"unique jobs, 100 schedules":      {"--unique", "--schedules", "100"},
		"a limit of 50":                   {"--limit", "50"},
		"100 keys, a limit of 2 for each": {"--keys", "100", "--per-key", "2"},
	} {
		t.Run(args[0], func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			r, _ := benchReport(t, url, append([]string{"drain", "--jobs", "3000", "--rounds", "2"}, args...)...)
			if len(r.Features) != 1 || r.Features[0].What != what || r.Rate.Samples != 2 {
				t.Fatalf("%+v, want %q", r.Features, what)
			}
			compares(t, r.Features[0], 3000, 2)
			noneDeadIn(t, r.Figures)
		})
	}
}

// compares checks what is reported of a feature beside plain jobs.
func compares(t *testing.T, f load.Feature, jobs int64, rounds int) {
	t.Helper()
	if f.Jobs != jobs || f.Plain.Jobs != jobs || f.Ratio.Samples != rounds || f.Ratio.Median <= 0 || f.WAL.Samples != rounds || *f.WALBytesPerJob <= 0 {
		t.Errorf("%s: %+v beside %+v, ratio %+v, WAL on top %+v", f.What, f.Figures, f.Plain, f.Ratio, f.WAL)
	}
}

// TestBenchFeaturesMeasuresEach: every feature beside plain jobs, in each round. It runs on a private server, whose CPU time can be measured.
func TestBenchFeaturesMeasuresEach(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	if err := runBench(t, "", &out, &errs, "features", "--jobs", "300", "--rounds", "1"); err != nil {
		t.Fatal(err, errs.String())
	}
	for _, row := range []string{"unique jobs ", "a limit of 4000 ", "1000 keys ", "1000 keys, a limit of 4 for each ", "10000 schedules "} {
		if !strings.Contains(out.String(), "\n"+row) || !strings.Contains(errs.String(), ": "+row[:len(row)-1]+": ") {
			t.Errorf("%q was not measured, or without progress:\n%s%s", row, out.String(), errs.String())
		}
	}
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

// Runs on a private server, whose processes can be observed.
func TestBenchLatencyMeasuresStartAndIdling(t *testing.T) {
	t.Parallel()
	r, fields := benchReport(t, "", "latency", "--seconds", "1")
	hasFields(t, fields, "jobs", "p50_ms", "p99_ms", "dead_tuples", "idle")
	if r.Jobs < 3 || *r.P50 <= 0 || r.Idle.Queues != 10 || r.Server.Settings["synchronous_commit"] != "on" || r.Server.Settings["fsync"] != "on" {
		t.Errorf("%+v %+v %+v", r.Figures, r.Idle, r.Server)
	}
	noneDeadIn(t, r.Figures)
}

// TestBenchTreeBuildsEveryNodeOnce: in processes of its own, beside as many flat jobs and the lab's tree, and drops what it has built.
func TestBenchTreeBuildsEveryNodeOnce(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	r, fields := benchReport(t, url, "tree", "--nodes", "600", "--processes", "2", "--concurrency", "3", "--fan-out", "7", "--rounds", "2", "--lab-time", "300ms")
	hasFields(t, fields, "tree", "targets")
	tree := r.Tree
	if tree.Flat.Jobs != 600 || tree.Grown.Jobs != 600 || tree.Ratio.Samples != 2 || tree.Ratio.Min <= 0 || *tree.Grown.WALBytesPerJob <= tree.OwnWAL || tree.OwnWAL <= 0 {
		t.Errorf("%+v, flat %+v, tree %+v", tree, tree.Flat, tree.Grown)
	}
	if tree.Rows != 2*600 || tree.Inserts < tree.Rows {
		t.Errorf("%d inserts of %d rows", tree.Inserts, tree.Rows)
	}
	if fresh := int64(2 * 599); tree.Named-tree.Known-tree.Dropped != fresh || float64(tree.Named-fresh) < 0.2*float64(tree.Named) {
		t.Errorf("of %d names, %d were known and %d dropped", tree.Named, tree.Known, tree.Dropped)
	}
	if len(tree.Lab) != 5 || tree.Lab[0].Nodes <= 0 || tree.Lab[0].CallsPerRow < 1 {
		t.Errorf("%+v", tree.Lab)
	}
	var left bool
	if err := pgtest.Pool(t, url).QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname IN ('weir_bench', 'weir_lab'))`).Scan(&left); err != nil || left {
		t.Errorf("schemas of the bench are left (%v)", err)
	}
}

// TestBenchChordCountsTheRowsThatCountMembers: far fewer than members, and each chord calls back.
func TestBenchChordCountsTheRowsThatCountMembers(t *testing.T) {
	t.Parallel()
	r, fields := benchReport(t, pgtest.Database(t), "chord", "--members", "3000", "--rounds", "2", "--small-members", "10", "--small-rounds", "5")
	hasFields(t, fields, "chords", "targets")
	if len(r.Chords) != 2 {
		t.Fatalf("%+v", r.Chords)
	}
	for i, want := range []struct{ members, rounds, most int }{{10, 5, 14}, {3000, 2, 1000}} {
		c := r.Chords[i]
		if c.Members != want.members || c.Rounds != want.rounds || c.Callback.Count != int64(want.rounds) || c.Callback.P99 <= 0 || c.Seconds.Samples != want.rounds || *c.WAL <= 0 {
			t.Errorf("%+v", c)
		}
		// It is created, joined, ended and sealed.
		if c.Arrivals.Min < 4 || c.Arrivals.Max > float64(want.most) {
			t.Errorf("%d members were counted in %+v rows", c.Members, c.Arrivals)
		}
	}
}

func TestBenchDAGWorksEveryTask(t *testing.T) {
	t.Parallel()
	r, fields := benchReport(t, pgtest.Database(t), "dag", "--tasks", "100", "--layers", "7", "--rounds", "2")
	hasFields(t, fields, "dag")
	if g := r.DAG; g.Tasks != 100 || g.Layers != 7 || g.Seconds.Samples != 2 || g.Seconds.Min <= 0 || g.Added.Min <= 0 || g.Rate.Min <= 0 || *g.WAL <= 0 {
		t.Errorf("%+v", g)
	}
}

func TestBenchRefusesADatabaseWithUnfinishedJobs(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	if _, err := weir.NewClient(pgtest.Pool(t, url)).Enqueue(t.Context(), engine.Job{}, nil); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	err := runBench(t, url, &out, &errs, "drain", "--jobs", "10")
	if err == nil || !strings.Contains(err.Error(), "--yes") || out.Len() > 0 {
		t.Errorf("got %v, want an error that names --yes", err)
	}
	benchReport(t, url, "drain", "--jobs", "10", "--yes")
}

// TestBenchSaysWhoseRoleItTakes: a bench refuses to run as a role that does not own the schema, before it changes anything.
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
		t.Errorf("got %v, want an error that names the role to use", err)
	}
	if err := runBench(t, database, &out, &errs, "drain", "--jobs", "10", "--rounds", "1"); err != nil || !strings.Contains(errs.String(), "as "+admin.Config().User+", the owner of") {
		t.Errorf("%v; it says:\n%s", err, errs.String())
	}
}

// TestCommandsOfTheBenchmarksExist: every command on the page of benchmarks exists.
func TestCommandsOfTheBenchmarksExist(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/benchmarks.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("(?m)(?:^|`)weir bench ([^\n#`]+)").FindAllStringSubmatch(string(page), -1)
	if len(named) == 0 {
		t.Error("the page of benchmarks names no command")
	}
	for _, m := range named {
		parser, err := kong.New(&benchCmd{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parser.Parse(strings.Fields(m[1])); err != nil {
			t.Errorf("weir bench %s: %v", m[1], err)
		}
	}
}

// TestABenchOfFlowsSaysWhatItHasMeasured: one number of each row, no figures of the warm-up, no target that a small tree misses, and no warning that its own queue is new.
func TestABenchOfFlowsSaysWhatItHasMeasured(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args       []string
		out, lacks []string // of both streams
	}{
		"dag":   {[]string{"dag", "--tasks", "20", "--layers", "2", "--rounds", "1"}, []string{`(?m)^tasks +20 +in 2 layers$`, `(?m)^seconds to add them +\d`}, nil},
		"chord": {[]string{"chord", "--members", "20", "--rounds", "1", "--small-members", "2", "--small-rounds", "1"}, []string{`warming up\n`, `chord of 2, round 1 of 1: `}, []string{"chord of 1,"}},
		"tree":  {[]string{"tree", "--nodes", "200", "--processes", "2", "--rounds", "1", "--no-lab"}, []string{`; 1 round; the ratio has no target, because trees of fewer than 50000 nodes do not say`, `in 1 round\n`}, []string{"target: ratio"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var both bytes.Buffer
			if err := runBench(t, pgtest.Database(t), &both, &both, c.args...); err != nil {
				t.Fatal(err, both.String())
			}
			for _, want := range c.out {
				if !regexp.MustCompile(want).Match(both.Bytes()) {
					t.Errorf("it does not say %s:\n%s", want, both.String())
				}
			}
			for _, not := range append(c.lacks, "no job was ever enqueued", "1 rounds") {
				if strings.Contains(both.String(), not) {
					t.Errorf("it says %q:\n%s", not, both.String())
				}
			}
		})
	}
}

// TestABenchThatNeedsMoreConnectionsSaysWhatWouldDo: with the flag, it does.
func TestABenchThatNeedsMoreConnectionsSaysWhatWouldDo(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	var out bytes.Buffer
	err := runBench(t, url, &out, &out, "tree", "--processes", "1000")
	if err == nil {
		t.Fatal("a thousand processes are accepted")
	}
	fits := regexp.MustCompile(`needs 7010 connections, but max_connections is (\d+): pass --processes (\d+), raise it, or measure`).FindStringSubmatch(err.Error())
	if fits == nil {
		t.Fatal(err)
	}
	connections, _ := strconv.Atoi(fits[1])
	processes, _ := strconv.Atoi(fits[2])
	if 7*processes+10 > connections || 7*(processes+1)+10 <= connections {
		t.Errorf("%d processes are not what %d connections do", processes, connections)
	}
}
