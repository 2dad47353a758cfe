package doctor

import (
	"testing"
	"time"
)

// TestLateStatisticsAreNoLoad: counts of commits arrive up to ten seconds late, all together. Transaction ids are counted at once.
func TestLateStatisticsAreNoLoad(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	l := &inspection{first: &counters{At: begin, totals: totals{NextXID: 1000}}, last: &counters{At: begin.Add(time.Second), totals: totals{Commits: 50_000, NextXID: 1200}}}
	if rate := l.writes(); rate != 200 {
		t.Errorf("%.0f writing transactions/s, want 200", rate)
	}
}
