package lab

import (
	"fmt"

	"github.com/weir-pg/weir/cmd/internal/load"
)

const (
	claimBefore  = "claim before the pin, median"
	claimLate    = "claim at the end, median" // the last quarter of the time
	rateBefore   = "jobs per second before the pin"
	rateAtEnd    = "jobs per second at the end"
	backlogAtEnd = "backlog at the end"
	deadAtEnd    = "dead tuples at the end"
)

func (t *trial) figures(k *track) []Figure {
	_, before := t.calm.Cut()
	_, late := t.late.Cut()
	calm := 0 // intervals before the pin
	for calm < len(k.at) && k.at[calm] <= t.pinAfter.Seconds() {
		calm++
	}
	last := func(series []float64) float64 {
		if len(series) == 0 {
			return 0
		}
		return series[len(series)-1]
	}
	return []Figure{
		{claimBefore, milliseconds(before, 50), "ms"},
		{claimLate, milliseconds(late, 50), "ms"},
		{"claim at the end, 99th percentile", milliseconds(late, 99), "ms"},
		{rateBefore, round(mean(k.rate[:max(calm, 1)])), "jobs/s"},
		{rateAtEnd, round(mean(k.rate[len(k.rate)*3/4:])), "jobs/s"},
		{backlogAtEnd, float64(t.enqueued.Load() - t.done.Load()), "jobs"},
		{deadAtEnd, last(k.gauges["dead tuples"]), "rows"},
	}
}

func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return ratio(sum, float64(len(values)))
}

func chartPinned(r *run, pin string, tracks []*track) {
	at := Mark{At: calmTime(r.Duration).Seconds(), Label: "the long transaction starts"}
	from := len(r.result.Charts)
	x := Axis{Label: "seconds"}
	backlogs := Chart{Title: "Backlog, " + pin + " pin", Note: load.Pins[pin].What, Y: Axis{Label: "jobs"}}
	dead := Chart{Title: "Dead tuples, " + pin + " pin", Note: load.Pins[pin].What, Y: Axis{Label: "rows"}}
	r.chartGauge(tracks, backlog, backlogs)
	r.chartGauge(tracks, "dead tuples", dead)
	claim := Chart{Title: "Time of a claim, median, " + pin + " pin", Note: load.Pins[pin].What, Kind: Lines, X: x, Y: Axis{Label: "ms", Log: true}}
	rates := Chart{Title: "Jobs finished, " + pin + " pin", Note: load.Pins[pin].What, Kind: Lines, X: x, Y: Axis{Label: "jobs per second"}}
	for _, t := range tracks {
		claim.Lines = append(claim.Lines, Line{t.way.Name, t.way.Kind, t.at, t.p50})
		rates.Lines = append(rates.Lines, Line{t.way.Name, t.way.Kind, t.at, rounded(t.rate)})
	}
	r.chart(claim)
	r.chart(rates)
	for _, t := range tracks {
		if lines := t.waits.lines(t.at); len(lines) > 0 {
			r.chart(Chart{Title: "What sessions wait for: " + t.way.Name, Kind: Stack, X: x, Y: Axis{Label: "sessions, stacked"}, Lines: lines}, t.way.Settings...)
		}
	}
	for i := range r.result.Charts[from:] {
		r.result.Charts[from+i].Marks = []Mark{at}
	}
}

func pinnedVerdict(r *Result, size PinnedSize) Verdict {
	figure := func(w *Way, name string) string {
		v, _ := w.Figure(name)
		return Number(v)
	}
	times := func(w *Way) float64 {
		late, _ := w.Figure(claimLate)
		before, _ := w.Figure(claimBefore)
		return ratio(late, before)
	}
	var worst *Way
	var fixes []string
	for _, w := range r.Ways {
		if w.Kind == Collapse && (worst == nil || times(w) > times(worst)) {
			worst = w
		}
		if w.Kind == Fix {
			fixes = append(fixes, fmt.Sprintf("%s: claims from %s to %s ms, a backlog of %s, %s dead rows.",
				w.Name, figure(w, claimBefore), figure(w, claimLate), figure(w, backlogAtEnd), figure(w, deadAtEnd)))
		}
	}
	what := fmt.Sprintf("%s: at the end half of its claims take %s ms or longer, %s before the long transaction: %s times more; it "+
		"then finishes %s jobs per second, with %s before and %s enqueued, and has a backlog of %s and %s dead rows",
		worst.Name, figure(worst, claimLate), figure(worst, claimBefore), Number(times(worst)), figure(worst, rateAtEnd),
		figure(worst, rateBefore), Number(float64(size.Rate)), figure(worst, backlogAtEnd), figure(worst, deadAtEnd))
	return verdict(times(worst), what, fixes)
}
