package doctor

import (
	"strings"
	"testing"
	"time"
)

// TestALoginIsNoCommitOfARow: a client that connects for each row commits twice, once for its login.
func TestALoginIsNoCommitOfARow(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	insert := Session{Kind: "client backend", State: "active", Class: Commit, Query: "INSERT INTO entry VALUES (1)"}
	r, err := checkRowCommits(t.Context(), &inspection{
		server: Server{flushes: true},
		view:   view{samples: []Sample{{At: begin, Weight: time.Second, Sessions: []Session{insert}}}},
		waits:  Waits{Seconds: 1, Samples: 1, Classes: map[Class]float64{Commit: 1}, Events: map[Event]float64{{"IO", "WALSync"}: 1}},
		first:  &counters{At: begin},
		last:   &counters{At: begin.Add(time.Second), totals: totals{Commits: 200, Sessions: 100, Written: 100, NextXID: 100}},
	})
	if err != nil || len(r.findings) != 1 || !strings.HasPrefix(r.findings[0].Summary, "Each commit carries about 1 row, at 100 commits/s") {
		t.Errorf("found %v, %v", r, err)
	}
}

// TestCommitsThatFlushNothingHoldNobodyUp: commits that wait for the WAL are a finding only if the server flushes it or a standby confirms it.
func TestCommitsThatFlushNothingHoldNobodyUp(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	insert := Session{Kind: "client backend", State: "active", Class: Commit, Query: "INSERT INTO entry VALUES (1)"}
	with := func(flushes bool, event Event) *inspection {
		return &inspection{
			server: Server{flushes: flushes},
			view:   view{samples: []Sample{{At: begin, Weight: time.Second, Sessions: []Session{insert, insert}}}},
			waits:  Waits{Seconds: 1, Samples: 1, Classes: map[Class]float64{Commit: 2}, Events: map[Event]float64{event: 2}},
			first:  &counters{At: begin},
			last:   &counters{At: begin.Add(time.Second), totals: totals{Commits: 1000, Written: 1000, NextXID: 1000}},
		}
	}
	write, standby := Event{"LWLock", "WALWrite"}, Event{"IPC", "SyncRep"}
	for _, c := range []struct {
		what       string
		inspection *inspection
		findings   int
	}{
		{"flushed", with(true, write), 1},
		{"not flushed", with(false, write), 0},
		{"not flushed, but a standby confirms", with(false, standby), 1},
	} {
		r, err := checkRowCommits(t.Context(), c.inspection)
		if err != nil || len(r.findings) != c.findings {
			t.Errorf("%s: %v, %v; want %d findings", c.what, r, err, c.findings)
		}
	}
}
