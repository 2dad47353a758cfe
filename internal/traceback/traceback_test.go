package traceback_test

import (
	"testing"

	"github.com/weir-pg/weir/internal/traceback"
)

// TestTheMessageOfATracebackIsFound: what an error says is found in its traceback, and other texts stay as they are.
func TestTheMessageOfATracebackIsFound(t *testing.T) {
	t.Parallel()
	const begin = "Traceback (most recent call last):\n  File \"a.py\", line 3, in run\n    x()\n    ^^^\n"
	for _, c := range []struct{ text, want string }{
		{begin + "ValueError: no\n", "ValueError: no"},
		{begin + "ValueError: no\n[failed by retry rule x]", "ValueError: no"},
		{begin + "KeyError", "KeyError"},
		{"exit status 1: " + begin + "KeyError: 'a'", "exit status 1: KeyError: 'a'"},
		{begin + "psycopg.errors.UndefinedTable: relation \"a\" does not exist\nLINE 1: select * from a\n                      ^\n", "psycopg.errors.UndefinedTable: relation \"a\" does not exist"},
		{begin + "KeyError: 1\n\nDuring handling of the above exception, another exception occurred:\n\n" + begin + "  [Previous line repeated 9 more times]\nOSError: 2\r\nmore", "OSError: 2"},
		{begin, "^^^"},
		{"Traceback (most recent call last):", "Traceback (most recent call last):"},
		{"no route\n  to host", "no route\n  to host"},
		{"", ""},
	} {
		if got := traceback.Message(c.text); got != c.want {
			t.Errorf("the message of\n%s\nis\t%q\nwant\t%q", c.text, got, c.want)
		}
	}
}
