package lab

import (
	"fmt"
	"strings"
	"time"

	"github.com/weir-pg/weir/cmd/internal/load"
)

const (
	claimBefore      = "claim before the pin, median"
	claimLate        = "claim at the end of the pin, median" // its last third
	rateBefore       = "jobs per second before the pin"
	rateLate         = "jobs per second at the end of the pin"
	backlogAtRelease = "backlog when the pin ends"
	deadAtPin        = "dead tuples when the pin begins"
	deadAtRelease    = "dead tuples when the pin ends"
	goneAfter        = "seconds until the backlog is gone" // missing: it was not
	backlogAtEnd     = "backlog at the end"
	waitBefore       = "longest wait of a job before the pin"
	behindBefore     = "longest wait for others of the batch before the pin"
	leftBehind       = "jobs that were not found"
	enqueuedRate     = "jobs enqueued per second"

	keptUp       = 0.9 // of the rate: a producer that enqueues less did not keep up
	guardedAfter = "seconds until the guard ended the pin"
)

func last(series []float64) float64 {
	if len(series) == 0 {
		return 0
	}
	return series[len(series)-1]
}

func (t *trial) figures(k *track) []Figure {
	_, before := t.calm.Cut()
	_, hard := t.hard.Cut()
	_, waits := t.waits.Cut()
	p := t.phases
	var all []Figure
	for _, f := range []struct {
		name    string
		claims  load.Histogram
		percent float64
	}{{claimBefore, before, 50}, {claimLate, hard, 50}, {"claim at the end of the pin, 99th percentile", hard, 99}} {
		if ms := f.claims.At(f.percent); ms != nil { // no claim is not a fast one
			all = append(all, Figure{f.name, round(*ms), "ms"})
		}
	}
	all = append(all, Figure{enqueuedRate, round(ratio(float64(t.enqueued.Load()), k.seconds)), "jobs/s"})
	if p.pin >= deadLag {
		all = append(all, Figure{deadAtPin, last(k.within(k.gauges[deadRows], 0, p.pin)), "rows"})
	}
	if p.deadKnown() {
		all = append(all, Figure{deadAtRelease, last(k.within(k.gauges[deadRows], 0, p.release)), "rows"})
	}
	all = append(all, Figure{backlogAtRelease, last(k.within(k.gauges[backlog], 0, p.release)), "jobs"})
	for _, f := range []struct {
		name     string
		from, to time.Duration
	}{{rateBefore, 0, p.pin}, {rateLate, p.late(), p.release}} {
		if rate, ok := k.during(k.rate, f.from, f.to); ok {
			all = append(all, Figure{f.name, rate, "jobs/s"})
		}
	}
	if after, ok := k.goneAfter(p, float64(t.Rate)/4); ok {
		all = append(all, Figure{goneAfter, round(after), "s"})
	}
	all = append(all, Figure{backlogAtEnd, float64(t.enqueued.Load() - t.done.Load()), "jobs"}, Figure{waitBefore, milliseconds(waits, 100), "ms"})
	if behind := time.Duration(t.behind.Load()); behind > 0 {
		all = append(all, Figure{behindBefore, round(behind.Seconds() * 1000), "ms"})
	}
	if p.countable() && t.enqueued.Load()-t.done.Load() < int64(t.Rate) { // otherwise they are those that the queue is behind with
		all = append(all, Figure{leftBehind, float64(t.left), "jobs"})
	}
	if at := time.Duration(t.guarded.Load()); at > 0 {
		all = append(all, Figure{guardedAfter, round((at - p.pin).Seconds()), "s"})
	}
	return all
}

// goneAfter returns how long after the pin's end the backlog was smaller than a quarter of what is enqueued in a second.
func (k *track) goneAfter(p phases, small float64) (float64, bool) {
	backlogs := k.gauges[backlog]
	if last(k.within(backlogs, 0, p.release)) <= small {
		return 0, true
	}
	for i, at := range k.at {
		if at > p.release.Seconds() && backlogs[i] <= small {
			return at - p.release.Seconds(), true
		}
	}
	return 0, false
}

// chartPinned charts the first pin, and all others together.
func chartPinned(r *run, p phases, byPin map[string][]*track) {
	var first, others []*track
	var pins, more []string
	for _, pin := range pinKinds() {
		switch tracks := byPin[pin.name]; {
		case len(tracks) == 0:
		case first == nil:
			first, pins = tracks, append(pins, pin.what)
		default:
			others, more = append(others, tracks...), append(more, pin.name+": "+pin.what)
		}
	}
	from := len(r.result.Charts)
	chartPins(r, p, "", strings.Join(pins, "")+".", first)
	chartPins(r, p, ", other pins", strings.Join(more, "; ")+".", others)
	marks := []Mark{
		{0, p.pin.Seconds(), "before"}, {p.pin.Seconds(), p.release.Seconds(), "pinned"}, {p.release.Seconds(), p.total.Seconds(), "released"},
	}
	for i := range r.result.Charts[from:] {
		r.result.Charts[from+i].Marks = marks
	}
}

