package hub

import "sort"

// ring holds the newest parts, in order and without a hole, up to a limit in bytes. Hub.mu guards it; parts are never changed. One that
// does not follow the last, because something between was truncated or has not been read, starts it anew: who looks behind a position
// must find all there is.
type ring struct {
	parts []*Part
	bytes int
	limit int
}

func (r *ring) add(p *Part) {
	if !r.reaches(p.Before()) {
		r.clear()
	}
	r.parts = append(r.parts, p)
	r.bytes += p.bytes()
	drop := 0
	for r.bytes > r.limit && drop < len(r.parts)-1 {
		r.bytes -= r.parts[drop].bytes()
		r.parts[drop] = nil
		drop++
	}
	// Appending moves the slice on in its array, which is made anew when it is full: amortised, nothing is copied twice.
	r.parts = r.parts[drop:]
}

// reaches tells whether the ring's last part ends at the position.
func (r *ring) reaches(at Position) bool {
	return len(r.parts) > 0 && r.parts[len(r.parts)-1].After() == at
}

func (r *ring) clear() {
	clear(r.parts)
	r.parts, r.bytes = nil, 0
}

// behind returns the parts that hold what is behind the position, and false when the ring does not reach back to it, is of another log, or
// holds not all of the filters' messages.
func (r *ring) behind(at Position, filters []Filter) ([]*Part, bool) {
	i := sort.Search(len(r.parts), func(i int) bool { return at.Before(r.parts[i].After()) })
	found := r.parts[i:]
	if len(found) == 0 {
		return nil, false
	}
	if at.Before(found[0].Before()) || at.Epoch != found[0].epochAt(at.Index) {
		return nil, false
	}
	for _, p := range found {
		if p.Covers != nil && !p.Covers.Covers(filters) {
			return nil, false
		}
	}
	return found, true
}
