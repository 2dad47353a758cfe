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
	"time"

	"github.com/weir-pg/weir"
)

// history is the JSON of a history.
type history struct {
	Queue  string
	Hours  int
	Step   time.Duration
	Points []weir.HistoryPoint
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
		step   time.Duration
		points int
	}{
		"": {3, time.Minute, 360}, "hours=1": {3, time.Minute, 60}, "hours=24": {3, 5 * time.Minute, 288}, "hours=72": {3, 10 * time.Minute, 432},
		"hours=1&queue=mail": {3, time.Minute, 60}, "hours=1&queue=a/b%20%3F%26c": {0, time.Minute, 60}, "hours=1&queue=none": {0, time.Minute, 60},
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
	if text := r.page("history?hours=1&queue=mail"); !strings.Contains(text, "History of queue mail") || !strings.Contains(text, `<td class="n">3</td>`) {
		t.Errorf("the page of the history is %s", text)
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
