package hub

import (
	"sort"
	"sync/atomic"
)

// ring holds the newest parts, in order and without a hole, up to a limit in bytes, what has been encoded of them included. Hub.mu guards it; parts are never changed. One that
// does not follow the last, because something between was truncated or has not been read, starts it anew: who looks behind a position
// must find all there is.
type ring struct {
	parts    []*Part
	accounts []*account // of each part
	bytes    int        // of the messages themselves
	encoded  atomic.Int64
	limit    int
}

// open makes the account of a part that will be added, before its messages are given to anybody.
func (r *ring) open(p *Part) *account {
	a := &account{ring: &r.encoded}
	for _, m := range p.Messages {
		m.account = a
	}
	return a
}

// add adds a part whose account open has made.
func (r *ring) add(p *Part, a *account) {
	if !r.reaches(p.Before()) {
		r.clear()
	}
	r.parts, r.accounts = append(r.parts, p), append(r.accounts, a)
	r.bytes += p.bytes()
	r.trim()
}

// size is what the ring takes.
func (r *ring) size() int { return r.bytes + int(r.encoded.Load()) }

// trim drops the oldest parts, past the limit. Those who resume have more and more of them encoded, so it is also called when nothing comes.
func (r *ring) trim() {
	drop := 0
	for r.size() > r.limit && drop < len(r.parts)-1 {
		r.bytes -= r.parts[drop].bytes()
		r.accounts[drop].close()
		r.parts[drop], r.accounts[drop] = nil, nil
		drop++
	}
	// Appending moves the slice on in its array, which is made anew when it is full: amortised, nothing is copied twice.
	r.parts, r.accounts = r.parts[drop:], r.accounts[drop:]
}

// reaches tells whether the ring's last part ends at the position.
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
