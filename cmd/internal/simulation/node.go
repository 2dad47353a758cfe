package simulation

import "time"

// Clock is a node's clock: it is wrong, and runs too fast or too slow.
type Clock struct {
	Offset time.Duration
	Drift  float64 // by how much of a second it gains in a second
}

// epoch is when worlds begin.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Read returns the time that the clock shows at a time of the world.
func (c *Clock) Read(now time.Duration) time.Time {
	return epoch.Add(c.Offset + now + time.Duration(float64(now)*c.Drift))
}

// Lasts returns how long it takes in the world until the clock has gone on by d, or a little more: never less.
func (c *Clock) Lasts(d time.Duration) time.Duration {
	return time.Duration(float64(d)/(1+c.Drift)) + time.Microsecond
}

// Clock returns one that is wrong by up to five seconds, and drifts by up to 200 in a million, as cheap quartz does.
func (w *World) Clock() Clock {
	return Clock{Offset: w.Between(-5*time.Second, 5*time.Second), Drift: (w.Float64() - 0.5) * 400e-6}
}

// Link is what a node has to others: how long it takes, and until when nothing comes through. Of two nodes the slower one decides.
type Link struct {
	Delay  time.Duration // at least
	Spread time.Duration // and on average so much more, seldom much more
	cut    time.Duration // until when it is
	slow   time.Duration // until when things take longer
	longer time.Duration // by so much on average
}

// Cut lets nothing through until a time.
func (l *Link) Cut(until time.Duration) { l.cut = max(l.cut, until) }

// IsCut reports whether nothing comes through now.
func (l *Link) IsCut(now time.Duration) bool { return now < l.cut }

// Slow lets things take longer until a time, by so much on average.
func (l *Link) Slow(until, longer time.Duration) { l.slow, l.longer = until, longer }

// Heal lets everything through again, and at once.
func (l *Link) Heal() { l.cut, l.slow = 0, 0 }

// Takes returns how long something takes now.
func (l *Link) Takes(w *World) time.Duration {
	spread := l.Spread
	if w.now < l.slow {
		spread += l.longer
	}
	return l.Delay + time.Duration(w.ExpFloat64()*float64(spread))
}

// Arrives returns when something arrives that is sent now over these links by a protocol that repeats what is lost: not before all of them let something through.
func (w *World) Arrives(links ...*Link) time.Duration {
	at := w.now
	for _, l := range links {
		at = max(at, l.cut)
	}
	if at > w.now {
		at += w.Between(0, time.Second) // it is repeated less and less often
	}
	for _, l := range links {
		at += l.Takes(w)
	}
	return at
}
