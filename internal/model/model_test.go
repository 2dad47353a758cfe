package model

import (
	"flag"
	"testing"
	"time"
)

var (
	large  = flag.Bool("large", false, "explore larger scenarios, which takes minutes and gigabytes")
	states = flag.Int("states", 20_000_000, "maximum states of a scenario with -large")
)

// holds explores a whole scenario, in which no promise may be broken.
func holds[S comparable](t *testing.T, m *machine[S]) {
	t.Helper()
	begun := time.Now()
	f := m.explore(*states)
	switch {
	case f.broken != nil:
		t.Fatalf("%v:\n%s", f.broken, f.trace)
	case !f.whole && !*large:
		t.Errorf("the scenario has more than %d states", f.states)
	}
	t.Logf("%d states, at most %d steps from the start, all of them: %v; in %v", f.states, f.deep, f.whole, time.Since(begun).Round(time.Millisecond))
}

// exploration is a scenario of any of the models.
type exploration struct {
	name    string
	holds   func(*testing.T)
	explore func() found
}

func exploring[S comparable](name string, m *machine[S]) exploration {
	return exploration{name, func(t *testing.T) { holds(t, m) }, func() found { return m.explore(*states) }}
}

// explorations returns all scenarios, with guards removed.
func explorations(none off) (all []exploration) {
	for _, sc := range scenarios {
		if *large {
			sc.transactions = append([]uint8{1}, sc.transactions...)
			sc.Claims++
		}
		all = append(all, exploring(sc.name, (&jobs{scenario: sc, off: none}).machine()))
	}
	for _, sc := range laterScenarios {
		if *large {
			sc.at = append([]uint8{2}, sc.at...)
		}
		all = append(all, exploring(sc.name, (&later{laterScenario: sc, off: none}).machine()))
	}
	for _, sc := range attendScenarios {
		if *large {
			sc.ends++
			sc.late++
		}
		all = append(all, exploring(sc.name, (&attendances{attendScenario: sc, off: none}).machine()))
	}
	for _, sc := range messageScenarios {
		if *large {
			sc.transactions = append([]uint8{1}, sc.transactions...)
		}
		all = append(all, exploring(sc.name, (&messages{messageScenario: sc, off: none}).machine()))
	}
	for _, sc := range limitScenarios {
		if *large {
			sc.jobs++
			sc.claims++
		}
		all = append(all, exploring(sc.name, (&limits{limitScenario: sc, off: none}).machine()))
	}
	for _, sc := range uniqueScenarios {
		if *large {
			sc.claims++
			sc.releases++
		}
		all = append(all, exploring(sc.name, (&uniques{uniqueScenario: sc, off: none}).machine()))
	}
	for _, sc := range firingScenarios {
		if *large {
			sc.kills++
			sc.changes++
		}
		all = append(all, exploring(sc.name, (&firings{firingScenario: sc, off: none}).machine()))
	}
	for _, sc := range turnScenarios {
		if *large {
			sc.transactions = append([]uint8{1}, sc.transactions...)
			sc.claims++
		}
		all = append(all, exploring(sc.name, (&turns{turnScenario: sc, off: none}).machine()))
	}
	return all
}

// What Weir promises holds in every state that can be reached.
func TestEveryPromiseHolds(t *testing.T) {
	t.Parallel()
	for _, e := range explorations(off{}) {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			e.holds(t)
		})
	}
}

// without explores a scenario with guards removed.
func without(t *testing.T, name string, all ...guard) found {
	t.Helper()
	var none off
	for _, g := range all {
		none = none.with(g)
	}
	for _, e := range explorations(none) {
		if e.name == name {
			return e.explore()
		}
	}
	t.Fatalf("scenario %q does not exist", name)
	return found{}
}

// TestEveryGuardIsNeeded: without any one of the guards a promise breaks, and the explorer notices. With -v the test prints how.
func TestEveryGuardIsNeeded(t *testing.T) {
	t.Parallel()
	for g := guard(1); g < guards; g++ {
		if guarded[g].scenario == "" {
			continue
		}
		t.Run(guarded[g].what, func(t *testing.T) {
			t.Parallel()
			f := without(t, guarded[g].scenario, g)
			if f.broken == nil {
				t.Fatalf("without %s, nothing breaks in %d states", guarded[g].what, f.states)
			}
			t.Logf("without %s: %v:\n%s", guarded[g].what, f.broken, f.trace)
		})
	}
}

// TestGuardsThatBackEachOther: of some pairs of guards either is enough, and without both a promise breaks.
func TestGuardsThatBackEachOther(t *testing.T) {
	t.Parallel()
	for _, p := range backed {
		t.Run(guarded[p.a].what, func(t *testing.T) {
			t.Parallel()
			for _, g := range []guard{p.a, p.b} {
				if f := without(t, p.scenario, g); f.broken != nil {
					t.Errorf("without %s alone: %v:\n%s", guarded[g].what, f.broken, f.trace)
				}
			}
			f := without(t, p.scenario, p.a, p.b)
			if f.broken == nil {
				t.Fatalf("without %s, and without %s, nothing breaks in %d states", guarded[p.a].what, guarded[p.b].what, f.states)
			}
			t.Logf("without %s, and without %s: %v:\n%s", guarded[p.a].what, guarded[p.b].what, f.broken, f.trace)
		})
	}
}
