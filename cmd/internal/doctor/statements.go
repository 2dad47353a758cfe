package doctor

import (
	"cmp"
	"maps"
	"slices"
)

// Statement is one that a finding is about, without its values.
type Statement struct {
	Text string `json:"text"` // as shown, so a long one is cut off
	Does Does   `json:"does"`
	// Share is that of the times that such a statement was seen; 0 if it was not counted.
	Share float64 `json:"share,omitempty"`
}

// Does says what the session that runs a statement, or has run it last, has to do with the finding.
type Does string

// What sessions do.
const (
	WaitsForIt Does = "waits"   // for what the finding is about
	HoldsIt    Does = "holds"   // what others wait for, or what is kept from removal
	CausesIt   Does = "causes"  // the load that the finding is about
	SuffersIt  Does = "suffers" // it is slower than it was
)

// What is shown in place of a statement that is not known.
const (
	aLogin = "a login"
	untold = "a statement that is not told (track_activities is off)"
)

// mostStatements of each kind are listed.
const mostStatements = 20

// addStatements adds the most frequent statements to the evidence, and more of them to the list.
func (f *Finding) addStatements(query, label string, does Does, counts map[string]int) {
	if n := total(counts); n > 0 {
		f.add(query, "%s: %s", label, ranked(counts, n, func(s string) string { return s }))
		f.count(does, counts)
	}
}

// count adds statements to the list, most frequent first.
func (f *Finding) count(does Does, counts map[string]int) {
	of := total(counts)
	texts := slices.SortedFunc(maps.Keys(counts), func(a, b string) int { return cmp.Or(counts[b]-counts[a], cmp.Compare(a, b)) })
	for _, text := range texts {
		f.list(Statement{text, does, round(float64(counts[text]) / float64(of))})
	}
}

// names adds the statement of one session to the list.
func (f *Finding) names(does Does, query string) { f.list(Statement{Text: shape(query), Does: does}) }

// list adds a statement to the list, once, if there is room.
func (f *Finding) list(s Statement) {
	switch s.Text {
	case "", hiddenQuery, aLogin, untold:
		return
	}
	of := 0
	for _, o := range f.Statements {
		if o.Does != s.Does {
			continue
		}
		if of++; o.Text == s.Text || of == mostStatements {
			return
		}
	}
	f.Statements = append(f.Statements, s)
}
