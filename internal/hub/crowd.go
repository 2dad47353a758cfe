package hub

import "fmt"

// A channel is as expensive as it has subscribers: each message is queued for all of them. So a hub may bound how many a channel or a pattern has.
// They are counted where they are added, under the same lock, so that no more than the bound ever are.

// bounds returns how many subscribers each filter may have here, in the filters' order; 0: no bound. It is called without the lock: a bound may
// come from a file.
func (h *Hub) bounds(filters []Filter) []int {
	if h.most == nil {
		return nil
	}
	all := make([]int, len(filters))
	for i, f := range filters {
		if c, ok := f.(Channel); ok && IsInternal(string(c)) {
			continue
		}
		all[i] = h.most(f)
	}
	return all
}

// Full returns an error if one of the filters has as many subscribers as it may. Another subscriber may take the last place before the caller does.
func (h *Hub) Full(filters []Filter) error {
	bounds := h.bounds(filters)
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.crowded(nil, filters, bounds)
}

// crowded returns an error if a filter has no place for another subscriber, unless it is one already. The caller holds mu.
func (h *Hub) crowded(s *Subscriber, filters []Filter, bounds []int) error {
	for i, f := range filters {
		if len(bounds) == 0 || bounds[i] <= 0 {
			continue
		}
		m := h.index.find(f, false)
		if m == nil || len(m.list) < bounds[i] {
			continue
		}
		if s != nil {
			if _, is := s.places[m]; is {
				continue
			}
		}
		what := "channel"
		if _, pattern := f.(Pattern); pattern {
			what = "pattern"
		}
		return &LimitError{fmt.Sprintf("the %s %q has %d subscribers at this hub, as many as it may: try again later", what, f, len(m.list))}
	}
	return nil
}
