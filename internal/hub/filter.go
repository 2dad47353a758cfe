package hub

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxChannel is how many bytes a channel's name may have.
const MaxChannel = 255

// MaxWords is how many words a pattern may have. A channel is looked up in all patterns at once, and for each of its words there may be
// two ways to go on, by the word and by *: so this bounds what a message costs, whatever anybody subscribes to.
const MaxWords = 10

// Filter says what to subscribe to, or what is allowed: a Channel or a Pattern. Neither is ever taken for the other, for a channel may have
// any name, that of a pattern too.
type Filter interface {
	fmt.Stringer
	// Match tells whether the channel is one of those that the filter stands for.
	Match(channel string) bool
	// Contains tells whether every channel that the other stands for is one that the filter stands for.
	Contains(other Filter) bool
	// words is how many nodes of an index it may take.
	words() int
}

// Channel is one channel, by its name.
type Channel string

// Pattern stands for channels by their dot-separated words: * for any one word, and > at the end for one or more: orders.*, orders.>,
// *.created. ParseFilter makes them.
type Pattern string

// ParseFilter reads a channel's name or a pattern: words that are * or a last word > make it a pattern.
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

// ParseFilters reads several.
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

// MaxPatternWords is how many words a subscriber's patterns may have together: what they take in memory.
const MaxPatternWords = 2000

// LimitError is the answer to a subscriber that asks for more than one may have.
type LimitError struct{ text string }

func (e *LimitError) Error() string { return e.text }

// CheckFilters tells whether a subscriber may have all of the filters.
func CheckFilters(filters []Filter) error { return checkWords(0, filters) }

func checkWords(has int, filters []Filter) error {
	for _, f := range filters {
		has += f.words()
	}
	if has > MaxPatternWords {
		return &LimitError{fmt.Sprintf("patterns have %d words together, and a connection may have %d: use broader ones", has, MaxPatternWords)}
	}
	return nil
}

// CheckChannel tells what is wrong with a channel's name.
func CheckChannel(name string) error {
	if name == "" {
		return fmt.Errorf("a channel needs a name, and this one is empty")
	}
	if len(name) > MaxChannel {
		return fmt.Errorf("channel name too long: %d bytes, at most %d are allowed", len(name), MaxChannel)
	}
	if !utf8.ValidString(name) || strings.IndexByte(name, 0) >= 0 {
		return fmt.Errorf("channel name %q is not text: it must be UTF-8 without a zero byte", name)
	}
	return nil
}

func (c Channel) String() string             { return string(c) }
func (c Channel) Match(channel string) bool  { return string(c) == channel }
func (c Channel) Contains(other Filter) bool { return other == Filter(c) }
func (c Channel) words() int                 { return 0 }

func (p Pattern) String() string { return string(p) }
func (p Pattern) words() int     { return strings.Count(string(p), ".") + 1 }

func (p Pattern) Match(channel string) bool {
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

func match(filters []Filter, channel string) bool {
	for _, f := range filters {
		if f.Match(channel) {
			return true
		}
	}
	return false
}
