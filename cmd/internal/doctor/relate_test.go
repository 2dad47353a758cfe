package doctor

import (
	"slices"
	"testing"
)

func TestCausesStandBeforeTheirConsequences(t *testing.T) {
	t.Parallel()
	got := relate([]Finding{
		{Code: RowCommits, Severity: Critical, Lost: 4},
		{Code: HorizonPinned, Severity: Warning},
		{Code: HotRow, Severity: Critical, Lost: 30, holders: map[Class]float64{ObjectLock: 25, CPU: 5}},
		{Code: NotifyCommitLock, Severity: Critical, Lost: 20},
		{Code: NotifyQueueFilling, Severity: Info},
	})
	var order []Code
	for _, f := range got {
		order = append(order, f.Code)
	}
	want := []Code{NotifyCommitLock, HotRow, RowCommits, HorizonPinned, NotifyQueueFilling}
	if !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
	critical := 0
	for _, f := range got {
		if f.Severity == Critical {
			critical++
		}
		if f.Code == HotRow && (f.DownstreamOf != NotifyCommitLock || f.Severity != Warning || f.Capped != Critical) {
			t.Errorf("the hot row is %+v", f)
		}
	}
	if critical != 1 {
		t.Errorf("%d findings are critical, want only the cause", critical)
	}
}

func TestAHotRowWhoseHoldersAreAtWorkIsACauseItself(t *testing.T) {
	t.Parallel()
	got := relate([]Finding{
		{Code: NotifyCommitLock, Severity: Warning, Lost: 2},
		{Code: HotRow, Severity: Critical, Lost: 30, holders: map[Class]float64{CPU: 30}},
	})
	if got[0].Code != HotRow || got[0].DownstreamOf != "" || got[0].Severity != Critical {
		t.Errorf("got %+v", got[0])
	}
}

// TestABacklogIsAConsequenceOfADeadWorkerOfItsQueue: of a dead worker, only the backlogs of queues that it worked are consequences; and a
// consequence of backlogs is shown once.
func TestABacklogIsAConsequenceOfADeadWorkerOfItsQueue(t *testing.T) {
	t.Parallel()
	got := relate([]Finding{
		{Code: WorkerDead, Severity: Critical, queues: []string{"mail", "sms"}},
		{Code: LaneBacklog, Severity: Warning, Summary: "bulk", queues: []string{"bulk"}},
		{Code: LaneBacklog, Severity: Warning, Summary: "sms", queues: []string{"sms"}},
		{Code: LaneBacklog, Severity: Warning, Summary: "typo", queues: []string{"typo"}},
	})
	for _, f := range got[1:] {
		want := Code("")
		if f.Summary == "sms" {
			want = WorkerDead
		}
		if f.DownstreamOf != want {
			t.Errorf("the backlog of %s is a consequence of %q, want %q", f.Summary, f.DownstreamOf, want)
		}
	}
	got = relate([]Finding{{Code: LaneBacklog, Severity: Warning}, {Code: LaneBacklog, Severity: Warning}, {Code: SegmentStuck, Severity: Info}})
	if len(got) != 3 || got[1].Code != SegmentStuck {
		t.Errorf("got %+v", got)
	}
}

// TestDeadlocksAndALineAtARowAreOneTrouble: a deadlock that stands most of the time makes the line; a rare one happens in it.
func TestDeadlocksAndALineAtARowAreOneTrouble(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		stands, lost float64
		cause        Code
	}{{0.9, 2, Deadlocks}, {0.1, 4, Deadlocks}, {0.05, 0.1, HotRow}} {
		got := relate([]Finding{{Code: HotRow, Severity: Critical, Lost: 7}, {Code: Deadlocks, Severity: Critical, Lost: c.lost, stands: c.stands}})
		if len(got) != 2 || got[0].Code != c.cause || got[1].DownstreamOf != c.cause {
			t.Errorf("where %.2f deadlocks stand at any moment: %+v, want %s as the cause", c.stands, got, c.cause)
		}
	}
}

// TestWhatIsAboutOtherThingsIsNoConsequence, though one finding often explains the other.
func TestWhatIsAboutOtherThingsIsNoConsequence(t *testing.T) {
	t.Parallel()
	ofText := func(text string) []Statement { return []Statement{{Text: text, Does: CausesIt}} }
	find := ofText("SELECT text FROM orders WHERE customer = $1")
	for _, c := range []struct {
		cause, effect Finding
		is            bool
	}{
		{Finding{Code: AutovacuumBehind, table: "state"}, Finding{Code: RowCommits, Statements: ofText("UPDATE state SET n = ?")}, true},
		{Finding{Code: AutovacuumBehind, table: "state"}, Finding{Code: RowCommits, Statements: ofText("INSERT INTO entry VALUES (?)")}, false},
		{Finding{Code: TableScanned, Statements: find}, Finding{Code: ParallelChurn, Statements: find}, true},
		{Finding{Code: TableScanned, Statements: find}, Finding{Code: ParallelChurn, Statements: ofText("SELECT sum(n) FROM sale")}, false},
		{Finding{Code: TableLock}, Finding{Code: HorizonPinned, holders: map[Class]float64{OtherLock: 1}}, true},
		{Finding{Code: TableLock}, Finding{Code: HorizonPinned}, false},
		{Finding{Code: HorizonPinned}, Finding{Code: AutovacuumBehind}, false},
	} {
		c.cause.Severity, c.effect.Severity = Warning, Warning
		for _, f := range relate([]Finding{c.effect, c.cause}) {
			if f.Code == c.effect.Code && (f.DownstreamOf == c.cause.Code) != c.is {
				t.Errorf("%s %v is a consequence of %q, beside %s %s%v", f.Code, f.Statements, f.DownstreamOf, c.cause.Code, c.cause.table, c.cause.Statements)
			}
		}
	}
}

func TestFindingsThatExplainEachOtherAreAllShown(t *testing.T) {
	t.Parallel()
	all := []Finding{}
	for _, code := range Codes() {
		all = append(all, Finding{Code: code, Severity: Warning, Lost: 1, holders: map[Class]float64{ObjectLock: 1, MultiXact: 1}})
	}
	if got := relate(all); len(got) != len(Codes()) {
		t.Errorf("%d of %d findings are left: a circle of causes", len(got), len(Codes()))
	}
}
