package weirui_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirui"
)

// work works the jobs of a queue, which do as their handler says, until the test ends or stop is called.
func (r *rig) work(queue string, handler func(note) error) (stop func()) {
	r.Helper()
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(_ context.Context, j *weir.Job[note]) error { return handler(j.Args) })
	w, err := r.client.NewWorker(weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{queue: 50}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		r.Fatal(err)
	}
	ctx, cancel := context.WithCancel(r.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }() // ends with stop
	ended := false
	stop = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		if err := <-done; err != nil {
			r.Error(err)
		}
	}
	r.Cleanup(stop)
	return stop
}

// shownOperation is the JSON of an operation's page.
type shownOperation struct {
	weir.OperationInfo
	NoWorkers bool `json:"no_workers"`
}

// begin does an action that begins an operation, and returns the operation's page.
func (r *rig) begin(path string, form url.Values) string {
	r.Helper()
	form.Set("sure", "yes")
	answer, text := r.ask("POST", path, form.Encode())
	to := regexp.MustCompile(`operations/[0-9]+$`).FindString(answer.Header.Get("Location"))
	if answer.StatusCode != http.StatusSeeOther || to == "" {
		r.Fatalf("POST %s: %s to %q: %s", path, answer.Status, answer.Header.Get("Location"), text)
	}
	return to
}

// until waits until an operation's page shows a state.
func (r *rig) until(page string, state weir.OperationState) (o shownOperation) {
	r.Helper()
	pgtest.Eventually(r.T, func() error {
		o = shownOperation{}
		if r.data(page, &o); o.State != state {
			return fmt.Errorf("%s is %s", page, o.State)
		}
		return nil
	})
	return o
}

// TestFailuresAreGroupedAndRetriedByTheGroup: the page has the groups; a button retries those of one group, and a worker does it.
func TestFailuresAreGroupedAndRetriedByTheGroup(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 5 {
		r.enqueue(note{Text: fmt.Sprintf("user %d not found", i)}, &weir.Options{Queue: "mail"})
	}
	r.enqueue(note{Text: `<b>"no" route</b>`}, &weir.Options{Queue: "mail"})
	r.fail("mail", func(n note) error { return errors.New(n.Text) })
	var list struct{ Groups []weir.FailureGroup }
	for query, want := range map[string]int{"": 2, "?queue=mail&kind=note&hours=24": 2, "?queue=none": 0, "?kind=other": 0} {
		if r.data("failures"+query, &list); len(list.Groups) != want {
			t.Errorf("%q has %d groups, want %d", query, len(list.Groups), want)
		}
	}
	r.data("failures", &list)
	group := list.Groups[0]
	if group.Jobs != 5 || group.Shape != "user <n> not found" {
		t.Fatalf("the largest group is %+v", group)
	}
	text := r.page("failures?queue=mail&hours=6")
	for _, want := range []string{"user &lt;n&gt; not found", "&amp;kind=note&amp;queue=mail&amp;shape=user&#43;%3Cn%3E&#43;not&#43;found&amp;state=failed", fmt.Sprintf("jobs/%d", group.JobID), "Delete all that match", "&lt;b&gt;&#34;"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q: %s", want, text)
		}
	}
	for query, want := range map[string]string{"hours=soon": "number of hours", "before=now": "continues before a time"} {
		if answer, text := r.ask("GET", "failures?"+query, ""); answer.StatusCode != http.StatusBadRequest || !strings.Contains(text, want) {
			t.Errorf("%q: %s: %s", query, answer.Status, text)
		}
	}

	page := r.begin("failures/retry", url.Values{"queue": {"mail"}, "kind": {"note"}, "shape": {group.Shape}, "hours": {"6"}})
	var o shownOperation
	if r.data(page, &o); !o.NoWorkers || o.State != weir.OperationRunning || o.BeganBy != "ada" {
		t.Errorf("without a worker, the operation is %+v", o)
	}
	if text := r.page(page); !strings.Contains(text, "No worker is alive") || !strings.Contains(text, "Stop") || !strings.Contains(text, "user &lt;n&gt; not found") {
		t.Errorf("the operation's page is %s", text)
	}
	r.work("mail", func(note) error { return nil })
	if o := r.until(page, weir.OperationDone); *o.Changed != 5 {
		t.Errorf("%d jobs were retried, want 5", *o.Changed)
	}
	pgtest.Eventually(t, func() error {
		if r.data("failures", &list); len(list.Groups) != 1 || list.Groups[0].Jobs != 1 {
			return fmt.Errorf("the groups are %+v", list.Groups)
		}
		return nil
	})
	var all struct{ Operations []weir.OperationInfo }
	if r.data("operations", &all); len(all.Operations) != 1 || all.Operations[0].ID != o.ID {
		t.Errorf("the operations are %+v", all.Operations)
	}
	if text := r.page(""); !strings.Contains(text, page) {
		t.Error("the overview does not link the operation")
	}
}

