package doctor

import (
	"testing"
	"time"
)

// TestAPostmasterThatIsMostlyIdleKeepsNobodyWaiting: on a busy machine the child that answers waits for a CPU, however few connect.
func TestAPostmasterThatIsMostlyIdleKeepsNobodyWaiting(t *testing.T) {
	t.Parallel()
	at := time.Unix(1000, 0)
	busy := func(d time.Duration) *time.Duration { return &d }
	for _, c := range []struct {
		works  *time.Duration // within ten seconds
		answer time.Duration  // of one of three
		found  bool
	}{
		{busy(4 * time.Second), 150 * time.Millisecond, false},
		{busy(9 * time.Second), 150 * time.Millisecond, true},
		{nil, 150 * time.Millisecond, false}, // a single late answer
		{nil, 2 * time.Second, true},
	} {
		last := &counters{At: at.Add(10 * time.Second), totals: totals{Sessions: 620}}
		first := &counters{At: at}
		if c.works != nil {
			used := *c.works / 10
			first.postmasterBusy, last.postmasterBusy, first.postmasterCPU, last.postmasterCPU = busy(0), c.works, busy(0), &used
		}
		l := &inspection{first: first, last: last, local: &local{}, view: view{probes: []Probe{{Took: time.Millisecond}, {Took: time.Millisecond}, {Took: c.answer}}}}
		r, err := checkPostmaster(t.Context(), l)
		if err != nil {
			t.Fatal(err)
		}
		if found := len(r.findings) > 0; found != c.found {
			t.Errorf("a postmaster that is busy for %v of 10 s, and an answer after %v: found is %t; %s", c.works, c.answer, found, r.healthy)
		}
	}
}
