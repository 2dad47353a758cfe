package lab

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/bouncer"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/sleep"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// tiny is a short run of any scenario.
func tiny(scenario, url string) Config {
	return Config{
		Scenario: scenario, Database: url, Duration: 400 * time.Millisecond, Command: "weir lab " + scenario,
		Notify:    NotifySize{Clients: 6, Rounds: 2},
		Listeners: ListenersSize{Idle: []int{0, 15}, Clients: []int{1, 3}},
		Storm:     StormSize{Clients: 40, Rounds: 1, Jitter: 200 * time.Millisecond, Queries: 2, Pool: 3, Rates: []int{20, 60}, NoReserve: true},
		Tree:      TreeSize{Workers: 4, Parents: 2, Children: 10},
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
	var schemas, sessions int
	err := pgtest.Pool(t, url).QueryRow(t.Context(), `
		SELECT (SELECT count(*)::int FROM pg_namespace WHERE nspname IN ('weir', 'weir_lab')),
		       (SELECT count(*)::int FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1)`, appName).Scan(&schemas, &sessions)
	if err != nil {
		t.Fatal(err)
	}
	if schemas != 0 || sessions != 0 {
		t.Errorf("%d schemas and %d sessions were left behind", schemas, sessions)
	}
}

// Storms over several servers need private ones.
func TestStormRunsOnPrivateServersSideBySide(t *testing.T) {
	t.Parallel()
	c := tiny("storm", "")
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	plausible(t, r, time.Hour)
	for _, name := range []string{"at once", "at once, beside parallel queries", "with jitter", "over 2 servers", "over 3 servers", "from a standing pool", "to PgBouncer"} {
		if _, err := bouncer.Find(); name == "to PgBouncer" && err != nil {
			if r.Way(name) != nil || !strings.Contains(strings.Join(r.Notes, " "), "PgBouncer was not measured") {
				t.Errorf("PgBouncer is not installed, and the result does not say so: %v", r.Notes)
			}
			continue
		}
		w := r.Way(name)
		if w == nil {
			t.Fatalf("%s was not measured", name)
		}
		if int(w.Done) != c.Storm.Clients*c.Storm.Rounds {
			t.Errorf("%s: %d of %d clients were answered", name, w.Done, c.Storm.Clients)
		}
	}
	if !r.Server.Private {
		t.Error("the result does not say that the server was private")
	}
	if r.Way("20 connections per second") == nil {
		t.Error("no rate of the sweep was measured")
	}
	if _, told := effortOf(os.Getpid()); !told {
		return
	}
	if _, ok := r.Way("at once").Figure(postmasterReady); !ok {
		t.Error("the result does not say what the postmaster did")
	}
	one, notes := r.Way(budgetName("1 postmaster")), strings.Join(r.Notes, " ")
	if one == nil && !strings.Contains(notes, "fixed CPU budget were not measured") {
		t.Errorf("postmasters at a budget were not measured, and no note says why: %s", notes)
	}
	if one != nil && r.Way(budgetName("3 postmasters")) == nil {
		t.Error("three postmasters at a budget were not measured")
	}
}

func TestTheSaturatedPostmasterIsToldFromTheSaturatedMachine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		ran, ready, machine float64
		says                string
	}{
		{97, 1, 40, "its one thread is saturated"},
		{30, 65, 99, "the machine is saturated"},
		{20, 30, 99, "wait for their own turn on a CPU"},
		{20, 10, 50, "neither is saturated"},
	} {
		w := &Way{Figures: []Figure{{postmasterCPU, c.ran, ""}, {postmasterReady, c.ready, ""}, {machineCPU, c.machine, ""}}}
		if got := judgePostmaster(w); !strings.Contains(got, c.says) {
			t.Errorf("%+v: %s", c, got)
		}
	}
	if got := judgePostmaster(&Way{}); got != "" {
		t.Errorf("without figures: %s", got)
	}
}

func TestTheSweepSaysHowFarTheServerKeptUp(t *testing.T) {
	t.Parallel()
	at := func(rate int, answered, median float64) sweep {
		return sweep{rate: rate, way: &Way{Rate: answered, Latency: &Latency{P50: median}, Figures: []Figure{{acceptedAfter, 0.2, "ms"}, {postmasterCPU, 96, "%"}}}}
	}
	for _, c := range []struct {
		all  []sweep
		says []string
	}{
		{[]sweep{at(100, 100, 2), at(200, 199, 3)}, []string{"kept up with every rate", "200 connections"}},
		{[]sweep{at(100, 100, 2), at(200, 150, 900)}, []string{"At 100 connections per second the server kept up", "Of 200 per second it answered 150", "900 ms", "0.2 ms", "saturated"}},
	} {
		got := sweepText(c.all)
		for _, part := range c.says {
			if !strings.Contains(got, part) {
				t.Errorf("%q is not in: %s", part, got)
			}
		}
	}
}

