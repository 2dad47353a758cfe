package weirui_test

import (
	"context"
	"errors"
	"fmt"
	"html"
	"log/slog"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestRareJobsAreLookedFor: a page goes on until it has found them; if that takes too long, it says that it has looked at a part, and leads on.
func TestRareJobsAreLookedFor(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const others = 5000 // more than one call compares
	for range others / 1000 {
		some := make([]weir.NewJob, 1000)
		for i := range some {
			some[i] = weir.NewJob{Args: note{Text: "many"}, Options: &weir.Options{Queue: "mail"}}
		}
		if _, err := r.client.EnqueueMany(t.Context(), some); err != nil {
			t.Fatal(err)
		}
	}
	rare := r.enqueue(note{Text: "rare"}, &weir.Options{Queue: "mail", Priority: 4})
	type list struct {
		Jobs []weir.JobInfo
		Next string
	}
	var found list
	r.ui.SetPatience(time.Minute)
	if r.data("jobs?text=rare", &found); len(found.Jobs) != 1 || found.Jobs[0].ID != rare || found.Next != "" {
		t.Errorf("found %+v, want job %d", found, rare)
	}
	if r.data("jobs?queue=mail&state=available", &found); len(found.Jobs) != 50 || found.Next == "" {
		t.Errorf("a page has %d jobs", len(found.Jobs))
	}
	if text := r.page("jobs?queue=mail&state=available"); strings.Contains(text, "Looked at part") {
		t.Errorf("a full page says that it has looked at a part: %s", text)
	}

	r.ui.SetPatience(0)
	at, pages := "jobs?text=rare&queue=mail&state=available", 0
	for {
		text := r.page(at)
		pages++
		m := regexp.MustCompile(`Looked at part of the jobs so far, and none of them matches: <a href="([^"]*)" id="look-on">`).FindStringSubmatch(text)
		if m == nil {
			if !strings.Contains(text, fmt.Sprintf("jobs/%d\"", rare)) || pages < 2 {
				t.Errorf("page %d does not lead on, and has no job %d: %s", pages, rare, text)
			}
			break
		}
		at = "jobs" + html.UnescapeString(m[1])
	}
}

// TestAGroupLeadsToItsJobs: to those of its shape, kind and queue in the time of the page, and no others.
func TestAGroupLeadsToItsJobs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, text := range []string{"user 1 not found", "user 2 not found", "no route"} {
		r.enqueue(note{Text: text}, &weir.Options{Queue: "mail"})
	}
	r.enqueue(note{Text: "user 3 not found"}, &weir.Options{Queue: "other"})
	for _, queue := range []string{"mail", "other"} {
		r.fail(queue, func(n note) error { return errors.New(n.Text) })
	}
	soon := url.QueryEscape(time.Now().Add(time.Hour).UTC().Format(time.RFC3339Nano))
	for page, want := range map[string]int{"failures": 3, "failures?queue=mail": 2, "failures?queue=mail&hours=1": 2, "failures?queue=mail&before=" + soon: 2} {
		text := r.page(page)
		m := regexp.MustCompile(`<a href="(jobs\?[^"]*shape=user[^"]*)">`).FindStringSubmatch(text)
		if m == nil {
			t.Errorf("%s has no link to the jobs of the group: %s", page, text)
			continue
		}
		var list struct{ Jobs []weir.JobInfo }
		if r.data(html.UnescapeString(m[1]), &list); len(list.Jobs) != want {
			t.Errorf("%s leads to %d jobs with %s, want %d", page, len(list.Jobs), m[1], want)
		}
	}
	for query, want := range map[string]int{"shape=no+route": 1, "shape=no+route&ended_from=" + soon: 0, "state=failed&ended_until=" + soon: 4, "state=failed&ended_until=2026-01-01": 0} {
		var list struct{ Jobs []weir.JobInfo }
		if r.data("jobs?"+query, &list); len(list.Jobs) != want {
			t.Errorf("%q finds %d jobs, want %d", query, len(list.Jobs), want)
		}
	}
	text := r.page("jobs?state=failed&shape=no+route")
	if !strings.Contains(text, "jobs/all/retry") || strings.Contains(text, "jobs/all/cancel") || strings.Contains(text, "?queue=mail&amp;shape=no+route&amp;state=available") {
		t.Errorf("a list by shape offers what can't be done: %s", text)
	}
	page := r.begin("jobs/all/retry", url.Values{"state": {"failed"}, "shape": {"no route"}})
	r.work("none", func(note) error { return nil })
	if o := r.until(page, weir.OperationDone); *o.Changed != 1 {
		t.Errorf("%d jobs of the shape were retried, want 1", *o.Changed)
	}
	page = r.begin("jobs/all/retry", url.Values{"state": {"failed"}, "shape": {"no route"}, "kind": {"note"}, "ended_until": {"2026-01-02T03:04"}})
	r.until(page, weir.OperationDone)
	text = r.page(page)
	for _, want := range []string{"Nothing matched: no job is retried.", "kind note", "error “no route”", "failed before 2026-01-02 03:04:00 UTC"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page of the operation lacks %q: %s", want, text)
		}
	}
}

