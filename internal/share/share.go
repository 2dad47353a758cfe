// Package share divides slots among several workers of a process, one for each database, so that together they run no more jobs than there are slots, each
// gets a fair part of them while others want some, and none is left unused that somebody wants.
package share

import (
	"sync"
	"time"
)

const (
	// lendsAfter is how long a claim may take before the slots that it has reserved are lent to others: a database that crawls, or does not answer, takes nothing from
	// them. Jobs that it claims all the same start when there are slots again.
	lendsAfter = 20 * time.Millisecond
	// lendsFor is for how long after such a claim what the member's next ones reserve is lent at once, as far as no more than all slots are lent: else a database that crawls would hold slots for
	// lendsAfter again and again.
	lendsFor = 5 * time.Second
	// claimsFor, slowPart: a member whose last claim took longer than that reserves no more than one slot in so many.
	claimsFor = 100 * time.Millisecond
	slowPart  = 8
	// waitsFor is how long slots are left to members that come before others.
	waitsFor = 50 * time.Millisecond
)

// Slots are shared by their members. Create them with New.
type Slots struct {
	limit int

	// Nothing waits while holding mu.
	mu       sync.Mutex
	used     int // by jobs that were claimed, and by claims
	lent     int // by late claims: not part of used
	running  int // of these jobs
	wanting  map[*Member]bool
	claiming map[*Member]bool
	blocked  map[*Member]bool // they have jobs that can't start
	active   int              // members that use or want some
	again    bool             // offer will be called by a timer
	tell     []*Member        // of room, when mu was released
}

// New returns limit slots.
func New(limit int) *Slots {
	return &Slots{limit: limit, wanting: map[*Member]bool{}, claiming: map[*Member]bool{}, blocked: map[*Member]bool{}}
}

// Member is one who shares the slots.
type Member struct {
	slots    *Slots
	more     func()
	used     int       // by its jobs, and by its claim
	reserved int       // of them, by its claim
	since    time.Time // when its claim began
	late     bool      // what its claim has reserved is lent to others
	wasLate  time.Time // when a claim ended that took longer than lendsAfter
	slow     bool      // its last claim took longer than claimsFor
	told     time.Time // when it was told of room that it wants, and has not come for yet; zero: it was not
	isActive bool
	left     bool // it wants no more, whatever it asks: its last jobs ask when they end
}

// Join adds a member. more is called, from any goroutine, whenever there may be room for one that got less than it asked for, or whose jobs could not start. It must
// not block.
func (s *Slots) Join(more func()) *Member { return &Member{slots: s, more: more} }

// locked runs f, and tells members afterwards: they may hold locks of their own when they call.
func (s *Slots) locked(f func()) {
	s.mu.Lock()
	f()
	tell := s.tell
	s.tell = nil
	s.mu.Unlock()
	for _, m := range tell {
		m.more()
	}
}

// Leave takes back what the member wants. Its jobs keep their slots until they have ended.
func (m *Member) Leave() {
	m.slots.locked(func() {
		m.left = true
		m.wants(false)
		delete(m.slots.blocked, m)
		m.slots.offer()
	})
}

// Free returns how many slots the member may reserve now. If there are none, it is told when there are some.
func (m *Member) Free() (n int) {
	m.slots.locked(func() {
		if n = m.free(); n == 0 {
			m.told = time.Time{}
			m.wants(true)
			m.slots.offerLater()
		}
	})
	return n
}

// Reserve takes up to n slots for a claim, and returns how many it got. Settle must follow, unless it got none.
func (m *Member) Reserve(n int) (got int) {
	m.slots.locked(func() {
		got = max(min(n, m.free()), 0)
		m.wants(got < n)
		if m.told = (time.Time{}); got == 0 {
			m.slots.offerLater()
			return
		}
		m.reserved, m.since = got, time.Now()
		m.use(got)
		m.slots.claiming[m] = true
		if m.since.Sub(m.wasLate) < lendsFor && m.slots.lent+got <= m.slots.limit {
			m.lend()
		}
	})
	return got
}

