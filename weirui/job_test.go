package weirui_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/weirui"
)

func TestWhatIsNotShownCannotBeSearchedFor(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *weirui.Config) { c.Redact = []string{"email"} })
	r.enqueue(note{Text: "hello world", Password: "hunter2"}, &weir.Options{Queue: "mail", Meta: map[string]string{"E-Mail": "a@b.c", "tenant": "acme"}})
	for query, want := range map[string]int{"text=hello": 1, "text=HELLO world": 1, `text="text": "hello`: 1, "text=hunter": 0, `text="password": "h`: 0, "text=redacted": 0, `meta={"tenant": "acme"}`: 1} {
		name, value, _ := strings.Cut(query, "=")
		var list struct{ Jobs []weir.JobInfo }
		if r.data("jobs?"+url.Values{name: {value}}.Encode(), &list); len(list.Jobs) != want {
			t.Errorf("%s finds %d jobs, want %d", query, len(list.Jobs), want)
		}
	}
	for _, meta := range []string{`{"E-Mail": "a@b.c"}`, `{"email": "a@b.c"}`, `{"a": [{"password": "x"}]}`} {
		if answer, text := r.ask("GET", "jobs?"+url.Values{"meta": {meta}}.Encode(), ""); answer.StatusCode != http.StatusBadRequest || !strings.Contains(text, "not shown") {
			t.Errorf("%s: %s: %s", meta, answer.Status, text)
		}
	}
	if text := r.page("jobs/1"); strings.Contains(text, "hunter2") || strings.Contains(text, "a@b.c") {
		t.Errorf("fields of Config.Redact, or those that are never shown, are shown: %s", text)
	}
}

func TestARefusedFormComesBackAsItWasTyped(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	form := url.Values{"queue": {"mail"}, "kind": {"note"}, "args": {`{"text": }`}, "priority": {"3"}, "delay": {"5m"}}
	answer, text := r.ask("POST", "jobs", form.Encode())
	if answer.StatusCode != http.StatusBadRequest {
		t.Errorf("answers %s", answer.Status)
	}
	for _, want := range []string{"The arguments are not valid JSON: ", "{&#34;text&#34;: }", `value="mail"`, `value="note"`, "<option selected>3", `value="5m"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the form lacks %q: %s", want, text)
		}
	}
	form.Set("args", "{}")
	form.Set("meta", `{"weir.task": 1}`)
	if _, text := r.ask("POST", "jobs", form.Encode()); !strings.Contains(text, "is reserved") || strings.Contains(text, "The database can") {
		t.Errorf("a reserved key: %s", text)
	}
}

func TestATaskOfAFlowIsCopiedWithoutWhatMakesItOne(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	flow, err := r.client.Flow(t.Context(), weir.Flow{Name: "f", Open: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.client.AddTasks(t.Context(), flow, weir.Task{Name: "a", Job: weir.NewJob{Args: note{Text: "x"}, Options: &weir.Options{Queue: "mail", Meta: map[string]string{"tenant": "acme"}}}}); err != nil {
		t.Fatal(err)
	}
	if err := r.client.SealFlow(t.Context(), flow); err != nil {
		t.Fatal(err)
	}
	if _, err := r.pool.Exec(t.Context(), `CALL weir.chores()`); err != nil { // enqueues the task's job
		t.Fatal(err)
	}
	r.fail("mail", func(note) error { return errors.New("no") })
	page, err := r.client.Jobs(t.Context(), weir.JobsParams{Queue: "mail", States: []weir.State{weir.StateFailed}})
	if err != nil || len(page.Jobs) != 1 {
		t.Fatalf("%+v, %v", page, err)
	}
	if form := r.page(fmt.Sprintf("jobs/new?copy=%d", page.Jobs[0].ID)); strings.Contains(form, "weir.task") || !strings.Contains(form, "tenant") {
		t.Errorf("the form is %s", form)
	}
}

func TestACancelledJobThatWaitsCanBeRetriedAndNotCancelled(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue(note{Text: "hello"}, &weir.Options{Queue: "mail", RunAt: time.Now().Add(time.Hour)})
	r.do(fmt.Sprintf("jobs/%d/cancel", id), nil)
	text := r.page(fmt.Sprintf("jobs/%d", id))
	if strings.Contains(text, fmt.Sprintf("jobs/%d/cancel", id)) || strings.Contains(text, "<dt>Runs</dt>") || !strings.Contains(text, fmt.Sprintf("jobs/%d/retry", id)) {
		t.Errorf("the page is %s", text)
	}
}
