package lab

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/pgtest"
)

// private returns a private server for scenario pinned.
func private(t *testing.T) *site {
	t.Helper()
	c := tiny("pinned", "")
	s, err := openSite(t.Context(), "", 0, false, pinnedScenario.needs(&c), func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestEachPinHoldsTheHorizonAndLetsItGo(t *testing.T) {
	t.Parallel()
	s := private(t)
	for _, pin := range pinKinds() {
		t.Run(pin.name, func(t *testing.T) {
			if why := pin.unable(t.Context(), s); why != "" {
				t.Fatal(why)
			}
			conn, err := connect(t.Context(), s.url, watcherName, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer closeConn(conn)
			trial := &trial{site: s, pin: pin}
			if err := pin.prepare(t.Context(), trial); err != nil {
				t.Fatal(err)
			}
			if trial.holder != nil {
				defer closeConn(trial.holder)
			}
			if _, err := conn.Exec(t.Context(), `CREATE TABLE weir_lab.row (n int); INSERT INTO weir_lab.row SELECT generate_series(1, 100)`); err != nil {
				t.Fatal(err)
			}
			defer conn.Exec(context.Background(), `DROP TABLE weir_lab.row`)
			if err := pin.open(t.Context(), trial); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Exec(t.Context(), `DELETE FROM weir_lab.row`); err != nil {
				t.Fatal(err)
			}
			vacuumed := func() bool { // a table without rows is truncated
				_, err := conn.Exec(t.Context(), `VACUUM weir_lab.row`)
				var bytes int64
				if err == nil {
					err = conn.QueryRow(t.Context(), `SELECT pg_relation_size('weir_lab.row')`).Scan(&bytes)
				}
				if err != nil {
					t.Fatal(err)
				}
				return bytes == 0
			}
			if vacuumed() {
				t.Error("the rows were removed in spite of the pin")
			}
			age := oldestTransaction(conn)
			pgtest.Until(t, "the oldest transaction ages", func() bool {
				seconds, err := age.read(t.Context())
				return err == nil && seconds > 0.1
			})
			if err := pin.end(t.Context(), trial); err != nil {
				t.Fatal(err)
			}
			pgtest.Until(t, "the rows can be removed", vacuumed)
		})
	}
}

func TestTheGuardEndsThePin(t *testing.T) {
	t.Parallel()
	s := private(t)
	trial := &trial{PinnedSize: PinnedSize{Rate: 500, Workers: 2}, site: s, queue: guardQueue(queueNamed("SKIP LOCKED, DELETE")), pin: pinKinds()[0]}
	if err := trial.begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	until, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- trial.run(t.Context(), until, load.NewTally()) }()
	pgtest.Until(t, "the guard ends the transaction", func() bool { return trial.guarded.Load() > 0 })
	cancel()
	if err := trial.end(t.Context(), pgtest.Receive(t, ended, "the queue stops")); err != nil {
		t.Error(err)
	}
}

// A lab that was killed leaves what no session belongs to. The server may not have noticed yet that the client of its slot is gone.
func TestWhatAKilledLabHasPinnedIsReleased(t *testing.T) {
	t.Parallel()
	s := private(t)
	trial := &trial{site: s}
	pin, err := pinNamed("prepared")
	if err != nil {
		t.Fatal(err)
	}
	if err := pin.prepare(t.Context(), trial); err != nil {
		t.Fatal(err)
	}
	if err := pin.open(t.Context(), trial); err != nil {
		t.Fatal(err)
	}
	closeConn(trial.holder)
	stream, err := followSlot(t.Context(), trial)
	if err != nil {
		t.Fatal(err)
	}
	reading := make(chan struct{})
	go func() { // ends with the connection
		defer close(reading)
		for err := error(nil); err == nil; _, err = stream.ReceiveMessage(context.Background()) {
		}
	}()
	defer func() { <-reading }()
	if err := unpin(t.Context(), s.guard); err != nil {
		t.Fatal(err)
	}
	var left int
	err = s.guard.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM pg_prepared_xacts) + (SELECT count(*) FROM pg_replication_slots)`).Scan(&left)
	if err != nil || left != 0 {
		t.Errorf("%d pins are left: %v", left, err)
	}
}

// TestAPinThatIsImpossibleIsFoundOutBeforeAnythingIsMeasured: at a server whose slots are all in use, or that accepts no connection for replication.
func TestAPinThatIsImpossibleIsFoundOutBeforeAnythingIsMeasured(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, map[string]string{"max_replication_slots": "1", "max_prepared_transactions": "1"})
	s, err := openSite(t.Context(), server.URL("postgres"), 0, false, needs{}, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	for _, unable := range []func(context.Context, *site) string{slotUnable, preparedUnable} {
		if why := unable(t.Context(), s); why != "" {
			t.Fatalf("impossible already: %s", why)
		}
	}
	each := func(statements ...string) {
		t.Helper()
		for _, sql := range statements {
			if _, err := s.guard.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
	}
	each(`SELECT pg_create_physical_replication_slot('others')`, `BEGIN`, `SELECT pg_current_xact_id()`, `PREPARE TRANSACTION 'others'`)
	if why := slotUnable(t.Context(), s); !strings.Contains(why, "no further replication slot") {
		t.Errorf("whether a slot can be made: %q", why)
	}
	if why := preparedUnable(t.Context(), s); !strings.Contains(why, "no more can be prepared") {
		t.Errorf("whether a transaction can be prepared: %q", why)
	}
	each(`ROLLBACK PREPARED 'others'`, `SELECT pg_drop_replication_slot('others')`, `CREATE ROLE alone LOGIN PASSWORD 'secret'`)
	as, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	as.User = url.UserPassword("alone", "secret")
	if why := slotUnable(t.Context(), &site{url: as.String(), guard: s.guard}); !strings.HasPrefix(why, "the server accepts no connection for replication: ") || strings.Contains(why, "failed to connect") {
		t.Errorf("whether a standby can connect: %q", why)
	}
}

// The guard says that it has ended a transaction a moment after it has done so.
func TestALostPinIsAnErrorUnlessTheGuardEndedIt(t *testing.T) {
	t.Parallel()
	for _, guarded := range []bool{false, true} {
		until, cancel := context.WithCancel(t.Context())
		gone := errors.New("terminated")
		pinned := &trial{phases: phases{release: time.Millisecond}, sessions: &sessions{make([]*pgx.Conn, 2)}}
		pinned.pin = &pinKind{
			open: func(context.Context, *trial) error { return nil },
			end:  func(context.Context, *trial) error { cancel(); return gone },
		}
		pinned.queue.work = func(_, until context.Context, _ *trial, _ *load.Tally) error {
			<-until.Done()
			if guarded {
				pinned.guarded.Store(1)
			}
			return nil
		}
		if err := pinned.run(t.Context(), until, load.NewTally()); errors.Is(err, gone) == guarded {
			t.Errorf("ended by the guard: %v; the run ends with %v", guarded, err)
		}
	}
}

// A claim that finds no job is not one, for any queue: there are many of them only while a queue keeps up.
func TestOnlyClaimsThatFindAJobAreMeasured(t *testing.T) {
	t.Parallel()
	trial := &trial{phases: phasesOf(time.Hour), begun: time.Now(), calm: load.NewTally(), hard: load.NewTally(), waits: load.NewTally()}
	m := load.NewTally()
	trial.claimed(m, 0, time.Millisecond)
	trial.claimed(m, 1, time.Second)
	for what, tally := range map[string]*load.Tally{"all": m, "before the pin": trial.calm} {
		if _, took := tally.Cut(); took.Times() == nil || took.Times().Count != 1 || took.Times().P50 < 900 {
			t.Errorf("%s: %+v", what, took.Times())
		}
	}
	w := &Way{Figures: trial.figures(&track{seconds: 1})} // in which nothing was claimed any more
	for _, name := range []string{claimBefore, claimLate} {
		if ms, ok := w.Figure(name); ok {
			t.Errorf("no claim at all took %g ms: %s", ms, name)
		}
	}
}

// TestJobsThatNobodyFindsAreCountedInEveryQueue: Weir's too. In a run that is too short for it, and while a queue is behind, nothing is said about them.
func TestJobsThatNobodyFindsAreCountedInEveryQueue(t *testing.T) {
	t.Parallel()
	s, err := openSite(t.Context(), pgtest.Empty(t), 0, false, needs{weir: true}, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	for _, q := range append(append([]queueKind{}, sqlQueues...), relayQueue, weirQueue) {
		trial := &trial{PinnedSize: PinnedSize{Rate: 100}, site: s, queue: q, name: "weir_lab_1", calm: load.NewTally(), hard: load.NewTally(), waits: load.NewTally()}
		if _, err := s.guard.Exec(t.Context(), strings.Join(append(q.setup, `SELECT 1`), ";")); err != nil {
			t.Fatal(err)
		}
		if _, err := s.guard.Exec(t.Context(), q.enqueue, trial.enqueueArgs(3)...); err != nil {
			t.Fatal(err)
		}
		args := []any{0.0}
		if q.named {
			args = append(args, trial.name)
		}
		var left int
		if err := s.guard.QueryRow(t.Context(), q.left, args...).Scan(&left); err != nil || left != 3 {
			t.Errorf("%s: %d of 3 jobs were left: %v", q.name, left, err)
		}
		for _, c := range []struct {
			lasts   time.Duration
			behind  int64
			counted bool
		}{{16 * time.Second, 99, true}, {16 * time.Second, 100, false}, {8 * time.Second, 0, false}} {
			trial.phases = phasesOf(c.lasts)
			trial.enqueued.Store(c.behind)
			if err := trial.count(t.Context()); err != nil {
				t.Fatal(err)
			}
			w := &Way{Figures: trial.figures(&track{seconds: 16})}
			if _, counted := w.Figure(leftBehind); counted != c.counted {
				t.Errorf("%s, %s, %d behind: jobs that were not found are counted: %v", q.name, c.lasts, c.behind, counted)
			}
		}
		if q.cleanup != "" {
			if _, err := s.guard.Exec(t.Context(), q.cleanup); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestDeadRowsThatNobodyHasReportedAreNotNone: a run whose pin ends before sessions have reported their dead rows says so.
func TestDeadRowsThatNobodyHasReportedAreNotNone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		lasts             time.Duration
		atPin, at, charts bool
	}{{time.Second, false, false, false}, {2999 * time.Millisecond, false, false, false}, {3 * time.Second, false, true, true}, {7500 * time.Millisecond, true, true, true}} {
		p := phasesOf(c.lasts)
		trial := &trial{phases: p, calm: load.NewTally(), hard: load.NewTally(), waits: load.NewTally()}
		trial.calm.Did(1, time.Millisecond)
		trial.hard.Did(1, time.Millisecond)
		k := newTrack(&Way{Name: "SKIP LOCKED, DELETE, read pin", Kind: Collapse}, c.lasts)
		k.seconds = c.lasts.Seconds()
		for i := range 10 {
			k.at = append(k.at, c.lasts.Seconds()*float64(i+1)/10)
			k.rate, k.p50 = append(k.rate, 1), append(k.p50, 1)
			for _, name := range []string{backlog, deadRows, oldest} {
				k.gauges[name] = append(k.gauges[name], 0)
			}
		}
		k.way.Figures = trial.figures(k)
		_, atPin := k.way.Figure(deadAtPin)
		_, at := k.way.Figure(deadAtRelease)
		r := &run{result: &Result{Ways: []*Way{k.way}}}
		chartPinned(r, p, map[string][]*track{"read": {k}})
		charts := slices.ContainsFunc(r.result.Charts, func(c Chart) bool { return c.Title == "Dead tuples" })
		if atPin != c.atPin || at != c.at || charts != c.charts {
			t.Errorf("%s: dead rows are counted when the pin begins: %v, and when it ends: %v; and charted: %v", c.lasts, atPin, at, charts)
		}
		v := pinnedVerdict(r.result, PinnedSize{Rate: 1})
		if strings.Contains(v.Text, "0 dead rows") != c.at || strings.Contains(v.Text, "The run was too short to tell") == c.at || v.Shown {
			t.Errorf("%s: the verdict is %q", c.lasts, v.Text)
		}
	}
}

// TestARunThatIsTooShortForDeadRowsSaysSo: with a note, before its verdict.
func TestARunThatIsTooShortForDeadRowsSaysSo(t *testing.T) {
	t.Parallel()
	c := tiny("pinned", pgtest.Empty(t))
	c.Duration, c.Pinned.Pins = time.Second, []string{"read"}
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(append(r.Verdict.Fixes, r.Verdict.Text), " ")
	if strings.Contains(text, "0 dead rows") || !slices.ContainsFunc(r.Notes, func(note string) bool { return strings.HasPrefix(note, "Dead rows were not counted: ") }) {
		t.Errorf("the verdict is %q, and the notes are %q", text, r.Notes)
	}
}

func TestPinnedSaysHowTheBacklogEnds(t *testing.T) {
	t.Parallel()
	p := phasesOf(10 * time.Second) // pinned from 2 s to 7 s
	k := &track{at: []float64{1, 2, 3, 5, 7, 8, 9, 10}}
	for _, c := range []struct {
		backlogs []float64
		after    float64
		gone     bool
	}{
		{[]float64{0, 0, 100, 500, 900, 400, 20, 10}, 2, true},
		{[]float64{0, 0, 100, 500, 900, 900, 900, 900}, 0, false},
		{[]float64{0, 0, 0, 0, 10, 900, 0, 0}, 0, true}, // there was none when the pin ended
	} {
		k.gauges = map[string][]float64{backlog: c.backlogs}
		if after, gone := k.goneAfter(p, 50); after != c.after || gone != c.gone {
			t.Errorf("%v: gone is %v after %g s, want %v after %g s", c.backlogs, gone, after, c.gone, c.after)
		}
	}
	way := func(name string, kind Kind, figures ...Figure) *Way {
		return &Way{Name: name, Kind: kind, Figures: figures}
	}
	v := pinnedVerdict(&Result{Ways: []*Way{
		way("SKIP LOCKED, DELETE, read pin", Collapse, Figure{claimBefore, 0.1, ""}, Figure{claimLate, 2, ""}, Figure{backlogAtRelease, 5000, ""}, Figure{goneAfter, 1.5, ""}, Figure{waitBefore, 4, ""}),
		way("100 at once, read pin", Fix, Figure{claimBefore, 0.1, ""}, Figure{claimLate, 0.5, ""}, Figure{goneAfter, 0, ""}, Figure{waitBefore, 400, ""}, Figure{behindBefore, 290, ""}),
		way("recursive CTE, last id, read pin", Fix, Figure{goneAfter, 0, ""}, Figure{leftBehind, 7, ""}, Figure{waitBefore, 400, ""}),
		way("with the guard, read pin", Fix, Figure{claimBefore, 0.1, ""}, Figure{goneAfter, 0, ""}),
		way("Weir, read pin", Fix, Figure{claimBefore, 0.1, ""}, Figure{claimLate, 0.1, ""}, Figure{enqueuedRate, 500, ""}),
	}}, PinnedSize{Rate: 1000})
	if !v.Shown || v.Times != 20 || !strings.Contains(v.Text, "backlog of 5,000, which was gone 1.5 s after the pin had ended") || len(v.Fixes) != 4 ||
		!strings.Contains(v.Fixes[0], "a job waited for 290 ms behind others of its batch") || !strings.Contains(v.Fixes[1], "7 jobs that committed late were never found") ||
		strings.Contains(v.Fixes[1], "waited") || !strings.Contains(v.Fixes[2], "no claim found a job at the end of the pin") || !strings.Contains(v.Fixes[2], "the guard did not end the pin") ||
		!strings.Contains(v.Fixes[3], "only 500 jobs per second could be enqueued") {
		t.Errorf("the verdict is %+v", v)
	}
	v = pinnedVerdict(&Result{Ways: []*Way{way("SKIP LOCKED, DELETE, read pin", Collapse, Figure{claimBefore, 0.1, ""})}}, PinnedSize{Rate: 1000})
	if v.Shown || !strings.Contains(v.Text, "can't be compared") {
		t.Errorf("of too few claims the verdict is %+v", v)
	}
}

// TestPinnedCountsNoDeadRowsBeforeTheyAreKnown: sessions write their statistics about once a second, and what they have not written is not none.
func TestPinnedCountsNoDeadRowsBeforeTheyAreKnown(t *testing.T) {
	t.Parallel()
	for lasts, want := range map[time.Duration]string{time.Second: "", 3 * time.Second: "300 dead rows"} {
		k := &track{seconds: lasts.Seconds(), at: []float64{lasts.Seconds() / 2}, gauges: map[string][]float64{deadRows: {300}}}
		trial := &trial{phases: phasesOf(lasts), calm: load.NewTally(), hard: load.NewTally(), waits: load.NewTally()}
		w := &Way{Name: "SKIP LOCKED, DELETE, read pin", Kind: Collapse, Figures: trial.figures(k)}
		other := &Way{Name: "100 at once, read pin", Kind: Fix, Figures: w.Figures}
		w.Figures = append(w.Figures, Figure{claimBefore, 0.1, ""}, Figure{claimLate, 2, ""})
		v := pinnedVerdict(&Result{Ways: []*Way{w, other}}, PinnedSize{Rate: 1000})
		for _, text := range append([]string{v.Text}, v.Fixes...) {
			if strings.Contains(text, "dead row") != (want != "") || !strings.Contains(text, want) || !strings.Contains(text, "a backlog of") {
				t.Errorf("in %s, want %q: %s", lasts, want, text)
			}
		}
	}
}
