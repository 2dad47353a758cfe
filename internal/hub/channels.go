package hub

import (
	"cmp"
	"container/heap"
	"slices"
	"strings"
)

// Subscribed is a channel, or a pattern, with its subscribers.
type Subscribed struct {
	Name        string
	Subscribers int
}

// Channels lists the channels and patterns that have subscribers, by name, up to most of them, from the one after a name on. It visits all of them, while no message is
// dispatched: it is for people who look at a hub, not for each request.
func (h *Hub) Channels(after string, most int) []Subscribed {
	var found greatest
	add := func(s Subscribed) {
		if s.Name <= after || s.Subscribers == 0 || most <= 0 {
			return
		}
		if len(found) < most {
			heap.Push(&found, s)
		} else if s.Name < found[0].Name {
			found[0] = s
			heap.Fix(&found, 0)
		}
	}
	h.mu.RLock()
	for name, m := range h.index.channels {
		if IsInternal(string(name)) {
			continue
		}
		s := Subscribed{string(name), len(m.list)}
		// A channel may have the name of a pattern. They are one here, or a page that ends between them would lose one.
		if strings.ContainsAny(s.Name, "*>") {
			if pattern := h.index.find(Pattern(s.Name), false); pattern != nil {
				s.Subscribers += len(pattern.list)
			}
		}
		add(s)
	}
	h.index.patterns.visit(func(m *members) {
		if h.index.channels[Channel(m.filter.String())] == nil {
			add(Subscribed{m.filter.String(), len(m.list)})
		}
	})
	h.mu.RUnlock()
	slices.SortFunc(found, func(a, b Subscribed) int { return cmp.Compare(a.Name, b.Name) })
	return found
}

// visit calls f with the subscribers of each pattern.
func (n *node) visit(f func(*members)) {
	if n.members != nil {
		f(n.members)
	}
	for _, next := range n.words {
		next.visit(f)
	}
}

// greatest is a heap, whose first element has the greatest name.
type greatest []Subscribed

func (g greatest) Len() int           { return len(g) }
func (g greatest) Less(i, j int) bool { return g[i].Name > g[j].Name }
func (g greatest) Swap(i, j int)      { g[i], g[j] = g[j], g[i] }
func (g *greatest) Push(x any)        { *g = append(*g, x.(Subscribed)) }
func (g *greatest) Pop() any {
	last := (*g)[len(*g)-1]
	*g = (*g)[:len(*g)-1]
	return last
}
