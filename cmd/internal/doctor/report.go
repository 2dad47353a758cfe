package doctor

import (
	"cmp"
	"slices"
	"time"
)

// ReportVersion is the version of Report's JSON. Within a version fields may be added, but none changes its meaning.
const ReportVersion = 1

// Report is the result of one examination.
type Report struct {
	Version  int       `json:"version"`
	At       time.Time `json:"at"`
	Seconds  float64   `json:"seconds"` // length of the examination
	Server   Server    `json:"server"`
	Samples  int       `json:"samples"`
	Waits    Waits     `json:"waits"`
	Findings []Finding `json:"findings"` // causes first, each followed by its consequences
	Well     []Well    `json:"well"`
	Unseen   []string  `json:"unseen"` // what could not be examined, and what that would require
	// Incomplete says that checks could not see what they judge, so that no finding does not mean that all is well.
	Incomplete bool `json:"incomplete,omitempty"`
	Cost       Cost `json:"cost"`
	Replay     bool `json:"replay,omitempty"` // of a recording
}

// Cost is the cost of the examination.
type Cost struct {
	Statements   int     `json:"statements"`
	Milliseconds float64 `json:"milliseconds"` // spent waiting for answers, in all sessions
}

// Severity grades a finding.
type Severity string

// Severities. A consequence of another finding is never critical.
const (
	Info     Severity = "info"     // worth knowing; no time is lost now
	Warning  Severity = "warning"  // costs time, or will
	Critical Severity = "critical" // delays the database's work now
)

func (s Severity) rank() int {
	return slices.Index([]Severity{Info, Warning, Critical}, s)
}

// Finding is one problem. Its code is stable; docs/findings has a page for each code.
type Finding struct {
	Code     Code       `json:"code"`
	Severity Severity   `json:"severity"`
	Summary  string     `json:"summary"` // one sentence with the important figures
	Lost     float64    `json:"lost"`    // session-seconds waited per second; 0 if no wait shows it
	Evidence []Evidence `json:"evidence"`
	// Statements are those that it is about, most frequent first, at most 20 of each kind.
	Statements []Statement `json:"statements"`
	Now        string      `json:"now"`
	ForGood    string      `json:"for_good"`
	Lab        string      `json:"lab,omitempty"` // the command that reproduces it
	Seen       int         `json:"seen"`          // number of samples that showed it
	Samples    int         `json:"samples"`       // number of samples in all
	// DownstreamOf is the code of the finding of which this one is a consequence; empty for a cause.
	DownstreamOf Code `json:"downstream_of,omitempty"`
	// Capped is the severity that it would have as a cause.
	Capped Severity `json:"capped,omitempty"`

	above   bool              // of the server, beside which a database is judged
	holders map[Class]float64 // what the sessions waited for do, in session-seconds per second
	stands  float64           // of Deadlocks: how many stood at any moment
	queues  []string          // of WorkerDead, those that the silent workers worked; of LaneBacklog, the one with the backlog
	table   string            // of AutovacuumBehind, the worst
}

// Evidence is a fact, with the query that shows it if there is one.
type Evidence struct {
	Fact  string `json:"fact"`
	Query string `json:"query,omitempty"`
}

// Well is one thing that is healthy.
type Well struct {
	Check string `json:"check"`
	Fact  string `json:"fact"`
}

// Worst returns the severity of the worst finding, or Info if there is none.
func (r Report) Worst() Severity {
	worst := Info
	for _, f := range r.Findings {
		if f.Severity.rank() > worst.rank() {
			worst = f.Severity
		}
	}
	return worst
}

// Find returns the finding with a code.
func (r Report) Find(code Code) (Finding, bool) {
	i := slices.IndexFunc(r.Findings, func(f Finding) bool { return f.Code == code })
	if i < 0 {
		return Finding{}, false
	}
	return r.Findings[i], true
}

// byWeight sorts by severity, then by time lost.
func byWeight(a, b Finding) int {
	return cmp.Or(cmp.Compare(b.Severity.rank(), a.Severity.rank()), cmp.Compare(b.Lost, a.Lost), cmp.Compare(a.Code, b.Code))
}
