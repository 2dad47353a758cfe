package hub

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxChannel is how many bytes a channel's name may have.
const MaxChannel = 255

// Filter says what to subscribe to: one channel by its name, or by a pattern of dot-separated words in which * stands for any one
// word, and > at the end for one or more: orders.*, orders.>, *.created.
type Filter struct {
	Name    string
	Pattern bool
}

// ParseFilter reads a channel's name or a pattern: words that are * or a last word > make it a pattern.
func ParseFilter(s string) (Filter, error) {
	if err := CheckChannel(s); err != nil {
		return Filter{}, err
	}
	f := Filter{Name: s}
	words := strings.Split(s, ".")
	for i, word := range words {
		switch word {
		case "*":
			f.Pattern = true
		case ">":
			if i != len(words)-1 {
				return Filter{}, fmt.Errorf("pattern %q: > may only be its last word", s)
			}
			f.Pattern = true
		}
	}
	return f, nil
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

// Match tells whether the channel is one of those that the filter stands for.
func (f Filter) Match(channel string) bool {
	if !f.Pattern {
		return f.Name == channel
	}
	pattern := f.Name
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

// Contains tells whether every channel that g stands for is one that f stands for.
func (f Filter) Contains(g Filter) bool {
	if !g.Pattern {
		return f.Match(g.Name)
	}
	if !f.Pattern {
		return false
	}
	a, b := strings.Split(f.Name, "."), strings.Split(g.Name, ".")
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
