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
	"number": lab.Number, "percent": percent, "latency": latency, "settings": settings, "gib": gib, "worthwhile": worthwhile, "hasFigures": hasFigures,
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
	"wide": func(c lab.Chart) bool { return c.Kind != lab.Stack },
}).ParseFS(files, "page.html"))

// Write writes a report as a page. Series with more points than a screen can show are thinned.
func Write(w io.Writer, r *lab.Report) error {
	thin := *r
	thin.Results = nil
	for _, result := range r.Results {
		copied := *result
		copied.Charts = slices.Clone(result.Charts)
		for i := range copied.Charts {
			copied.Charts[i].Lines = thinned(copied.Charts[i].Lines)
		}
		thin.Results = append(thin.Results, &copied)
	}
	if err := page.Execute(w, &thin); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
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

func hasFigures(ways []*lab.Way) bool {
	return slices.ContainsFunc(ways, func(w *lab.Way) bool { return len(w.Figures) > 0 })
}

// settings returns settings on one line.
func settings(all []lab.Setting) string {
	words := make([]string, len(all))
	for i, s := range all {
		words[i] = s.Name + " = " + s.Value
	}
	return strings.Join(words, " · ")
}
