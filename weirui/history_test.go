package weirui_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-pg/weir"
)

// history is the JSON of a history.
type history struct {
	Queue  string
	Hours  int
	Step   float64 // seconds
	Points []struct {
		Failed int64
		Oldest float64
		RunP95 float64 `json:"run_p95"`
	}
}

func (h history) failed() (n int64) {
	for _, p := range h.Points {
		n += p.Failed
	}
	return n
}

// countMinutes lets the results so far be some minutes old, and counts them.
func (r *rig) countMinutes() {
	r.Helper()
	for _, sql := range []string{`UPDATE weir.result SET finished_at = now() - interval '15 minutes'`, `SELECT weir._count_minutes(now() + interval '1 minute')`} {
		if _, err := r.pool.Exec(r.Context(), sql); err != nil {
			r.Fatal(err)
		}
	}
}

func TestTheHistoryOfQueuesIsShown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for range 3 {
		r.enqueue(note{Text: "hello"}, &weir.Options{Queue: "mail"})
	}
	r.fail("mail", func(note) error { return errors.New("no") })
	r.enqueue(note{Text: "waits"}, &weir.Options{Queue: "a/b ?&c"})
	r.countMinutes()
	for query, want := range map[string]struct {
		failed int64
		step   float64
		points int
	}{
		"": {3, 60, 60}, "hours=6": {3, 60, 360}, "hours=24": {3, 300, 288}, "hours=72": {3, 600, 432},
		"hours=1&queue=mail": {3, 60, 60}, "hours=1&queue=a/b%20%3F%26c": {0, 60, 60}, "hours=1&queue=none": {0, 60, 60},
	} {
		var h history
		r.data("history?"+query, &h)
		if n := len(h.Points); h.failed() != want.failed || h.Step != want.step || n < want.points-3 || n > want.points+3 {
			t.Errorf("%q has %d failed attempts in %d points, each %v long, want %v", query, h.failed(), n, h.Step, want)
		}
	}
	for _, hours := range []string{"2", "x", "-1", "1e9", "72h"} {
		if answer, text := r.ask("GET", "history?hours="+hours, ""); answer.StatusCode != http.StatusBadRequest || !strings.Contains(text, "1, 6, 24 or 72") {
			t.Errorf("%s hours: %s: %s", hours, answer.Status, text)
		}
	}
	for path, from := range map[string]string{"?hours=24": "history?hours=24", "queues/mail?hours=24": "../history?hours=24&amp;queue=mail", "queues/a%2Fb%20%3F&c?hours=6": "../history?hours=6&amp;queue=a%2Fb&#43;%3F%26c"} {
		text := r.page(path)
		if !strings.Contains(text, `data-history="`+from+`"`) || !strings.Contains(text, `<details id="history-table">`) || strings.Count(text, "data-chart=") != 4 {
			t.Errorf("%s lacks charts of %s: %s", path, from, text)
		}
		if _, text := r.ask("GET", path, "", "Weir-Fragment", "1"); strings.Contains(text, "history-table") {
			t.Errorf("%s: what is refreshed every two seconds contains the table of the history", path)
		}
	}
	if text := r.page("history?hours=1&queue=mail"); !strings.Contains(text, "History of queue mail") || !strings.Contains(text, `<td>3</td>`) {
		t.Errorf("the page of the history is %s", text)
	}
}

// TestTheOverviewIsSmall: it has the newest minutes in which something happened, whatever the range, and a link to the others.
func TestTheOverviewIsSmall(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue(note{Text: "hello"}, &weir.Options{Queue: "mail"})
	for _, sql := range []string{
		`SELECT weir._count_minutes()`,
		`INSERT INTO weir.minute (at, ring, queue, upto, completed, failed, retried, cancelled, other, waits, runs)
			SELECT at, weir._minute_ring(at), '', at + interval '1 minute', CASE WHEN n % 2 = 0 THEN 100000 + n ELSE 0 END, 0, 0, 0, 0, 800e120 + 100e192, 60e216
			FROM generate_series(1, 350) n CROSS JOIN LATERAL (SELECT date_trunc('minute', now()) - n * interval '1 minute' AS at) m`,
	} {
		if _, err := r.pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	text := r.page("?hours=6")
	if n := strings.Count(text, `<tr>
<th scope="row"><time`); len(text) > 30_000 || n != 50 {
		t.Errorf("the overview has %d bytes, and %d rows of the history", len(text), n)
	}
	if n := strings.Count(r.page("history?hours=6"), `<th scope="row"><time`); n < 340 {
		t.Errorf("the page of the history has only %d rows", n)
	}
	var h history
	r.data("history?hours=1", &h)
	if at := h.Points[len(h.Points)-5]; at.RunP95 < 0.001 || at.RunP95 > 100 {
		t.Errorf("durations are not in seconds: %+v", at)
	}
}

// TestStaticFilesAreSmall: what a browser loads once is less than 100 kB, compressed.
func TestStaticFilesAreSmall(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join("static", "*"))
	if err != nil || len(files) < 5 {
		t.Fatalf("the files are %v, %v", files, err)
	}
	var sizes []string
	total := 0
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		if _, err := z.Write(text); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		total += b.Len()
		sizes = append(sizes, fmt.Sprintf("%s %d", name, b.Len()))
	}
	if total > 100_000 {
		t.Errorf("they have %d bytes: %s", total, strings.Join(sizes, ", "))
	}
}
