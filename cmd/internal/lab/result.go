package lab

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/weir-pg/weir/cmd/internal/load"
)

// Version of Report's JSON. It increases when a field is removed or changes its meaning.
const Version = 1

// Report is a run of the lab, of one scenario or all.
type Report struct {
	Version   int       `json:"version"`
	StartedAt time.Time `json:"started_at"`
	Seconds   float64   `json:"seconds"`
	Command   string    `json:"command"`
	Machine   Machine   `json:"machine"`
	Results   []*Result `json:"results"`
}

// Machine describes what affects the figures of the machine.
type Machine struct {
	Cores     int    `json:"cores"`
	OS        string `json:"os"`
	Arch      string `json:"arch"`
	Memory    int64  `json:"memory_bytes,omitempty"`
	Load      string `json:"load_average,omitempty"` // at the start; other load makes figures worse
	HugePages string `json:"huge_pages"`
}

// Result is the result of one scenario.
type Result struct {
	Scenario  string    `json:"scenario"`
	Title     string    `json:"title"`
	About     string    `json:"about"`
	StartedAt time.Time `json:"started_at"`
	Seconds   float64   `json:"seconds"`
	Command   string    `json:"command"` // repeats this scenario
	// Failed is why the scenario ended before everything was measured, and in which variant; "": it did not. The other fields say what was measured before, or nothing.
	Failed string `json:"failed,omitempty"`
	Server Server `json:"server"`
	// Conditions are missing from reports of earlier versions.
	Conditions *Conditions `json:"conditions,omitempty"`
	Settings   []Setting   `json:"settings"` // sizes of the load
	Ways       []*Way      `json:"ways"`
	Verdict    Verdict     `json:"verdict"`
	Notes      []string    `json:"notes,omitempty"` // what was left out and why, and caveats
	Quotes     []Quote     `json:"quotes,omitempty"`
	Charts     []Chart     `json:"charts"`
}

// Quote is what the server itself said, word for word.
type Quote struct {
	Of   string `json:"of"`
	Text string `json:"text"`
}

// Server describes what affects the figures of the server.
type Server struct {
	Version  string    `json:"version"`
	Private  bool      `json:"private"`
	Settings []Setting `json:"settings"`
}

// Setting is a named value.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Kind is the role of a way.
type Kind string

const (
	Baseline Kind = "baseline" // the collapse is compared with it
	Collapse Kind = "collapse"
	Fix      Kind = "fix"
	Symptom  Kind = "symptom" // often tried, though it treats only a symptom
)

// Way is one way to do the work, with its figures. Only fields that apply are set.
type Way struct {
	Name     string    `json:"name"`
	Kind     Kind      `json:"kind"`
	What     string    `json:"what"`
	Unit     string    `json:"unit"` // of Done
	Seconds  float64   `json:"seconds"`
	Done     int64     `json:"done"`
	Rate     float64   `json:"per_second"`
	Spread   *Spread   `json:"spread,omitempty"` // of the rate
	Latency  *Latency  `json:"latency,omitempty"`
	Waits    []Wait    `json:"waits,omitempty"`   // most time first
	Dominant Dominant  `json:"dominant,omitzero"` // the class of waits that a fix must remove
	Figures  []Figure  `json:"figures,omitempty"`
	Settings []Setting `json:"settings,omitempty"` // in which it differs from the others
}

// Spread is the spread of a rate over the samples of a way.
type Spread = load.Spread

// Latency in milliseconds.
type Latency struct {
	Of  string  `json:"of"`
	P50 float64 `json:"p50_ms"`
	P90 float64 `json:"p90_ms"`
	P99 float64 `json:"p99_ms"`
	Max float64 `json:"max_ms"`
}

// Wait is the share of the sessions' busy time spent in one wait event. Event is "CPU" if a session was not waiting.
type Wait struct {
	Event string  `json:"event"`
	Class string  `json:"class"`
	Share float64 `json:"share"`
}

// Dominant is the class of waits with the largest share of the sessions' busy time, as read by the doctor's sampler. A session that is idle in
// a transaction counts towards the total, but is never dominant.
type Dominant struct {
	Class string  `json:"class"`
	Share float64 `json:"share"`
}

