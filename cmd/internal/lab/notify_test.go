package lab

import (
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
