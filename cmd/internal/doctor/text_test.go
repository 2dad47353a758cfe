package doctor

import (
	"testing"
	"time"
)

func TestShapeLeavesValuesOut(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]string{
		"SELECT * FROM t WHERE a = 'it''s' AND b = 42 -- why\n AND c1 = $1;": "SELECT * FROM t WHERE a = ? AND b = ? AND c1 = $1",
		"INSERT INTO t\n  VALUES (1.5, /* x */ 'cut off":                     "INSERT INTO t VALUES (?, ?",
		"UPDATE t SET a = $$it's$$, b = $x$a $$ b$x$, c = $2":                "UPDATE t SET a = ?, b = ?, c = $2",
		"UPDATE t SET a = $$cut off":                                         "UPDATE t SET a = ?",
		`SELECT E'it\'s', e'\\', 'c:\', "it's 1", x FROM t /* for`:           `SELECT ?, ?, ?, "it's 1", x FROM t`,
		"SELECT '--', '/*' FROM t /* by\n 'ada' */ WHERE n = 1e5 OR n=0x1F":  "SELECT ?, ? FROM t WHERE n = ? OR n=?",
		"DO $$ BEGIN UPDATE t SET a = 'x', b = $q$y$q$ WHERE id = 7; END $$": "DO $$ BEGIN UPDATE t SET a = ?, b = ? WHERE id = ?; END $$",
	} {
		if got := shape(query); got != want {
			t.Errorf("%q is %q, want %q", query, got, want)
		}
	}
}

// TestAShareIsRoundedToAllOnlyIfItIsAll: of a sequence with 48 numbers left, not all are used.
func TestAShareIsRoundedToAllOnlyIfItIsAll(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		part, whole float64
		want        string
	}{{2147483599, 2147483647, "over 99%"}, {2147483647, 2147483647, "100%"}, {98, 100, "98%"}, {1, 3, "33%"}, {1, 0, "0%"}} {
		if got := shareOf(c.part, c.whole); got != c.want {
			t.Errorf("%.0f of %.0f is %s, want %s", c.part, c.whole, got, c.want)
		}
	}
}

func TestForkRateIsTheStrideOfNewSessions(t *testing.T) {
	t.Parallel()
	at := time.Unix(1000, 0)
	samples := []Sample{
		{NewestPID: 100, NewestFrom: at},
		{NewestPID: 100, NewestFrom: at},
		{NewestPID: 600, NewestFrom: at.Add(time.Second)},
		{NewestPID: 50, NewestFrom: at.Add(2 * time.Second)}, // ids wrap around
		{NewestPID: 1050, NewestFrom: at.Add(3 * time.Second)},
	}
	if rate, known := forkRate(samples); !known || rate != 750 {
		t.Errorf("%v %v, want 750", rate, known)
	}
	if _, known := forkRate(samples[:2]); known {
		t.Error("a rate is known although no session connected")
	}
}

func TestASampleAfterAPauseCountsForNoMoreThanItMay(t *testing.T) {
	t.Parallel()
	w := &window{span: time.Minute}
	at := time.Unix(1000, 0)
	waiting := []Session{{State: "active", WaitType: "Lock", Wait: "tuple", Class: RowLock}}
	for _, after := range []time.Duration{0, time.Second, 30 * time.Second} {
		w.add(Sample{At: at.Add(after), Sessions: waiting})
	}
	got := w.between(at.Add(-time.Second), at.Add(time.Minute)).waits()
	if want := (time.Second + longestWeight).Seconds(); got.Classes[RowLock] != want || got.Rate(RowLock) != 1 {
		t.Errorf("%v session-seconds, %v a second; want %v and 1", got.Classes[RowLock], got.Rate(RowLock), want)
	}
	if class, rate := got.Dominant(); class != RowLock || rate != 1 {
		t.Errorf("dominant is %s %v", class, rate)
	}
	w.add(Sample{At: at.Add(time.Hour)})
	if n := len(w.between(at.Add(-time.Second), at.Add(2*time.Hour)).samples); n != 1 {
		t.Errorf("%d samples are kept, want only the newest", n)
	}
}

