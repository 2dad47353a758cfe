package guard

import (
	"testing"
	"time"
)

// TestAClockThatIsSetForwardMakesNobodyHoldForLonger: than the guard has seen since, by its own clock; and a session that goes on holding is as old as it was, and the time since.
func TestAClockThatIsSetForwardMakesNobodyHoldForLonger(t *testing.T) {
	t.Parallel()
	const before, hour = 2 * time.Minute, time.Hour
	m := newMade()
	since := m.now.Add(-before)
	s := m.session(m.c.primary, 1, 100, 0)
	s.Started, s.Quiet = &since, &since
	g := &Guard{seen: map[string]sighting{}}
	held := func() time.Duration {
		holders := m.judged()
		g.remember(holders)
		return holders[0].held()
	}
	if got := held(); got != before {
		t.Fatalf("at first it has held for %s, want %s", got, before)
	}
	m.c.primary.At = m.now.Add(hour) // the clock is set
	if got := held(); got < before || got > before+time.Minute {
		t.Errorf("a moment later it has held for %s, want about %s", got, before)
	}
	for key, first := range g.seen { // an hour passes
		first.seen = first.seen.Add(-hour)
		g.seen[key] = first
	}
	if got := held(); got != before+hour {
		t.Errorf("an hour later it has held for %s, want %s", got, before+hour)
	}
}
