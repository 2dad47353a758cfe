package browser

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/weir-pg/weir/cmd/internal/lab"
	"github.com/weir-pg/weir/cmd/internal/lab/report"
)

// labReport is a report of everything that a page can show. WEIR_TEST_LAB names the JSON of a real one, to look at it.
func labReport(t *testing.T) *lab.Report {
	t.Helper()
	if file := os.Getenv("WEIR_TEST_LAB"); file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		r := new(lab.Report)
		if err := json.Unmarshal(text, r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	load, others := 5.5, 1.2
	x := []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	queue := func(name string, kind lab.Kind) lab.Line {
		return lab.Line{Name: name + ", under a pin that reads", Kind: kind, X: x, Y: x}
	}
	settings := []lab.Setting{{Name: "jobs per second", Value: "1000"}, {Name: "workers", Value: "8"}}
	return &lab.Report{
		Version: lab.Version, StartedAt: time.Unix(0, 0).UTC(), Command: "weir lab all --duration 5s", Machine: lab.ThisMachine(),
		Results: []*lab.Result{{
			Scenario: "pinned", Title: "A long transaction makes a queue walk through dead rows", About: "A producer enqueues jobs at a fixed rate.",
			Command: "weir lab pinned --duration 5s --rate 1000 --workers 8 --pin both", Settings: settings,
			Conditions: &lab.Conditions{LoadBefore: &load, LoadDuring: &load, Others: &others, OthersMost: &others, Disturbed: true, Why: "other programs used 1.2 of 2 cores meanwhile"},
			Server:     lab.Server{Version: "18.3", Settings: settings},
			Verdict:    lab.Verdict{Shown: true, Times: 20, Text: "Shown: claims take 20 times longer.", Fixes: []string{"Weir: claims from 1 to 1 ms."}},
			Ways: []*lab.Way{{
				Name: "advisory locks, recursive CTE, under a pin that reads", Kind: lab.Collapse, What: "a recursive query walks along the jobs until it gets the advisory lock of one",
				Unit: "jobs", Rate: 998, Latency: &lab.Latency{Of: "a claim", P50: 1.2, P99: 25000}, Settings: settings[:1], Dominant: lab.Dominant{Class: "row-lock", Share: 0.9},
				Waits:   []lab.Wait{{Event: "Lock:transactionid", Class: "row-lock", Share: 0.9}, {Event: "LWLock:MultiXactOffsetBuffer", Class: "multixact", Share: 0.1}},
				Figures: []lab.Figure{{Name: "claim at the end, 99th percentile", Value: 20, Unit: "ms"}, {Name: "dead tuples at the end", Value: 123456, Unit: "rows"}},
			}, {Name: "Weir", Kind: lab.Fix, What: "an insert-only log", Unit: "jobs", Rate: 1000}},
			Charts: []lab.Chart{{
				Title: "Backlog", Note: "The pin ends before the last third.", Kind: lab.Lines, X: lab.Axis{Label: "seconds"}, Y: lab.Axis{Label: "jobs"}, Settings: settings, Command: "weir lab pinned",
				Lines: []lab.Line{queue("SKIP LOCKED, UPDATE", lab.Collapse), queue("advisory locks, recursive CTE", lab.Collapse), queue("SKIP LOCKED, 100 at once", lab.Fix), queue("Weir", lab.Fix)},
				Marks: []lab.Mark{{At: 0, Until: 3, Label: "before"}, {At: 3, Until: 8, Label: "the long transaction is open"}, {At: 8, Until: 12, Label: "it has ended"}},
			}, {
				Title: "What sessions wait for: Weir", Kind: lab.Stack, X: lab.Axis{Label: "seconds"}, Y: lab.Axis{Label: "sessions, stacked"}, Settings: settings, Command: "weir lab pinned",
				Lines: []lab.Line{{Name: "cpu", X: x, Y: x}, {Name: "commit", X: x, Y: x}},
			}},
		}, {
			Scenario: "storm", Title: "A connection storm saturates the postmaster", Command: "weir lab storm", Failed: "at once: connect: a_server_with_a_name_that_is_longer_than_a_telephone_is_wide.example.org: no answer",
		}},
	}
}

// TestTheLabsReportFitsATelephone: nothing scrolls sideways, all charts are drawn, and what a browser complains about is nothing.
func TestTheLabsReportFitsATelephone(t *testing.T) {
	t.Parallel()
	r := labReport(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err := report.Write(w, r); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	page := chromium(t, server.URL+"/")
	said := complaints(t, page)
	for _, size := range []struct {
		width int64
		file  string
	}{{390, "lab-390.png"}, {1200, "lab-1200.png"}} {
		do(t, page, chromedp.EmulateViewport(size.width, 844), scheme("light"), chromedp.Navigate(server.URL+"/"))
		await(t, page, `String(document.documentElement.scrollWidth <= innerWidth)`, "true")
		if size.width == 390 {
			// A legend of any chart is shorter than the chart.
			await(t, page, `[...document.querySelectorAll(".chart")].filter(c => c.clientWidth && c.querySelector(".u-legend").offsetHeight > c.querySelector(".u-wrap").offsetHeight / 2).length + ""`, "0")
		}
		do(t, page, chromedp.Evaluate[chromedp.Void](`document.querySelectorAll("details.more").forEach(d => { d.open = true; })`))
		await(t, page, `[...document.querySelectorAll(".chart")].filter(c => !c.querySelector("canvas")).length + ""`, "0")
		await(t, page, `String(document.documentElement.scrollWidth <= innerWidth)`, "true")
		picture(t, page, size.file, 100)
	}
	if all := said(); len(all) > 0 {
		t.Errorf("the browser complains: %q", all)
	}
}