func TestLinesAreCountedByTheirHeads(t *testing.T) {
	t.Parallel()
	row := Lock{Type: "tuple", Relation: 1, Page: 2, Tuple: 3}
	turn, queued := row, row
	turn.Granted, turn.PID = true, 20
	queued.PID = 30
	locks := []Lock{
		{Type: "transactionid", Transaction: 7, Granted: true, PID: 10}, // computing
		{Type: "transactionid", Transaction: 7, PID: 20}, turn,          // holds the tuple lock, and waits for it
		queued, // waits for the tuple lock
		{Type: "transactionid", Transaction: 7, PID: 40},
		{Type: "transactionid", Transaction: 8, Granted: true}, // prepared
		{Type: "transactionid", Transaction: 8, PID: 50},
	}
	if waiters, heads := lines(locks); waiters != 4 || heads != 2 {
		t.Errorf("%d waiters in %d lines, want 4 in 2", waiters, heads)
	}
	circle := []Lock{
		{Type: "transactionid", Transaction: 1, Granted: true, PID: 1}, {Type: "transactionid", Transaction: 2, Granted: true, PID: 2},
		{Type: "transactionid", Transaction: 1, PID: 2}, {Type: "transactionid", Transaction: 2, PID: 1},
	}
	if waiters, _ := lines(circle); waiters != 2 {
		t.Errorf("%d wait in a circle, want 2", waiters)
	}
}

func TestTheWindowIsBounded(t *testing.T) {
	t.Parallel()
	w := &window{span: time.Hour}
	at := time.Unix(1000, 0)
	for i := range 600 {
		w.add(Sample{At: at.Add(time.Duration(i) * 100 * time.Millisecond), Sessions: make([]Session, 500)})
	}
	kept := w.between(at.Add(-time.Second), at.Add(time.Hour)).samples
	if n := len(kept) * 500; n > maxEntries || n < maxEntries*9/10 {
		t.Errorf("%d sessions are kept, of at most %d", n, maxEntries)
	}
	if !kept[len(kept)-1].At.Equal(at.Add(59900 * time.Millisecond)) {
		t.Error("the newest sample was removed")
	}
}

func TestOneSessionWaits(t *testing.T) {
	t.Parallel()
	for n, want := range map[float64]string{1: "1 session waits", 0.5: "0.50 sessions wait", 2: "2 sessions wait"} {
		if got := sessionsThat(n, "waits", "wait"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestFiguresAreRoundWhereTheyLookRound: what is rounded to a whole number is written as one.
func TestFiguresAreRoundWhereTheyLookRound(t *testing.T) {
	t.Parallel()
	for x, want := range map[float64]string{2.999: "3", 3: "3", 2.5: "2.50", 0.001: "0", 10.04: "10", 12.34: "12.3", 99.96: "100", 123.4: "123", 66388: "66,388", -1234: "-1,234"} {
		if got := figure(x); got != want {
			t.Errorf("%v is written %q, want %q", x, got, want)
		}
	}
	if got := sessionsThat(0.9999, "waits", "wait"); got != "1 session waits" {
		t.Errorf("got %q", got)
	}
}

// TestWhoReadsTheTableInSeveralProcessesScansItOnce: the leader waits while its workers read.
func TestWhoReadsTheTableInSeveralProcessesScansItOnce(t *testing.T) {
	t.Parallel()
	const find = "SELECT text FROM orders WHERE customer = 7"
	sessions := []Session{
		{PID: 1, Kind: "client backend", State: "active", WaitType: "IPC", Wait: "ExecuteGather", Query: find},
		{PID: 2, Kind: "parallel worker", State: "active", Class: CPU, Query: find},
		{PID: 3, Kind: "parallel worker", State: "active", Class: CPU, Query: find},
		{PID: 4, Kind: "client backend", State: "active", Class: CPU, Query: "SELECT count(*) FROM orders WHERE customer > 0"},
	}
	l := &inspection{view: view{samples: []Sample{{Weight: time.Second, Sessions: sessions}}}}
	scanned := scannedTable{tableCount: tableCount{Name: "orders"}, scans: 6, rows: 30_000, texts: map[string]int{}, keys: map[string]unindexedKey{}}
	scanned.attribute(l, nil)
	if scanned.scans != 2 || scanned.rows != 90_000 || scanned.lost != 1 {
		t.Errorf("three processes scan it together: %v scans of %v rows, by %v sessions", scanned.scans, scanned.rows, scanned.lost)
	}
}
