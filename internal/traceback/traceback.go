// Package traceback finds what an error says in the traceback that Python makes of it.
package traceback

import "strings"

// Message returns the line of a traceback that says what went wrong, with whatever precedes the traceback in its first line. Lists have room for one line, and
// the first of all tracebacks is the same. A text that is no traceback is returned as it is. The function weir._shape_of takes the same line.
func Message(text string) string {
	const header, frame = "Traceback (most recent call last):", "\n  File \""
	first, rest, _ := strings.Cut(strings.TrimSpace(text), "\n")
	before, isTraceback := strings.CutSuffix(strings.TrimSpace(first), header)
	if !isTraceback || strings.TrimSpace(rest) == "" {
		return text
	}
	// Lines of frames are indented. Below the message drivers add more, such as DETAIL and a caret.
	if at := strings.LastIndex("\n"+rest, frame); at >= 0 {
		for line := range strings.Lines(rest[at:]) {
			if strings.TrimLeft(line, " \t\r\n") == line {
				return before + strings.TrimSpace(line)
			}
		}
	}
	rest = strings.TrimSpace(rest)
	return before + strings.TrimSpace(rest[strings.LastIndexByte(rest, '\n')+1:])
}
