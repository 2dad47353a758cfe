package weirui_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
)

func (r *rig) flow(f weir.Flow, jobs ...weir.NewJob) int64 {
	r.Helper()
	id, err := r.client.Flow(r.Context(), f, jobs...)
	if err != nil {
		r.Fatal(err)
	}
	return id
}

func newNote(text, queue string) weir.NewJob {
	return weir.NewJob{Args: note{Text: text}, Options: &weir.Options{Queue: queue}}
}

type shownFlow struct {
	Flow    weir.FlowInfo
	Running int64
	Waits   []string
	Tasks   []weir.TaskInfo
	Next    int64
	Layers  []struct {
		Number, Tasks int
		States        map[weir.FlowState]int
	}
	Within struct{ Flows []weir.FlowInfo }
}

func TestAFlowIsShownWithItsTasksAsAGraph(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	odd := `<load> & "x"`
	id := r.flow(weir.Flow{Name: "import <b>", OnDone: newNote("done", "reports"), Tasks: []weir.Task{
		{Name: odd, Job: newNote("1", "mail")}, {Name: "left", After: []string{odd}, Job: newNote("2", "mail")},
		{Name: "right", After: []string{odd}, IgnoreFailed: true, Job: newNote("3", "mail")}, {Name: "merge", After: []string{"left", "right"}, Job: newNote("4", "mail")},
	}}, newNote("plain", "mail"))
	child := r.flow(weir.Flow{Name: "child", Open: true, Parent: id})
	at := fmt.Sprintf("flows/%d", id)
	var f shownFlow
	pgtest.Eventually(t, func() error { // a worker's chores enqueue the first task's job
		if _, err := r.pool.Exec(t.Context(), `CALL weir.chores()`); err != nil {
			return err
		}
		if r.data(at, &f); f.Tasks[0].Job == 0 {
			return fmt.Errorf("the tasks are %+v", f.Tasks)
		}
		return nil
	})
	if f.Flow.Jobs != 6 || len(f.Tasks) != 4 || len(f.Within.Flows) != 1 || f.Within.Flows[0].ID != child || f.Flow.OnDone == nil || f.Flow.OnDone.Queue != "reports" || f.Flow.OnSuccess != nil {
		t.Errorf("shows %+v", f)
	}
	if f.Tasks[0].State != "waiting" || f.Tasks[3].State != weir.FlowBlocked {
		t.Errorf("the tasks are %+v", f.Tasks)
	}
	if waits := strings.Join(f.Waits, " "); len(f.Waits) != 2 || !strings.Contains(waits, "No worker runs") || !strings.Contains(waits, "queue mail, which no worker works") {
		t.Errorf("it is said to be held up by %q", f.Waits)
	}
	text := r.page(at)
	if strings.Contains(text, "<b>") || strings.Contains(text, "<load>") {
		t.Errorf("the page is not escaped: %s", text)
	}
	for want, n := range map[string]int{`<path class="edge"`: 3, `<path class="edge lenient"`: 1, `<a class="task `: 4, "merge: blocked, comes after left, right, waits for left, right": 1, "When all have ended": 1, `<span class="tag waiting">`: 1, ">waiting</text>": 1, fmt.Sprintf(`href="../jobs/%d"><title>`, f.Tasks[0].Job): 1} {
		if got := strings.Count(text, want); got != n {
			t.Errorf("the page has %q %d times, want %d: %s", want, got, n, text)
		}
	}
	if text := r.page("flows"); !strings.Contains(text, "import &lt;b&gt;") || strings.Contains(text, "child") || !strings.Contains(text, "6 unfinished") {
		t.Errorf("the list is %s", text)
	}
	if text := r.page(fmt.Sprintf("flows/%d", f.Tasks[0].ID)); !strings.Contains(text, "Task of") || !strings.Contains(text, `<span class="tag waiting">`) || !strings.Contains(text, fmt.Sprintf("flow %d</a>", id)) {
		t.Errorf("the page of a task is %s", text)
	}
	if text := r.page(fmt.Sprintf("jobs/%d", f.Tasks[0].Job)); !strings.Contains(text, fmt.Sprintf(`task &lt;load&gt; &amp; &#34;x&#34;</a> of <a href="../flows/%d">flow %d</a>`, id, id)) {
		t.Errorf("the page of a task's job is %s", text)
	}
	if text := r.page(fmt.Sprintf("flows/%d", child)); !strings.Contains(text, "It is open") {
		t.Errorf("the page of an open flow is %s", text)
	}
	for path, status := range map[string]int{"flows/999999": http.StatusNotFound, "flows/x": http.StatusNotFound, at + "?tasks=x": http.StatusBadRequest, at + "?within=0": http.StatusBadRequest, "flows?after=-1": http.StatusBadRequest, at + "?tasks=999999": http.StatusOK} {
		if answer, text := r.ask("GET", path, ""); answer.StatusCode != status {
			t.Errorf("%s: %s: %s", path, answer.Status, text)
		}
	}
}

