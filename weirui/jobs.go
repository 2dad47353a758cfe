package weirui

import (
	"context"
	"encoding/json"
	"html/template"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-pg/weir"
)

const jobsOnPage = 50

func jobEndpoints() []endpoint {
	return []endpoint{
		page("jobs", listJobs),
		page("jobs/new", newJob),
		page("jobs/{id}", showJob),
		action(Operator, "jobs", enqueueJob),
		action(Operator, "jobs/{id}/retry", retryJob),
		action(Operator, "jobs/{id}/cancel", cancelJob),
	}
}

// filter selects jobs; it is in the address of the page.
type filter struct {
	State string `json:"state,omitempty"` // "": all
	Queue string `json:"queue,omitempty"`
	Kind  string `json:"kind,omitempty"`
	Key   string `json:"key,omitempty"`
	Meta  string `json:"meta,omitempty"`
	Flow  int64  `json:"flow,omitempty"`
	Text  string `json:"text,omitempty"` // part of the args

	From  time.Time `json:"from,omitzero"`  // enqueued then or later
	Until time.Time `json:"until,omitzero"` // enqueued before
}

// filterOf reads a filter from a query or a form.
func filterOf(q url.Values) (filter, error) {
	text := func(name string) string { return strings.TrimSpace(q.Get(name)) }
	f := filter{State: text("state"), Queue: text("queue"), Kind: text("kind"), Key: text("key"), Meta: text("meta"), Text: text("text")}
	if f.State != "" && !slices.Contains(weir.States, weir.State(f.State)) {
		return f, badInput("There is no state %q.", cut(f.State, 50))
	}
	var object map[string]json.RawMessage
	if f.Meta != "" && (json.Unmarshal([]byte(f.Meta), &object) != nil || object == nil) {
		return f, badInput("Meta is a JSON object that the jobs' meta contains, such as {\"tenant\": \"acme\"}; got %s", cut(f.Meta, 100))
	}
	if flow := text("flow"); flow != "" {
		n, err := strconv.ParseInt(flow, 10, 64)
		if err != nil || n < 1 {
			return f, badInput("A flow is the number of one; got %q.", cut(flow, 50))
		}
		f.Flow = n
	}
	var err error
	if f.From, err = timeOf(text("from")); err == nil {
		f.Until, err = timeOf(text("until"))
	}
	if err == nil && !f.From.IsZero() && !f.Until.IsZero() && !f.From.Before(f.Until) {
		err = badInput("No job was enqueued at %s or later and before %s: the first time must be the earlier one.", f.From.Format(time.RFC3339), f.Until.Format(time.RFC3339))
	}
	return f, err
}

// Forms of times: what fields for a date and a time send, in which clocks show UTC without the script, and times with an offset.
const (
	minutes = "2006-01-02T15:04"
	seconds = "2006-01-02T15:04:05"
)

// timeOf reads a time in UTC, or with its offset; "" is the zero time.
func timeOf(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	for _, form := range []string{minutes, seconds, time.DateOnly, time.RFC3339Nano} {
		if at, err := time.Parse(form, text); err == nil {
			return at.UTC(), nil
		}
	}
	return time.Time{}, badInput("A time is written as %s, in UTC; got %q.", time.Now().UTC().Format(minutes), cut(text, 50))
}

// Field is a time as a field for a date and a time has it.
func (filter) Field(t time.Time) string {
	switch {
	case t.IsZero():
		return ""
	case t.Second() == 0 && t.Nanosecond() == 0:
		return t.UTC().Format(minutes)
	}
	return t.UTC().Format(seconds)
}

// Query is the filter as an address has it.
func (f filter) Query() url.Values {
	q := url.Values{}
	set := func(name, value string) {
		if value != "" {
			q.Set(name, value)
		}
	}
	set("state", f.State)
	set("queue", f.Queue)
	set("kind", f.Kind)
	set("key", f.Key)
	set("meta", f.Meta)
	set("text", f.Text)
	set("from", f.Field(f.From))
	set("until", f.Field(f.Until))
	if f.Flow > 0 {
		set("flow", strconv.FormatInt(f.Flow, 10))
	}
	return q
}

// In is the filter's query for another state.
func (f filter) In(state string) template.URL {
	f.State = state
	return template.URL(f.Query().Encode()) // encoded
}

// After is the filter's query for the page after a cursor.
func (f filter) After(cursor string) template.URL {
	q := f.Query()
	q.Set("after", cursor)
	return template.URL(q.Encode())
}

// Narrow reports whether it selects by anything but the state.
func (f filter) Narrow() bool { f.State = ""; return f != filter{} }

// Fields are the parts of the filter, for the forms of actions on all of its jobs.
func (f filter) Fields() (all []condition) {
	q := f.Query()
	for _, name := range slices.Sorted(maps.Keys(q)) {
		all = append(all, condition{name, q.Get(name)})
	}
	return all
}

func (f filter) meta() json.RawMessage { return json.RawMessage(f.Meta) }

func (f filter) params(after string, limit int) weir.JobsParams {
	p := weir.JobsParams{Queue: f.Queue, Key: f.Key, Flow: f.Flow, Text: f.Text, EnqueuedAfter: f.From, EnqueuedBefore: f.Until, After: after, Limit: limit}
	if f.State != "" {
		p.States = []weir.State{weir.State(f.State)}
	} else {
		p.States = []weir.State{weir.StateRunning, weir.StateAvailable, weir.StateScheduled, weir.StateFailed, weir.StateCancelled, weir.StateCompleted}
	}
	if f.Kind != "" {
		p.Kinds = []string{f.Kind}
	}
	if f.Meta != "" {
		p.Meta = f.meta()
	}
	return p
}

// jobList is a page of jobs.
type jobList struct {
	Filter filter         `json:"filter"`
	Jobs   []weir.JobInfo `json:"jobs"`
	Next   string         `json:"next,omitempty"` // ?after= of the next page
	After  string         `json:"-"`
	States []weir.State   `json:"-"`
}

func listJobs(v *visit) (*view, error) {
	f, err := filterOf(v.URL.Query())
	if err != nil {
		return nil, err
	}
	after := v.URL.Query().Get("after")
	page, err := read(v.Context(), v.db, "jobs "+f.Query().Encode()+" after "+after, func(ctx context.Context) (*weir.JobsPage, error) {
		return v.db.client.Jobs(ctx, f.params(after, jobsOnPage))
	})
	if err != nil {
		return nil, err
	}
	list := jobList{Filter: f, Jobs: listed(slices.Clone(page.Jobs)), Next: page.Next, After: after, States: weir.States}
	for i := range list.Jobs {
		v.ui.redactJob(&list.Jobs[i])
	}
	return &view{template: "jobs", title: "Jobs", data: list}, nil
}

// redactJob hides secret fields in what is shown of a job.
func (u *UI) redactJob(j *weir.JobInfo) {
	j.Args, j.Meta = u.redact(j.Args), u.redact(j.Meta)
	if j.Output != nil {
		j.Output = new(string(u.redact(json.RawMessage(*j.Output)))) // text that is not JSON stays as it is
	}
}
