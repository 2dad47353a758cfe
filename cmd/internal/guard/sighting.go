package guard

import "time"

// sighting is how a holder was first seen with what it holds.
type sighting struct {
	since time.Time // it has held at least since then, by its server's clock
	at    time.Time // when it was seen, by the same clock
	seen  time.Time // and by the guard's own, which nobody sets
}

// aheadBy is by how much a server's clock may seem to have run faster than the guard's, because a poll took longer than another.
const aheadBy = time.Second

// remember sets how long each holder has held at least: since the time known when it was first seen. A server's clock that is set forward makes nobody hold for longer than the guard has seen it
// hold since.
func (g *Guard) remember(holders []*Holder) {
	seen := make(map[string]sighting, len(holders))
	for _, h := range holders {
		key := h.key()
		first, ok := g.seen[key]
		if !ok {
			first = sighting{h.since, h.at.At, time.Now()}
		} else if h.since.Before(first.since) {
			first.since = h.since
		}
		seen[key], h.since = first, first.since
		if ahead := h.at.At.Sub(first.at) - time.Since(first.seen); ahead > aheadBy {
			h.since = h.since.Add(ahead)
		}
	}
	g.seen = seen
}
