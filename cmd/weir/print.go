package main

// What this command prints, and where:
//
//   - Standard output carries data and nothing else. Data is a table or sentences for people, the same on a
//     terminal and in a pipe, or with --json exactly one JSON value, whose fields do not change their meaning.
//   - Progress, logs, remarks and errors go to standard error. On a terminal progress is one line that is
//     written over; elsewhere it is a plain line now and then.
//   - Nothing that comes from a job reaches a terminal as it is: control characters are shown as escapes.
//   - An error is one line: "weir: what went wrong: what to do".

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"golang.org/x/term"
)

func terminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// jsonFlag is embedded by every command that prints data.
type jsonFlag struct {
	JSON bool `name:"json" help:"Print JSON."`
}

// printJSON prints one value; an empty list is [], not null.
func printJSON(w io.Writer, value any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	return nil
}

// orEmpty makes a nil slice an empty one, for JSON.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// table prints rows under a head, in columns.
func table(w io.Writer, head []string, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{head}, rows...) {
		for i := range row {
			row[i] = printable(row[i])
			if row[i] == "" {
				row[i] = "-"
			}
		}
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	return t.Flush()
}

// cellWidth is how much of a job's text a table shows.
const cellWidth = 80

// cell shortens a text to the width of a column.
func cell(text string) string {
	runes := []rune(text)
	if len(runes) <= cellWidth {
		return text
	}
	return string(runes[:cellWidth-1]) + "…"
}

// printable shows control characters as escapes, so that a text stays on its line and steers no terminal.
func printable(text string) string { return escape(text, "") }

// printableLines is printable for a text of several lines.
func printableLines(text string) string { return escape(text, "\n\t") }

func escape(text, keep string) string {
	plain := func(r rune) bool { return unicode.IsPrint(r) || strings.ContainsRune(keep, r) }
	if strings.IndexFunc(text, func(r rune) bool { return !plain(r) }) < 0 {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if plain(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}

// ago words a moment as its distance from now: "3s ago", "in 5m".
func ago(t *time.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	if d := time.Until(*t); d > 0 {
		return "in " + short(d)
	}
	return short(time.Since(*t)) + " ago"
}

// short words a duration by its largest unit, or its two largest.
func short(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd", int(d.Hours())/24)
}

// when is a moment in full, in local time.
func when(t *time.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return t.Local().Format("2006-01-02 15:04:05") + " (" + ago(t) + ")"
}

// count writes a number with separators.
func count[N int | int64](n N) string {
	digits := strconv.FormatInt(int64(n), 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// plural is "1 job" or "12 jobs".
func plural[N int | int64](n N, word string) string {
	if n != 1 {
		word += "s"
	}
	return count(n) + " " + word
}

func bytesText(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

// printLine prints one value on a line of its own, for streams of them.
func printLine(w io.Writer, value any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		return fmt.Errorf("print a line: %w", err)
	}
	return nil
}
