package hub

import "strings"

// index finds a channel's subscribers. Hub.mu guards it.
type index struct {
	channels map[Channel]*members
	patterns node // by word; * and > are words like others
}

// members are the subscribers of one filter. A subscriber knows its place in the list, so leaving is cheap.
type members struct {
	filter Filter
	list   []*Subscriber
}

type node struct {
	words   map[string]*node
	members *members // of the pattern that ends here
}

// add tells whether the subscriber did not have the filter yet.
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

// remove tells whether the subscriber had the filter.
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

// leave takes the subscriber from a list that it is in.
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
		x.forget(m.filter)
	} else if cap(m.list) > 64 && last < cap(m.list)/4 {
		m.list = append(make([]*Subscriber, 0, last*2), m.list...)
	}
}

// find returns a filter's members, made if need be, or nil.
func (x *index) find(f Filter, make_ bool) *members {
	if channel, ok := f.(Channel); ok {
		m := x.channels[channel]
		if m == nil && make_ {
			m = &members{filter: f}
			x.channels[channel] = m
		}
		return m
	}
	at := &x.patterns
	for word := range strings.SplitSeq(f.String(), ".") {
		next := at.words[word]
		if next == nil {
			if !make_ {
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
	if at.members == nil && make_ {
		at.members = &members{filter: f}
	}
	return at.members
}

// forget drops a filter that has no members any more.
func (x *index) forget(f Filter) {
	if channel, ok := f.(Channel); ok {
		delete(x.channels, channel)
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

// each calls f with the subscribers of every filter that the channel matches. One who has several such filters is in several lists. It
// returns how many nodes of patterns it has visited: for as many patterns as there may be no more than mostSteps.
func (x *index) each(channel string, f func(*members)) (steps int) {
	if m := x.channels[Channel(channel)]; m != nil {
		f(m)
	}
	if len(x.patterns.words) > 0 {
		steps = x.patterns.each(channel, f)
	}
	return steps
}

// mostSteps is the size of a binary tree as deep as patterns are long: each word may be had in two ways.
const mostSteps = 1<<(MaxWords+1) - 1

func (n *node) each(channel string, f func(*members)) (steps int) {
	steps = 1
	word, rest, more := strings.Cut(channel, ".")
	if all := n.words[">"]; all != nil && all.members != nil && channel != "" {
		f(all.members)
	}
	for i, key := range [...]string{word, "*"} {
		next := n.words[key]
		if next == nil || i == 0 && word == ">" || i == 1 && word == "*" { // words of a channel, and had already
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
