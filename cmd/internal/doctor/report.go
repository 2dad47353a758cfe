package doctor

import (
	"cmp"
	"slices"
	"time"
)

// ReportVersion is the version of Report's JSON. Fields may be added to a version; none changes its meaning.
const ReportVersion = 1

// Report is what one look found.
type Report struct {
	Version  int       `json:"version"`
	At       time.Time `json:"at"`
	Seconds  float64   `json:"seconds"` // how long was looked
	Server   Server    `json:"server"`
	Samples  int       `json:"samples"`
	Waits    Waits     `json:"waits"`
	Findings []Finding `json:"findings"` // causes first, each followed by what is downstream of it
	Well     []Well    `json:"well"`
	Unseen   []string  `json:"unseen"` // what could not be looked at, and what that would take
	Cost     Cost      `json:"cost"`
}

// Cost is what looking took.
type Cost struct {
	Statements   int     `json:"statements"`
	Milliseconds float64 `json:"milliseconds"` // spent waiting for answers, all sessions together
}

// Severity grades a finding.
type Severity string

// Severities. A consequence of another finding is never critical itself.
const (
	Info     Severity = "info"     // worth knowing; nothing is lost by it now
	Warning  Severity = "warning"  // costs time, or will
	Critical Severity = "critical" // holds the database's work up now
)

func (s Severity) rank() int {
	return slices.Index([]Severity{Info, Warning, Critical}, s)
}

// Finding is one thing that is not as it should be. Its code is stable; docs/findings has a page for it.
type Finding struct {
	Code     Code       `json:"code"`
	Severity Severity   `json:"severity"`
	Summary  string     `json:"summary"` // one sentence: what it is, with the figures that matter
	Lost     float64    `json:"lost"`    // session-seconds waited per second; 0 where no wait shows it
	Evidence []Evidence `json:"evidence"`
	Now      string     `json:"now"`
	ForGood  string     `json:"for_good"`
	Lab      string     `json:"lab,omitempty"` // the command that shows it
	Seen     int        `json:"seen"`          // in how many samples
	Samples  int        `json:"samples"`       // of how many
	// DownstreamOf is the code of the finding that this one is a consequence of; empty for a cause.
	DownstreamOf Code `json:"downstream_of,omitempty"`
	// Capped is the severity it would have had as a cause.
	Capped Severity `json:"capped,omitempty"`

	holders map[Class]float64 // what those waited for do themselves, in session-seconds per second
}

// Evidence is a fact, and where it can be, the query that shows it.
type Evidence struct {
	Fact  string `json:"fact"`
	Query string `json:"query,omitempty"`
}

// Well is one thing that is as it should be.
type Well struct {
	Check string `json:"check"`
	Fact  string `json:"fact"`
}

// Worst is the severity of the worst finding; Info when there is none.
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

// byWeight orders the worst first, then what loses most.
func byWeight(a, b Finding) int {
	return cmp.Or(cmp.Compare(b.Severity.rank(), a.Severity.rank()), cmp.Compare(b.Lost, a.Lost), cmp.Compare(a.Code, b.Code))
}
