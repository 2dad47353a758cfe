package lab

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Figures of storms only.
const (
	acceptedAfter = "TCP accept, median"
	lastAnswered  = "last client answered after"
	workerWaits   = "queries wait for their workers"
	tableSize     = "page tables of the postmaster"
)

// sumStorm adds the figures of storms to the way.
func (w *stormWay) sumStorm() *Way {
	w.sum()
	if w.waits.seen() < fewSamples { // clients that wait for the postmaster are no sessions: a few of others say nothing
		w.way.Waits, w.way.Dominant = nil, Dominant{}
	}
	var accepted []time.Duration
	var last, heard time.Duration
	refused := 0
	for _, k := range w.knocks {
		if k.refused {
			refused++
			continue
		}
		accepted = append(accepted, k.accepted)
		last = max(last, k.since)
		heard = max(heard, k.heard)
	}
	slices.Sort(accepted)
	middle := func(d []time.Duration) float64 {
		if len(d) == 0 {
			return 0
		}
		return round(float64(d[len(d)/2].Microseconds()) / 1000)
	}
	w.way.Figures = append(w.way.Figures, w.work.figures()...)
	if kB, ok := pageTables(w.postmaster); ok {
		w.way.Figures = append(w.way.Figures, Figure{tableSize, kB, "kB"})
	}
	if middle(accepted) > 0 { // else there was nothing to accept
		w.way.Figures = append(w.way.Figures, Figure{acceptedAfter, middle(accepted), "ms"})
	}
	if w.querying > 0 {
		w.way.Figures = append(w.way.Figures, Figure{"queries meanwhile", round(float64(w.queried) / w.querying.Seconds()), "per second"})
	}
	if w.started > 0 {
		w.way.Figures = append(w.way.Figures, Figure{"parallel workers started", round(float64(w.started) / w.querying.Seconds()), "per second"},
			Figure{workerWaits, round(100 * w.waits.share("IPC:BgWorkerStartup", "IPC:BgWorkerShutdown", "IPC:BgworkerStartup", "IPC:BgworkerShutdown")), "% of the time"})
	}
	w.way.Figures = append(w.way.Figures,
		Figure{lastAnswered, round(last.Seconds()), "s"},
		Figure{"signal received by the last client after", round(float64(heard.Microseconds()) / 1000), "ms"},
		Figure{"refused", float64(refused), "connections"},
	)
	return w.way
}

func chartStorm(r *run, ways []*stormWay) {
	if len(ways) == 0 {
		return
	}
	served := Chart{Title: "Clients answered since the signal", Kind: Lines, X: Axis{Label: "seconds since the signal"}, Y: Axis{Label: "clients, in each round"}}
	waited := Chart{Title: "From startup message to request for authentication", Kind: Lines,
		X: Axis{Label: "percent of the clients"}, Y: Axis{Label: "ms or less", Log: true}}
	var tracks []*track
	for _, w := range ways {
		tracks = append(tracks, w.track)
		var since, took []float64
		for _, k := range w.knocks {
			if !k.refused {
				since, took = append(since, k.since.Seconds()), append(took, float64(k.answered.Microseconds())/1000)
			}
		}
		slices.Sort(since)
		slices.Sort(took)
		if w == ways[0] {
			accepts := Line{Name: "TCP accept, at once", Kind: Baseline}
			var accepted []float64
			for _, k := range w.knocks {
				accepted = append(accepted, float64(k.accepted.Microseconds())/1000)
			}
			slices.Sort(accepted)
			for i := 1; i <= 100 && len(accepted) > 0; i++ {
				accepts.X, accepts.Y = append(accepts.X, float64(i)), append(accepts.Y, round(accepted[max(i*len(accepted)/100, 1)-1]))
			}
			waited.Lines = append(waited.Lines, accepts)
		}
		a, b := Line{Name: w.way.Name, Kind: w.way.Kind}, Line{Name: w.way.Name, Kind: w.way.Kind}
		const points = 100
		for i := 1; i <= points && len(since) > 0; i++ {
			at := max(i*len(since)/points, 1)
			a.X, a.Y = append(a.X, round(since[at-1])), append(a.Y, round(float64(at)/float64(r.Storm.Rounds)))
			b.X, b.Y = append(b.X, float64(i)), append(b.Y, round(took[at-1]))
		}
		served.Lines, waited.Lines = append(served.Lines, a), append(waited.Lines, b)
	}
	r.chart(served)
	r.chart(waited)
	r.chartGauge(tracks, postmasterCPU, Chart{Title: "CPU of the postmaster over time", Note: "of the first server; 100 is one core; all rounds, one after the " +
		"other", Y: Axis{Label: "percent of a core"}})
	r.chartWaits(tracks[0], Chart{Title: "What pg_stat_activity shows: " + tracks[0].way.Name, Note: "almost nothing: a client that waits for the " +
		"postmaster has no session yet"})
}

func stormVerdict(r *Result, size StormSize, swept []sweep) Verdict {
	lone, once := r.Way("one after the other"), r.Way("at once")
	if lone.Latency == nil || once.Latency == nil {
		return Verdict{Text: "Not shown: no client got an answer."}
	}
	accept, _ := once.Figure(acceptedAfter)
	last, _ := once.Figure(lastAnswered)
	times := ratio(once.Latency.P50, lone.Latency.P50)
	what := fmt.Sprintf("of %d clients that connect at once, half wait %s ms or longer for the first answer to their startup message, and the "+
		"last gets its answer after %s s, although TCP accepts half of them within %s ms. A single client waits %s ms, %s times less. %s connections per second were served",
		size.Clients, Number(once.Latency.P50), Number(last), Number(accept), Number(lone.Latency.P50), Number(times),
		Number(ratio(float64(size.Clients), last)))
	if because := judgePostmaster(once); because != "" {
		what += "; meanwhile " + because
	}
	var fixes []string
	if text := sweepText(swept); text != "" {
		fixes = append(fixes, text)
	}
	with, without := r.Way("at once, beside parallel queries"), r.Way("at once, beside the same queries without workers")
	if with != nil && without != nil && with.Latency != nil && without.Latency != nil {
		text := fmt.Sprintf("Next to parallel queries half wait %s ms or longer; next to the same queries without workers, %s ms", Number(with.Latency.P50), Number(without.Latency.P50))
		if waits, ok := with.Figure(workerWaits); ok {
			text += fmt.Sprintf(". The queries' own sessions spend %.0f%% of their time waiting for workers to start or end (IPC:BgWorkerStartup, IPC:BgWorkerShutdown)", waits)
		}
		fixes = append(fixes, text+".")
	}
	for _, w := range r.Ways {
		if w.Kind == Fix && w.Latency != nil {
			last, ok := w.Figure(lastAnswered)
			if !ok { // at a budget
				continue
			}
			fixes = append(fixes, fmt.Sprintf("%s: half wait %s ms or longer, and the last gets its answer after %s s.",
				capital(w.Name), Number(w.Latency.P50), Number(last)))
		}
	}
	home, ok1 := once.Figure(tableSize)
	if huge := r.Way("at once, huge pages"); huge != nil && ok1 {
		if kB, ok := huge.Figure(tableSize); ok {
			fixes = append(fixes, fmt.Sprintf("Huge pages make the postmaster's page tables %s kB instead of %s.", Number(kB), Number(home)))
		}
	}
	return verdict(times, what, append(fixes, budgetText(r)...))
}

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }
