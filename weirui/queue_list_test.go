package weirui_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/weir-pg/weir"
)

func TestManyQueuesAreShownPageByPage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if _, err := r.pool.Exec(r.Context(), `SELECT weir.enqueue('q' || n, 'note', run_at => now() + interval '1 hour') FROM generate_series(1, 450) n`); err != nil {
		t.Fatal(err)
	}
	r.enqueue(note{}, &weir.Options{Queue: "Waits"})
	seen := map[string]int{}
	pages := 0
	for after, first := "", true; first || after != ""; first = false {
		var list struct {
			Queues       []struct{ Name string }
			Next         string
			Total, Found int
		}
		r.data("queues?"+url.Values{"after": {after}}.Encode(), &list)
		if list.Total != 451 || list.Found != 451 || len(list.Queues) > 100 {
			t.Fatalf("a page has %d queues, of %d, %d are found", len(list.Queues), list.Total, list.Found)
		}
		for _, q := range list.Queues {
			seen[q.Name]++
		}
		pages++
		after = list.Next
	}
	if len(seen) != 451 || pages != 5 {
		t.Errorf("%d pages have %d of 451 queues", pages, len(seen))
	}
	if text := r.page("queues?name=Q44"); strings.Count(text, "<tr") != 1+11 || !strings.Contains(text, "11 queues") { // q44, and q440 to q449
		t.Errorf("the queues with a text in their name: %s", text)
	}
	if text := r.page("queues?name=nothing"); !strings.Contains(text, "No queue has such a name.") {
		t.Errorf("no queue with a text in its name: %s", text)
	}
	if text := r.page(""); strings.Count(text, `<th scope="row"><a href="queues/`) != 20 || !strings.Contains(text, ">Waits</a>") || !strings.Contains(text, "20 of 451 queues") {
		t.Errorf("the overview lists other queues than the twenty whose jobs have waited longest: %s", text)
	}
	if text := r.page("queues/q450"); !strings.Contains(text, "Queue q450") {
		t.Errorf("the page of a queue: %s", text)
	}
}

// TestNamesThatBrowsersTakeForStepsAreReachable: a browser makes queues/. and queues/%2e of it queues/.
func TestNamesThatBrowsersTakeForStepsAreReachable(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	names := []string{".", "..", "~.", "~~..", "~", "~x", "...", "a/../b"}
	for _, name := range names {
		r.enqueue(note{}, &weir.Options{Queue: name})
		if _, err := r.client.SetSchedule(r.Context(), weir.Schedule{Name: name, Schedule: "0 4 * * *", Args: note{}}); err != nil {
			t.Fatal(err)
		}
	}
	base, err := url.Parse(r.server.URL + "/some/where/queues")
	if err != nil {
		t.Fatal(err)
	}
	links := map[string]bool{}
	for _, part := range strings.Split(r.page("queues"), `<th scope="row"><a href="`)[1:] {
		link, rest, _ := strings.Cut(part, `"`)
		at, err := base.Parse(link)
		if err != nil {
			t.Fatal(err)
		}
		path := strings.TrimPrefix(at.EscapedPath(), "/some/where/")
		name, _, _ := strings.Cut(strings.TrimPrefix(rest, ">"), "<")
		if text := r.page(path); !strings.Contains(text, "<h1>Queue "+name+"</h1>") {
			t.Errorf("the link to queue %s, %s, leads to %s", name, path, text)
		}
		if said := r.do(path+"/pause", nil); said != "Queue "+name+" is paused. Running jobs continue." {
			t.Errorf("%s/pause says %q", path, said)
		}
		answer, _ := r.ask("POST", path+"/resume", url.Values{"back": {path}}.Encode())
		if to := answer.Header.Get("Location"); answer.StatusCode != http.StatusSeeOther || !strings.HasSuffix(to, "/"+path) {
			t.Errorf("after %s/resume, the browser is sent to %q", path, to)
		}
		schedule := strings.Replace(path, "queues/", "schedules/", 1)
		if text := r.page(schedule); !strings.Contains(text, "<h1>Schedule "+name+"</h1>") || !strings.Contains(text, fmt.Sprintf(`action="../%s/run"`, schedule)) {
			t.Errorf("the page of schedule %s, %s: %s", name, schedule, text)
		}
		links[name] = true
	}
	if len(links) != len(names) {
		t.Errorf("the page of queues has links to %v, want %q", links, names)
	}
}