// TestAListBeginsWithWhatRunsAndWhatIsWrong: and shows the output of jobs that have completed.
func TestAListBeginsWithWhatRunsAndWhatIsWrong(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue(note{Text: "no route"}, &weir.Options{Queue: "mail"})
	r.fail("mail", func(n note) error { return errors.New(n.Text) })
	r.enqueue(note{Text: "hello"}, &weir.Options{Queue: "mail"})
	var list struct{ Jobs []weir.JobInfo }
	if r.data("jobs", &list); len(list.Jobs) != 2 || list.Jobs[0].State != weir.StateFailed {
		t.Errorf("the list is %+v", list.Jobs)
	}
}

// TestOutputsAreListed: a completed job shows its output, without secrets, and one without output its args.
// TestAFilterSelectsWhatItSays: also a key that begins with a blank, and times within a second.
func TestAFilterSelectsWhatItSays(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, key := range []string{"k", " k"} {
		r.enqueue(note{Text: key}, &weir.Options{Queue: "mail", Key: key})
	}
	var list struct{ Jobs []weir.JobInfo }
	if r.data("jobs?"+url.Values{"key": {" k"}}.Encode(), &list); len(list.Jobs) != 1 || list.Jobs[0].Key != " k" {
		t.Errorf("%d jobs have the key", len(list.Jobs))
	}
	at := list.Jobs[0].EnqueuedAt.UTC().Format(time.RFC3339Nano)
	list.Jobs = nil
	if r.data("jobs?"+url.Values{"from": {at}}.Encode(), &list); len(list.Jobs) != 1 {
		t.Errorf("%d jobs were enqueued at %s or later", len(list.Jobs), at)
	}
	if text := r.page("jobs?" + url.Values{"until": {at}, "queue": {"mail"}}.Encode()); !strings.Contains(text, strings.TrimSuffix(at, "Z")[19:]) {
		t.Errorf("the page's forms and links lose the fraction of %s: %s", at, text)
	}
}

func TestOutputsAreListed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, text := range []string{`{"sent": 7, "token": "hunter2"}`, ""} {
		r.enqueue(note{Text: "args of " + text}, &weir.Options{Queue: "mail"})
	}
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(_ context.Context, j *weir.Job[note]) error {
		if output := strings.TrimPrefix(j.Args.Text, "args of "); output != "" {
			j.SetOutput(output)
		}
		return nil
	})
	w, err := r.client.NewWorker(weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"mail": 2}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }() // ends with stop
	pgtest.Eventually(t, func() error {
		page, err := r.client.Jobs(t.Context(), weir.JobsParams{States: []weir.State{weir.StateCompleted}})
		if err == nil && len(page.Jobs) != 2 {
			err = fmt.Errorf("%d jobs have completed", len(page.Jobs))
		}
		return err
	})
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	text := html.UnescapeString(r.page("jobs?state=completed"))
	for _, want := range []string{`"sent":7`, `<code>{"text":"args of "}</code>`} {
		if !strings.Contains(text, want) {
			t.Errorf("the list lacks %s: %s", want, text)
		}
	}
	if strings.Contains(text, "hunter2") || strings.Contains(text, "args of {") {
		t.Errorf("the list shows a secret, or args beside the output: %s", text)
	}
}
