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

// What Weir promises holds in every state that can be reached.
func TestEveryPromiseHolds(t *testing.T) {
	t.Parallel()
	for _, sc := range scenarios {
		t.Run(sc.name, func(t *testing.T) {
			t.Parallel()
			if *large {
				sc.transactions = append([]uint8{1}, sc.transactions...)
				sc.Claims++
			}
			holds(t, (&jobs{scenario: sc}).machine())
		})
	}
	for _, sc := range laterScenarios {
		t.Run(sc.name, func(t *testing.T) {
			t.Parallel()
			if *large {
				sc.at = append([]uint8{2}, sc.at...)
			}
			holds(t, (&later{laterScenario: sc}).machine())
		})
	}
	for _, sc := range attendScenarios {
		t.Run(sc.name, func(t *testing.T) {
			t.Parallel()
			if *large {
				sc.ends++
				sc.late++
			}
			holds(t, (&attendances{attendScenario: sc}).machine())
		})
	}
	for _, sc := range messageScenarios {
		t.Run(sc.name, func(t *testing.T) {
			t.Parallel()
			if *large {
				sc.transactions = append([]uint8{1}, sc.transactions...)
			}
			holds(t, (&messages{messageScenario: sc}).machine())
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
	for _, sc := range scenarios {
		if sc.name == name {
			return (&jobs{scenario: sc, off: none}).machine().explore(*states)
		}
	}
	for _, sc := range laterScenarios {
		if sc.name == name {
			return (&later{laterScenario: sc, off: none}).machine().explore(*states)
		}
	}
	for _, sc := range attendScenarios {
		if sc.name == name {
			return (&attendances{attendScenario: sc, off: none}).machine().explore(*states)
		}
	}
	for _, sc := range messageScenarios {
		if sc.name == name {
			return (&messages{messageScenario: sc, off: none}).machine().explore(*states)
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
