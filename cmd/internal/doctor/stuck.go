package doctor

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// standStill is how long a session must wait in one statement for it to stand still. deadlock_timeout is usually a second, so shorter waits for
// locks are not remarkable.
const standStill = 2 * time.Second

// stuck is a session that waits in one statement, without a sample that shows it doing anything else.
type stuck struct {
	Session
	since  time.Time
	lasted time.Duration
}

// stuckIn returns the sessions that have stood still in waits for which is returns true, until the last sample; longest first.
func (v view) stuckIn(is func(Session) bool) []stuck {
	waiting := map[uint32]stuck{}
	for _, sample := range v.samples {
		still := map[uint32]stuck{}
		for _, s := range sample.Sessions {
			if !is(s) {
				continue
			}
			w, before := waiting[s.PID]
			// A statement that began after the wait was first seen is another one.
			if !before || s.timed() && seconds(s.Running)+time.Second < sample.At.Sub(w.since) {
				w.since = sample.At
			}
			w.Session, w.lasted = s, sample.At.Sub(w.since)
			still[s.PID] = w
		}
		waiting = still
	}
	list := slices.DeleteFunc(slices.Collect(maps.Values(waiting)), func(s stuck) bool { return s.lasted < standStill })
	slices.SortFunc(list, func(a, b stuck) int { return cmp.Or(cmp.Compare(b.lasted, a.lasted), cmp.Compare(a.PID, b.PID)) })
	return list
}
