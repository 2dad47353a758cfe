package lab

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

func TestAListenerInATransactionFillsTheQueueUntilCommitsFail(t *testing.T) {
	pgtest.Alone(t, "the rate at which sessions notify must last as it was measured")
	s, err := openSite(t.Context(), "", 0, false, needs{connections: 30}, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	r := &run{Config: Config{Duration: 4 * time.Second, Progress: func(Progress) {}}, site: s, result: &Result{}}
	if err := runTail(t.Context(), r, []post{{name: "PostgreSQL", kind: Collapse, send: `SELECT pg_notify($1, $2)`}}); err != nil {
		t.Fatal(err)
	}
	w := r.result.Way("PostgreSQL" + tailName)
	if s.number < 170000 {
		if len(r.result.Notes) == 0 {
			t.Error("no note says that the queue can't be filled")
		}
		return
	}
	refused, _ := w.Figure(refusedInAll)
	most, _ := w.Figure(mostUsed)
	if late, _ := w.Figure(lateReceived); late < float64(w.Done)/2 || late > float64(w.Done)+refused {
		t.Errorf("of %d messages the listener in the transaction received %g", w.Done, late)
	}
	if refused == 0 || most < 90 || w.Done == 0 {
		t.Errorf("%g%% of the queue was used, %g commits failed, %d succeeded", most, refused, w.Done)
	}
	text := strings.Join(tailText(r.result), " ")
	if !strings.Contains(text, "commits that notify fail") {
		t.Errorf("the verdict says: %s", text)
	}
}

// TestTheVerdictOfListenersComparesWhatArrives: from which number on the hub is faster, what one listener gets, and what becomes of one that is in a transaction.
func TestTheVerdictOfListenersComparesWhatArrives(t *testing.T) {
	t.Parallel()
	size := ListenersSize{Idle: []int{0, 10, 100, 1000}, Groups: []int{2}, Notifiers: []int{1, 128}, Clients: []int{1}}
	for want, hub := range map[string][]float64{
		"The hub is faster from 1000 idle listeners on": {100, 950, 300, 400}, // at 100 it is not
		"The hub is faster from 10 idle listeners on":   {100, 950, 650, 400},
		"PostgreSQL is faster next to 1000":             {100, 950, 650, 10},
	} {
		r := &Result{}
		for i, pg := range []float64{4000, 900, 600, 25} {
			r.Ways = append(r.Ways, &Way{Name: pingPongName("PostgreSQL", size.Idle[i]), Rate: pg}, &Way{Name: pingPongName("hub", size.Idle[i]), Rate: hub[i]})
		}
		for n, received := range map[int]float64{1: 90, 128: 70} {
			r.Ways = append(r.Ways, &Way{Name: notifiersName("hub", n), Rate: 5000, Figures: []Figure{{oneReceived, received, "per second"}}})
		}
		tail := func(post string, done int64, figures ...Figure) {
			r.Ways = append(r.Ways, &Way{Name: post + tailName, Done: done, Figures: figures})
		}
		tail("PostgreSQL", 500, Figure{lateReceived, 500, "messages"})
		tail("hub", 900, Figure{lateReceived, 200, "messages"}, Figure{lateClosed, 1, "connection"})
		all := strings.Join(listenersVerdict(r, size).Fixes, "\n")
		for _, want := range []string{
			want, "1 and 128 sessions that notify one listener get 90 and 70 notifications per second to it", "the one in the transaction received 500 of 500 messages.",
			"the one in the transaction received 200 of 900 messages, and its connection was closed.",
		} {
			if !strings.Contains(all, want) {
				t.Errorf("the verdict does not say %q: %s", want, all)
			}
		}
	}
}

// TestALargeQueueIsEmptyWhenHardlyAPageIsUsed: one percent of 8 GB is not.
func TestALargeQueueIsEmptyWhenHardlyAPageIsUsed(t *testing.T) {
	t.Parallel()
	for pages, empty := range map[int]bool{tailQueuePages: true, defaultPages: false} {
		w := newTailWatch(pages)
		w.ended.Store(1)
		w.see(time.Second, 0.5)
		if (w.empty >= 0) != empty {
			t.Errorf("half a percent of %d pages: empty after %s", pages, w.empty)
		}
		w.see(2*time.Second, 100/float64(pages))
		if w.empty < 0 {
			t.Errorf("one of %d pages is used, and the queue is not empty", pages)
		}
	}
}

func TestSweepsOfSmallMachinesSayWhatTheyLeaveOut(t *testing.T) {
	t.Parallel()
	var small, large, given ListenersSize
	given.Clients, given.Notifiers = []int{5, 2}, []int{3}
	small.fill(2)
	large.fill(smallMachine)
	given.fill(2)
	if len(small.Clients) >= len(large.Clients) || len(small.Notifiers) >= len(large.Notifiers) || slices.Max(small.Clients) != slices.Max(large.Clients) {
		t.Errorf("%v and %v on a small machine, %v and %v on a large one", small.Clients, small.Notifiers, large.Clients, large.Notifiers)
	}
	if left := strings.Join(small.short, "; "); !strings.Contains(left, "notifiers 2, 4, 16, 64") || !strings.Contains(left, "100") {
		t.Errorf("left out: %s", left)
	}
	if len(large.short) > 0 || len(given.short) > 0 || !slices.Equal(given.Clients, []int{2, 5}) || !slices.Equal(given.Notifiers, []int{3}) {
		t.Errorf("large machine: %v; given: %v, %v, %v", large.short, given.short, given.Clients, given.Notifiers)
	}
}

func TestTooFewSamplesMakeNoChart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		intervals, each int
		chart           bool
	}{{10, 1, false}, {10, 2, true}, {10, 0, false}, {30, 1, true}} {
		w := &waitTrack{}
		var at []float64
		for i := range c.intervals {
			if c.each > 0 {
				w.samples, w.found = c.each, busy{{"Lock:object", "object-lock"}: c.each}
			}
			w.cut()
			at = append(at, float64(i))
		}
		if got := len(w.lines(at)) > 0; got != c.chart {
			t.Errorf("%d intervals with %d samples each: a chart: %v", c.intervals, c.each, got)
		}
	}
	w := &waitTrack{}
	w.samples, w.found = 100, busy{{"Lock:object", "object-lock"}: 100}
	w.cut()
	w.cut()
	if len(w.lines([]float64{1, 2})) > 0 {
		t.Error("a chart is drawn though half of its intervals have no sample")
	}
}
