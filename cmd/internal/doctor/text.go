package doctor

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

func quoteIdentifier(name string) string { return pgx.Identifier{name}.Sanitize() }

var spaces = regexp.MustCompile(`\s+`)

// shape returns a statement without its values: statements that differ only in values count as the same, and values may be
// confidential.
func shape(query string) string {
	text := strings.TrimRight(strings.TrimSpace(spaces.ReplaceAllString(withoutValues(query), " ")), "; ")
	return clip(text, 160)
}

func clip(text string, limit int) string {
	runes := []rune(text)
	if len(runes) <= limit {
		return text
	}
	return string(runes[:limit-1]) + "…"
}

var (
	listens = regexp.MustCompile(`(?i)^\s*(un)?listen\b`)
	inserts = regexp.MustCompile(`(?i)\binsert\s+into\b`)
	ends    = regexp.MustCompile(`(?i)^\s*(commit|end|rollback|abort|prepare transaction)\b`)
)

// endsTransaction reports whether a statement ends a transaction.
func endsTransaction(query string) bool { return ends.MatchString(query) }

// oneLine joins the lines of a statement.
func oneLine(sql string) string { return strings.Join(strings.Fields(sql), " ") }

// per returns a rate per second.
func per(n float64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return n / d.Seconds()
}

// figure formats a number for people, with about three significant digits.
func figure(x float64) string {
	switch {
	case x >= 1000 || x <= -1000:
		digits := strconv.FormatInt(int64(x), 10)
		for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
			digits = digits[:i] + "," + digits[i:]
		}
		return digits
	case x >= 100:
		return strconv.FormatFloat(x, 'f', 0, 64)
	case x >= 10:
		return strings.TrimSuffix(strconv.FormatFloat(x, 'f', 1, 64), ".0")
	}
	return strings.TrimSuffix(strconv.FormatFloat(x, 'f', 2, 64), ".00")
}

// many returns "1 table" or "12 tables".
func many[N int | int64](n N, word string) string {
	if n == 1 {
		return "1 " + word
	}
	if strings.HasSuffix(word, "x") || strings.HasSuffix(word, "s") {
		return figure(float64(n)) + " " + word + "es"
	}
	if strings.HasSuffix(word, "y") {
		return figure(float64(n)) + " " + strings.TrimSuffix(word, "y") + "ies"
	}
	return figure(float64(n)) + " " + word + "s"
}

// mean returns "1 row" or "0.5 rows".
func mean(x float64, word string) string {
	if text := figure(x); text != "1" {
		return text + " " + word + "s"
	}
	return "1 " + word
}

// span formats a duration.
func span(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%.2f ms", float64(d)/1e6)
	case d < time.Second:
		return fmt.Sprintf("%.0f ms", float64(d)/1e6)
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%.0f min", d.Minutes())
	case d < 48*time.Hour:
		return fmt.Sprintf("%.0f h", d.Hours())
	}
	return fmt.Sprintf("%.0f days", d.Hours()/24)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// shareOf formats a share as a percentage. One that is not all is not rounded up to all.
func shareOf(part, whole float64) string {
	if whole <= 0 {
		return "0%"
	}
	text := fmt.Sprintf("%.0f%%", 100*part/whole)
	if text == "100%" && part < whole {
		return "over 99%"
	}
	return text
}

// sessionsThat says how many sessions do something, on average: "1 session waits", "2.50 sessions wait".
func sessionsThat(n float64, one, more string) string {
	if text := figure(n); text != "1" {
		return text + " sessions " + more
	}
	return "1 session " + one
}
