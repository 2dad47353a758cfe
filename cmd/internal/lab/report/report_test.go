package report

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/cmd/internal/lab"
)

// example is a report with text in all places that may come from outside.
func example(text string) *lab.Report {
	settings := []lab.Setting{{Name: text, Value: text}}
	long := make([]float64, 5000)
	for i := range long {
		long[i] = float64(i)
	}
	return &lab.Report{
		Version: lab.Version, StartedAt: time.Unix(0, 0).UTC(), Command: text, Machine: lab.Machine{Cores: 2, OS: text, Arch: text, HugePages: text, Load: text},
		Results: []*lab.Result{{
			Scenario: "notify", Title: text, About: text, Command: text, Notes: []string{text}, Settings: settings,
			Server:  lab.Server{Version: text, Settings: settings},
			Verdict: lab.Verdict{Text: text, Fixes: []string{text}},
			Ways: []*lab.Way{{
				Name: text, Kind: lab.Collapse, What: text, Unit: text, Rate: 1, Latency: &lab.Latency{Of: text, P50: 1, P99: 2},
				Waits: []lab.Wait{{Event: text, Class: text, Share: 1}}, Figures: []lab.Figure{{Name: text, Value: 1, Unit: text}}, Settings: settings,
			}},
			Charts: []lab.Chart{{
				Title: text, Note: text, Kind: lab.Lines, X: lab.Axis{Label: text}, Y: lab.Axis{Label: text}, Command: text, Settings: settings,
				Lines: []lab.Line{{Name: text, X: long, Y: long}}, Marks: []lab.Mark{{At: 1, Label: text}},
			}},
		}},
	}
}

