package weirui_test

import (
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirui"
)

var hidden = regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`)

// form returns the hidden fields of the form on a page that leads to an action, and what it asks.
func form(page, action string) (fields url.Values, ask string) {
	_, rest, found := strings.Cut(page, `action="../../`+action+`"`)
	if !found {
		if _, rest, found = strings.Cut(page, `action="../`+action+`"`); !found {
			if _, rest, found = strings.Cut(page, `action="`+action+`"`); !found {
				return nil, ""
			}
		}
	}
	rest, _, _ = strings.Cut(rest, "</form>")
	fields = url.Values{}
	for _, m := range hidden.FindAllStringSubmatch(rest, -1) {
		fields.Add(html.UnescapeString(m[1]), html.UnescapeString(m[2]))
	}
	if m := regexp.MustCompile(`^ data-ask="([^"]*)"`).FindStringSubmatch(rest); m != nil {
		ask = html.UnescapeString(m[1])
	}
	return fields, ask
}

// TestActionsAskWithoutTheScriptToo: each that asks in the script asks the same on a page, and has done nothing before the answer, whose form acts.
func TestActionsAskWithoutTheScriptToo(t *testing.T) {
	t.Parallel()
	h := &fakeHub{clients: []weirui.HubClient{{ID: "web 7", User: "ada"}}}
	r := newRig(t, func(c *weirui.Config) { c.Databases[0].Hub = h })
	job := r.enqueue(note{Text: "hello"}, &weir.Options{Queue: "mail"})
	for _, queue := range []string{"failed", "other"} {
		r.enqueue(note{Text: "no route"}, &weir.Options{Queue: queue})
		r.fail(queue, func(n note) error { return errors.New(n.Text) })
	}
	bad := r.enqueue(note{Text: "bad"}, &weir.Options{Queue: "bad"})
	r.fail("bad", func(n note) error { return errors.New(n.Text) })
	completed := r.enqueue(note{Text: "done"}, &weir.Options{Queue: "completed"})
	r.work("completed", func(note) error { return nil })
	r.schedule(weir.Schedule{Name: "nightly", Schedule: "@daily", Args: note{}, Options: &weir.Options{Queue: "nights"}})
	flow := r.flow(weir.Flow{Name: "flow", OnDone: newNote("done", "flows"), Tasks: []weir.Task{{Name: "first", Job: newNote("1", "flows")}}})
	ended := r.flow(weir.Flow{Name: "ended", OnDone: newNote("done", "flows")}, newNote("no route", "broken"))
	r.fail("broken", func(n note) error { return errors.New(n.Text) })
	pgtest.Eventually(t, func() error {
		f, err := r.client.FlowInfo(t.Context(), ended)
		if err == nil && f.Failed != 1 {
			err = fmt.Errorf("%d members of the flow have failed", f.Failed)
		}
		return err
	})
	operation, err := r.client.BeginOperation(t.Context(), weir.Operation{What: weir.OperationRetry, Filter: weir.JobFilter{Queue: "mail"}})
	if err != nil {
		t.Fatal(err)
	}
	cases := []struct{ endpoint, page, action, says string }{
		{"operations/{id}/stop", fmt.Sprintf("operations/%d", operation), fmt.Sprintf("operations/%d/stop", operation), "Stop operation"},
		{"jobs/{id}/cancel", fmt.Sprintf("jobs/%d", job), fmt.Sprintf("jobs/%d/cancel", job), fmt.Sprintf("Cancel job %d?", job)},
		{"jobs/{id}/delete", fmt.Sprintf("jobs/%d", bad), fmt.Sprintf("jobs/%d/delete", bad), fmt.Sprintf("Delete failed job %d?", bad)},
		{"jobs/{id}/retry", fmt.Sprintf("jobs/%d", completed), fmt.Sprintf("jobs/%d/retry", completed), fmt.Sprintf("Job %d has completed. Run it again?", completed)},
		{"flows/{id}/cancel", fmt.Sprintf("flows/%d", flow), fmt.Sprintf("flows/%d/cancel", flow), "with its unfinished members"},
		{"flows/{id}/retry", fmt.Sprintf("flows/%d", ended), fmt.Sprintf("flows/%d/retry", ended), "Retry the failed and cancelled members"},
		{"schedules/{name}/run", "schedules/nightly", "schedules/nightly/run", "schedule nightly now?"},
		{"schedules/{name}/drop", "schedules/nightly", "schedules/nightly/drop", "Drop schedule nightly?"},
		{"channels/disconnect-user", "channels", "channels/disconnect-user", "Disconnect ada from all hubs?"},
		{"channels/revoke", "channels", "channels/revoke", "Revoke all tokens that were issued to ada until now"},
		{"channels/disconnect", "channels", "channels/disconnect", "Disconnect client web 7?"},
		{"jobs/all/retry", "jobs?queue=failed&state=failed", "jobs/all/retry", "Retry all failed jobs that match: queue failed?"},
		{"jobs/all/move", "jobs?queue=mail&state=available", "jobs/all/move", "Move all available and scheduled jobs that match: queue mail"},
		{"jobs/all/cancel", "jobs?queue=mail&state=available", "jobs/all/cancel", "Cancel all available, scheduled and running jobs that match: queue mail?"},
		{"jobs/all/delete", "jobs?queue=failed&state=failed", "jobs/all/delete", "They can't be retried"},
		{"failures/retry", "failures?queue=other&hours=6", "failures/retry", "failed within 6 hours"},
		{"failures/delete", "failures", "failures/delete", "error “no route”"},
	}
	asked := map[string]bool{}
	for _, c := range cases {
		asked[c.endpoint] = true
		fields, ask := form(r.page(c.page), c.action)
		if !strings.Contains(ask, c.says) || fields == nil || fields.Has("sure") {
			t.Errorf("%s asks %q, with the fields %v, want %q", c.page, ask, fields, c.says)
			continue
		}
		if c.endpoint == "jobs/all/move" {
			fields.Set("to_queue", `<"other">`)
		}
		before := r.pool.Stat().AcquireCount()
		answer, text := r.ask("POST", c.action, fields.Encode())
		if answer.StatusCode != http.StatusOK || !strings.Contains(text, "Are you sure?") || !strings.Contains(text, ">Back</a>") || r.pool.Stat().AcquireCount() != before {
			t.Errorf("%s without an answer: %s, with the database used %d times: %s", c.action, answer.Status, r.pool.Stat().AcquireCount()-before, text)
		}
		again, _ := form(text, c.action)
		want := url.Values{"sure": {"yes"}}
		for name, values := range fields {
			want[name] = values
		}
		if c.endpoint == "jobs/all/move" {
			if !strings.Contains(text, "to queue &lt;&#34;other&#34;&gt;?") {
				t.Errorf("the question about a move is not whole, or not escaped: %s", text)
			}
		} else if !strings.Contains(html.UnescapeString(text), ask) {
			t.Errorf("%s asks %q with the script, and without it: %s", c.action, ask, text)
		}
		if again.Encode() != want.Encode() {
			t.Errorf("%s asks with the fields %v, want %v", c.action, again, want)
		}
		if answer, text := r.ask("POST", c.action, again.Encode()); answer.StatusCode != http.StatusSeeOther {
			t.Errorf("%s, after the answer: %s: %s", c.action, answer.Status, text)
		}
	}
	for _, e := range weirui.Endpoints(t) {
		if e.Asks != asked[e.Path] {
			t.Errorf("%s asks: %t, and is tested: %t", e.Path, e.Asks, asked[e.Path])
		}
	}
}

