package hub

import "strings"

// index finds a channel's subscribers. Hub.mu guards it.
type index struct {
	channels map[Channel]*members
	patterns node // by word; * and > are words like others
	recents  recents
	internal int // channels of the hub's own
}

// members holds the subscribers of one filter. Each subscriber stores its place in the list, so that leaving is cheap.
type members struct {
	filter Filter
	list   []*Subscriber
	recent *recent // nil: nobody has asked for history
}

type node struct {
	words   map[string]*node
	members *members // of the pattern that ends here
}

// add reports whether the filter is new to the subscriber.
func (x *index) add(s *Subscriber, f Filter) bool {
	m := x.find(f, true)
	if _, ok := s.places[m]; ok {
		return false
	}
	if s.places == nil {
		s.places = make(map[*members]int32, 1)
	}
	s.places[m] = int32(len(m.list))
	s.words += f.words()
	m.list = append(m.list, s)
	return true
}

// remove reports whether the subscriber had the filter.
func (x *index) remove(s *Subscriber, f Filter) bool {
	m := x.find(f, false)
	if m == nil {
		return false
	}
	_, ok := s.places[m]
	if ok {
		x.leave(s, m)
	}
	return ok
}

// leave removes the subscriber from a list that contains it.
func (x *index) leave(s *Subscriber, m *members) {
	at := s.places[m]
	delete(s.places, m)
	s.words -= m.filter.words()
	last := len(m.list) - 1
	moved := m.list[last]
	m.list[last] = nil
	m.list = m.list[:last]
	if moved != s {
		m.list[at] = moved
		moved.places[m] = at
	}
	if last == 0 {
		x.recents.forget(m.recent)
		x.forget(m.filter)
	} else if cap(m.list) > 64 && last < cap(m.list)/4 {
		m.list = append(make([]*Subscriber, 0, last*2), m.list...)
	}
}

// find returns a filter's members, or nil. With create it adds them if they are missing.
func (x *index) find(f Filter, create bool) *members {
	if channel, ok := f.(Channel); ok {
		m := x.channels[channel]
		if m == nil && create {
			m = &members{filter: f}
			x.channels[channel] = m
			if IsInternal(string(channel)) {
				x.internal++
			}
		}
		return m
	}
	at := &x.patterns
	for word := range strings.SplitSeq(f.String(), ".") {
		next := at.words[word]
		if next == nil {
			if !create {
				return nil
			}
			next = &node{}
			if at.words == nil {
				at.words = map[string]*node{}
			}
			at.words[word] = next
		}
		at = next
	}
	if at.members == nil && create {
		at.members = &members{filter: f}
	}
	return at.members
}

// forget removes a filter that has lost its last member.
func (x *index) forget(f Filter) {
	if channel, ok := f.(Channel); ok {
		delete(x.channels, channel)
		if IsInternal(string(channel)) {
			x.internal--
		}
		return
	}
	x.patterns.forget(strings.Split(f.String(), "."))
}

func (n *node) forget(words []string) {
	if len(words) == 0 {
		n.members = nil
		return
	}
	next := n.words[words[0]]
	next.forget(words[1:])
	if next.members == nil && len(next.words) == 0 {
		delete(n.words, words[0])
	}
}

// each calls f with the subscribers of every filter that selects the channel. A subscriber with several such filters is in several lists.
// It returns the number of pattern nodes visited: at most maxSteps, however many patterns exist.
func (x *index) each(channel string, f func(*members)) (steps int) {
	if m := x.channels[Channel(channel)]; m != nil {
		f(m)
	}
	if len(x.patterns.words) > 0 && !IsInternal(channel) {
		steps = x.patterns.each(channel, f)
	}
	return steps
}

// maxSteps is the size of a binary tree as deep as the longest pattern: each word can match in two ways.
const maxSteps = 1<<(MaxWords+1) - 1

func (n *node) each(channel string, f func(*members)) (steps int) {
	steps = 1
	word, rest, more := strings.Cut(channel, ".")
	if all := n.words[">"]; all != nil && all.members != nil && channel != "" {
		f(all.members)
	}
	for i, key := range [...]string{word, "*"} {
		next := n.words[key]
		if next == nil || i == 0 && word == ">" || i == 1 && word == "*" { // already visited: the channel's own word is > or *
			continue
		}
		if more {
			steps += next.each(rest, f)
			continue
		}
		steps++
		if next.members != nil {
			f(next.members)
		}
	}
	return steps
}
