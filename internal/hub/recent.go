package hub

import (
	"container/list"
	"time"
)

// recents are the newest messages of channels for which a subscriber has asked for history: kept up to date while the channel has subscribers, so that
// the next one who asks needs no look back. Hub.mu guards them.
type recents struct {
	bytes int
	order list.List // of *recent, the one last asked for first
}

// recentBytes is the limit of all recents together; those not asked for longest go first.
const recentBytes = 16 << 20

// recentCut is how long the result of a look back that was cut short is reused.
const recentCut = 10 * time.Second

// recent are the newest messages that one filter selects.
type recent struct {
	of       *members
	place    *list.Element
	keep     int
	messages []*Message // in order, keep of them or a few more
	whole    bool       // the log has no older ones
	until    time.Time  // not to be reused after that; zero: forever
	bytes    int
}

// recall returns the newest n messages that a filter selects, if they are known. complete reports whether there are as many, or no older ones exist.
func (x *index) recall(f Filter, n int) (found []*Message, complete, ok bool) {
	m := x.find(f, false)
	if m == nil || m.recent == nil || m.recent.keep < n && !m.recent.whole {
		return nil, false, false
	}
	r := m.recent
	if !r.until.IsZero() && time.Now().After(r.until) && len(r.messages) < n {
		return nil, false, false
	}
	x.recents.order.MoveToFront(r.place)
	return r.messages[max(0, len(r.messages)-n):], r.whole || len(r.messages) >= n, true
}

// remember keeps the newest n messages that a filter selects, which has subscribers.
func (x *index) remember(f Filter, n int, newest []*Message, whole bool) {
	m := x.find(f, false)
	if m == nil || len(m.list) == 0 {
		return
	}
	x.recents.forget(m.recent)
	r := &recent{of: m, keep: n, whole: whole}
	if !whole && len(newest) < n {
		r.until = time.Now().Add(recentCut)
	}
	m.recent = r
	r.place = x.recents.order.PushFront(r)
	x.recents.add(r, newest)
}

// add adds newer messages.
func (all *recents) add(r *recent, newer []*Message) {
	for _, m := range newer {
		r.messages = append(r.messages, m)
		r.bytes += m.size()
		all.bytes += m.size()
	}
	if len(r.messages) > 2*r.keep { // not each time: it copies
		r.drop(all, len(r.messages)-r.keep)
	}
	for all.bytes > recentBytes {
		all.forget(all.order.Back().Value.(*recent))
	}
}

// drop drops the oldest n messages.
func (r *recent) drop(all *recents, n int) {
	for _, m := range r.messages[:n] {
		r.bytes -= m.size()
		all.bytes -= m.size()
	}
	r.messages = append([]*Message(nil), r.messages[n:]...) // who has recalled them may still use the old array
	r.whole = false
}

func (all *recents) forget(r *recent) {
	if r == nil {
		return
	}
	r.of.recent = nil
	all.bytes -= r.bytes
	all.order.Remove(r.place)
}

// clear forgets everything.
func (all *recents) clear() {
	for all.order.Len() > 0 {
		all.forget(all.order.Front().Value.(*recent))
	}
}
