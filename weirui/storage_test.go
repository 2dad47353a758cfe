package weirui_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
)

// shownStorage is the JSON of the page.
type shownStorage struct {
	Bytes int64
	Logs  []struct {
		Log      string
		Bytes    int64
		Segments []struct {
			weir.StorageInfo
			HeldBy string `json:"held_by"`
		}
	}
	Settings []weir.Setting
}

func (s shownStorage) segment(log string, n int) (state weir.SegmentState, heldBy string) {
	for _, l := range s.Logs {
		if l.Log == log && len(l.Segments) >= n {
			return l.Segments[n-1].State, l.Segments[n-1].HeldBy
		}
	}
	return "", ""
}

func TestStorageShowsSegmentsAndWhatHoldsThem(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue(note{Text: "hello"}, &weir.Options{Queue: "mail"})
	var shown shownStorage
	r.data("storage", &shown)
	sum := int64(0)
	for _, l := range shown.Logs {
		sum += l.Bytes
	}
	if state, _ := shown.segment("job", 1); state != weir.SegmentActive || shown.Bytes == 0 || sum != shown.Bytes || len(shown.Settings) < 4 {
		t.Errorf("shows %+v", shown)
	}
	if state, _ := shown.segment("job", 2); state != weir.SegmentFree {
		t.Errorf("segment 2 is %s", state)
	}
	text := r.page("storage")
	for _, want := range []string{"Scheduled jobs", "Failed jobs", "Messages", "completed_retention", "never used", "0% of 1 GiB", "Keeps completed and cancelled jobs for 1 day", "Keeps messages for 1 hour", "Keeps messages up to 1 GiB", "Takes messages up to 1 MiB"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q: %s", want, text)
		}
	}

	if _, err := r.pool.Exec(t.Context(), `SELECT weir.set('message_retention', '2 days 90 minutes')`); err != nil {
		t.Fatal(err)
	}
	r.do("queues/mail/resume", nil) // after an action, everything is read again
	if text := r.page("storage"); !strings.Contains(text, "Keeps messages for 2 days 1 hour 30 minutes") {
		t.Errorf("the page is %s", text)
	}

	// A segment that is past its retention, and that a transaction holds.
	for _, sql := range []string{`SELECT weir.set('completed_retention', '0 seconds')`, `UPDATE weir.segment SET at = at - interval '1 hour'`, `SELECT weir._rotate()`, `UPDATE weir.segment SET at = at - interval '1 hour'`} {
		if _, err := r.pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	var pid int
	if err := tx.QueryRow(t.Context(), `SELECT pg_backend_pid() FROM weir.job`).Scan(&pid); err != nil {
		t.Fatal(err)
	}
	pgtest.Eventually(t, func() error { // what a transaction has held for less than a second does not count
		r.data("storage", &shown)
		if state, held := shown.segment("job", 1); state != weir.SegmentClosed || !strings.Contains(held, fmt.Sprintf("pid IN (%d)", pid)) {
			return fmt.Errorf("segment 1 is %s, held by %q, and pid %d holds it", state, held, pid)
		}
		return nil
	})
	if text := r.page("storage"); !strings.Contains(text, "should have been reclaimed") || !strings.Contains(text, "overdue") {
		t.Errorf("the page is %s", text)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	pgtest.Eventually(t, func() error {
		r.data("storage", &shown)
		if _, held := shown.segment("job", 1); !strings.Contains(held, "No worker runs") {
			return fmt.Errorf("it is held by %q", held)
		}
		return nil
	})
}
