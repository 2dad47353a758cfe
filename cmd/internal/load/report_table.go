package load

import (
	"fmt"
	"io"
)

// featuresText writes a table: what each feature costs, in each round next to plain jobs.
func featuresText(w io.Writer, features []Feature) {
	if len(features) == 0 {
		return
	}
	fmt.Fprintln(w, "the figures above are those of plain jobs; beside them:")
	fmt.Fprintln(w, "with\tjobs/s\tratio to plain jobs\tWAL bytes per job\ton top\tserver's CPU, µs per job\ton top")
	for _, f := range features {
		cpu, top := "", ""
		if f.CPU != nil {
			cpu, top = fmt.Sprintf("%.1f", *f.ServerCPUPerJob), f.CPU.text("%.1f")
		}
		fmt.Fprintf(w, "%s\t%.0f\t%s\t%.0f\t%s\t%s\t%s\n", f.What, f.JobsPerSecond, f.Ratio.text("%.2f"), *f.WALBytesPerJob, f.WAL.text("%.0f"), cpu, top)
	}
}

// text returns the median, and if there are several samples, the least and the greatest.
func (s *Spread) text(format string) string {
	if s.Samples == 1 {
		return fmt.Sprintf(format, s.Median)
	}
	return fmt.Sprintf(format+" ("+format+" to "+format+")", s.Median, s.Min, s.Max)
}

// phasesText writes a table of phases.
func phasesText(w io.Writer, phases []Phase) {
	if len(phases) == 0 {
		return
	}
	fmt.Fprintln(w, "ms\twaits\tp50\tp99\tmax\tclaims\tp50\tp99\tmax\tcores used")
	for _, p := range phases {
		cores := ""
		if p.Cores != nil {
			cores = fmt.Sprintf("%.2f", *p.Cores)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", p.What, p.Waits.text(), p.Claims.text(), cores)
	}
}

func (t *Times) text() string {
	if t == nil {
		return "0\t\t\t"
	}
	return fmt.Sprintf("%d\t%.1f\t%.1f\t%.1f", t.Count, t.P50, t.P99, t.Max)
}

// text writes a table of a fleet's costs.
func (f *Fleet) text(w io.Writer) {
	if f == nil {
		return
	}
	fmt.Fprintln(w, "per second\ttransaction ids\ttransactions\tWAL bytes\tworkers' CPU, % of a core\tserver's\tjobs")
	for _, c := range []*FleetCost{f.Idle, f.Saturated, f.Flowing} {
		own, server := "", ""
		if c.Workers != nil {
			own, server = fmt.Sprintf("%.1f", *c.Workers), fmt.Sprintf("%.1f", *c.Server)
		}
		fmt.Fprintf(w, "%s\t%.1f\t%.0f\t%.0f\t%s\t%s\t%.0f\n", c.What, c.XIDs, c.Transactions, c.WAL, own, server, float64(c.Jobs)/c.Seconds)
	}
	fmt.Fprintf(w, "ms until a freed slot is used again\tp50 %.1f\tp99 %.1f\tmax %.1f\tin %d\n", f.Refill.P50, f.Refill.P99, f.Refill.Max, f.Refill.Count)
	fmt.Fprintf(w, "share of the slots' time in use while jobs flow\t%.2f\n", f.Used)
}
