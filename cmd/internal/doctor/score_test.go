package doctor_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/weir-pg/weir/cmd/internal/doctor"
	"github.com/weir-pg/weir/cmd/internal/lab"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// The right causes of the lab's scenarios. A scenario with several causes counts as named if the first finding is
// one of them; all of them are expected.
var causes = []struct {
	scenario string
	load     lab.LoadConfig
	server   map[string]string // settings of a separate server; nil for the shared one
	compiled bool              // see compiled; uses no load of the lab
	want     []doctor.Code
	least    doctor.Severity
}{
	{"notify", lab.LoadConfig{Scenario: "notify", Clients: 24}, nil, false, []doctor.Code{doctor.NotifyCommitLock}, doctor.Critical},
	{"notify, slow flush", lab.LoadConfig{Scenario: "notify", Clients: 24, SlowFlush: true}, map[string]string{"fsync": "on"}, false,
		[]doctor.Code{doctor.NotifyCommitLock}, doctor.Critical},
	{"listeners", lab.LoadConfig{Scenario: "listeners", Clients: 100}, nil, false, []doctor.Code{doctor.ListenersWoken}, doctor.Warning},
	{"storm", lab.LoadConfig{Scenario: "storm"}, nil, false, []doctor.Code{doctor.PostmasterSaturated}, doctor.Warning},
	// On a fast disk, transactions would be over before others meet them at a row: each commit waits at its flush, as with network storage.
	{"tree", lab.LoadConfig{Scenario: "tree"}, map[string]string{"fsync": "on", "commit_delay": "2000", "commit_siblings": "0"}, false,
		[]doctor.Code{doctor.MultiXactContention, doctor.HotRow, doctor.ChattyStatements}, doctor.Info},
	{"pinned, snapshot", lab.LoadConfig{Scenario: "pinned", Pin: "read"}, nil, false, []doctor.Code{doctor.HorizonPinned}, doctor.Warning},
	{"weir, compiled at each call", lab.LoadConfig{}, nil, true, []doctor.Code{doctor.WeirSlow}, doctor.Warning},
	{"pinned, xid", lab.LoadConfig{Scenario: "pinned", Pin: "write"}, nil, false, []doctor.Code{doctor.HorizonPinned}, doctor.Warning},
}

// compiled starts a server with JIT, on which Weir's functions have lost the setting that keeps their plans from being compiled on each call.
func compiled(t *testing.T) (url string, begin func() (stop func())) {
	url = pgtest.JIT(t, nil).URL("postgres")
	conn := connect(t, url)
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	execute(t, conn, `DO $$ DECLARE f regprocedure; BEGIN
		FOR f IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'weir'::regnamespace AND p.prokind = 'f' LOOP EXECUTE format('ALTER FUNCTION %s RESET jit', f); END LOOP; END $$`,
		`SELECT weir.enqueue('q', 'k') FROM generate_series(1, 500)`)
	const worker = `SELECT weir._start('slow', ARRAY['q'])`
	execute(t, conn, worker, worker)
	return url, func() (stop func()) {
		return runSessions(t, url, 2, repeat(`SELECT * FROM weir._claim((SELECT array_agg(w.id ORDER BY w.id) FROM weir.workers() w)[$1::int + 1], ARRAY['q'], ARRAY[1])`))
	}
}

// tries is how often a scenario is attempted: on a busy machine a load may not show its collapse, and an
// idle server may not be idle. The table lists each attempt.
const tries = 3

// scoreFor returns how long the doctor runs: 15 s for the published score, 6 s for a quick one.
func scoreFor(t *testing.T) time.Duration {
	text := os.Getenv("WEIR_SCORE_FOR")
	if text == "" {
		t.Skip("it takes minutes: WEIR_TEST_ALONE=1 WEIR_SCORE_FOR=15s has it run, with WEIR_TEST_PG_MAJOR=14 on PostgreSQL 14")
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("WEIR_SCORE_FOR: %v", err)
	}
	return d
}

