package weirui_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/weir-pg/weir/weirui"
)

// TestNothingButStaticFilesIsKeptByACache: neither by a browser nor by a proxy, whatever the answer is.
func TestNothingButStaticFilesIsKeptByACache(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue(note{}, nil)
	fill := strings.NewReplacer("{$}", "", "{id}", "1", "{name}", "default")
	ask := func(method, path string, header ...string) {
		t.Helper()
		answer, _ := r.ask(method, path, "", header...)
		if got := answer.Header.Get("Cache-Control"); got != "no-store" {
			t.Errorf("%s %q is answered with %s and Cache-Control: %q", method, path, answer.Status, got)
		}
	}
	for _, e := range weirui.Endpoints(t) {
		if e.Path == "channels/tail/events" {
			ask(e.Method, e.Path) // without a channel it is refused
			continue
		}
		for _, header := range [][]string{nil, {"Accept", "application/json"}, {"Weir-Fragment", "1"}, {"Sec-Fetch-Site", "cross-site"}} {
			ask(e.Method, fill.Replace(e.Path), header...)
		}
	}
	for _, path := range []string{"nothing", "jobs/x", "static/", "static/nothing", "queues/none"} {
		ask("GET", path)
	}
	if answer, _ := r.ask("GET", "static/weir.js", ""); answer.StatusCode != http.StatusOK || answer.Header.Get("Cache-Control") != "max-age=300" {
		t.Errorf("a static file: %s, %q", answer.Status, answer.Header.Get("Cache-Control"))
	}
}
