package weirui

import (
	"bytes"
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
		action(Operator, "jobs/{id}/retry", retryJob).asks(askCompleted),
		action(Operator, "jobs/{id}/cancel", cancelJob).asks(askID("Cancel job %s?", "id")),
	}
}

// askCompleted asks before a job that has completed runs once more.
func askCompleted(v *visit) (string, error) {
	if v.PostForm.Get("completed") == "" {
		return "", nil
	}
	return "Job " + cut(v.PathValue("id"), 20) + " has completed. Run it again?", nil
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

	Shape      string    `json:"shape,omitempty"`      // of the error of failed jobs
	EndedFrom  time.Time `json:"ended_from,omitzero"`  // ended then or later
	EndedUntil time.Time `json:"ended_until,omitzero"` // ended before
}

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
	return q
}

// In is the filter's query for another state.
func (f filter) In(state string) template.URL {
	f.State = state
	// What only jobs of other states have selects none of this one.
	if !f.IsFailed() {
		f.Shape = ""
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

// jobList is a page of jobs.
type jobList struct {
	Filter filter         `json:"filter"`
	Jobs   []weir.JobInfo `json:"jobs"`
	Next   string         `json:"next,omitempty"` // ?after= of the next page
	After  string         `json:"-"`
	States []weir.State   `json:"-"`
}

func listJobs(v *visit) (*view, error) {
	f, err := v.ui.filterOf(v.URL.Query())
	if err != nil {
		return nil, err
	}
	after := v.URL.Query().Get("after")
	page, err := read(v.Context(), v.db, "jobs "+f.Query().Encode()+" after "+after, func(ctx context.Context) (*weir.JobsPage, error) {
		page, err := v.db.find(ctx, f.params(after, jobsOnPage), v.ui.patience)
		if err == nil {
			page.Jobs = v.ui.shown(page.Jobs, f)
		}
		return page, err
	})
	if err != nil {
		return nil, err
	}
	list := jobList{Filter: f, Jobs: listed(slices.Clone(page.Jobs)), Next: page.Next, After: after, States: shownStates}
	return &view{template: "jobs", title: "Jobs", data: list}, nil
}

// find looks for jobs until it has as many as are wanted, there are no more, or it has looked for so long. One call looks at a limited number of jobs.
func (d *database) find(ctx context.Context, p weir.JobsParams, patience time.Duration) (*weir.JobsPage, error) {
	began, all := time.Now(), &weir.JobsPage{Jobs: []weir.JobInfo{}}
	for {
		page, err := d.client.Jobs(ctx, p)
		if err != nil {
			return nil, err
		}
		all.Jobs, all.Next = append(all.Jobs, page.Jobs...), page.Next
		p.Limit -= len(page.Jobs)
		p.After = page.Next
		if p.Limit == 0 || page.Next == "" || time.Since(began) >= patience {
			return all, nil
		}
	}
}

// Partly reports whether the page has fewer jobs than it could have, because it took too long to look for more.
func (l jobList) Partly() bool { return l.Next != "" && len(l.Jobs) < jobsOnPage }

// shown are jobs as a list may show them: without secrets, and with the beginning of what is long, so that a page of jobs is not a hundred megabytes. A text
// that only what is hidden contains finds nothing, or secrets could be guessed.
func (u *UI) shown(jobs []weir.JobInfo, f filter) []weir.JobInfo {
	wanted := plainText(f.Text)
	all := jobs[:0]
	for _, j := range jobs {
		u.redactJob(&j)
		if wanted != "" && !strings.Contains(plainText(string(j.Args)), wanted) {
			continue
		}
		j.Args, j.Meta = brief(j.Args), brief(j.Meta)
		if j.Output != nil {
			j.Output = new(cut(*j.Output, maxShown))
		}
		if j.Error != nil {
			j.Error = new(cut(*j.Error, maxShown))
		}
		j.Errors, j.Log = nil, nil // the job's own page has them
		all = append(all, j)
	}
	return all
}

const maxShown = 4000 // bytes of each of a job's values in a list

// brief is a value, or a text with its beginning if it is long.
func brief(value json.RawMessage) json.RawMessage {
	if len(value) <= maxShown {
		return bytes.Clone(value) // a part of the page that was read would keep all of it
	}
	text, err := json.Marshal(cut(string(value), maxShown))
	if err != nil {
		return nil
	}
	return text
}

// plainText is a text without what differs between two ways of writing the same JSON: blanks, and upper and lower case.
func plainText(text string) string {
	return strings.Map(func(r rune) rune {
		if r == ' ' || r == '\t' || r == '\n' || r == '\r' {
			return -1
		}
		return r
	}, strings.ToLower(text))
}

// redactJob hides secret fields in what is shown of a job.
func (u *UI) redactJob(j *weir.JobInfo) {
	j.Args, j.Meta = u.redact(j.Args), u.redact(j.Meta)
	if j.Output != nil {
		j.Output = new(string(u.redact(json.RawMessage(*j.Output)))) // text that is not JSON stays as it is
	}
}
