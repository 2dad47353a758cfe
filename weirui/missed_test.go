package weirui_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirui"
)

func TestAFailedJobIsDeletedFromItsPage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue(note{Text: "bad"}, nil)
	path := fmt.Sprintf("jobs/%d", id)
	if said := r.do(path+"/delete", nil); !strings.Contains(said, "stays") || strings.Contains(r.page(path), `id="delete"`) {
		t.Errorf("of a job that waits, it says %q", said)
	}
	other := r.enqueue(note{Text: "bad too"}, nil)
	r.fail("default", func(note) error { return errors.New("broken") })
	r.do("queues/default/resume", nil) // after an action, all is read again
	r.role = weirui.Operator
	if answer, _ := r.ask("POST", path+"/delete", "sure=yes"); answer.StatusCode != http.StatusForbidden || strings.Contains(r.page(path), `id="delete"`) {
		t.Errorf("an operator deletes it: %s", answer.Status)
	}
	r.role = weirui.Admin
	if text := r.page(path); !strings.Contains(text, `id="delete"`) {
		t.Errorf("its page has no button to delete it: %s", text)
	}
	if _, text := r.ask("POST", path+"/delete", ""); !strings.Contains(text, "Delete failed job") {
		t.Errorf("it does not ask: %s", text)
	}
	if said := r.do(path+"/delete", nil); said != fmt.Sprintf("Job %d is deleted.", id) {
		t.Errorf("it says %q", said)
	}
	for _, again := range []string{path, path + "/delete"} {
		method := "GET"
		if again != path {
			method = "POST"
		}
		if answer, _ := r.ask(method, again, "sure=yes"); answer.StatusCode != http.StatusNotFound {
			t.Errorf("after it, %s %s is %s", method, again, answer.Status)
		}
	}
	if j, err := r.client.Job(t.Context(), other); err != nil || j.State != weir.StateFailed {
		t.Errorf("the other failed job is %+v, %v", j, err)
	}
}

func TestAWorkerLeadsToItsJobs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var ids []int64
	for i := range 4 {
		ids = append(ids, r.enqueue(note{Text: fmt.Sprint(i)}, &weir.Options{Queue: fmt.Sprintf("q%d", i/2)}))
	}
	started := make(chan int32, 4)
	for _, queue := range []string{"q0", "q1"} {
		handlers := weir.NewHandlers()
		weir.Handle(handlers, func(ctx context.Context, j *weir.Job[note]) error {
			started <- 1
			<-ctx.Done()
			return ctx.Err()
		})
		w, err := r.client.NewWorker(weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{queue: 2}, StopTimeout: time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		t.Cleanup(func() { stop(); <-done })
	}
	for range ids {
		pgtest.Receive(t, started, "a job has started")
	}
	workers := map[int32]int{}
	for _, id := range ids {
		j, err := r.client.Job(t.Context(), id)
		if err != nil || j.Worker == nil {
			t.Fatalf("job %d is %+v, %v", id, j, err)
		}
		workers[*j.Worker]++
	}
	pgtest.Until(t, "the page of workers leads to the jobs of each", func() bool {
		text := r.page("workers")
		for worker := range workers {
			if !strings.Contains(text, fmt.Sprintf(`href="jobs?worker=%d"`, worker)) {
				return false
			}
		}
		return true
	})
	for worker, n := range workers {
		var list struct{ Jobs []weir.JobInfo }
		r.data(fmt.Sprintf("jobs?worker=%d", worker), &list)
		if len(workers) != 2 || n != 2 || len(list.Jobs) != 2 {
			t.Errorf("worker %d has %d jobs, and %d are listed", worker, n, len(list.Jobs))
		}
		for _, j := range list.Jobs {
			if j.Worker == nil || *j.Worker != worker {
				t.Errorf("among the jobs of worker %d is %+v", worker, j)
			}
		}
	}
	if answer, text := r.ask("GET", "jobs?worker=x", ""); answer.StatusCode != http.StatusBadRequest || !strings.Contains(text, "the number of one") {
		t.Errorf("a worker that is no number: %s: %s", answer.Status, text)
	}
	if answer, text := r.ask("POST", "jobs/all/cancel", fmt.Sprintf("queue=q0&state=&worker=%d", 1)); answer.StatusCode != http.StatusBadRequest {
		t.Errorf("an operation on the jobs of a worker: %s: %s", answer.Status, text)
	}
}

func TestTheOverviewShowsWhatFails(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if text := r.page(""); strings.Contains(text, "Failures of the last hour") {
		t.Errorf("without failures, the overview is %s", text)
	}
	for i := range 3 {
		r.enqueue(note{Text: fmt.Sprint(i)}, nil)
	}
	r.fail("default", func(n note) error { return fmt.Errorf("user %s is not there", n.Text) })
	r.do("queues/default/pause", nil) // after an action, all is read again
	if text := r.page(""); !strings.Contains(text, "Failures of the last hour") || !strings.Contains(text, "user &lt;n&gt; is not there") {
		t.Errorf("the overview is %s", text)
	}
	var shown struct {
		Failures struct{ Groups []weir.FailureGroup }
	}
	if r.data("", &shown); len(shown.Failures.Groups) != 1 || shown.Failures.Groups[0].Jobs != 3 {
		t.Errorf("the overview has %+v", shown)
	}
}

func TestAnIDLeadsToItsJob(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue(note{}, nil)
	if text := r.page("queues"); !strings.Contains(text, `action="jobs/go"`) {
		t.Errorf("a page has no field for an id: %s", text)
	}
	answer, _ := r.ask("GET", fmt.Sprintf("jobs/go?id=+%d+", id), "")
	if to := answer.Header.Get("Location"); answer.StatusCode != http.StatusSeeOther || to != fmt.Sprint(id) {
		t.Errorf("an id leads to %q with %s", to, answer.Status)
	}
	for _, wrong := range []string{"", "x", "-1", "1/../..", "99999999999999999999"} {
		if answer, text := r.ask("GET", "jobs/go?id="+wrong, ""); answer.StatusCode != http.StatusBadRequest || !strings.Contains(text, "The id of a job is a number") {
			t.Errorf("the id %q: %s", wrong, answer.Status)
		}
	}
}
