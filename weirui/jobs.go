package weirui

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/traceback"
)

const jobsOnPage = 50

func jobEndpoints() []endpoint {
	return []endpoint{
		page("jobs", listJobs).takes(append([]string{"after"}, filterFields...)...),
		page("jobs/new", newJob).takes("queue", "copy"),
		{method: http.MethodGet, path: "jobs/go", role: Viewer, stream: goToJob, fields: []string{"id"}},
		page("jobs/{id}", showJob),
		action(Operator, "jobs", enqueueJob).takes("queue", "kind", "key", "args", "meta", "priority", "max_attempts", "delay", "copied"),
		action(Operator, "jobs/{id}/retry", retryJob).asks(askCompleted).takes("completed"),
		action(Operator, "jobs/{id}/cancel", cancelJob).asks(askID("Cancel job %s?", "id")),
		action(Admin, "jobs/{id}/delete", deleteJob).asks(askID("Delete failed job %s? It can't be retried afterwards.", "id")),
	}
}

// askCompleted asks before a job that has completed runs once more.
func askCompleted(v *visit) (string, error) {
	if v.PostForm.Get("completed") == "" {
		return "", nil
	}
	return "Job " + cut(v.PathValue("id"), 20) + " has completed. Run it again?", nil
}

// goToJob sends the browser to the page of the job whose id somebody has typed.
func goToJob(v *visit, w http.ResponseWriter) error {
	text := strings.TrimSpace(v.URL.Query().Get("id"))
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id < 1 {
		return badInput("The id of a job is a number; got %q.", cut(text, 50))
	}
	redirect(w, strconv.FormatInt(id, 10))
	return nil
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
	f, err := v.ui.filterOf(v.URL.Query())
	if err != nil {
		return nil, err
	}
	after := v.URL.Query().Get("after")
	page, err := read(v.Context(), v.db, "jobs "+f.Query().Encode()+" after "+after, func(ctx context.Context) (*weir.JobsPage, error) {
		page, err := v.db.find(ctx, f.params(after, jobsOnPage), f.keeps, v.ui.patience)
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
func (d *database) find(ctx context.Context, p weir.JobsParams, keeps func(weir.JobInfo) bool, patience time.Duration) (*weir.JobsPage, error) {
	began, all := time.Now(), &weir.JobsPage{Jobs: []weir.JobInfo{}}
	for {
		page, err := d.client.Jobs(ctx, p)
		if err != nil {
			return nil, err
		}
		found := slices.DeleteFunc(page.Jobs, func(j weir.JobInfo) bool { return !keeps(j) })
		all.Jobs, all.Next = append(all.Jobs, found...), page.Next
		p.Limit -= len(found)
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
			if len(*j.Error) > maxShown { // the end of a traceback tells more than its beginning
				j.Error = new(traceback.Message(*j.Error))
			}
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