func TestHugePagesAreReservedAndPutBack(t *testing.T) {
	pgtest.Alone(t, "it reserves memory of the whole machine")
	before, err := readHuge()
	if err != nil || os.Getuid() != 0 {
		t.Skip("only root on Linux can reserve huge pages")
	}
	c := tiny("storm", "")
	c.Storm.NoReserve = false
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	notes := strings.Join(r.Notes, " ")
	if r.Way("at once, huge pages") == nil && !strings.Contains(notes, "Huge pages were not measured") {
		t.Errorf("huge pages were not measured, and no note says why: %s", notes)
	}
	if after, err := readHuge(); err != nil || after != before {
		t.Errorf("%d huge pages are reserved, and %d were before: %v", after, before, err)
	}
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
	url := pgtest.Empty(t)
	ctx, cancel := context.WithCancel(t.Context())
	c := tiny("tree", url)
	c.Duration = time.Minute
	c.Progress = func(p Progress) {
		if p.Way != "" {
			cancel()
		}
	}
	if _, err := Run(ctx, c); err == nil || ctx.Err() == nil {
		t.Errorf("an interrupted run returns %v", err)
	}
	nothingLeft(t, url)
}

// The log and the CPU can be read of a private server only.
func TestNotifyQuotesTheServersLogAndChartsWhatFalls(t *testing.T) {
	t.Parallel()
	r, err := Run(t.Context(), tiny("notify", ""))
	if err != nil {
		t.Fatal(err)
	}
	plausible(t, r, time.Hour)
	notes := strings.Join(r.Notes, "\n")
	if len(r.Quotes) == 0 && !strings.Contains(notes, "log_lock_waits") {
		t.Errorf("no line of the log is quoted, and no note says why: %s", notes)
	}
	for _, q := range r.Quotes {
		for _, part := range []string{"still waiting for " + notifyInLog, "Process holding the lock", "STATEMENT:  COMMIT"} {
			if !strings.Contains(q.Text, part) {
				t.Errorf("the quote lacks %q: %s", part, q.Text)
			}
		}
	}
	titles := map[string]bool{}
	for _, c := range r.Charts {
		titles[c.Title] = true
	}
	if !titles["Active sessions, with the disk as it is"] { // the rates need longer than a tiny round
		t.Errorf("no chart of the active sessions: %v", titles)
	}
	if b := r.Way("a burst of insert + pg_notify" + slowSuffix); b == nil && !strings.Contains(notes, "A burst was not measured") {
		t.Errorf("no burst was measured, and no note says why: %s", notes)
	} else if b != nil {
		_, recovered := b.Figure(recoveredIn)
		_, not := b.Figure(notRecovered)
		if recovered == not {
			t.Errorf("the burst says neither when it recovered nor that it did not, or both: %+v", b.Figures)
		}
	}
}

func TestTheLongestQueueOfTheLogIsQuoted(t *testing.T) {
	t.Parallel()
	entry, waits := lockWaits("12:00 [7] LOG:  process 7 still waiting for " + notifyInLog + " after 5 ms\n" +
		"12:00 [8] LOG:  process 8 still waiting for ShareLock on transaction 5 after 5 ms\n" +
		"12:00 [7] DETAIL:  Process holding the lock: 9. Wait queue: 7.\n12:00 [7] STATEMENT:  COMMIT\n" +
		"12:00 [7] LOG:  process 7 acquired " + notifyInLog + " after 6 ms\n" +
		"12:01 [6] LOG:  process 6 still waiting for " + notifyInLog + " after 5 ms\n12:01 [6] DETAIL:  Process holding the lock: 9. Wait queue: 5, 6.\n" +
		"12:01 [6] STATEMENT:  COMMIT\n")
	if want := 3; waits != 2 || strings.Count(entry, "[6]") != want || strings.Contains(entry, "[7]") || !strings.Contains(entry, "queue: 5, 6.") {
		t.Errorf("quoted of %d waits: %s", waits, entry)
	}
}

func TestRequestsArriveAtTheRateOfTheirPhase(t *testing.T) {
	t.Parallel()
	p := pace{{time.Second, 10}, {2 * time.Second, 100}, {time.Second, 0}, {time.Second, 10}}
	for after, due := range map[time.Duration]int{0: 0, time.Second: 10, 2 * time.Second: 110, 3 * time.Second: 210, 4 * time.Second: 210, 5 * time.Second: 220, time.Hour: 220} {
		if got := p.due(after); got != due {
			t.Errorf("%d requests are due after %s, want %d", got, after, due)
		}
	}
	for i, at := range map[int]time.Duration{0: 0, 5: 500 * time.Millisecond, 10: time.Second, 110: 2 * time.Second, 210: 4 * time.Second, 219: 4900 * time.Millisecond} {
		if got := p.at(i); got.Round(time.Microsecond) != at {
			t.Errorf("request %d arrives after %s, want %s", i, got, at)
		}
	}
	if last := p.at(220); last < time.Hour {
		t.Errorf("a request that never arrives is due after %s", last)
	}
}

func TestABurstIsPlannedOnlyWhereItCanShowSomething(t *testing.T) {
	t.Parallel()
	for notify, planned := range map[float64]bool{100: true, 300: true, 400: false, 900: false} {
		r := &run{Config: Config{Duration: time.Second}, result: &Result{Ways: []*Way{{Name: "insert", Rate: 1000}, {Name: "insert + pg_notify", Rate: notify}}}}
		b := planBurst(r, "", normalFlush)
		if (b != nil) != planned || (len(r.result.Notes) > 0) == planned {
			t.Errorf("pg_notify at %g of 1000: planned %v, notes %v", notify, b != nil, r.result.Notes)
		}
		if b != nil && (b.more < notify || b.steady+b.more > 600) {
			t.Errorf("pg_notify at %g of 1000: %g and %g more per second", notify, b.steady, b.more)
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
