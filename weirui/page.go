package weirui

import (
	"bytes"
	"embed"
	"html/template"
	"io/fs"
	"net/http"
	"strings"
	"time"

	"github.com/weir-pg/weir/internal/traceback"
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
	if l.visit.ui.several && l.visit.db == nil {
		return strings.Repeat("../", max(strings.Count(l.visit.URL.EscapedPath(), "/")-1, 0))
	}
	if l.visit.ui.several {
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

// Several reports whether there may be several databases.
func (l layout) Several() bool { return l.visit.ui.several }

// Databases are the names of the databases that all pages have links to, if there may be several: all, or if they are many, the one that is shown.
func (l layout) Databases() (names []string) {
	if !l.visit.ui.several {
		return nil
	}
	all := l.visit.ui.list()
	if len(all) > linkedAtMost {
		if l.visit.db == nil {
			return nil
		}
		return []string{l.visit.db.Name}
	}
	for _, d := range all {
		names = append(names, d.Name)
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

// HasDatabase reports whether the page is one of a database.
func (l layout) HasDatabase() bool { return l.visit.db != nil }

// User is who looks at the page.
func (l layout) User() User { return l.visit.user }

// Operates reports whether the user may do what operators may.
func (l layout) Operates() bool { return l.visit.user.Role >= Operator }

// Administers reports whether the user may do what admins may.
func (l layout) Administers() bool { return l.visit.user.Role >= Admin }

// Sections are the links that all pages have.
func (l layout) Sections() []section {
	if l.visit.ui.several && l.visit.db == nil {
		return nil
	}
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
		"args":   u.redacted,
		"ago":    ago,
		"when":   func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
		"clock":  clock,
		"span":   span,
		"number": number,
		"path":   inPath,
		"query":  query,
		"pass":   func(l layout, data any) map[string]any { return map[string]any{"Page": l, "Data": data} },
		"cut":    cut,
		"line": func(text string) string {
			first, _, _ := strings.Cut(strings.TrimSpace(traceback.Message(text)), "\n")
			return first
		},
		"message": traceback.Message,
		"deref":   deref,
		"isFinal": isFinal,
		"ran":     ran,
		"lower":   strings.ToLower,
	})
	return t.ParseFS(files, "templates/*.html")
}

// staticFiles serves the style sheet and the scripts. They are part of the program, so a browser may keep them for as long as it runs this version.
func staticFiles() http.Handler {
	static, err := fs.Sub(files, "static")
	if err != nil {
		panic(err) // the files are embedded
	}
	serve := http.StripPrefix("/static/", http.FileServerFS(static))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f, err := fs.Stat(static, strings.TrimPrefix(r.URL.Path, "/static/")); err != nil || f.IsDir() { // no list of the files
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Cache-Control", "max-age=300")
		serve.ServeHTTP(w, r)
	})
}

// Priorities are those that a job may have.
func (layout) Priorities() []int { return []int{1, 2, 3, 4} }