// TestTenThousandFailuresAreRetriedFromThePage: by one click, and while the page is looked at.
func TestTenThousandFailuresAreRetriedFromThePage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const jobs = 10_000
	for range jobs / 1000 {
		var some []weir.NewJob
		for range 1000 {
			some = append(some, weir.NewJob{Args: note{Text: "no route"}, Options: &weir.Options{Queue: "mail"}})
		}
		if _, err := r.client.EnqueueMany(t.Context(), some); err != nil {
			t.Fatal(err)
		}
	}
	r.fail("mail", func(note) error { return errors.New("no route") })
	began := time.Now()
	page := r.begin("failures/retry", url.Values{"all": {"yes"}})
	r.work("other", func(note) error { return nil })
	var o shownOperation
	for seen := int64(0); o.State != weir.OperationDone; seen = *o.Changed { // however long that takes, as long as it goes on
		pgtest.Eventually(t, func() error {
			if r.data(page, &o); o.State == weir.OperationRunning && *o.Changed == seen {
				return fmt.Errorf("after %d jobs, the operation does not go on", seen)
			}
			return nil
		})
		if o.State != weir.OperationDone && o.State != weir.OperationRunning {
			t.Fatalf("the operation is %s: %s", o.State, o.Error)
		}
	}
	t.Logf("%d jobs were retried in %s", jobs, time.Since(began))
	if *o.Changed != jobs {
		t.Errorf("%d of %d jobs were retried", *o.Changed, jobs)
	}
	if list, err := r.client.Jobs(t.Context(), weir.JobsParams{States: []weir.State{weir.StateFailed}}); err != nil || len(list.Jobs) != 0 {
		t.Errorf("some jobs are still failed: %v, %v", list, err)
	}
}

// TestAllJobsOfAListAreActedOn: the list of jobs offers what its filter allows, and says why it offers nothing.
func TestAllJobsOfAListAreActedOn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for range 3 {
		r.enqueue(note{Text: "Hello Ada"}, &weir.Options{Queue: "mail", Key: "acme"})
	}
	r.enqueue(note{Text: "bye"}, &weir.Options{Queue: "files"})
	now := time.Now().UTC()
	from, until := now.Add(-time.Hour).Format("2006-01-02T15:04"), now.Add(time.Hour).Format("2006-01-02T15:04:05")
	var list struct{ Jobs []weir.JobInfo }
	for query, want := range map[string]int{"text=hello+ada": 3, "text=nobody": 0, "from=" + from + "&until=" + until: 4, "until=" + from: 0, "from=" + url.QueryEscape(now.Add(time.Hour).Format(time.RFC3339)): 0} {
		if r.data("jobs?"+query, &list); len(list.Jobs) != want {
			t.Errorf("%q finds %d jobs, want %d", query, len(list.Jobs), want)
		}
	}
	for query, want := range map[string]string{"from=soon": "A time is written as", "from=" + until + "&until=" + from: "the first time must be the earlier one"} {
		if answer, text := r.ask("GET", "jobs?"+query, ""); answer.StatusCode != http.StatusBadRequest || !strings.Contains(text, want) {
			t.Errorf("%q: %s: %s", query, answer.Status, text)
		}
	}
	for query, want := range map[string]string{
		"queue=mail": "retry cancel delete move", "queue=mail&state=available": "cancel move", "queue=mail&state=running": "cancel", "key=acme&state=failed": "retry delete", "kind=note&state=completed": "retry",
		"": "", "state=failed": "", "text=x&queue=mail": "", "flow=7": "",
	} {
		text := r.page("jobs?" + query)
		var offered []string
		for _, what := range []string{"retry", "cancel", "delete", "move"} {
			if strings.Contains(text, "jobs/all/"+what) {
				offered = append(offered, what)
			}
		}
		if got := strings.Join(offered, " "); got != want {
			t.Errorf("%q offers %q, want %q", query, got, want)
		}
		if (want == "") != (strings.Contains(text, "Narrow the list") || strings.Contains(text, "no action on all")) {
			t.Errorf("%q does not say why it offers nothing, or does although it offers something", query)
		}
	}
	for _, c := range []struct{ path, form, want string }{
		{"retry", "", "by more than their state"}, {"retry", "state=failed", "by more than their state"}, {"cancel", "queue=mail&text=x", "by a text in their arguments"}, {"cancel", "queue=mail&flow=1", "by a text in their arguments, by their flow"},
		{"cancel", "queue=mail&state=scheduled", "all available, scheduled and running jobs that match, and not those alone that are scheduled"}, {"move", "queue=mail&state=available&to_priority=1", "leave the state out"},
		{"delete", "queue=mail&state=running", "Jobs that are running can"}, {"move", "queue=mail", "where to move these jobs"}, {"move", "queue=mail&to_priority=9", "priority"}, {"retry", "queue=none", "not found"},
	} {
		if answer, text := r.ask("POST", "jobs/all/"+c.path, c.form+"&sure=yes"); answer.StatusCode < 400 || answer.StatusCode >= 500 || !strings.Contains(text, c.want) {
			t.Errorf("%s with %q: %s without %q: %s", c.path, c.form, answer.Status, c.want, text)
		}
	}

	moving := r.begin("jobs/all/move", url.Values{"queue": {"files"}, "kind": {"note"}, "from": {from}, "to_queue": {"archive"}, "to_priority": {"4"}})
	cancelling := r.begin("jobs/all/cancel", url.Values{"queue": {"mail"}, "key": {"acme"}})
	if o := r.until(cancelling, weir.OperationDone); o.Changed != nil {
		t.Errorf("the cancellation is %+v", o)
	}
	if r.data("jobs?queue=mail&state=cancelled", &list); len(list.Jobs) != 3 {
		t.Errorf("%d jobs are cancelled", len(list.Jobs))
	}
	r.work("other", func(note) error { return nil })
	r.until(moving, weir.OperationDone)
	if text := r.page(moving); !strings.Contains(text, "queues/archive") || !strings.Contains(text, "1 moved") {
		t.Errorf("the page of the move is %s", text)
	}
	if r.data("jobs?queue=archive", &list); len(list.Jobs) != 1 || list.Jobs[0].Priority != 4 {
		t.Errorf("moved: %+v", list.Jobs)
	}
	retrying := r.begin("jobs/all/retry", url.Values{"queue": {"mail"}, "state": {"cancelled"}})
	if o := r.until(retrying, weir.OperationDone); *o.Changed != 3 {
		t.Errorf("%d jobs were retried, want 3", *o.Changed)
	}
}

