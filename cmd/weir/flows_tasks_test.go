package main

import (
	"io"
	"strings"
	"testing"
	"unicode"

	"github.com/weir-pg/weir"
)

// TestGraphsOfTasksCannotControlTheTerminal: whatever the names are, drawings have no characters that a terminal or a reader would obey, and name all tasks.
func TestGraphsOfTasksCannotControlTheTerminal(t *testing.T) {
	t.Parallel()
	tasks := []weir.TaskInfo{{Name: "a\u202eb\a\x1b[31m\nc", State: weir.FlowBlocked}, {Name: `plain "name"`, State: weir.FlowBlocked, After: []string{"a\u202eb\a\x1b[31m\nc"}}}
	for format, draw := range map[string]func(io.Writer) error{
		"text":    func(w io.Writer) error { return drawText(w, tasks) },
		"dot":     func(w io.Writer) error { return drawDOT(w, "flow\u202e\a", tasks) },
		"mermaid": func(w io.Writer) error { return drawMermaid(w, tasks) },
	} {
		var b strings.Builder
		if err := draw(&b); err != nil {
			t.Fatal(err)
		}
		drawn := b.String()
		if i := strings.IndexFunc(drawn, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
			t.Errorf("%s has the character %q:\n%q", format, []rune(drawn[i:])[0], drawn)
		}
		if !strings.Contains(drawn, `\u202eb`) || !strings.Contains(drawn, "plain ") {
			t.Errorf("%s does not name all tasks:\n%s", format, drawn)
		}
	}
}
