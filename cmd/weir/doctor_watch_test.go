package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/cmd/internal/doctor"
)

func snapshotOfALine(at time.Time) doctor.Snapshot {
	return doctor.Snapshot{
		At: at, Clients: 3,
		Blocking: doctor.Blocking{Waiting: 1, Heads: []*doctor.Blocked{{
			PID: 1, User: "shop", State: "idle in transaction", Statement: "UPDATE account",
			Behind: []*doctor.Blocked{{PID: 2, User: "shop", State: "active", Waited: 3, Wait: "Lock:transactionid"}},
		}}},
	}
}

// TestTheScreenShowsTheTreeAndWhatCameAndWent: within its height and width, and what came and went as far as there is room.
func TestTheScreenShowsTheTreeAndWhatCameAndWent(t *testing.T) {
	t.Parallel()
	at := time.Now()
	screen := &doctorScreen{history: []doctor.Snapshot{snapshotOfALine(at)}}
	for range 2 * fewChanges {
		screen.changes = append(screen.changes, doctor.Change{At: at, Text: "over hot-row, after 5 s"})
	}
	const width, height = 60, 40
	lines := screen.lines(width, height)
	text := strings.Join(lines, "\n")
	for _, want := range []string{
		"who waits for whom, 1 session in all:\npid 1 (shop, no application name) idle in transaction: UPDAT\n  pid 2 (shop, no application name) active, waits 3.0 s for \n",
		"what came and went:\n" + at.Format(time.TimeOnly) + " over hot-row, after 5 s",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the screen lacks %q:\n%s", want, text)
		}
	}
	if n := strings.Count(text, "over hot-row"); n != fewChanges || len(lines) >= height {
		t.Errorf("%d changes on %d lines", n, len(lines))
	}
	if lines := screen.lines(width, 20); strings.Contains(strings.Join(lines, "\n"), "what came") {
		t.Errorf("a screen without room shows what came and went:\n%s", strings.Join(lines, "\n"))
	}
}

// TestAPipeGetsATreeWhenItChanges: not each second, but again once it is another one.
func TestAPipeGetsATreeWhenItChanges(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := &doctorLog{w: &out}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for i := range 10 {
		log.show(snapshotOfALine(at.Add(time.Duration(i) * time.Second)))
	}
	log.show(doctor.Snapshot{At: at.Add(10 * time.Second)})
	if text := out.String(); strings.Count(text, "pid 1") != 1 || !strings.Contains(text, "03:04:05     pid 2 (shop") || !strings.HasSuffix(text, "03:04:15 nobody is blocked\n") {
		t.Error(text)
	}
}

// TestALongLineIsFolded: at spaces, unless a word is too long, and nothing of it is lost.
func TestALongLineIsFolded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ line, want string }{
		{"    now: SELECT pg_terminate_backend(12345);", "    now: SELECT|    pg_terminate_bac|    kend(12345);"},
		{"    now: SELECT 1;", "    now: SELECT 1;"},
		{"    now: SELECT 1, 22;", "    now: SELECT 1,|    22;"},
		{"    twenty columns  x", "    twenty columns|    x"},
		{"", ""},
	} {
		if got := strings.Join(folded(c.line, 20), "|"); got != c.want {
			t.Errorf("%q: got %q, want %q", c.line, got, c.want)
		}
	}
}
