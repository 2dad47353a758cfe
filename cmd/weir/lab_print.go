package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/weir-pg/weir/cmd/internal/lab"
	"github.com/weir-pg/weir/cmd/internal/lab/report"
)

// labView shows the progress of a run in one line, and above it the verdict of each finished scenario.
type labView struct{ line *progress }

func newLabView(w io.Writer) *labView { return &labView{newProgress(w)} }

func (v *labView) show(p lab.Progress) {
	head := p.Scenario
	if p.Steps > 0 {
		head = fmt.Sprintf("%s %d/%d", p.Scenario, p.Step, p.Steps)
	}
	if p.Say != "" {
		v.line.show("%s: %s", head, p.Say)
		return
	}
	rate := 0.0
	if len(p.Rates) > 0 {
		rate = p.Rates[len(p.Rates)-1]
	}
	wait := ""
	if p.Wait != "" {
		wait = fmt.Sprintf(" · %s %.0f%%", p.Wait, 100*p.Share)
	}
	v.line.show("%s: %s %s %s %s/s%s · %s", head, p.Way, sparkline(p.Rates, 24), count(int64(rate)), p.Unit, wait, short(p.Elapsed))
}

func (v *labView) verdict(r *lab.Result) {
	mark := "shown"
	switch {
	case r.Failed != "":
		fmt.Fprintf(v.line, "weir: lab: %s: failed%s\n", r.Scenario, disturbance(r))
		return
	case !r.Verdict.Shown:
		mark = "not shown here"
	}
	fmt.Fprintf(v.line, "weir: lab: %s: %s (%.1f times)%s\n", r.Scenario, mark, r.Verdict.Times, disturbance(r))
}

// disturbance says that other programs disturbed a run, or returns "".
func disturbance(r *lab.Result) string {
	if r.Conditions == nil || !r.Conditions.Disturbed {
		return ""
	}
	return "; DISTURBED: " + r.Conditions.Why
}

func (v *labView) done() { v.line.done() }

// sparkline draws the newest values as bars.
func sparkline(values []float64, width int) string {
	const bars = "▁▂▃▄▅▆▇█"
	values = values[max(0, len(values)-width):]
	if len(values) == 0 {
		return ""
	}
	highest := max(slices.Max(values), 1e-9)
	var b strings.Builder
	for _, v := range values {
		level := int(math.Round(v / highest * 7))
		b.WriteRune([]rune(bars)[min(max(level, 0), 7)])
	}
	return b.String()
}

// write writes the report where the flags say.
func (f *labFlags) write(s *streams, r *lab.Report) error {
	var errs []error
	if f.Report != "" {
		errs = append(errs, toFile(f.Report, func(w io.Writer) error { return report.Write(w, r) }))
	}
	switch f.JSON {
	case "-":
		return errors.Join(append(errs, printJSON(s.out, r))...)
	case "":
	default:
		errs = append(errs, toFile(f.JSON, func(w io.Writer) error { return printJSON(w, r) }))
	}
	return errors.Join(append(errs, labText(s.out, r))...)
}

// toFile writes a file.
func toFile(path string, write func(io.Writer) error) (err error) {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	w := bufio.NewWriter(file)
	if err := write(w); err != nil {
		return err
	}
	return w.Flush()
}

// labText prints the report as text.
func labText(w io.Writer, r *lab.Report) error {
	for i, result := range r.Results {
		if i > 0 {
			fmt.Fprintln(w)
		}
		server := ""
		if result.Server.Version != "" { // otherwise none was reached
			server = "PostgreSQL " + result.Server.Version + ", "
		}
		fmt.Fprintf(w, "%s: %s (%s%d cores%s)\n\n", result.Scenario, result.Title, server, r.Machine.Cores, disturbance(result))
		if result.Failed != "" {
			fmt.Fprintf(w, "FAILED: %s\n", printable(result.Failed))
			if len(result.Ways) == 0 {
				fmt.Fprintln(w, "Nothing was measured.")
				continue
			}
			fmt.Fprint(w, "What was measured before:\n\n")
		}
		var rows [][]string
		for _, way := range result.Ways {
			row := []string{way.Name, string(way.Kind), lab.Number(way.Rate) + " " + way.Unit, "", "", ""}
			if l := way.Latency; l != nil {
				row[3], row[4] = lab.Number(l.P50), lab.Number(l.P99)
			}
			if d := way.Dominant; d.Class != "" {
				row[5] = fmt.Sprintf("%s %.0f%%", d.Class, 100*d.Share)
			}
			rows = append(rows, row)
		}
		if err := table(w, []string{"VARIANT", "KIND", "PER SECOND", "MS, P50", "P99", "DOMINANT WAIT"}, rows); err != nil {
			return err
		}
		fmt.Fprintf(w, "\n%s\n", result.Verdict.Text)
		for _, fix := range result.Verdict.Fixes {
			fmt.Fprintln(w, "- "+fix)
		}
		for _, quote := range result.Quotes {
			fmt.Fprintf(w, "%s:\n%s\n", quote.Of, quote.Text)
		}
		for _, note := range result.Notes {
			fmt.Fprintln(w, note)
		}
	}
	return nil
}
