package doctor

import (
	"testing"
	"time"
)

func TestShapeLeavesValuesOut(t *testing.T) {
	for query, want := range map[string]string{
		"SELECT * FROM t WHERE a = 'it''s' AND b = 42 -- why\n AND c1 = $1;": "SELECT * FROM t WHERE a = ? AND b = ? AND c1 = $1",
		"INSERT INTO t\n  VALUES (1.5, /* x */ 'cut off":                     "INSERT INTO t VALUES (?, ?",
	} {
		if got := shape(query); got != want {
			t.Errorf("%q is %q, want %q", query, got, want)
		}
	}
}

func TestForkRateIsTheStrideOfNewSessions(t *testing.T) {
	at := time.Unix(1000, 0)
	samples := []Sample{
		{NewestPID: 100, NewestFrom: at},
		{NewestPID: 100, NewestFrom: at},
		{NewestPID: 600, NewestFrom: at.Add(time.Second)},
		{NewestPID: 50, NewestFrom: at.Add(2 * time.Second)}, // ids begin again
		{NewestPID: 1050, NewestFrom: at.Add(3 * time.Second)},
	}
	if rate, known := forkRate(samples); !known || rate != 750 {
		t.Errorf("%v %v, want 750", rate, known)
	}
	if _, known := forkRate(samples[:2]); known {
		t.Error("a rate is known though nobody connected")
	}
}

func TestASampleAfterAPauseCountsForNoMoreThanItMay(t *testing.T) {
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
		t.Errorf("%d samples are kept, want the newest alone", n)
	}
}
