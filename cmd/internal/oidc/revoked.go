package oidc

import (
	"sync"
	"time"
)

const revokedAtMost = 100_000 // sessions: more than anybody ends within an hour

// revoked are the sessions that have ended before their time. It forgets them when that has come. The zero value is ready for use.
type revoked struct {
	mu     sync.Mutex
	until  map[string]time.Time // by the session's id
	before time.Time            // all that began before have ended
}

// add ends a session.
func (v *revoked) add(s session, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.until == nil {
		v.until = map[string]time.Time{}
	}
	if len(v.until) >= revokedAtMost {
		for id, until := range v.until {
			if !now.Before(until) {
				delete(v.until, id)
			}
		}
		if len(v.until) >= revokedAtMost { // none of them may come to life again, so all end
			v.before = now
			clear(v.until)
		}
	}
	v.until[s.ID] = s.Until
}

// has reports whether a session has ended.
func (v *revoked) has(s session) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, ended := v.until[s.ID]
	return ended || s.Until.Add(-sessionFor).Before(v.before)
}
