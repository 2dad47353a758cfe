package doctor

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// Waits is what sessions waited for over a period, in session-seconds.
type Waits struct {
	Seconds float64           `json:"seconds"` // the period that the samples cover
	Samples int               `json:"samples"`
	Classes map[Class]float64 `json:"classes"`
	Events  map[Event]float64 `json:"-"`
	Top     []EventTotal      `json:"events"` // the largest of Events
}

// rounded returns the waits with the times as they are reported.
func (w Waits) rounded() Waits {
	w.Seconds, w.Classes, w.Events, w.Top = round(w.Seconds), maps.Clone(w.Classes), maps.Clone(w.Events), slices.Clone(w.Top)
	for c, s := range w.Classes {
		w.Classes[c] = round(s)
	}
	for e, s := range w.Events {
		w.Events[e] = round(s)
	}
	for i := range w.Top {
		w.Top[i].Seconds = round(w.Top[i].Seconds)
	}
	return w
}

// Event is a wait as this version of PostgreSQL names it; both fields are empty for a session that is not waiting.
type Event struct{ Type, Name string }

func (e Event) String() string {
	if e.Type == "" {
		return "CPU"
	}
	return e.Type + ":" + e.Name
}

// EventTotal is an event and its session-seconds.
type EventTotal struct {
	Event   string  `json:"event"`
	Class   Class   `json:"class"`
	Seconds float64 `json:"seconds"`
}

// Rate returns the average number of sessions in a class: session-seconds per second.
func (w Waits) Rate(c Class) float64 {
	if w.Seconds <= 0 {
		return 0
	}
	return w.Classes[c] / w.Seconds
}

// Lost returns the average number of waiting sessions.
func (w Waits) Lost() float64 {
	lost := 0.0
	for _, class := range Classes() { // in a fixed order, so that sums are equal
		if class.lost() {
			lost += w.Rate(class)
		}
	}
	return lost
}

// Dominant returns the class in which the most time was lost, and how much per second; "" if none was.
func (w Waits) Dominant() (class Class, rate float64) {
	for _, c := range Classes() { // in a fixed order, so that ties are stable
		if r := w.Rate(c); c.lost() && r > rate {
			class, rate = c, r
		}
	}
	return class, rate
}

// window keeps recent samples.
type window struct {
	span time.Duration

	mu      sync.Mutex
	samples []Sample // oldest first
	entries int      // of all samples
	probes  []Probe
}

// Limits memory when samples are taken ten times a second and many sessions are busy.
const (
	maxSamples = 6000
	maxEntries = 200_000 // sessions and locks, in all samples together
)

// entries returns the size of a sample.
func (s Sample) entries() int { return len(s.Sessions) + len(s.Locks) }

// longestWeight limits the time that one sample stands for, so that a pause does not count as a wait.
const longestWeight = 2 * time.Second

func (w *window) add(s Sample) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.samples); n > 0 {
		s.Weight = min(s.At.Sub(w.samples[n-1].At), longestWeight)
	}
	w.samples = append(w.samples, s)
	w.entries += s.entries()
	old := 0
	for old < len(w.samples)-1 && (s.At.Sub(w.samples[old].At) > w.span || len(w.samples)-old > maxSamples || w.entries > maxEntries) {
		w.entries -= w.samples[old].entries()
		old++
	}
	w.samples = slices.Delete(w.samples, 0, old)
}

func (w *window) addProbe(p Probe) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.probes = append(w.probes, p)
	old := 0
	for old < len(w.probes)-1 && p.At.Sub(w.probes[old].At) > w.span {
		old++
	}
	w.probes = slices.Delete(w.probes, 0, old)
}

// reach ensures that samples are kept for at least a duration.
func (w *window) reach(span time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.span = max(w.span, span)
}

// between returns the samples in (from, to].
func (w *window) between(from, to time.Time) view {
	w.mu.Lock()
	defer w.mu.Unlock()
	var v view
	for _, s := range w.samples {
		if s.At.After(from) && !s.At.After(to) {
			v.samples = append(v.samples, s)
		}
	}
	for _, p := range w.probes {
		if p.At.After(from) && !p.At.After(to) {
			v.probes = append(v.probes, p)
		}
	}
	return v
}

// view is a period of the window, as the checks read it.
type view struct {
	samples []Sample
	probes  []Probe
}

// duration returns the time that the samples cover.
func (v view) duration() time.Duration {
	var d time.Duration
	for _, s := range v.samples {
		d += s.Weight
	}
	return d
}

// hidden returns how many sessions of other roles were hidden at most.
func (v view) hidden() (most int64) {
	for _, s := range v.samples {
		most = max(most, int64(s.Hidden))
	}
	return most
}

// waits adds up the samples' waits.
func (v view) waits() Waits {
	w := Waits{Seconds: v.duration().Seconds(), Samples: len(v.samples), Classes: map[Class]float64{}, Events: map[Event]float64{}, Top: []EventTotal{}}
	classes := map[Event]Class{}
	for _, s := range v.samples {
		for _, session := range s.Sessions {
			if session.Class == notWaiting {
				continue
			}
			event := Event{session.WaitType, session.Wait}
			w.Classes[session.Class] += s.Weight.Seconds()
			w.Events[event] += s.Weight.Seconds()
			classes[event] = session.Class
		}
	}
	for event, total := range w.Events {
		w.Top = append(w.Top, EventTotal{event.String(), classes[event], total})
	}
	slices.SortFunc(w.Top, func(a, b EventTotal) int {
		if a.Seconds != b.Seconds {
			if a.Seconds > b.Seconds {
				return -1
			}
			return 1
		}
		if a.Event < b.Event {
			return -1
		}
		return 1
	})
	const limit = 20
	w.Top = w.Top[:min(len(w.Top), limit)]
	return w
}

// seen counts the samples in which a session is in one of the classes.
func (v view) seen(classes ...Class) int {
	n := 0
	for _, s := range v.samples {
		if slices.ContainsFunc(s.Sessions, func(session Session) bool { return slices.Contains(classes, session.Class) }) {
			n++
		}
	}
	return n
}

// each calls f with each session of each sample, and the seconds that it stands for.
func (v view) each(f func(s Session, weight float64)) {
	for _, sample := range v.samples {
		for _, session := range sample.Sessions {
			f(session, sample.Weight.Seconds())
		}
	}
}

// withLocks returns the samples that include locks.
func (v view) withLocks() []Sample {
	var samples []Sample
	for _, s := range v.samples {
		if s.HasLocks {
			samples = append(samples, s)
		}
	}
	return samples
}
