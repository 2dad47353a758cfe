package weirui

import (
	"context"
	"html/template"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-pg/weir"
)

func failureEndpoints() []endpoint {
	return []endpoint{
		page("failures", listFailures).takes("queue", "kind", "hours", "before"),
		action(Operator, "failures/retry", onFailures(weir.OperationRetry)).asks(askFailures("Retry", "")).takes("queue", "kind", "hours", "before", "shape", "all"),
		action(Admin, "failures/delete", onFailures(weir.OperationDelete)).asks(askFailures("Delete", " They can't be retried afterwards.")).takes("queue", "kind", "hours", "before", "shape", "all"),
	}
}

// failureFilter selects failed jobs; it is in the address of the page.
type failureFilter struct {
	Queue  string    `json:"queue,omitempty"`
	Kind   string    `json:"kind,omitempty"`
	Hours  int       `json:"hours,omitempty"` // only those that failed within so many hours; 0: all
	Before time.Time `json:"before,omitzero"` // only those that failed before; zero: all
	Shape  string    `json:"shape,omitempty"` // only for actions
}

// Spans are the numbers of hours that the page offers.
func (failureFilter) Spans() []int { return []int{1, 6, 24, 72, 168} }

func failureFilterOf(q url.Values) (failureFilter, error) {
	text := func(name string) string { return strings.TrimSpace(q.Get(name)) }
	f := failureFilter{Queue: text("queue"), Kind: text("kind"), Shape: q.Get("shape")}
	if hours := text("hours"); hours != "" {
		n, err := strconv.Atoi(hours)
		if err != nil || n < 0 || n > 8784 {
			return f, badInput("The time is a number of hours, up to 8784; got %q.", cut(hours, 50))
		}
		f.Hours = n
	}
	if before := text("before"); before != "" {
		at, err := time.Parse(time.RFC3339Nano, before)
		if err != nil {
			return f, badInput("The list continues before a time such as %s; got %q.", time.Now().UTC().Format(time.RFC3339), cut(before, 50))
		}
		f.Before = at
	}
	return f, nil
}

// Query is the filter as an address has it.
func (f failureFilter) Query() template.URL {
	q := url.Values{}
	for name, value := range map[string]string{"queue": f.Queue, "kind": f.Kind} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if f.Hours > 0 {
		q.Set("hours", strconv.Itoa(f.Hours))
	}
	if !f.Before.IsZero() {
		q.Set("before", exact(f.Before))
	}
	return template.URL(q.Encode()) // encoded
}

// Newest is the query of the first page.
func (f failureFilter) Newest() template.URL { f.Before = time.Time{}; return f.Query() }

// Older is the query of the page that continues before a time.
func (f failureFilter) Older(rest time.Time) template.URL { f.Before = rest; return f.Query() }

// Jobs is the query of the list of a group's jobs.
func (f failureFilter) Jobs(g weir.FailureGroup) template.URL {
	jobs := filter{State: string(weir.StateFailed), Queue: f.Queue, Kind: g.Kind, Shape: g.Shape, EndedUntil: f.Before}
	if f.Hours > 0 {
		jobs.EndedFrom = f.since().Truncate(time.Minute) // the page need not change each second
	}
	return template.URL(jobs.Query().Encode()) // encoded
}

// conditions are the parts of the filter, for forms and questions.
func (f failureFilter) conditions() []condition {
	all := []condition{{"queue", f.Queue}, {"kind", f.Kind}, {"shape", f.Shape}, {"hours", ""}, {"before", exact(f.Before)}}
	if f.Hours > 0 {
		all[3].Value = strconv.Itoa(f.Hours)
	}
	return slices.DeleteFunc(all, func(c condition) bool { return c.Value == "" })
}

// since is the time from which on jobs have failed.
func (f failureFilter) since() time.Time {
	if f.Hours == 0 {
		return time.Time{}
	}
	return time.Now().Add(-time.Duration(f.Hours) * time.Hour)
}

// failureList is a page of failures in groups.
type failureList struct {
	Filter failureFilter       `json:"filter"`
	Groups []weir.FailureGroup `json:"groups"`
	Rest   time.Time           `json:"rest,omitzero"` // ?before= of the next page, with older failures
}

func listFailures(v *visit) (*view, error) {
	f, err := failureFilterOf(v.URL.Query())
	if err != nil {
		return nil, err
	}
	found, err := read(v.Context(), v.db, "failures "+string(f.Query()), func(ctx context.Context) (*weir.FailureGroupsPage, error) {
		return v.db.client.FailureGroups(ctx, weir.FailureGroupsParams{Queue: f.Queue, Kind: f.Kind, Since: f.since(), Before: f.Before})
	})
	if err != nil {
		return nil, err
	}
	return &view{template: "failures", title: "Failures", data: failureList{Filter: f, Groups: listed(found.Groups), Rest: found.Rest}}, nil
}

// isMeant refuses an action on all failures of the database, unless the form says that all are meant: a field may have been forgotten.
func (f failureFilter) isMeant(v *visit) error {
	if len(f.conditions()) == 0 && v.PostForm.Get("all") != "yes" {
		return badInput("Select failed jobs by queue, kind, error or time; or say all=yes.")
	}
	return nil
}

// askFailures is a question about failed jobs.
func askFailures(verb, warning string) ask {
	return func(v *visit) (string, error) {
		f, err := failureFilterOf(v.PostForm)
		if err != nil {
			return "", err
		}
		some := f.conditions()
		if len(some) == 0 {
			return verb + " all failed jobs of the database, whatever their error?" + warning, f.isMeant(v)
		}
		return verb + " all failed jobs that match: " + words(some, "failed") + "?" + warning, nil
	}
}

// FormFailures begins the form of an action on all failed jobs that the page's filter selects.
func (l layout) FormFailures(path string) (template.HTML, error) {
	list, _ := l.Data().(failureList)
	return l.formFailures(path, list.Filter)
}

// FormGroup begins the form of an action on a group of them.
func (l layout) FormGroup(path string, g weir.FailureGroup) (template.HTML, error) {
	list, _ := l.Data().(failureList)
	f := list.Filter
	f.Kind, f.Shape = g.Kind, g.Shape
	return l.formFailures(path, f)
}

func (l layout) formFailures(path string, f failureFilter) (template.HTML, error) {
	fields := []any{}
	for _, c := range f.conditions() {
		fields = append(fields, c.Name, c.Value)
	}
	if len(fields) == 0 {
		fields = []any{"all", "yes"}
	}
	return l.Form(path, fields...)
}

// onFailures is an action on all failed jobs that the page's filter selects, or on those of a group.
func onFailures(what weir.OperationKind) func(*visit) (string, error) {
	return func(v *visit) (string, error) {
		f, err := failureFilterOf(v.PostForm)
		if err != nil {
			return "", err
		}
		if err := f.isMeant(v); err != nil {
			return "", err
		}
		o := weir.Operation{What: what, Filter: weir.JobFilter{Queue: f.Queue, Shape: f.Shape, FinishedAfter: f.since(), FinishedBefore: f.Before}}
		if f.Kind != "" {
			o.Filter.Kinds = []string{f.Kind}
		}
		if o.Filter.FinishedBefore.IsZero() {
			o.Filter.FinishedBefore = time.Now() // a filter must have a condition
		}
		return v.begin(o)
	}
}
