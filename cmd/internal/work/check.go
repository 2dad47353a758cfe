package work

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/weir-pg/weir/internal/hub"
)

// Limits of what a worker says of itself.
const (
	maxAtOnce = 1000 // jobs that it may want, of all queues together
	maxKinds  = 1000
	maxHeld   = 2 * maxAtOnce // tokens: a slot is used again once an end was taken, before its worker knows that it was recorded
	maxName   = 200           // characters
	maxWord   = 128           // characters of a queue or kind
	maxID     = 64
)

// check returns the names of the queues, sorted, or what is wrong.
func (o *Opening) check() (names []string, err error) {
	if len(o.Queues) == 0 {
		return nil, &BadError{"no queue is named", `name queues, and how many jobs of each: {"queues": {"mail": 8}}`}
	}
	sum := 0
	for name, n := range o.Queues {
		// A name that the database refuses would stop the worker of all sessions.
		if !IsQueue(name) {
			return nil, &BadError{fmt.Sprintf("%.150q is no name of a queue", name), "use 1 to 128 characters, without blanks at either end"}
		}
		if hub.IsPattern(name) {
			return nil, &BadError{fmt.Sprintf("%.150q is a pattern, and not the name of a queue", name), "name each queue: patterns are for what tokens allow"}
		}
		if n < 0 || n > maxAtOnce {
			return nil, &BadError{fmt.Sprintf("queue %q: the number of jobs must be 0 to %d, got %d", name, maxAtOnce, n), ""}
		}
		sum += n
		names = append(names, name)
	}
	switch {
	case sum > maxAtOnce:
		return nil, tooMany(sum)
	case o.Kinds != nil && len(o.Kinds) == 0:
		return nil, &BadError{"kinds is empty, so no job would be for this worker", "name the kinds that it has handlers for, or leave kinds out: all"}
	case len(o.Kinds) > maxKinds:
		return nil, &BadError{fmt.Sprintf("a worker may name %d kinds, got %d", maxKinds, len(o.Kinds)), "leave them out, and register no others"}
	case len(o.Held) > maxHeld:
		return nil, &BadError{fmt.Sprintf("held may have %d tokens, got %d", maxHeld, len(o.Held)), "use several workers"}
	case utf8.RuneCountInString(o.Name) > maxName:
		return nil, &BadError{fmt.Sprintf("the name may have %d characters, got %d", maxName, utf8.RuneCountInString(o.Name)), ""}
	case o.Number < 0:
		return nil, &BadError{fmt.Sprintf("call must be a whole number from 1, got %d", o.Number), ""}
	case len(o.Worker) > maxID || strings.Trim(o.Worker, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") != "":
		return nil, &BadError{fmt.Sprintf("%.100q is no worker", o.Worker), "pass the worker of the first answer, or none"}
	}
	for _, k := range o.Kinds {
		if wrong := wrongWord(k); wrong != "" {
			return nil, &BadError{fmt.Sprintf("%.150q is no kind: %s", k, wrong), ""}
		}
		if hub.IsPattern(k) {
			return nil, &BadError{fmt.Sprintf("%.150q is a pattern, and not the name of a kind", k), "name each kind, or leave kinds out: all"}
		}
	}
	slices.Sort(names)
	return names, nil
}

// IsQueue reports whether a queue may have this name.
func IsQueue(name string) bool { return wrongWord(name) == "" && strings.TrimSpace(name) == name }

func tooMany(sum int) error {
	return &BadError{fmt.Sprintf("a worker may have %d jobs at once, got %d for all queues", maxAtOnce, sum), "use several workers"}
}

// wrongWord says what is wrong with the name of a queue or kind; "": nothing.
func wrongWord(word string) string {
	switch n := utf8.RuneCountInString(word); {
	case n == 0:
		return "it is empty"
	case n > maxWord:
		return fmt.Sprintf("it has %d characters, the limit is %d", n, maxWord)
	case !utf8.ValidString(word):
		return "it is not UTF-8"
	case strings.ContainsRune(word, 0):
		return "it contains NUL"
	}
	return ""
}
