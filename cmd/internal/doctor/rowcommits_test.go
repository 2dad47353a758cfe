package doctor

import (
	"testing"
	"time"
)

// Sessions that insert row by row wait for the log. Where nothing is flushed, that is a wait for a processor.
func TestCommitsThatFlushNothingHoldNobodyUp(t *testing.T) {
	begin := time.Now()
	insert := Session{Kind: "client backend", State: "active", Class: Commit, Query: "INSERT INTO entry VALUES (1)"}
	looked := func(flushes bool, event Event) *look {
		return &look{
			server: Server{flushes: flushes},
			view:   view{samples: []Sample{{At: begin, Weight: time.Second, Sessions: []Session{insert, insert}}}},
			waits:  Waits{Seconds: 1, Samples: 1, Classes: map[Class]float64{Commit: 2}, Events: map[Event]float64{event: 2}},
			first:  &counters{At: begin},
			last:   &counters{At: begin.Add(time.Second), Commits: 1000, Written: 1000},
		}
	}
	write, standby := Event{"LWLock", "WALWrite"}, Event{"IPC", "SyncRep"}
	for _, c := range []struct {
		what     string
		look     *look
		findings int
	}{
		{"flushed", looked(true, write), 1},
		{"not flushed", looked(false, write), 0},
		{"not flushed, but a standby is waited for", looked(false, standby), 1},
	} {
		r, err := checkRowCommits(t.Context(), c.look)
		if err != nil || len(r.findings) != c.findings {
			t.Errorf("%s: %v, %v; want %d findings", c.what, r, err, c.findings)
		}
	}
}