// TestAnOperationIsStoppedFromItsPage: by an operator, whose name it keeps; what is secret in its filter is not shown.
func TestAnOperationIsStoppedFromItsPage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue(note{Text: "hello"}, &weir.Options{Queue: "mail", Meta: map[string]string{"token": "hunter2"}})
	id, err := r.client.BeginOperation(t.Context(), weir.Operation{What: weir.OperationMove, Filter: weir.JobFilter{Meta: map[string]string{"token": "hunter2"}}, To: weir.MoveTo{Queue: "r"}, By: "ada"}) // the UI has no such filter
	if err != nil {
		t.Fatal(err)
	}
	page := fmt.Sprintf("operations/%d", id)
	r.role = weirui.Viewer
	if answer, _ := r.ask("POST", page+"/stop", ""); answer.StatusCode != http.StatusForbidden {
		t.Errorf("a viewer stops it: %s", answer.Status)
	}
	for _, path := range []string{page, "operations", ""} {
		for _, accept := range []string{"text/html", "application/json"} {
			if _, text := r.ask("GET", path, "", "Accept", accept); strings.Contains(text, "hunter2") || strings.Contains(text, "<form method=\"post\"") {
				t.Errorf("%q as %s shows a viewer the secret, or a form: %s", path, accept, text)
			}
		}
	}
	r.role = weirui.Operator
	if said := r.do(page+"/stop", nil); !strings.Contains(said, "is stopped") {
		t.Errorf("says %q", said)
	}
	if text := r.page(page); !strings.Contains(text, "stopped by ada") || strings.Contains(text, `id="stop"`) {
		t.Errorf("the page is %s", text)
	}
	if said := r.do(page+"/stop", nil); !strings.Contains(said, "is stopped") {
		t.Errorf("stopping it again says %q", said)
	}
	if answer, _ := r.ask("GET", "operations/99", ""); answer.StatusCode != http.StatusNotFound {
		t.Errorf("an unknown operation: %s", answer.Status)
	}
	if answer, _ := r.ask("POST", "failures/delete", ""); answer.StatusCode != http.StatusForbidden {
		t.Errorf("an operator deletes failures: %s", answer.Status)
	}
	if answer, _ := r.ask("GET", "operations?before=x", ""); answer.StatusCode != http.StatusBadRequest {
		t.Errorf("a list before x: %s", answer.Status)
	}
}

// TestManyOperationsArePaged: 50 on a page.
func TestManyOperationsArePaged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue(note{Text: "hello"}, &weir.Options{Queue: "mail"})
	for range 60 {
		if _, err := r.client.BeginOperation(t.Context(), weir.Operation{What: weir.OperationRetry, Filter: weir.JobFilter{Queue: "mail"}}); err != nil {
			t.Fatal(err)
		}
	}
	var list struct {
		Operations []weir.OperationInfo
		Next       int64
	}
	r.data("operations", &list)
	first := list
	list.Next = 0
	r.data(fmt.Sprintf("operations?before=%d", first.Next), &list)
	if len(first.Operations) != 50 || len(list.Operations) != 10 || list.Next != 0 || list.Operations[0].ID >= first.Operations[49].ID {
		t.Errorf("pages of %d and %d operations", len(first.Operations), len(list.Operations))
	}
}