// Figure is any other number.
type Figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit,omitempty"`
}

// Figure returns the value of a figure by its name.
func (w *Way) Figure(name string) (float64, bool) {
	for _, f := range w.Figures {
		if f.Name == name {
			return f.Value, true
		}
	}
	return 0, false
}

// Way returns a way by its name, or nil.
func (r *Result) Way(name string) *Way {
	for _, w := range r.Ways {
		if w.Name == name {
			return w
		}
	}
	return nil
}

// fail records why the scenario failed.
func (r *Result) fail(ctx context.Context, err error) {
	r.Failed = strings.TrimPrefix(strings.TrimPrefix(err.Error(), "lab: "), r.Scenario+": ")
	r.Failed = strings.ReplaceAll(strings.ReplaceAll(r.Failed, "\nlab: ", "; "), "\n", "; ")
	if ctx.Err() != nil {
		r.Failed = "it was interrupted"
	}
	if r.Verdict.Text == "" { // otherwise only what came after the measurements failed
		r.Verdict.Text = "No verdict: not everything that it compares was measured."
	}
}

// Verdict says whether the collapse was seen, computed from the figures.
type Verdict struct {
	Shown bool     `json:"shown"`
	Times float64  `json:"times"`           // how many times worse than the baseline the collapse is
	Text  string   `json:"text"`            // about the collapse
	Fixes []string `json:"fixes,omitempty"` // one sentence about each
}

// shownFrom is how many times worse a collapse must be to count as shown: less could be noise.
const shownFrom = 1.5

// tooShort is what a verdict says that has nothing to compare: nothing done in a time is not infinitely slow.
const tooShort = "in so short a time nothing was done that could be compared"

// verdict describes a comparison: what is a clause about the collapse, fixes are sentences about the fixes.
func verdict(times float64, what string, fixes []string) Verdict {
	times = round(times) // what readers see decides
	v := Verdict{Times: times, Shown: times >= shownFrom, Fixes: fixes}
	if v.Shown {
		v.Text = "Shown: " + what + "."
	} else {
		v.Text = fmt.Sprintf("Not shown on this machine: %s. A collapse counts as shown if it is at least %g times worse.", what, shownFrom)
	}
	return v
}

// ChartKind is how a chart is drawn.
type ChartKind string

const (
	Lines ChartKind = "lines"
	Stack ChartKind = "stack" // all lines have the same X
)

// Chart is a chart with its data, and the command and settings that produced it.
type Chart struct {
	Title    string    `json:"title"`
	Note     string    `json:"note,omitempty"`
	Kind     ChartKind `json:"kind"`
	X        Axis      `json:"x"`
	Y        Axis      `json:"y"`
	Lines    []Line    `json:"lines"`
	Marks    []Mark    `json:"marks,omitempty"`
	Command  string    `json:"command"`
	Settings []Setting `json:"settings"`
}

// Axis of a chart.
type Axis struct {
	Label string `json:"label"`
	Log   bool   `json:"log,omitempty"`
	Steps bool   `json:"steps,omitempty"` // few values, drawn at equal distances
}

// Line of a chart.
type Line struct {
	Name string    `json:"name"`
	Kind Kind      `json:"kind,omitempty"` // of the way that it shows
	X    []float64 `json:"x"`
	Y    []float64 `json:"y"`
}

// Mark is a moment on the X axis, or a phase if it has an end.
type Mark struct {
	At    float64 `json:"at"`
	Until float64 `json:"until,omitempty"`
	Label string  `json:"label"`
}

// round keeps four significant digits: more would be noise.
func round(v float64) float64 {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	scale := math.Pow(10, 3-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*scale) / scale
}

// Number formats a figure: 12,345 or 0.123.
func Number(v float64) string {
	if math.Abs(v) < 100 {
		return strconv.FormatFloat(round(v), 'g', 3, 64)
	}
	digits := strconv.FormatInt(int64(math.Round(v)), 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// ratio returns a/b, or 0 if b is 0.
func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}
