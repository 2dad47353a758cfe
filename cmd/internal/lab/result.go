package lab

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/weir-pg/weir/cmd/internal/load"
)

// Version of the JSON that Report is written as: it grows when a field changes its meaning or goes.
const Version = 1

// Report is one run of the lab: one scenario, or all.
type Report struct {
	Version   int       `json:"version"`
	StartedAt time.Time `json:"started_at"`
	Seconds   float64   `json:"seconds"`
	Command   string    `json:"command"`
	Machine   Machine   `json:"machine"`
	Results   []*Result `json:"results"`
}

// Machine is what of the machine bears on the figures.
type Machine struct {
	Cores     int    `json:"cores"`
	OS        string `json:"os"`
	Arch      string `json:"arch"`
	Memory    int64  `json:"memory_bytes,omitempty"`
	Load      string `json:"load_average,omitempty"` // at the start; others at work make figures worse
	HugePages string `json:"huge_pages"`
}

// Result is what one scenario showed.
type Result struct {
	Scenario  string    `json:"scenario"`
	Title     string    `json:"title"`
	About     string    `json:"about"`
	StartedAt time.Time `json:"started_at"`
	Seconds   float64   `json:"seconds"`
	Command   string    `json:"command"` // that repeats this scenario
	Server    Server    `json:"server"`
	Settings  []Setting `json:"settings"` // sizes of the load
	Ways      []*Way    `json:"ways"`
	Verdict   Verdict   `json:"verdict"`
	Notes     []string  `json:"notes,omitempty"` // what was left out and why, and what to bear in mind
	Charts    []Chart   `json:"charts"`
}

// Server is what of the server bears on the figures.
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

// Kind tells what a way is for.
type Kind string

const (
	Baseline Kind = "baseline" // what the collapse is compared with
	Collapse Kind = "collapse"
	Cure     Kind = "cure"
)

// Way is one way to do the work, and the figures of it. Only what applies is set.
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
	Dominant Dominant  `json:"dominant,omitzero"` // the kind of wait that a cure must take away
	Figures  []Figure  `json:"figures,omitempty"`
	Settings []Setting `json:"settings,omitempty"` // in which it differs from the others
}

// Spread of a rate over the samples of a way.
type Spread = load.Spread

// Latency in milliseconds.
type Latency struct {
	Of  string  `json:"of"`
	P50 float64 `json:"p50_ms"`
	P90 float64 `json:"p90_ms"`
	P99 float64 `json:"p99_ms"`
	Max float64 `json:"max_ms"`
}

// Wait is how much of the sessions' busy time one wait event took. Event is "CPU" where a session waited for nothing.
type Wait struct {
	Event string  `json:"event"`
	Class string  `json:"class"`
	Share float64 `json:"share"`
}

// Dominant is the class of waits that took most of the time in which the server kept sessions at work or waiting, as read
// by the doctor's sampler. A session that waits for its client within a transaction counts in the whole, but is never dominant.
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

// Verdict says in plain words whether the collapse was seen, computed from the figures.
type Verdict struct {
	Shown bool     `json:"shown"`
	Times float64  `json:"times"`           // how many times worse the collapse is than what it is compared with
	Text  string   `json:"text"`            // about the collapse
	Cures []string `json:"cures,omitempty"` // a sentence about each
}

// shownFrom is how many times worse a collapse must be to count as shown: less could be the noise of a busy machine.
const shownFrom = 1.5

// verdict words a comparison: what is a clause about the collapse, cures are sentences about the cures.
func verdict(times float64, what string, cures []string) Verdict {
	v := Verdict{Times: round(times), Shown: times >= shownFrom, Cures: cures}
	if v.Shown {
		v.Text = "Shown: " + what + "."
	} else {
		v.Text = fmt.Sprintf("Shows nothing on this machine: %s. The lab counts a collapse as shown from %g times on.", what, shownFrom)
	}
	return v
}

// ChartKind tells how a chart is drawn.
type ChartKind string

const (
	Lines ChartKind = "lines"
	Stack ChartKind = "stack" // all lines have the same X
)

// Chart is a picture with its data, and with the command and settings that made it.
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
	Steps bool   `json:"steps,omitempty"` // the values are few, and stand at equal distances
}

// Line of a chart.
type Line struct {
	Name string    `json:"name"`
	Kind Kind      `json:"kind,omitempty"` // of the way that it shows
	X    []float64 `json:"x"`
	Y    []float64 `json:"y"`
}

// Mark is a moment on the X axis.
type Mark struct {
	At    float64 `json:"at"`
	Label string  `json:"label"`
}

// round keeps four significant digits: more would be noise, and fill reports.
func round(v float64) float64 {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	scale := math.Pow(10, 3-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*scale) / scale
}

// Number words a figure for people: 12,345 or 0.123.
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

// ratio is a/b, and 0 where there is nothing to divide by.
func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}
