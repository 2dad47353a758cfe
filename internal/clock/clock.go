// Package clock tells whether a time is over, by two clocks: the monotonic one, which stands still while a machine is suspended, and that of the wall, which goes on meanwhile but may be set.
// If one is ahead of the other, nobody can tell which of the two has happened.
package clock

import "time"

// Moment is a time by both clocks.
type Moment struct{ Steady, Wall time.Time }

// Now returns this moment.
func Now() Moment { return At(time.Now()) }

// At returns the moment of a time that time.Now has returned.
func At(t time.Time) Moment { return Moment{Steady: t, Wall: t.Round(0)} }

// Add returns the moment so much later.
func (m Moment) Add(d time.Duration) Moment { return Moment{m.Steady.Add(d), m.Wall.Add(d)} }

// IsWithin reports whether a moment lies between two others by both clocks. That of the wall may have been set back, which says nothing of how long it took.
func (m Moment) IsWithin(from, until Moment) bool {
	return m.Steady.Before(until.Steady) && m.Wall.Before(until.Wall) && !m.Wall.Before(from.Wall)
}
