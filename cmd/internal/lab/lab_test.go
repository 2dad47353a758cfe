package lab

import (
	"context"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/engine"
	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/sleep"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// flowsOfTests builds trees as the command does.
func flowsOfTests() *TreeFlows {
	return &TreeFlows{Engine: engine.Engine{Log: io.Discard}, Work: engine.WorkTree}
}

// tiny is a short run of any scenario.
func tiny(scenario, url string) Config {
	return Config{
		Scenario: scenario, Database: url, Duration: 400 * time.Millisecond, Command: "weir lab " + scenario,
		Notify:    NotifySize{Clients: 6, Rounds: 2},
		Listeners: ListenersSize{Idle: []int{0, 15}, Clients: []int{1, 3}, Groups: []int{2, 3}, Grouped: 6, Notifiers: []int{1, 3}},
		Storm:     StormSize{Clients: 40, Rounds: 1, Jitter: 200 * time.Millisecond, Queries: 2, Pool: 3, Servers: 4, Rates: []int{20, 60}, NoReserve: true},
		Tree:      TreeSize{Workers: 4, Parents: 2, Children: 10, Crowd: 12, Flows: flowsOfTests()},
		Pinned:    PinnedSize{Rate: 300, Workers: 2},
	}
}

func TestEveryScenarioEndsWithAPlausibleResultAndCleansUp(t *testing.T) {
	pgtest.Alone(t, "each scenario must do some work in the short time it has")
	for _, name := range Scenarios {
		t.Run(name, func(t *testing.T) {
			url := pgtest.Empty(t)
			begun := time.Now()
			c := tiny(name, url)
			if name == "pinned" { // which must also work before its pin
				c.Duration = 1500 * time.Millisecond
			}
			r, err := Run(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			plausible(t, r, time.Since(begun))
			nothingLeft(t, url)
		})
	}
}

// plausible checks what must be true of any scenario's figures on any machine.
func plausible(t *testing.T, r *Result, took time.Duration) {
	t.Helper()
	if r.Title == "" || r.About == "" || r.Server.Version == "" || r.Seconds <= 0 || r.Seconds > took.Seconds()+1 || len(r.Settings) == 0 {
		t.Errorf("the result lacks a description: %+v", r)
	}
	kinds := map[Kind]int{}
	names := map[string]bool{}
	for _, w := range r.Ways {
		kinds[w.Kind]++
		if names[w.Name] {
			t.Errorf("two ways have the name %q", w.Name)
		}
		names[w.Name] = true
		if strings.HasPrefix(w.Name, budgetName("")) {
			continue // which allows for hardly any in the short time
		}
		if w.Done < 1 || w.Rate <= 0 || w.Seconds <= 0 || w.What == "" {
			t.Errorf("%+v did nothing", w)
		}
		if w.Name == treeFlowsName { // whose nodes are not timed
			continue
		}
		if w.Latency == nil || w.Latency.P50 <= 0 || w.Latency.P99 < w.Latency.P50 || w.Latency.Max < w.Latency.P99 {
			t.Errorf("%s: latency is not a distribution: %+v", w.Name, w.Latency)
		}
		sum := 0.0
		for _, wait := range w.Waits {
			sum += wait.Share
		}
		if sum > 1.01 {
			t.Errorf("%s: the waits' shares add up to more than 1: %v", w.Name, w.Waits)
		}
	}
	if kinds[Collapse] == 0 || kinds[Fix] == 0 {
		t.Errorf("a collapse needs fixes next to it, got %v", kinds)
	}
	if v := r.Verdict; v.Text == "" || v.Shown != (v.Times >= shownFrom) || v.Shown != strings.HasPrefix(v.Text, "Shown: ") {
		t.Errorf("the verdict does not follow from the figures: %+v", v)
	}
	if len(r.Charts) < 2 {
		t.Errorf("%d charts", len(r.Charts))
	}
	for _, c := range r.Charts {
		if c.Title == "" || c.Command == "" || len(c.Settings) == 0 || len(c.Lines) == 0 || c.X.Label == "" || c.Y.Label == "" {
			t.Errorf("chart %q has no axis labels, or no command: %+v", c.Title, c)
		}
		for _, l := range c.Lines {
			if l.Name == "" || len(l.X) == 0 || len(l.X) != len(l.Y) || c.Kind == Stack && len(l.X) != len(c.Lines[0].X) {
				t.Errorf("chart %q: line %q has %d values of x and %d of y", c.Title, l.Name, len(l.X), len(l.Y))
			}
		}
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
}

func nothingLeft(t *testing.T, url string) {
	t.Helper()
	pool := pgtest.Pool(t, url)
	count := func(sql string, args ...any) (n int) {
		t.Helper()
		if err := pool.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := count(`SELECT count(*) FROM pg_namespace WHERE nspname IN ('weir', 'weir_lab')`); n != 0 {
		t.Errorf("%d schemas were left behind", n)
	}
	pgtest.Until(t, "no sessions are left behind", func() bool { // the server ends one a moment after its client has left
		return count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1`, appName) == 0
	})
}

func TestTreeCuresChangeWhatIsAskedNotWhatIsBuilt(t *testing.T) {
	pgtest.Alone(t, "it counts MultiXacts of the whole server")
	r, err := Run(t.Context(), tiny("tree", pgtest.Empty(t))) // fails if children and counters differ
	if err != nil {
		t.Fatal(err)
	}
	figure := func(way, name string) float64 {
		v, ok := r.Way(way).Figure(name)
		if !ok {
			t.Fatalf("%s has no figure %q", way, name)
		}
		return v
	}
	for _, c := range []struct {
		before, after, name string
	}{
		{"no foreign keys", "+ keys remembered", "statements per row written"},
		{"+ keys remembered", "+ one transaction per item", "commits per item"},
	} {
		if before, after := figure(c.before, c.name), figure(c.after, c.name); after >= before {
			t.Errorf("%s: %g %s, and %g %s", c.name, before, c.before, after, c.after)
		}
	}
	if n := figure("+ deltas, coalesced", "MultiXacts per item"); n > 0.01 {
		t.Errorf("without foreign keys and shared rows, %g MultiXacts were made per item", n)
	}
}

func TestEveryLoadRunsUntilItsContextEndsAndCleansUp(t *testing.T) {
	t.Parallel()
	for _, name := range Scenarios {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Empty(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ready, ended := make(chan struct{}), make(chan error, 1)
			go func() {
				ended <- Load(ctx, LoadConfig{Scenario: name, Database: url, Clients: 8, Rate: 100, Ready: func() { close(ready) }})
			}()
			select {
			case <-ready:
			case err := <-ended:
				t.Fatalf("the load ended before it was ready: %v", err)
			case <-time.After(time.Minute):
				t.Fatal("the load does not start")
			}
			if name != "storm" { // whose clients never become sessions
				seen := `SELECT count(*) > 1 FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'weir lab'`
				var working bool
				if err := pgtest.Pool(t, url).QueryRow(t.Context(), seen).Scan(&working); err != nil || !working {
					t.Errorf("no session works after Ready: %v", err)
				}
			}
			cancel()
			if err := pgtest.Receive(t, ended, "the load has ended"); err != nil {
				t.Errorf("a load whose context ended returns %v", err)
			}
			nothingLeft(t, url)
		})
	}
}

func TestLoadAndRunRefuseWhatTheyDoNotKnow(t *testing.T) {
	t.Parallel()
	_, err := Run(t.Context(), Config{Scenario: "notfy"})
	for _, err := range []error{
		err, Load(t.Context(), LoadConfig{Scenario: "notfy", Database: "x"}),
	} {
		if err == nil || !strings.Contains(err.Error(), `"notfy"`) || !strings.Contains(err.Error(), "listeners") {
			t.Errorf("got %v, want an error that lists the scenarios", err)
		}
	}
	if err := Load(t.Context(), LoadConfig{Scenario: "notify"}); err == nil {
		t.Error("a load without a database returned no error")
	}
	if err := Load(t.Context(), LoadConfig{Scenario: "pinned", Database: pgtest.Empty(t), Pin: "x"}); err == nil || !strings.Contains(err.Error(), `"x"`) {
		t.Errorf("got %v, want an error that names the pin", err)
	}
}

func TestInterruptedRunCleansUp(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"notify", "listeners", "tree", "pinned"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Empty(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			c := tiny(name, url)
			c.Duration = time.Minute
			after := time.Duration(0)
			if name == "pinned" { // with a slot, which would hold rows and WAL of the whole server for ever
				c.Pinned.Pins, c.Duration = []string{"slot"}, 4*time.Second
				after = phasesOf(c.Duration).pin + 200*time.Millisecond
			}
			c.Progress = func(p Progress) {
				if p.Way != "" && p.Elapsed >= after {
					cancel()
				}
			}
			if _, err := Run(ctx, c); err == nil || ctx.Err() == nil {
				t.Errorf("an interrupted run returns %v", err)
			}
			nothingLeft(t, url)
			var slots int
			if err := pgtest.Pool(t, url).QueryRow(t.Context(), `SELECT count(*) FROM pg_replication_slots WHERE slot_name = `+thisSlot).Scan(&slots); err != nil || slots != 0 {
				t.Errorf("%d slots were left behind: %v", slots, err)
			}
		})
	}
}

// TestNothingDoneIsNotSlow: a run that is too short for anything compares nothing, and divides by nothing.
func TestNothingDoneIsNotSlow(t *testing.T) {
	t.Parallel()
	zero := func(names ...string) *Result {
		r := &Result{}
		for _, name := range names {
			r.Ways = append(r.Ways, &Way{Name: name, Kind: Collapse})
		}
		return r
	}
	size := ListenersSize{Idle: []int{0, 10}, Groups: []int{2}, Notifiers: []int{1}, Clients: []int{1}}
	for _, v := range []Verdict{
		notifyVerdict(zero("insert", "insert + pg_notify", "insert + weir.publish")), listenersVerdict(zero(pingPongName("PostgreSQL", 0), pingPongName("PostgreSQL", 10)), size),
		treeVerdict(zero(treeSteps[0].name, treeSteps[4].name)), pinnedVerdict(zero("SKIP LOCKED, DELETE, read pin"), PinnedSize{Rate: 1}),
	} {
		if v.Shown || v.Times != 0 || strings.Contains(v.Text, "times fewer") || strings.Contains(v.Text, "times more:") {
			t.Errorf("%+v", v)
		}
	}
}

func TestVerdictIsComputed(t *testing.T) {
	t.Parallel()
	way := func(name string, rate float64) *Way { return &Way{Name: name, Rate: rate} }
	for _, c := range []struct {
		notify float64
		shown  bool
	}{{100, true}, {900, false}} {
		r := &Result{Ways: []*Way{way("insert", 1000), way("insert + pg_notify", c.notify)}}
		v := notifyVerdict(r)
		if v.Shown != c.shown || v.Times != round(1000/c.notify) || strings.Contains(v.Text, "Not shown on this machine") == c.shown {
			t.Errorf("%g of 1000: %+v", c.notify, v)
		}
	}
}

// TestALineThatCantBeDrawnMakesNoChart: on a logarithmic axis zero is nowhere.
func TestALineThatCantBeDrawnMakesNoChart(t *testing.T) {
	t.Parallel()
	r := &run{result: &Result{}}
	for _, log := range []bool{true, false} {
		r.chart(Chart{Title: "zeros", Y: Axis{Log: log}, Lines: []Line{{Name: "none", X: []float64{1, 2}, Y: []float64{0, 0}}}})
	}
	r.chart(Chart{Title: "some", Y: Axis{Log: true}, Lines: []Line{{Name: "none", X: []float64{1}, Y: []float64{0}}, {Name: "one", X: []float64{1}, Y: []float64{3}}}})
	if c := r.result.Charts; len(c) != 2 || c[0].Y.Log || len(c[1].Lines) != 1 || c[1].Lines[0].Name != "one" {
		t.Errorf("%+v", c)
	}
}

// TestAClassOfManySmallWaitsIsSeen: MultiXacts are waited for at several places, each with a small share.
func TestAClassOfManySmallWaitsIsSeen(t *testing.T) {
	t.Parallel()
	k := newTrack(&Way{Name: "some"}, time.Second)
	k.waits.samples, k.waits.found = 1, busy{}
	for i, name := range []string{"a", "b", "c", "d", "e", "f"} {
		k.waits.found[wait{"LWLock:" + name, "commit"}] = 10 + i
		k.waits.found[wait{"LWLock:MultiXact" + name, "multixact"}] = 5
	}
	k.waits.cut()
	if got, want := classShare(k.sum(), "multixact"), 30.0/105; got < want-0.01 || got > want+0.01 {
		t.Errorf("%g of the time, want %g", got, want)
	}
}

func TestEveryQueueDoesEachJobOnce(t *testing.T) {
	t.Parallel()
	url := pgtest.Empty(t)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn(conn)
	if _, err := conn.Exec(t.Context(), `CREATE SCHEMA weir_lab`); err != nil {
		t.Fatal(err)
	}
	for _, q := range append(slices.Clone(sqlQueues), relayQueue) {
		t.Run(q.name, func(t *testing.T) {
			const jobs = 1200 // one of which is slow
			if _, err := conn.Exec(t.Context(), strings.Join(q.setup, ";")); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Exec(t.Context(), q.enqueue, jobs); err != nil {
				t.Fatal(err)
			}
			workers, err := openSessions(t.Context(), url, 5, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer workers.close()
			trial := &trial{
				PinnedSize: PinnedSize{Workers: 4}, phases: phasesOf(time.Hour), queue: q, sessions: workers,
				calm: load.NewTally(), hard: load.NewTally(), waits: load.NewTally(), begun: time.Now(),
			}
			until, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			m := load.NewTally()
			go func() {
				for trial.done.Load() < jobs && sleep.For(until, time.Millisecond) {
				}
				cancel()
			}()
			if err := q.work(t.Context(), until, trial, m); err != nil {
				t.Fatal(err)
			}
			if got := trial.done.Load(); got != jobs {
				t.Errorf("%d of %d jobs were done", got, jobs)
			}
			var left int64
			if err := conn.QueryRow(t.Context(), q.left, 0.0).Scan(&left); err != nil || left != 0 {
				t.Errorf("%d jobs were left: %v", left, err)
			}
			if _, waits := trial.waits.Cut(); waits.Times() == nil || waits.Times().Count != jobs {
				t.Errorf("the waits of %d jobs were recorded as %+v", jobs, waits.Times())
			}
			if _, err := conn.Exec(t.Context(), q.cleanup); err != nil {
				t.Fatal(err)
			}
		})
	}
}
