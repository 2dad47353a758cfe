package hub

import (
	"sort"
	"sync/atomic"
)

// ring holds the newest parts in order, without a hole, up to a limit in bytes that includes their encodings. Hub.mu guards it. Parts are
// immutable. A part that does not follow the last one, because a part between them was truncated or not read, empties the ring first: a reader
// of the history after a position must find all of it.
type ring struct {
	parts    []*Part
	accounts []*account // of each part
	bytes    int        // of the messages themselves
	encoded  atomic.Int64
	limit    int
}

// open creates the account of a part that will be added, before any subscriber has its messages.
func (r *ring) open(p *Part) *account {
	a := &account{ring: &r.encoded}
	for _, m := range p.Messages {
		m.account = a
	}
	return a
}

// add adds a part whose account open has created.
func (r *ring) add(p *Part, a *account) {
	if !r.reaches(p.Before()) {
		r.clear()
	}
	r.parts, r.accounts = append(r.parts, p), append(r.accounts, a)
	r.bytes += p.bytes()
	r.trim()
}

// size is the ring's size in bytes.
func (r *ring) size() int { return r.bytes + int(r.encoded.Load()) }

// trim drops the oldest parts beyond the limit. Resuming subscribers add encodings, so it is also called while no ticks arrive.
func (r *ring) trim() {
	drop := 0
	for r.size() > r.limit && drop < len(r.parts)-1 {
		r.bytes -= r.parts[drop].bytes()
		r.accounts[drop].close()
		r.parts[drop], r.accounts[drop] = nil, nil
		drop++
	}
	// The slice moves forward in its array until append reallocates it, so copying is amortised.
	r.parts, r.accounts = r.parts[drop:], r.accounts[drop:]
}

// reaches reports whether the ring's last part ends at the position.
func (r *ring) reaches(at Position) bool {
	return len(r.parts) > 0 && r.parts[len(r.parts)-1].After() == at
}

func (r *ring) clear() {
	for _, a := range r.accounts {
		a.close()
	}
	clear(r.parts)
	r.parts, r.accounts, r.bytes = nil, nil, 0
}

// behind returns the parts after the position. It returns false if the ring does not reach back to the position, is of another log, or
// lacks some of the filters' messages.
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
