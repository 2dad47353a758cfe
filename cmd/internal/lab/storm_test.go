package lab

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/bouncer"
	"github.com/weir-pg/weir/internal/pgtest"
)

// Storms over several servers need private ones.
func TestStormRunsOnPrivateServersSideBySide(t *testing.T) {
	t.Parallel()
	c := tiny("storm", "")
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	plausible(t, r, time.Hour)
	for _, name := range []string{"at once", "at once, beside parallel queries", "with jitter", "over 2 servers", "over 4 servers", "from a standing pool", "to PgBouncer"} {
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
	if r.Way("over 3 servers") != nil || r.Way(budgetName("3 postmasters")) != nil {
		t.Error("three servers were measured, which are no power of two")
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
	if one != nil && r.Way(budgetName("4 postmasters")) == nil {
		t.Error("four postmasters at a budget were not measured")
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