// Settle ends a claim that has got some jobs, which keep their slots.
func (m *Member) Settle(jobs int) {
	s := m.slots
	s.locked(func() {
		now := time.Now()
		took := now.Sub(m.since)
		if took > lendsAfter {
			m.wasLate = now
		}
		if m.slow = took > claimsFor; m.late {
			m.late = false
			s.used += m.reserved
			s.lent -= m.reserved
		}
		if jobs < m.reserved { // there are no more
			m.wants(false)
		}
		m.use(jobs - m.reserved)
		m.reserved = 0
		delete(s.claiming, m)
		s.offer()
	})
}

// Enter reports whether a job that was claimed may start. If not, since others run on slots that a late claim has lent to them, the member is told when to ask again.
func (m *Member) Enter() (starts bool) {
	s := m.slots
	s.locked(func() {
		if starts = s.running < s.limit; starts {
			s.running++
		} else {
			s.blocked[m] = true
		}
	})
	return starts
}

// Ended gives back the slot of a job that had entered.
func (m *Member) Ended() {
	s := m.slots
	s.locked(func() {
		s.running--
		for b := range s.blocked {
			delete(s.blocked, b)
			s.tell = append(s.tell, b)
		}
		m.use(-1)
		s.offer()
	})
}

// Dropped gives back the slots of jobs that had not entered, and will not.
func (m *Member) Dropped(jobs int) {
	m.slots.locked(func() {
		m.use(-jobs)
		m.slots.offer()
	})
}

func (m *Member) use(n int) {
	m.used += n
	m.slots.used += n
	m.count()
}

// free is Free without the wish. While others want some, a member that has its part of all gets no more, and who has least comes first.
func (m *Member) free() int {
	s := m.slots
	s.lendLate()
	now := time.Now()
	free := s.limit - s.used
	if free <= 0 || m.left {
		return 0
	}
	active := s.active
	if !m.isActive {
		active++
	}
	part := max(s.limit/active, 1)
	others, before := 0, 0 // what others want of their parts, and those of them that come first
	for o := range s.wanting {
		if o == m || o.reserved > 0 || !o.told.IsZero() && now.Sub(o.told) > waitsFor {
			continue
		}
		n := max(part-o.used, 0)
		if others += n; o.used < m.used {
			before += n
		}
	}
	n := max(min(part-m.used, free-before), free-others, 0)
	if m.slow {
		n = min(n, max(s.limit/slowPart, 1))
	}
	return n
}

// lendLate lends what late claims have reserved.
func (s *Slots) lendLate() {
	now := time.Now()
	for c := range s.claiming {
		if !c.late && now.Sub(c.since) > lendsAfter {
			c.lend()
		}
	}
}

// lend lets others use what the member's claim has reserved.
func (m *Member) lend() {
	m.late = true
	m.slots.used -= m.reserved
	m.slots.lent += m.reserved
}

// wants notes whether the member wants more than it has.
func (m *Member) wants(more bool) {
	s := m.slots
	if more && !m.left {
		s.wanting[m] = true
	} else {
		delete(s.wanting, m)
	}
	m.count()
}

// count keeps Slots.active.
func (m *Member) count() {
	s := m.slots
	is := m.used > 0 || s.wanting[m]
	switch {
	case is && !m.isActive:
		s.active++
	case !is && m.isActive:
		s.active--
	}
	m.isActive = is
}

// offer tells those who want some that there is room.
func (s *Slots) offer() {
	if s.used < s.limit {
		now := time.Now()
		for m := range s.wanting {
			switch {
			case m.reserved > 0: // its claim is on its way
			case m.told.IsZero():
				m.told = now
				s.tell = append(s.tell, m)
			case now.Sub(m.told) > waitsFor: // it comes first no more, until it has come
				s.tell = append(s.tell, m)
			}
		}
	}
	s.offerLater()
}

// offerLater offers again after a while, if somebody wants slots that a claim may hold for too long, or that are left to somebody who does not take them.
func (s *Slots) offerLater() {
	if s.again || len(s.wanting) == 0 || s.used >= s.limit && len(s.claiming) == 0 {
		return
	}
	s.again = true
	time.AfterFunc(lendsAfter, func() {
		s.locked(func() {
			s.again = false
			s.lendLate()
			s.offer()
		})
	})
}
