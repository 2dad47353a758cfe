package weirui

import (
	"fmt"
	"html/template"
	"math"
	"net/url"
	"strconv"
	"time"
)

// ago says how long ago a time was, or how far ahead it is.
func ago(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	d := time.Since(t)
	if d < -time.Second {
		return "in " + span(-d)
	} else if d < time.Second {
		return "now"
	}
	return span(d) + " ago"
}

// span is a duration in one unit or two.
func span(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return strconv.FormatFloat(float64(d.Microseconds())/1000, 'f', 1, 64) + " ms"
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	case d < 10*time.Second:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
	case d < time.Minute:
		return strconv.Itoa(int(d.Seconds())) + " s"
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%d d", int(d.Hours()/24))
	}
}

// number is a number with its thousands separated.
func number(n any) string {
	var text string
	switch n := n.(type) {
	case int:
		text = strconv.Itoa(n)
	case int32:
		text = strconv.FormatInt(int64(n), 10)
	case int64:
		text = strconv.FormatInt(n, 10)
	case float64:
		if n < 10 && n != math.Trunc(n) {
			return strconv.FormatFloat(n, 'f', 1, 64)
		}
		text = strconv.FormatFloat(n, 'f', 0, 64)
	default:
		return fmt.Sprint(n)
	}
	for at := len(text) - 3; at > 0 && text[at-1] != '-'; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

// query is a query string of names and values; empty values are left out.
func query(pairs ...any) (template.URL, error) {
	if len(pairs)%2 != 0 {
		return "", fmt.Errorf("query needs names and values, got %d", len(pairs))
	}
	q := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		if value := fmt.Sprint(pairs[i+1]); value != "" && value != "0" {
			q.Add(fmt.Sprint(pairs[i]), value)
		}
	}
	return template.URL(q.Encode()), nil // encoded
}

// deref is what a pointer points to, as templates print it.
func deref(p any) any {
	switch p := p.(type) {
	case *string:
		if p != nil {
			return *p
		}
	case *float64:
		if p != nil {
			return *p
		}
	case *int32:
		if p != nil {
			return *p
		}
	}
	return ""
}
