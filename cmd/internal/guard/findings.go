package guard

import "time"

// Findings are the results of one poll and the actions taken. Its JSON is an interface: fields do not change their meaning.
type Findings struct {
	Version  int       `json:"version"` // of this format: 1
	At       time.Time `json:"at"`      // by the primary's clock
	Acting   bool      `json:"acting"`  // false: dry run
	Primary  string    `json:"primary"`
	Postgres string    `json:"postgres"`
	Database string    `json:"database"` // whose tables are protected
	Standbys []string  `json:"standbys"` // that answered
	Absent   []string  `json:"absent"`   // that did not

	AgeXids int64    `json:"age_xids"`       // of the horizon: transactions since the oldest hold
	Held    float64  `json:"held_seconds"`   // the oldest hold has lasted at least this long
	Holders []Holder `json:"holders"`        // oldest first
	Tables  []Table  `json:"tables"`         // protected tables with dead rows, most first
	Missing []string `json:"missing_tables"` // patterns of protected tables that match none
	Probes  []Timing `json:"probes"`
	Blocked int      `json:"blocked_sessions"` // that have waited for locks for as long as the policy says; 0 if it does not say
	Actions []Done   `json:"actions"`          // taken since the last report, and their outcomes
}

func newFindings(acting bool, c *cluster, holders []*Holder, tables []Table, timings []Timing) *Findings {
	r := &Findings{
		Version: 1, At: c.primary.At, Acting: acting, Primary: c.primary.server.Name, Postgres: c.primary.version, Database: c.primary.Database,
		Standbys: []string{}, Absent: append([]string{}, c.absent...), Holders: []Holder{}, Tables: append([]Table{}, tables...),
		Probes: timings, Blocked: c.waiting, Actions: []Done{},
	}
	for _, v := range c.standbys {
		r.Standbys = append(r.Standbys, v.server.Name)
	}
	for _, h := range holders {
		if h.relevant && len(r.Holders) == 0 {
			r.AgeXids, r.Held = max(0, h.AgeXids), h.Held
		}
		r.Holders = append(r.Holders, *h)
	}
	return r
}

// due reports whether a session is still to be ended.
func (r *Findings) due() bool {
	for _, h := range r.Holders {
		if h.Step == Cancel || h.Step == Terminate {
			return true
		}
	}
	return false
}