// TestTheRightCauseIsNamedInEachScenarioOfTheLab: the doctor names the right cause in each scenario of the lab. It prints the score: what
// was named or missed, other critical findings, and the time.
func TestTheRightCauseIsNamedInEachScenarioOfTheLab(t *testing.T) {
	pgtest.Alone(t, "where the machine is busy, its load does not do what it is for")
	looking := scoreFor(t)
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	version := ""
	for _, c := range causes {
		t.Run(c.scenario, func(t *testing.T) {
			url, begin := "", func() (stop func()) { return load(t, c.load) }
			switch {
			case c.compiled:
				url, begin = compiled(t)
			case c.server == nil:
				url = pgtest.Empty(t)
			default:
				url = pgtest.Server(t, c.server).URL("postgres")
			}
			c.load.Database = url
			var r doctor.Report
			var named, missed, alarms []string
			for try := 1; try <= tries; try++ {
				stop := begin()
				r = examine(t, url, looking)
				stop()
				version = r.Server.Version
				named, missed, alarms = score(r, c.want, c.least)
				fmt.Fprintf(w, "%s\t%s\tnamed %s\tmissed %s\tfalse alarms %s\n", c.scenario, version, orNone(named), orNone(missed), orNone(alarms))
				if len(missed)+len(alarms) == 0 {
					break
				}
			}
			if len(missed) > 0 || len(alarms) > 0 {
				t.Errorf("missed %v, false alarms %v:\n%s", missed, alarms, describe(r))
			}
		})
	}
	for _, calm := range []string{"healthy", "idle"} {
		t.Run(calm, func(t *testing.T) {
			url := pgtest.Empty(t)
			if calm == "healthy" {
				bank(t, url, 8)
			}
			var r doctor.Report
			var alarms []string
			for try := 1; try <= tries; try++ {
				r = examine(t, url, looking)
				_, _, alarms = score(r, nil, doctor.Warning)
				fmt.Fprintf(w, "%s\t%s\t\t\tfalse alarms %s\n", calm, version, orNone(alarms))
				if len(alarms) == 0 {
					break
				}
			}
			if len(alarms) > 0 {
				t.Errorf("false alarms %v:\n%s", alarms, describe(r))
			}
		})
	}
	w.Flush()
	t.Logf("score after %s of looking:\n%s", looking, table.String())
}

// score compares findings with the expected ones. A false alarm is another critical finding, or, if nothing is
// wrong, any finding above info.
func score(r doctor.Report, want []doctor.Code, least doctor.Severity) (named, missed, alarms []string) {
	for _, code := range want {
		if f, ok := r.Find(code); ok && rank(f.Severity) >= rank(least) {
			named = append(named, fmt.Sprintf("%s (%s)", code, f.Severity))
		} else {
			missed = append(missed, string(code))
		}
	}
	bound := doctor.Critical
	if len(want) == 0 {
		bound = doctor.Warning
	}
	for i, f := range r.Findings {
		if !slices.Contains(want, f.Code) && (rank(f.Severity) >= rank(bound) || i == 0 && len(want) > 0) {
			alarms = append(alarms, fmt.Sprintf("%s (%s)", f.Code, f.Severity))
		}
	}
	return named, missed, alarms
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "-"
	}
	return strings.Join(list, ", ")
}

// load runs a scenario until stop is called.
func load(t *testing.T, c lab.LoadConfig) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	c.Ready = func() { close(ready) }
	end := preferClients()
	go func() { done <- lab.Load(ctx, c) }() // stop waits for it
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		defer end()
		cancel()
		if err := pgtest.Receive(t, done, "the load has ended"); err != nil {
			t.Errorf("the load of %s: %v", c.Scenario, err)
		}
	}
	t.Cleanup(stop)
	select {
	case <-ready:
	case err := <-done:
		done <- err
		t.Fatalf("the load of %s did not start: %v", c.Scenario, err)
	}
	return stop
}