func TestAFlowOfManyTasksIsCountedByLayer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	tasks := []weir.Task{{Name: "first", Job: newNote("", "mail")}}
	for i := range 398 {
		tasks = append(tasks, weir.Task{Name: fmt.Sprintf("t%03d", i), After: []string{"first"}, Job: newNote("", "mail")})
	}
	tasks = append(tasks, weir.Task{Name: "last", After: []string{"t000", "t397"}, Job: newNote("", "mail")})
	at := fmt.Sprintf("flows/%d", r.flow(weir.Flow{Name: "wide", Tasks: tasks}))
	var f, second shownFlow
	r.data(at, &f)
	if len(f.Layers) != 3 || f.Layers[0].Tasks != 1 || f.Layers[1].Tasks != 398 || f.Layers[2].Tasks != 1 || f.Layers[1].States[weir.FlowBlocked] != 398 {
		t.Errorf("the layers are %+v", f.Layers)
	}
	if text := r.page(at); strings.Contains(text, "<path") || !strings.Contains(text, "<li>398 blocked</li>") {
		t.Errorf("the page is %s", text)
	}
	r.data(fmt.Sprintf("%s?tasks=%d", at, f.Next), &second)
	if len(f.Tasks) != 300 || len(second.Tasks) != 100 || second.Tasks[99].Name != "last" || second.Tasks[0].ID <= f.Tasks[299].ID || second.Next != 0 {
		t.Errorf("pages of %d and %d tasks", len(f.Tasks), len(second.Tasks))
	}
}

func TestFlowsArePagedNewestFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 53 {
		r.flow(weir.Flow{Name: fmt.Sprint("f", i), Open: true})
	}
	type page struct {
		Flows []weir.FlowInfo
		Next  int64
	}
	var first, second page
	r.data("flows", &first)
	r.data(fmt.Sprintf("flows?after=%d", first.Next), &second)
	if len(first.Flows) != 50 || first.Flows[0].Name != "f52" || len(second.Flows) != 3 || second.Flows[0].Name != "f2" || second.Next != 0 {
		t.Errorf("pages of %d and %d flows", len(first.Flows), len(second.Flows))
	}
}

func TestAFlowIsRetriedAndCancelled(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.flow(weir.Flow{Name: "two"}, newNote("a", "mail"), newNote("b", "mail"))
	at := fmt.Sprintf("flows/%d", id)
	if said := r.do(at+"/retry", nil); !strings.Contains(said, "No member") {
		t.Errorf("says %q", said)
	}
	r.fail("mail", func(note) error { return errors.New("no") })
	var f shownFlow
	pgtest.Eventually(t, func() error {
		if r.data(at, &f); f.Flow.Failed != 2 {
			return fmt.Errorf("the flow is %+v", f.Flow)
		}
		return nil
	})
	if text := r.page(at); !strings.Contains(text, "Retry what failed") {
		t.Errorf("the page is %s", text)
	}
	if said := r.do(at+"/retry", nil); said != fmt.Sprintf("2 jobs of flow %d are retried.", id) {
		t.Errorf("says %q", said)
	}
	if said := r.do(at+"/cancel", nil); !strings.Contains(said, "is being cancelled") {
		t.Errorf("says %q", said)
	}
	if r.data(at, &f); f.Flow.State != weir.FlowCancelling {
		t.Errorf("the flow is %s", f.Flow.State)
	}
	for _, verb := range []string{"cancel", "retry"} {
		if answer, _ := r.ask("POST", "flows/999999/"+verb, "sure=yes"); answer.StatusCode != http.StatusNotFound {
			t.Errorf("%s of an unknown flow: %s", verb, answer.Status)
		}
	}
}