func write(t *testing.T, r *lab.Report) string {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestReportEscapesWhatComesFromTheRun(t *testing.T) {
	t.Parallel()
	const attack = `</script><script>alert(1)</script><img src=x onerror="alert(2)">'"` + "`${x}"
	page := write(t, example(attack))
	for _, harm := range []string{"<script>alert", "<img", `onerror="alert`} {
		if strings.Contains(page, harm) {
			t.Errorf("the page contains %s unescaped", harm)
		}
	}
	if n := strings.Count(page, "</script>"); n != 3 {
		t.Errorf("the page has %d closing script tags, want 3", n)
	}
}

func TestReportAsksNothingOfAnyNetwork(t *testing.T) {
	t.Parallel()
	page := write(t, example("plain"))
	for _, asks := range []string{`\bsrc\s*=`, `\bhref\s*=\s*"?[^"#]`, `@import`, `url\(`, `<link`, `<iframe`, `\bfetch\(`, `XMLHttpRequest`, `WebSocket`, `importScripts`, `sendBeacon`} {
		if found := regexp.MustCompile(asks).FindString(page); found != "" {
			t.Errorf("the page contains %s", found)
		}
	}
	if !strings.Contains(page, `content="default-src 'none'`) {
		t.Error("the page has no content security policy")
	}
	if !strings.Contains(page, "Permission is hereby granted") {
		t.Error("uPlot's licence is missing")
	}
}

// TestFiguresHaveTheWidthOfThePage: in a column beside the others a dozen of them made each variant as high as a screen.
func TestFiguresHaveTheWidthOfThePage(t *testing.T) {
	t.Parallel()
	page := write(t, example("plain"))
	columns := strings.Count(page, "</th>")
	if want := fmt.Sprintf(`</tr>
<tr><td class="figures" colspan="%d"><span>plain: <b>1</b> plain</span></td></tr>`, columns); !strings.Contains(page, want) {
		t.Errorf("the page does not contain %s", want)
	}
}

func TestReportSaysOnceWhatMadeItsCharts(t *testing.T) {
	t.Parallel()
	r := example("plain")
	const command = "weir lab notify --clients 7"
	size, own := lab.Setting{Name: "clients", Value: "7"}, lab.Setting{Name: "commit_delay", Value: "2000"}
	result := r.Results[0]
	result.Command, result.Settings, result.Ways[0].Settings = command, []lab.Setting{size}, nil
	result.Charts[0].Command, result.Charts[0].Settings = command, []lab.Setting{size, own}
	result.Charts = append(result.Charts, result.Charts[0])
	page := write(t, r)
	for want, times := range map[string]int{command: 1, "clients = 7": 1, "commit_delay = 2000": 2} {
		if n := strings.Count(page, want); n != times {
			t.Errorf("the page contains %q %d times, want %d", want, n, times)
		}
	}
}

func TestReportSaysThatARunWasDisturbed(t *testing.T) {
	t.Parallel()
	r := example("plain")
	if page := write(t, r); strings.Contains(page, "Disturbed") {
		t.Error("a run about which nothing is known is called disturbed")
	}
	before, others := 7.25, 1.5
	r.Results[0].Conditions = &lab.Conditions{LoadBefore: &before, Others: &others}
	if page := write(t, r); strings.Contains(page, "Disturbed") || !strings.Contains(page, "load average before: 7.25, cores used by other programs: 1.5") {
		t.Error("the page does not say how busy the machine was")
	}
	r.Results[0].Conditions.Disturbed, r.Results[0].Conditions.Why = true, "an elephant ran"
	if page := write(t, r); !strings.Contains(page, "had other work to do while notify ran") || !strings.Contains(page, "an elephant ran") {
		t.Error("the page does not say that the run was disturbed")
	}
}

// TestReportSaysFirstWhatFailed: above everything that was measured, with the reason, and again where its own results are.
func TestReportSaysFirstWhatFailed(t *testing.T) {
	t.Parallel()
	r := example("plain")
	if page := write(t, r); strings.Contains(page, "Failed") {
		t.Error("a run in which nothing failed is said to have failed")
	}
	partly := example("plain").Results[0]
	partly.Scenario, partly.Failed = "pinned", "SKIP LOCKED: the <server> went away"
	none := &lab.Result{Scenario: "storm", Title: "plain", Failed: "no room", Ways: []*lab.Way{}, Verdict: lab.Verdict{Text: "No verdict: plain"}}
	r.Results = append(r.Results, partly, none)
	page := write(t, r)
	head, body, _ := strings.Cut(page, "<main>")
	for _, want := range []string{`<a href="#pinned">pinned</a>: SKIP LOCKED: the &lt;server&gt; went away`, `<a href="#storm">storm</a>: no room`} {
		if !strings.Contains(head, want) {
			t.Errorf("the head of the page lacks %s", want)
		}
	}
	for text, want := range map[string]int{
		"The variants below were measured before that.": 1, "Nothing was measured.": 1, "<table": 2, "Server of": 2, "No verdict": 0, `class="verdict failed"`: 1, `class="verdict nothing"`: 1,
	} {
		if n := strings.Count(body, text); n != want {
			t.Errorf("below the head the page has %q %d times, want %d", text, n, want)
		}
	}
}

func TestLegendsLeaveOutWhatAllNamesEndWith(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ names, want []string }{
		{[]string{"a, b, read", "c, read"}, []string{"a, b", "c"}},
		{[]string{"a, b, read", "c, b, read"}, []string{"a", "c"}},
		{[]string{"a, read", "read"}, []string{"a, read", "read"}},
		{[]string{"a, read"}, []string{"a, read"}},
	} {
		var lines []lab.Line
		for _, name := range c.names {
			lines = append(lines, lab.Line{Name: name})
		}
		for i, l := range shortened(lines) {
			if l.Name != c.want[i] {
				t.Errorf("%q becomes %q, want %q", c.names[i], l.Name, c.want[i])
			}
		}
	}
}

func TestLongSeriesAreThinned(t *testing.T) {
	t.Parallel()
	r := example("plain")
	if n := len(write(t, r)); n > 150_000 {
		t.Errorf("a page with one line of 5,000 points has %d bytes", n)
	}
	lines := thinned(r.Results[0].Charts[0].Lines)
	if x := lines[0].X; len(x) > maxPoints+1 || x[0] != 0 || x[len(x)-1] != 4999 {
		t.Errorf("thinned to %d points, from %v to %v", len(x), x[0], x[len(x)-1])
	}
	if len(r.Results[0].Charts[0].Lines[0].X) != 5000 {
		t.Error("the report itself was thinned")
	}
}
