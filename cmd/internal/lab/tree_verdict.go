package lab

import (
	"fmt"
	"strings"
)

func treeVerdict(r *Result) Verdict {
	first, last := r.Way(treeSteps[0].name), r.Way(treeSteps[len(treeSteps)-1].name)
	times := ratio(last.Rate, first.Rate)
	what := fmt.Sprintf("as it was, the fleet processes %s items per second, and %s with all fixes: %s times more", Number(first.Rate), Number(last.Rate), Number(times))
	if times == 0 {
		what = tooShort
	}
	if most, ok := connectionsInUse(first); ok {
		if fixed, ok := connectionsInUse(last); ok {
			what += fmt.Sprintf("; at the same rate of items it has %s connections in use on average before the fixes, and %s with them", Number(most), Number(fixed))
		}
	}
	what += ". " + capital(multiXactWords(r))
	var sentences []string
	for _, w := range r.Ways {
		s := fmt.Sprintf("%s: %s %s per second", capital(w.Name), Number(w.Rate), w.Unit)
		switch {
		case w.Name == treeFlowsName:
			rows, _ := w.Figure(rowsPerSec)
			named, _ := w.Figure(namedPerNode)
			was, _ := first.Figure(rowsPerSec)
			s += fmt.Sprintf(", each of which writes a row and names %s children: %s rows per second, %s times the %s that the fleet writes as it was", Number(named), Number(rows), Number(ratio(rows, was)), Number(was))
		case w.Name == halfWay:
			more := "twice"
			if n, ok := w.Figure(moreCores); ok && n != 2 { // an odd number has no half
				more = Number(n) + " times"
			}
			s += fmt.Sprintf(": %s the cores bring %s times the items, and all fixes %s times", more, Number(ratio(first.Rate, w.Rate)), Number(times))
		case w.Kind == Symptom:
			s += fmt.Sprintf(", %s times the rate without it; all fixes bring %s times", Number(ratio(w.Rate, first.Rate)), Number(times))
		}
		s += ". Dominant wait: " + dominantWords(w) + "."
		if calls, ok := w.Figure(perRow); ok && (w.Name == seldomBefore || w.Name == seldomAfter) {
			s += fmt.Sprintf(" %s for each row that is written.", count(calls, "statement"))
		}
		if dead, ok := w.Figure(deadPerItem); ok && w.Kind == Fix && dead > 0 {
			s += fmt.Sprintf(" It leaves %s behind for each item, which vacuum must be able to remove.", count(dead, "dead row"))
		}
		sentences = append(sentences, s)
	}
	return verdict(times, what, sentences)
}

// connectionsInUse returns how many connections a way had in use while items arrived at a fixed rate.
func connectionsInUse(w *Way) (float64, bool) {
	for _, f := range w.Figures {
		if strings.HasPrefix(f.Name, "connections in use") && strings.HasSuffix(f.Name, ", mean") {
			return f.Value, true
		}
	}
	return 0, false
}

// multiXactWords says whether MultiXacts are what the fleet waits for, as in the story.
func multiXactWords(r *Result) string {
	var best *Way
	for _, w := range r.Ways {
		if w.Kind == Collapse && (best == nil || classShare(w, "multixact") > classShare(best, "multixact")) {
			best = w
		}
	}
	n, _ := best.Figure("MultiXacts per item")
	if len(best.Waits) == 0 {
		return fmt.Sprintf("the foreign keys make %s MultiXacts for each item; the time was too short to see whether the fleet waits for them", Number(n))
	}
	text := fmt.Sprintf("the foreign keys make %s MultiXacts for each item, and the wait for these is %.0f%% of the time (%s)", Number(n), 100*classShare(best, "multixact"), best.Name)
	if best.Dominant.Class == "multixact" {
		return text + ": the dominant wait, as in the story"
	}
	return text + ": not the dominant wait. This machine has not reached what the story's fleet showed, which had some 565 sessions"
}

// classShare returns the share of a class of waits.
func classShare(w *Way, class string) (share float64) {
	for _, wait := range w.Waits {
		if wait.Class == class {
			share += wait.Share
		}
	}
	return share
}
