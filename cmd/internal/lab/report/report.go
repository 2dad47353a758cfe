// Package report renders the lab's results as one self-contained HTML page: it loads nothing from a network, and all text from the run is
// escaped.
package report

import (
	"embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-pg/weir/cmd/internal/lab"
)

// Charts are drawn by uPlot, whose licence is included in each page.
//
//go:embed page.html page.css page.js vendor/uPlot.iife.min.js vendor/uPlot.min.css vendor/LICENSE
var files embed.FS

var page = template.Must(template.New("page.html").Funcs(template.FuncMap{
	"number": lab.Number, "percent": percent, "latency": latency, "settings": settings, "gib": gib, "worthwhile": worthwhile,
	"charts": charts, "data": data, "conditions": conditions, "disturbed": disturbed, "failed": failed, "state": state,
	"css": func(name string) (template.CSS, error) {
		text, err := files.ReadFile(name)
		return template.CSS(text), err
	},
	"js": func(name string) (template.JS, error) {
		text, err := files.ReadFile(name)
		return template.JS(text), err
	},
	"text": func(name string) (string, error) {
		text, err := files.ReadFile(name)
		return string(text), err
	},
}).ParseFS(files, "page.html"))

// Write writes a report as a page. Series with more points than a screen can show are thinned.
func Write(w io.Writer, r *lab.Report) error {
	if err := page.Execute(w, r); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// placed is a chart with its place in the page's data.
type placed struct {
	lab.Chart
	Result, Place int
}

// charts returns the charts of result n that are stacks, or those that are not. Their settings are those that differ from the result's.
func charts(n int, r *lab.Result, stacks bool) (all []placed) {
	for i, c := range r.Charts {
		if (c.Kind == lab.Stack) != stacks {
			continue
		}
		c.Settings = slices.DeleteFunc(slices.Clone(c.Settings), func(s lab.Setting) bool { return slices.Contains(r.Settings, s) })
		all = append(all, placed{c, n, i})
	}
	return all
}

// data returns what the page draws.
func data(results []*lab.Result) [][]lab.Chart {
	all := make([][]lab.Chart, len(results))
	for i, r := range results {
		all[i] = slices.Clone(r.Charts)
		for k := range all[i] {
			c := &all[i][k]
			c.Title, c.Note, c.Command, c.Settings, c.Lines = "", "", "", nil, shortened(thinned(c.Lines)) // the page's text has the others
		}
	}
	return all
}

// shortened leaves out of the lines' names what all of them end with.
func shortened(lines []lab.Line) []lab.Line {
	for len(lines) > 1 {
		at := strings.LastIndex(lines[0].Name, ", ")
		if at < 0 {
			break
		}
		end := lines[0].Name[at:]
		if slices.ContainsFunc(lines, func(l lab.Line) bool { return !strings.HasSuffix(l.Name, end) || l.Name == end }) {
			break
		}
		for i := range lines {
			lines[i].Name = strings.TrimSuffix(lines[i].Name, end)
		}
	}
	return lines
}

// maxPoints is the maximum number of points of a line.
const maxPoints = 240

// thinned keeps every n-th point of lines that are too long, and the last.
func thinned(lines []lab.Line) []lab.Line {
	out := slices.Clone(lines)
	for i, l := range out {
		n := (len(l.X) + maxPoints - 1) / maxPoints
		if n < 2 {
			continue
		}
		out[i].X, out[i].Y = nil, nil
		for k := range l.X {
			if k%n == 0 || k == len(l.X)-1 {
				out[i].X, out[i].Y = append(out[i].X, l.X[k]), append(out[i].Y, l.Y[k])
			}
		}
	}
	return out
}

func percent(share float64) string { return strconv.Itoa(int(math.Round(100*share))) + "%" }

func latency(ms float64) string {
	if ms >= 10_000 {
		return lab.Number(ms/1000) + " s"
	}
	return lab.Number(ms) + " ms"
}

func gib(bytes int64) string { return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30)) }

// worthwhile omits waits of less than a percent.
func worthwhile(waits []lab.Wait) (out []lab.Wait) {
	for _, w := range waits {
		if w.Share >= 0.01 {
			out = append(out, w)
		}
	}
	return out
}

// settings returns settings on one line.
func settings(all []lab.Setting) string {
	words := make([]string, len(all))
	for i, s := range all {
		words[i] = s.Name + " = " + s.Value
	}
	return strings.Join(words, " · ")
}

// conditions says how busy the machine was, in one line.
func conditions(c *lab.Conditions) string {
	var words []string
	if c == nil {
		return ""
	}
	for _, f := range []struct {
		text  string
		value *float64
	}{{"load average before: %s", c.LoadBefore}, {"at most during: %s", c.LoadDuring}, {"cores used by other programs: %s", c.Others}, {"at most %s", c.OthersMost}} {
		if f.value != nil {
			words = append(words, fmt.Sprintf(f.text, lab.Number(*f.value)))
		}
	}
	return strings.Join(words, ", ")
}

// disturbed names the scenarios that were disturbed.
func disturbed(results []*lab.Result) string {
	var names []string
	for _, r := range results {
		if r.Conditions != nil && r.Conditions.Disturbed {
			names = append(names, r.Scenario)
		}
	}
	return strings.Join(names, ", ")
}

// failed returns the scenarios that failed.
func failed(results []*lab.Result) (all []*lab.Result) {
	for _, r := range results {
		if r.Failed != "" {
			all = append(all, r)
		}
	}
	return all
}

// state is the class of a scenario's links and verdict.
func state(r *lab.Result) string {
	switch {
	case r.Failed != "":
		return "failed"
	case r.Verdict.Shown:
		return "shown"
	}
	return "nothing"
}
