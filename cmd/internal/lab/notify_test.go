package lab

import (
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/pgtest"
)

// The log can be read of a private server only.
func TestNotifyQuotesTheServersLogAndRunsABurst(t *testing.T) {
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
	for notify, planned := range map[float64]bool{0: false, 100: true, 300: true, 400: false, 900: false} {
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

// TestAVerdictSaysNothingOfWaitsThatWereNotSampled: and neither does a burst of a CPU that was read in none of its phases.
func TestAVerdictSaysNothingOfWaitsThatWereNotSampled(t *testing.T) {
	t.Parallel()
	alone, notify := &Way{Name: "insert", Rate: 1000}, &Way{Name: "insert + pg_notify", Rate: 100}
	if v := notifyVerdict(&Result{Ways: []*Way{alone, notify}}); strings.Contains(v.Text, notifyLock) {
		t.Errorf("nothing was sampled, and the verdict says: %s", v.Text)
	}
	notify.Waits = []Wait{{Event: notifyLock, Class: "object-lock", Share: 0.75}}
	if v := notifyVerdict(&Result{Ways: []*Way{alone, notify}}); !strings.Contains(v.Text, "75% of the sessions' time spent waiting") {
		t.Errorf("the verdict says: %s", v.Text)
	}
	b := &burst{calm: 125 * time.Millisecond, lasts: 170 * time.Millisecond, limit: time.Second}
	k := newTrack(&Way{Name: "a burst of insert", Kind: Baseline}, time.Second)
	k.at, k.rate = []float64{0.2, 0.4}, []float64{5, 5} // on a busy machine
	b.figures(k, 0, 0)
	if text := strings.Join(burstVerdict(&Result{Ways: []*Way{k.way}}, ""), " "); !strings.Contains(text, "too short to see") || strings.Contains(text, "from 0") {
		t.Errorf("of a burst without a point before it the verdict says: %s", text)
	}
	for _, c := range []struct {
		duration time.Duration
		cpu      bool
	}{{10 * time.Second, true}, {2 * time.Second, false}} {
		b := &burst{calm: c.duration / 4, lasts: c.duration / 3, limit: 2 * c.duration}
		k := newTrack(&Way{Name: "a burst of insert + pg_notify", Kind: Collapse}, c.duration)
		k.every = c.duration / 50
		for at := k.every; at < c.duration; at += k.every {
			k.at, k.rate = append(k.at, at.Seconds()), append(k.rate, 7)
			for name, v := range map[string]float64{serverCPU: 0.5, walWritten: 3, activeSessions: 9} {
				if at < gaugeEvery && name != activeSessions { // a rate needs two readings
					v = 0
				}
				k.gauges[name] = append(k.gauges[name], v)
			}
		}
		b.figures(k, 5, time.Second)
		for _, name := range []string{cpuCalm, cpuBurst, walCalm, walBurst} {
			if v, ok := k.way.Figure(name); ok != c.cpu || ok && v != 0.5 && v != 3 {
				t.Errorf("%s: %s is %g, %v", c.duration, name, v, ok)
			}
		}
		text := strings.Join(burstVerdict(&Result{Ways: []*Way{k.way}}, ""), " ")
		if strings.Contains(text, "CPU") != c.cpu || strings.Contains(text, "WAL") != c.cpu || !strings.Contains(text, "active sessions from 9 to 9") {
			t.Errorf("%s: the verdict says: %s", c.duration, text)
		}
	}
}

// TestWhatWasNotReadBeforeTheBurstIsNotZero: on a busy machine a gauge may have no value until the burst.
func TestWhatWasNotReadBeforeTheBurstIsNotZero(t *testing.T) {
	t.Parallel()
	b := &burst{calm: time.Second, lasts: time.Second, limit: time.Second}
	k := newTrack(&Way{Name: "a burst of insert", Kind: Baseline}, 3*time.Second)
	k.at, k.rate = []float64{0.5, 1, 1.5, 2}, []float64{7, 7, 7, 7}
	k.gauges[serverCPU], k.blank[serverCPU] = []float64{0, 0, 0, 0.5}, 3
	k.gauges[walWritten], k.blank[walWritten] = []float64{0, 3, 3, 3}, 1
	b.figures(k, 0, 0)
	if v, ok := k.way.Figure(cpuCalm); ok {
		t.Errorf("the CPU before the burst is %g, and was not read", v)
	}
	if v, ok := k.way.Figure(walCalm); !ok || v != 3 {
		t.Errorf("the WAL before the burst is %g, %v; want 3", v, ok)
	}
}

// TestNotifyNeedsNoSuperuser: on a server that belongs to somebody else it measures what it may.
func TestNotifyNeedsNoSuperuser(t *testing.T) {
	t.Parallel()
	pgtest.Database(t) // whose installation makes Weir's roles, as an administrator does
	to, err := url.Parse(pgtest.Empty(t))
	if err != nil {
		t.Fatal(err)
	}
	admin := pgtest.Pool(t, to.String())
	database := strings.TrimPrefix(to.Path, "/")
	role := "lab_" + database[max(len(database)-20, 0):]
	for _, sql := range []string{`CREATE ROLE ` + role + ` LOGIN PASSWORD 'secret'`, `GRANT CREATE ON DATABASE ` + database + ` TO ` + role} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	to.User = url.UserPassword(role, "secret")
	r, err := Run(t.Context(), tiny("notify", to.String()))
	if err != nil {
		t.Fatal(err)
	}
	if notes := strings.Join(r.Notes, " "); r.Way("insert + pg_notify") == nil || r.Way("insert + pg_notify"+slowSuffix) != nil || !strings.Contains(notes, "only a superuser can set commit_delay") {
		t.Errorf("%d ways, and the notes: %s", len(r.Ways), notes)
	}
	for _, sql := range []string{`REVOKE ALL ON DATABASE ` + database + ` FROM ` + role, `DROP ROLE ` + role} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Error(err)
		}
	}
}

// TestFlushesThatDoNotHappenAreNotSlow: commit_delay has no effect where nothing is flushed.
func TestFlushesThatDoNotHappenAreNotSlow(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, map[string]string{"fsync": "on"})
	conn, err := connect(t.Context(), server.URL("postgres"), watcherName, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn(conn)
	able := func(super bool, want string) {
		t.Helper()
		if why := slowFlushUnable(t.Context(), &site{guard: conn, super: super}); !strings.Contains(why, want) || (why == "") != (want == "") {
			t.Errorf("flushes can't be slow because %q, want %q", why, want)
		}
	}
	able(true, "")
	able(false, "only a superuser")
	if _, err := conn.Exec(t.Context(), `SET synchronous_commit = off`); err != nil {
		t.Fatal(err)
	}
	able(true, "synchronous_commit is off")
	unsafe := pgtest.Server(t, map[string]string{"fsync": "off"})
	if conn, err = connect(t.Context(), unsafe.URL("postgres"), watcherName, nil); err != nil {
		t.Fatal(err)
	}
	defer closeConn(conn)
	able(true, "fsync is off")
}

func TestWhatFallsIsReadAndCharted(t *testing.T) {
	t.Parallel()
	url := pgtest.Empty(t)
	conn, err := connect(t.Context(), url, appName, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn(conn)
	k := newTrack(&Way{Name: "some"}, time.Second)
	now := &levels{values: map[string]float64{}}
	for _, g := range serverGauges(&site{url: url}, conn) {
		k.gaugeNames = append(k.gaugeNames, g.name)
		pgtest.Eventually(t, func() error { // a rate needs two readings
			v, err := g.read(t.Context())
			now.values[g.name] = v
			return err
		})
	}
	k.add(1, 1, load.NewTally(), now)
	r := &run{result: &Result{}}
	r.chartServer([]*track{k}, "")
	for _, title := range []string{"WAL written", "Active sessions"} {
		if !slices.ContainsFunc(r.result.Charts, func(c Chart) bool { return c.Title == title && len(c.Lines) == 1 }) {
			t.Errorf("no chart %s: %+v", title, r.result.Charts)
		}
	}
	if now.values[activeSessions] < 1 {
		t.Errorf("%g sessions are active, and one that asks is", now.values[activeSessions])
	}
}
