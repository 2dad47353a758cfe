package hub

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// MaxChannel is the longest channel name, in bytes.
const MaxChannel = 255

// Internal begins the names of channels on which hubs talk to each other. Clients can neither publish on them nor subscribe to them, and no pattern matches them.
const Internal = "$weir."

// IsInternal reports whether a channel is one of those.
func IsInternal(channel string) bool { return strings.HasPrefix(channel, Internal) }

// MaxWords is the largest number of words in a pattern. A channel is looked up in all patterns at once, and each of its words can match in
// two ways, by the word itself and by *. So this bounds the cost of a message, whatever patterns exist.
const MaxWords = 10

// Filter selects channels, to subscribe to or to allow: a Channel or a Pattern. One is never mistaken for the other, because a channel may
// have any name, even one that looks like a pattern.
type Filter interface {
	fmt.Stringer
	// Match reports whether the filter selects the channel.
	Match(channel string) bool
	// Contains reports whether the filter selects every channel that other selects.
	Contains(other Filter) bool
	// words is the largest number of index nodes that the filter needs.
	words() int
}

// Channel is a single channel's name.
type Channel string

// Pattern selects channels by their dot-separated words: * matches any one word, and > at the end one or more: orders.*, orders.>,
// *.created. ParseFilter creates patterns.
type Pattern string

// ParseFilter parses a channel's name or a pattern. A word * or a last word > makes it a pattern.
func ParseFilter(s string) (Filter, error) {
	if err := CheckChannel(s); err != nil {
		return nil, err
	}
	words := strings.Split(s, ".")
	pattern := false
	for i, word := range words {
		if word == ">" && i != len(words)-1 {
			return nil, fmt.Errorf("pattern %q: > may only be its last word", s)
		}
		pattern = pattern || word == "*" || word == ">"
	}
	switch {
	case !pattern:
		return Channel(s), nil
	case len(words) > MaxWords:
		return nil, fmt.Errorf("pattern %q has %d words, at most %d are allowed: end it with .> earlier", s, len(words), MaxWords)
	}
	return Pattern(s), nil
}

// ParseFilters parses several filters.
func ParseFilters(all []string) ([]Filter, error) {
	filters := make([]Filter, len(all))
	for i, s := range all {
		var err error
		if filters[i], err = ParseFilter(s); err != nil {
			return nil, err
		}
	}
	return filters, nil
}

// MaxPatternWords is the largest total number of words in a subscriber's patterns. It bounds their memory.
const MaxPatternWords = 2000

// LimitError reports that a subscriber asked for more than it may have.
type LimitError struct{ text string }

func (e *LimitError) Error() string { return e.text }

// CheckFilters returns an error if a subscriber may not have all of the filters.
func CheckFilters(filters []Filter) error { return checkWords(0, filters) }

func checkWords(has int, filters []Filter) error {
	for _, f := range filters {
		has += f.words()
	}
	if has > MaxPatternWords {
		return &LimitError{fmt.Sprintf("patterns have %d words in total, a connection may have at most %d: use broader patterns", has, MaxPatternWords)}
	}
	return nil
}

// CheckChannel returns an error if a channel's name is not valid.
func CheckChannel(name string) error {
	if name == "" {
		return fmt.Errorf("the channel name is empty")
	}
	if len(name) > MaxChannel {
		return fmt.Errorf("channel name too long: %d bytes, at most %d are allowed", len(name), MaxChannel)
	}
	if !utf8.ValidString(name) || strings.IndexByte(name, 0) >= 0 {
		return fmt.Errorf("channel name %q is not valid: it must be UTF-8 without a zero byte", name)
	}
	return nil
}

// IsPattern reports whether a name is written as a pattern: one of its words is *, or its last is >.
func IsPattern(name string) bool {
	words := strings.Split(name, ".")
	return slices.Contains(words, "*") || words[len(words)-1] == ">"
}

func (c Channel) String() string             { return string(c) }
func (c Channel) Match(channel string) bool  { return string(c) == channel }
func (c Channel) Contains(other Filter) bool { return other == Filter(c) }
func (c Channel) words() int                 { return 0 }

func (p Pattern) String() string { return string(p) }
func (p Pattern) words() int     { return strings.Count(string(p), ".") + 1 }

func (p Pattern) Match(channel string) bool {
	if IsInternal(channel) {
		return false
	}
	pattern := string(p)
	for {
		want, restOfPattern, more := strings.Cut(pattern, ".")
		if want == ">" && !more {
			return channel != ""
		}
		word, rest, longer := strings.Cut(channel, ".")
		if want != "*" && want != word {
			return false
		}
		if !more || !longer {
			return more == longer
		}
		pattern, channel = restOfPattern, rest
	}
}

func (p Pattern) Contains(other Filter) bool {
	q, ok := other.(Pattern)
	if !ok {
		return p.Match(other.String())
	}
	a, b := strings.Split(string(p), "."), strings.Split(string(q), ".")
	for i, want := range a {
		if want == ">" && i == len(a)-1 {
			return len(b) > i
		}
		if i >= len(b) || b[i] == ">" && i == len(b)-1 || want != "*" && want != b[i] {
			return false
		}
	}
	return len(a) == len(b)
}

// Overlap reports whether there is a channel that both filters select.
func Overlap(a, b Filter) bool {
	if c, ok := a.(Channel); ok {
		return b.Match(string(c))
	}
	if c, ok := b.(Channel); ok {
		return a.Match(string(c))
	}
	p, q := strings.Split(a.String(), "."), strings.Split(b.String(), ".")
	for i := 0; ; i++ {
		switch {
		case i == len(p) || i == len(q):
			return len(p) == len(q)
		case p[i] == ">" && i == len(p)-1, q[i] == ">" && i == len(q)-1:
			return true
		case p[i] != "*" && q[i] != "*" && p[i] != q[i]:
			return false
		}
	}
}

// selection selects what any of some filters does.
type selection struct {
	channels map[Channel]struct{}
	others   []Filter
}

// fewFilters are as fast to try one after the other.
const fewFilters = 8

func selecting(filters []Filter) (s selection) {
	if len(filters) <= fewFilters {
		s.others = filters
		return s
	}
	s.channels = make(map[Channel]struct{}, len(filters))
	for _, f := range filters {
		if c, ok := f.(Channel); ok {
			s.channels[c] = struct{}{}
		} else {
			s.others = append(s.others, f)
		}
	}
	return s
}

func (s selection) has(channel string) bool {
	if _, ok := s.channels[Channel(channel)]; ok {
		return true
	}
	return slices.ContainsFunc(s.others, func(f Filter) bool { return f.Match(channel) })
}
