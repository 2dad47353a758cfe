package doctor

// part is what of a server a doctor judges.
type part int

const (
	whole       part = iota // one database, and the server that it is on
	theServer               // what the databases of a server share
	theDatabase             // what a database has of its own, and what its own sessions wait for
)

// of returns the period as if there had been no sessions in other databases than those that are. Of locks, those are left out of which it is known.
func (v view) of(are func(database uint32) bool) view {
	own := view{samples: make([]Sample, len(v.samples)), probes: v.probes}
	for i, s := range v.samples {
		elsewhere := map[uint32]bool{} // by pid
		all, locks := s.Sessions, s.Locks
		s.Sessions, s.Locks = nil, nil
		for _, session := range all {
			if are(session.Database) {
				s.Sessions = append(s.Sessions, session)
			} else {
				elsewhere[session.PID] = true
			}
		}
		for _, k := range locks {
			if !elsewhere[k.PID] && (k.Database == 0 || are(k.Database)) {
				s.Locks = append(s.Locks, k)
			}
		}
		own.samples[i] = s
	}
	return own
}