func chartPins(r *run, p phases, suffix, note string, tracks []*track) {
	if len(tracks) == 0 {
		return
	}
	x := Axis{Label: "seconds"}
	r.chartGauge(tracks, backlog, Chart{Title: "Backlog" + suffix, Note: note, Y: Axis{Label: "jobs"}})
	r.chartGauge(tracks, oldest, Chart{Title: "Age of the oldest transaction" + suffix, Y: Axis{Label: "seconds"}})
	if p.deadKnown() {
		r.chartGauge(tracks, deadRows, Chart{Title: "Dead tuples" + suffix, Y: Axis{Label: "rows"}})
	}
	claim := Chart{Title: "Time of a claim, median" + suffix, Kind: Lines, X: x, Y: Axis{Label: "ms", Log: true}}
	rates := Chart{Title: "Jobs finished" + suffix, Kind: Lines, X: x, Y: Axis{Label: "jobs per second"}}
	for _, t := range tracks {
		claim.Lines = append(claim.Lines, Line{t.way.Name, t.way.Kind, t.at, t.p50})
		rates.Lines = append(rates.Lines, Line{t.way.Name, t.way.Kind, t.at, rounded(t.rate)})
	}
	r.chart(claim)
	r.chart(rates)
	for _, t := range tracks {
		r.chartWaits(t, Chart{Title: t.way.Name})
	}
}

func pinnedVerdict(r *Result, size PinnedSize) Verdict {
	value := func(w *Way, name string) float64 {
		v, _ := w.Figure(name)
		return v
	}
	figure := func(w *Way, name string) string { return Number(value(w, name)) }
	times := func(w *Way) float64 { return ratio(value(w, claimLate), value(w, claimBefore)) }
	claims := func(w *Way) string {
		_, before := w.Figure(claimBefore)
		_, late := w.Figure(claimLate)
		switch {
		case before && late:
			return fmt.Sprintf("claims from %s to %s ms", figure(w, claimBefore), figure(w, claimLate))
		case before:
			return "no claim found a job at the end of the pin"
		}
		return "no claim found a job before the pin"
	}
	dead := func(w *Way, next string) string {
		n, known := w.Figure(deadAtRelease)
		if !known { // in so short a run
			return ""
		}
		return count(n, "dead row") + next
	}
	evaporation := func(w *Way) string {
		after, gone := w.Figure(goneAfter)
		switch {
		case !gone:
			return fmt.Sprintf(", and of %s still at the end of the run", figure(w, backlogAtEnd))
		case after > 0:
			return fmt.Sprintf(", which was gone %s s after the pin had ended", Number(after))
		}
		return ""
	}
	var worst *Way
	var sentences []string
	for _, w := range r.Ways {
		if w.Kind == Collapse && (worst == nil || times(w) > times(worst)) {
			worst = w
		}
	}
	for _, w := range r.Ways {
		if w == worst {
			continue
		}
		s := fmt.Sprintf("%s: %s, %sa backlog of %s", capital(w.Name), claims(w), dead(w, ", "), figure(w, backlogAtRelease)) + evaporation(w)
		if after, ok := w.Figure(guardedAfter); ok {
			s += fmt.Sprintf("; the guard ended the pin after %s s", Number(after))
		} else if strings.HasPrefix(w.Name, guardName) {
			s += "; the guard did not end the pin"
		}
		if rate, ok := w.Figure(enqueuedRate); ok && rate < keptUp*float64(size.Rate) {
			s += fmt.Sprintf("; only %s jobs per second could be enqueued, and no more could be claimed", Number(rate))
		}
		if n := value(w, leftBehind); n > 0 {
			s += fmt.Sprintf("; %s that committed late were never found", count(n, "job"))
		}
		if ms := value(w, behindBefore); ms >= float64(slowJob.Milliseconds())/2 {
			s += fmt.Sprintf("; even before the pin a job waited for %s ms behind others of its batch", Number(ms))
		}
		sentences = append(sentences, s+".")
	}
	if times(worst) == 0 {
		return verdict(0, "so few claims found a job that those before the pin and at its end can't be compared", sentences)
	}
	rates := ""
	if _, ok := worst.Figure(rateBefore); ok {
		rates = fmt.Sprintf("then finishes %s jobs per second, with %s before and %s enqueued, and ", figure(worst, rateLate), figure(worst, rateBefore), figure(worst, enqueuedRate))
	}
	what := fmt.Sprintf("%s: when the pin ends, half of its claims take %s ms or longer, %s before the long transaction: %s times more; it %shas %sa backlog of %s",
		worst.Name, figure(worst, claimLate), figure(worst, claimBefore), Number(times(worst)), rates, dead(worst, " and "), figure(worst, backlogAtRelease)) + evaporation(worst)
	v := verdict(times(worst), what, sentences)
	if dead(worst, "") == "" {
		v.Text += " The run was too short to tell what the pin does."
	}
	return v
}

// count writes a number of things.
func count(n float64, what string) string {
	if number := Number(n); number != "1" {
		return number + " " + what + "s"
	}
	return "1 " + what
}
