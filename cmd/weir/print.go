package main

// What this command prints, and where:
//
//   - Standard output contains data and nothing else. Data is tables or text, the same on a terminal and in a pipe, or with --json exactly
//     one JSON value, whose fields do not change their meaning.
//   - Progress, logs, remarks and errors go to standard error. On a terminal, progress is one line that is overwritten; otherwise it is an
//     occasional plain line.
//   - Text that comes from a job never reaches a terminal unescaped: control characters are shown as escapes.
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

// jsonFlag is embedded by all commands that print data.
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

// orEmpty returns an empty slice for nil, for JSON.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// table prints a header and rows in columns.
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

// cellWidth is the maximum width of a job's text in a table.
const cellWidth = 80

// cell truncates text to the width of a column.
func cell(text string) string {
	runes := []rune(text)
	if len(runes) <= cellWidth {
		return text
	}
	return string(runes[:cellWidth-1]) + "…"
}

// printable escapes control characters, so that text stays on its line and can't control the terminal.
func printable(text string) string { return escape(text, "") }

// printableLines is printable for text of several lines.
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

// ago formats a time relative to now: "3s ago", "in 5m".
func ago(t *time.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	if d := time.Until(*t); d > 0 {
		return "in " + short(d)
	}
	return short(time.Since(*t)) + " ago"
}

// short formats a duration in its largest unit, or its two largest.
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

// when formats a time in full, in local time.
func when(t *time.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return t.Local().Format("2006-01-02 15:04:05") + " (" + ago(t) + ")"
}

// count formats a number with thousands separators.
func count[N int | int64](n N) string {
	digits := strconv.FormatInt(int64(n), 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// plural returns "1 job" or "12 jobs".
func plural[N int | int64](n N, word string) string {
	if n != 1 {
		word += "s"
	}
	return count(n) + " " + word
}

func bytesText(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

// printLine prints one JSON value on its own line, for streams of values.
func printLine(w io.Writer, value any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		return fmt.Errorf("print a line: %w", err)
	}
	return nil
}