// TestListsShowWhatATracebackSays: lists show the line of a traceback that says what went wrong, however long it is, and not the first, which is the same for all.
func TestListsShowWhatATracebackSays(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue(note{Text: "x"}, &weir.Options{Queue: "mail"})
	r.fail("mail", func(note) error {
		return errors.New("Traceback (most recent call last):\n" + strings.Repeat("  File \"a.py\", line 3, in run\n    x()\n", 200) + "ValueError: no mailbox\nDETAIL: none")
	})
	for _, page := range []string{"jobs?state=failed", "failures"} {
		if text := r.page(page); !strings.Contains(text, "ValueError: no mailbox") || strings.Contains(text, "Traceback") || strings.Contains(text, "DETAIL") {
			t.Errorf("%s: %s", page, text)
		}
	}
}

// TestAllFailuresMustBeMeant: an action on all failures of the database is refused, unless it says all=yes, as the page's buttons do. Without failures there are none.
func TestAllFailuresMustBeMeant(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if text := r.page("failures?kind=note"); strings.Contains(text, "all that match<") {
		t.Errorf("without failures, the page offers to act on them: %s", text)
	}
	r.enqueue(note{Text: "no route\n\tat line 1"}, &weir.Options{Queue: "mail"})
	r.fail("mail", func(n note) error { return errors.New(n.Text) })
	text := r.page("failures")
	if fields, ask := form(text[strings.Index(text, "all-failures"):], "failures/delete"); fields.Get("all") != "yes" || !strings.Contains(ask, "of the database") {
		t.Errorf("the button for all asks %q with %v", ask, fields)
	}
	if strings.Contains(text, "at line 1") || strings.Contains(text, "not counted") {
		t.Errorf("the page has more than the first line of the error, or a note about others: %s", text)
	}
	for _, action := range []string{"failures/retry", "failures/delete"} {
		for _, accept := range []string{"text/html", "application/json"} {
			for _, form := range []string{"", "sure=yes", "hours=0&queue=+"} {
				if answer, text := r.ask("POST", action, form, "Accept", accept); answer.StatusCode != http.StatusBadRequest || !strings.Contains(text, "all=yes") {
					t.Errorf("%s with %q, as %s: %s: %s", action, form, accept, answer.Status, text)
				}
			}
		}
	}
	if said := r.do("failures/retry", url.Values{"all": {"yes"}}); !strings.Contains(said, "has begun") {
		t.Errorf("says %q", said)
	}
}
