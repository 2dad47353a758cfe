package weirui

import (
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

// filter selects jobs; it is in the address of the page.
type filter struct {
	State  string `json:"state,omitempty"` // "": all
	Queue  string `json:"queue,omitempty"`
	Kind   string `json:"kind,omitempty"`
	Key    string `json:"key,omitempty"`
	Meta   string `json:"meta,omitempty"`
	Flow   int64  `json:"flow,omitempty"`
	Worker int64  `json:"worker,omitempty"` // whose latest attempt it has
	Text   string `json:"text,omitempty"`   // part of the args

	From  time.Time `json:"from,omitzero"`  // enqueued then or later
	Until time.Time `json:"until,omitzero"` // enqueued before

	Shape      string    `json:"shape,omitempty"`      // of the error of failed jobs
	EndedFrom  time.Time `json:"ended_from,omitzero"`  // ended then or later
	EndedUntil time.Time `json:"ended_until,omitzero"` // ended before
}

// filterFields are the fields of a query or a form that filterOf reads.
var filterFields = []string{"state", "queue", "kind", "key", "meta", "flow", "worker", "text", "from", "until", "shape", "ended_from", "ended_until"}

// filterOf reads a filter from a query or a form.
func (u *UI) filterOf(q url.Values) (filter, error) {
	text := func(name string) string { return strings.TrimSpace(q.Get(name)) }
	f := filter{State: text("state"), Queue: text("queue"), Kind: text("kind"), Key: q.Get("key"), Meta: text("meta"), Text: text("text"), Shape: text("shape")}
	if f.Shape != "" && f.State == "" {
		f.State = string(weir.StateFailed) // no others have a shape
	}
	if f.State != "" && !slices.Contains(weir.States, weir.State(f.State)) {
		return f, badInput("There is no state %q.", cut(f.State, 50))
	}
	if f.Meta != "" {
		var object map[string]any
		if json.Unmarshal([]byte(f.Meta), &object) != nil || object == nil {
			return f, badInput("Meta is a JSON object that the jobs' meta contains, such as {\"tenant\": \"acme\"}; got %s", cut(f.Meta, 100))
		} else if _, hidden := u.hide(object); hidden {
			return f, badInput("Meta can't be searched for a field that is not shown; got %s", cut(f.Meta, 100))
		}
	}
	if flow := text("flow"); flow != "" {
		n, err := strconv.ParseInt(flow, 10, 64)
		if err != nil || n < 1 {
			return f, badInput("A flow is the number of one; got %q.", cut(flow, 50))
		}
		f.Flow = n
	}
	if worker := text("worker"); worker != "" {
		n, err := strconv.ParseInt(worker, 10, 32)
		if err != nil || n < 1 {
			return f, badInput("A worker is the number of one; got %q.", cut(worker, 50))
		}
		f.Worker = n
		if f.State == "" {
			f.State = string(weir.StateRunning)
		}
	}
	var err error
	if f.From, err = timeOf(text("from")); err == nil {
		f.Until, err = timeOf(text("until"))
	}
	if err == nil && !f.From.IsZero() && !f.Until.IsZero() && !f.From.Before(f.Until) {
		err = badInput("No job was enqueued at %s or later and before %s: the first time must be the earlier one.", f.From.Format(time.RFC3339), f.Until.Format(time.RFC3339))
	}
	if err == nil {
		f.EndedFrom, err = timeOf(text("ended_from"))
	}
	if err == nil {
		f.EndedUntil, err = timeOf(text("ended_until"))
	}
	if err == nil && !f.EndedFrom.IsZero() && !f.EndedUntil.IsZero() && !f.EndedFrom.Before(f.EndedUntil) {
		err = badInput("No job ended at %s or later and before %s: the first time must be the earlier one.", f.EndedFrom.Format(time.RFC3339), f.EndedUntil.Format(time.RFC3339))
	}
	return f, err
}

// Ends reports whether all jobs that it selects may have ended.
func (f filter) Ends() bool {
	return f.State == "" || slices.Contains([]weir.State{weir.StateFailed, weir.StateCompleted, weir.StateCancelled}, weir.State(f.State))
}

// IsFailed reports whether it selects failed jobs only.
func (f filter) IsFailed() bool { return f.State == string(weir.StateFailed) }

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
	return t.UTC().Format(seconds + ".999999999") // without a fraction, if there is none: nothing else is selected than what is shown
}

// exact is a time without loss; "": it is zero.
func exact(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
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
	set("shape", f.Shape)
	set("ended_from", exact(f.EndedFrom))
	set("ended_until", exact(f.EndedUntil))
	if f.Flow > 0 {
		set("flow", strconv.FormatInt(f.Flow, 10))
	}
	if f.Worker > 0 {
		set("worker", strconv.FormatInt(f.Worker, 10))
	}
	return q
}

// In is the filter's query for another state.
func (f filter) In(state string) template.URL {
	f.State = state
	// What only jobs of other states have selects none of this one.
	if !f.IsFailed() {
		f.Shape = ""
	}
	if f.State == "" || f.State == string(weir.StateAvailable) || f.State == string(weir.StateScheduled) {
		f.Worker = 0
	}
	if !f.Ends() {
		f.EndedFrom, f.EndedUntil = time.Time{}, time.Time{}
	}
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

// keeps reports whether a job that the database has found is one of the worker's.
func (f filter) keeps(j weir.JobInfo) bool {
	return f.Worker == 0 || j.Worker != nil && int64(*j.Worker) == f.Worker
}

func (f filter) meta() json.RawMessage { return json.RawMessage(f.Meta) }

func (f filter) params(after string, limit int) weir.JobsParams {
	p := weir.JobsParams{Queue: f.Queue, Key: f.Key, Flow: f.Flow, Text: f.Text, EnqueuedAfter: f.From, EnqueuedBefore: f.Until, After: after, Limit: limit,
		Shape: f.Shape, FinishedAfter: f.EndedFrom, FinishedBefore: f.EndedUntil}
	if f.State != "" {
		p.States = []weir.State{weir.State(f.State)}
	} else {
		p.States = shownStates
	}
	if f.Kind != "" {
		p.Kinds = []string{f.Kind}
	}
	if f.Meta != "" {
		p.Meta = f.meta()
	}
	return p
}

// shownStates are the states in the order in which an operator looks at them: what runs now, what is wrong, what comes next, and what is over.
var shownStates = []weir.State{weir.StateRunning, weir.StateFailed, weir.StateAvailable, weir.StateScheduled, weir.StateCancelled, weir.StateCompleted}
