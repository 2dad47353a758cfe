package weirui

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io/fs"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
)

//go:embed templates static
var files embed.FS

// layout is what the templates are given: the view, and whose visit it is.
type layout struct {
	View  *view
	visit *visit
	Said  string // what the last action has done
}

// Data is what the page shows.
func (l layout) Data() any { return l.View.data }

// Title is the page's title.
func (l layout) Title() string { return l.View.title }

// Page is the name of the page's template.
func (l layout) Page() string { return l.View.template }

// Root is the way to the database's first page, and Base that to the UI's.
func (l layout) Root() string { return l.visit.root }

// Base is the way from the page to where the UI is served.
func (l layout) Base() string {
	if len(l.visit.ui.databases) > 1 {
		return l.visit.root + "../../"
	}
	return l.visit.root
}

// Here is the page's own address, for forms to come back to.
func (l layout) Here() string {
	if l.visit.db == nil {
		return ""
	}
	return l.visit.here()
}

// Databases are the names of all databases, if there are several.
func (l layout) Databases() []string {
	if len(l.visit.ui.databases) < 2 {
		return nil
	}
	names := make([]string, len(l.visit.ui.databases))
	for i, d := range l.visit.ui.databases {
		names[i] = d.Name
	}
	return names
}

// Database is the name of the database that is shown.
func (l layout) Database() string {
	if l.visit.db == nil {
		return ""
	}
	return l.visit.db.Name
}

// User is who looks at the page.
func (l layout) User() User { return l.visit.user }

// Operates reports whether the user may do what operators may.
func (l layout) Operates() bool { return l.visit.user.Role >= Operator }

// Administers reports whether the user may do what admins may.
func (l layout) Administers() bool { return l.visit.user.Role >= Admin }

// Sections are the links that all pages have.
func (l layout) Sections() []section {
	all := []section{{"", "Overview"}, {"failures", "Failures"}, {"jobs", "Jobs"}, {"queues", "Queues"}, {"schedules", "Schedules"}, {"flows", "Flows"}, {"workers", "Workers"}, {"channels", "Channels"}, {"storage", "Storage"}}
	if l.visit.db != nil && l.visit.db.Doctor != nil {
		all = append(all, section{"doctor", "Doctor"})
	}
	return all
}

type section struct{ Path, Name string }

// IsOpen reports whether the page belongs to a section.
func (l layout) IsOpen(s section) bool {
	if l.visit.db == nil {
		return false
	}
	first, _, _ := strings.Cut(l.visit.here(), "?")
	first, _, _ = strings.Cut(first, "/")
	return first == s.Path
}

func parseTemplates(u *UI) (*template.Template, error) {
	t := template.New("").Funcs(template.FuncMap{
		"content": func(l layout) (template.HTML, error) {
			var b bytes.Buffer
			err := u.templates.ExecuteTemplate(&b, l.View.template, l)
			return template.HTML(b.String()), err // rendered by a template, which has escaped it
		},
		"args":    u.redacted,
		"ago":     ago,
		"when":    func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
		"clock":   clock,
		"span":    span,
		"number":  number,
		"path":    url.PathEscape,
		"query":   query,
		"pass":    func(l layout, data any) map[string]any { return map[string]any{"Page": l, "Data": data} },
		"cut":     cut,
		"line":    func(text string) string { first, _, _ := strings.Cut(strings.TrimSpace(text), "\n"); return first },
		"deref":   deref,
		"isFinal": isFinal,
		"ran":     ran,
		"lower":   strings.ToLower,
	})
	return t.ParseFS(files, "templates/*.html")
}

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

// redacted is indented JSON without the values of secret fields.
func (u *UI) redacted(text json.RawMessage) string {
	if len(text) == 0 {
		return ""
	}
	hidden := u.redact(text)
	var b bytes.Buffer
	if json.Indent(&b, hidden, "", "  ") != nil {
		return string(hidden)
	}
	return b.String()
}

// redact replaces the values of secret fields. What it returns is written anew, so that nothing is in it that was not looked at, such as the
// first of two fields of the same name.
func (u *UI) redact(text json.RawMessage) json.RawMessage {
	if len(text) == 0 {
		return text
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil || d.More() { // no JSON, or several values
		return json.RawMessage(u.hideIn(string(text)))
	}
	v, _ = u.hide(v)
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if e.Encode(v) != nil {
		return json.RawMessage(`"` + hidden + `"`)
	}
	return bytes.TrimSpace(b.Bytes())
}

// hide returns a value without those of secret fields, and reports whether there were any. It changes maps and slices in place.
func (u *UI) hide(v any) (shown any, found bool) {
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			if u.secret[plainName(name)] {
				v[name] = hidden
				found = true
			} else if now, any := u.hide(value); any {
				v[name] = now
				found = true
			}
		}
	case []any:
		for i, value := range v {
			if now, any := u.hide(value); any {
				v[i] = now
				found = true
			}
		}
	case string: // JSON in a text
		if now := u.hideIn(v); now != v {
			return now, true
		}
	}
	return v, found
}

// hidden stands for the value of a secret field.
const hidden = "[redacted]"

// hideIn replaces what looks like the value of a secret field in a text that is not JSON as a whole.
func (u *UI) hideIn(text string) string {
	return inText.ReplaceAllStringFunc(text, func(pair string) string {
		m := inText.FindStringSubmatch(pair)
		if !u.secret[plainName(m[2])] {
			return pair
		}
		return m[1] + `"` + hidden + `"`
	})
}

// inText matches a name in quotes with its value: a text, a number, or what stands in brackets or braces up to the first that closes.
var inText = regexp.MustCompile(`("((?:[^"\\]|\\.){1,100})"\s*:\s*)("(?:[^"\\]|\\.)*"?|\[[^\]]*\]?|\{[^}]*\}?|[^\s,}\]"]+)`)

// plainName is a field's name without what people write in different ways.
func plainName(name string) string {
	return strings.Map(func(r rune) rune {
		if r == '-' || r == '_' || r == ' ' {
			return -1
		}
		return r
	}, strings.ToLower(name))
}

// staticFiles serves the style sheet and the scripts. They are part of the program, so a browser may keep them for as long as it runs this version.
func staticFiles() http.Handler {
	static, err := fs.Sub(files, "static")
	if err != nil {
		panic(err) // the files are embedded
	}
	serve := http.StripPrefix("/static/", http.FileServerFS(static))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/") { // no list of the files
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Cache-Control", "max-age=300")
		serve.ServeHTTP(w, r)
	})
}

// Priorities are those that a job may have.
func (layout) Priorities() []int { return []int{1, 2, 3, 4} }
