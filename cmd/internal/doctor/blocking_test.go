package doctor

import (
	"strings"
	"testing"
	"time"
)

// TestATreeHasEachSessionOnce: whoever waits for several, or they for each other, appears once, and the tree says what else they wait for.
func TestATreeHasEachSessionOnce(t *testing.T) {
	t.Parallel()
	row := func(pid int32, whom ...int32) blockingRow {
		return blockingRow{PID: pid, Whom: whom, Waited: float64(len(whom)), Waiting: 9, User: "u", Application: "a"}
	}
	b := blockingOf([]blockingRow{
		row(1), row(2, 1), row(3, 2, 1), // in line, the last for both
		row(5, 6), row(6, 5), row(7, 6), // for each other, and one behind them
		row(8, 4711), // for one that has ended since
		row(9, 0, 1), // also for a prepared transaction
	})
	want := `pid 1 (u, a)
  pid 3 (u, a), waits 2.0 s, also behind 2
  pid 2 (u, a), waits 1.0 s
pid 5 (u, a), waits 1.0 s, also behind 6
  pid 6 (u, a), waits 1.0 s
    pid 7 (u, a), waits 1.0 s
a prepared transaction
  pid 9 (u, a), waits 2.0 s, also behind 1
3 more sessions wait`
	if got := strings.Join(b.Lines(), "\n"); got != want {
		t.Errorf("the tree is\n%s\nwant\n%s", got, want)
	}
	b = blockingOf([]blockingRow{
		{PID: 1, State: "active", Wait: "Timeout:PgSleep", Age: 9, User: "u", Application: "a"},
		{PID: 2, Whom: []int32{1}, State: "active", Wait: "Lock:relation", Age: 8, Waited: 7, Waiting: 1, User: "u", Application: "a"},
	})
	want = `pid 1 (u, a) active, in a transaction for 9.0 s, waiting for Timeout:PgSleep
  pid 2 (u, a) active, in a transaction for 8.0 s, waits 7.0 s for Lock:relation`
	if got := strings.Join(b.Lines(), "\n"); got != want {
		t.Errorf("the tree is\n%s\nwant\n%s", got, want)
	}
	if heads := len(blockingOf(nil).Lines()); heads != 0 {
		t.Errorf("a tree of nothing has %d lines", heads)
	}
}

// TestWhoBlocksForAMomentIsNoNews: at a hot row another one blocks the others every moment.
func TestWhoBlocksForAMomentIsNoNews(t *testing.T) {
	t.Parallel()
	var c changes
	at := time.Now()
	short := Blocking{Heads: []*Blocked{{PID: 1, Behind: []*Blocked{{PID: 2}}}}}
	for i, b := range []Blocking{short, {}, short, {}, short, {}} {
		c.blocking(at.Add(time.Duration(i)*time.Second), b)
	}
	if got := c.take(); len(got) > 0 {
		t.Errorf("told: %v", got)
	}
	for i := range 4 {
		c.blocking(at.Add(time.Minute+time.Duration(i)*time.Second), short)
	}
	if got := c.take(); len(got) != 1 || !strings.HasPrefix(got[0].Text, "blocks 1 session: pid 1") || !strings.HasSuffix(got[0].Text, ", for 2.0 s") {
		t.Errorf("told once: %v", got)
	}
}
