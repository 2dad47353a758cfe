package weirui_test

import (
	"errors"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/weirui"
)

// TestUnknownFieldsAreRefused: a misspelt condition would select more than was meant. An action says which fields there are, and so does a page, as JSON and in HTML.
func TestUnknownFieldsAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue(note{}, &weir.Options{Queue: "rt"})
	r.fail("rt", func(note) error { return errors.New("no route") })
	for _, c := range []struct{ method, path, fields, unknown, known string }{
		{"POST", "failures/delete", "queue=rt&knd=nothing", "knd", "all, before, hours, kind, queue, shape"},
		{"POST", "failures/retry", "queue=rt&error_contans=zzz&sure=yes&back=failures", "error_contans", "shape"},
		{"POST", "jobs/all/delete", "queue=rt&stat=failed", "stat", "ended_from"},
		{"POST", "jobs/all/move", "queue=rt&to_queu=x", "to_queu", "to_queue"},
		{"POST", "jobs", "kind=note&priorty=1", "priorty", "priority"},
		{"POST", "queues/rt/pause", "for=1h", "for", "no fields"},
		{"GET", "jobs", "stat=failed", "stat", "state"},
		{"GET", "failures", "shape=x", "shape", "before, hours, kind, queue"},
		{"GET", "jobs/1", "x=1", "x", "no fields"},
		{"GET", "channels/tail/events", "chanel=a", "chanel", "channel"},
	} {
		for _, accept := range []string{"application/json", "text/html"} {
			path, body := c.path, c.fields
			if c.method == "GET" {
				path, body = c.path+"?"+c.fields, ""
			}
			answer, text := r.ask(c.method, path, body, "Accept", accept)
			text = html.UnescapeString(text)
			if accept == "application/json" {
				text = strings.ReplaceAll(text, `\"`, `"`)
			}
			if answer.StatusCode != http.StatusBadRequest || !strings.Contains(text, `"`+c.unknown+`"`) || !strings.Contains(text, c.known) {
				t.Errorf("%s %s with %s as %s: %s: %s", c.method, c.path, c.fields, accept, answer.Status, text)
			}
		}
	}
	page, err := r.client.Jobs(t.Context(), weir.JobsParams{Queue: "rt", States: []weir.State{weir.StateFailed}})
	if err != nil || len(page.Jobs) != 1 {
		t.Errorf("refused actions have left %d failed jobs, %v", len(page.Jobs), err)
	}
	if answer, _ := r.ask("GET", "nothing?x=1", ""); answer.StatusCode != http.StatusNotFound {
		t.Errorf("no page: %s", answer.Status)
	}
}

var (
	aForm  = regexp.MustCompile(`(?s)<form [^>]*>.*?</form>`)
	isPost = regexp.MustCompile(`^<form [^>]*method="post"`)
	target = regexp.MustCompile(`^<form [^>]*action="([^"]*)"`)
	named  = regexp.MustCompile(`<(?:input|select|textarea) [^>]*name="([^"]*)"`)
	linked = regexp.MustCompile(`href="([^"]*\?[^"]*)"`)
)

// TestPagesSendNoUnknownFields: neither their forms nor their links do.
func TestPagesSendNoUnknownFields(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *weirui.Config) {
		c.Databases[0].Hub = &fakeHub{clients: []weirui.HubClient{{ID: "web 7", User: "ada"}}}
	})
	for _, queue := range []string{"mail", "rt"} {
		r.enqueue(note{}, &weir.Options{Queue: queue, Key: "k"})
	}
	r.fail("rt", func(note) error { return errors.New("no route") })
	if _, err := r.client.SetSchedule(t.Context(), weir.Schedule{Name: "nightly", Schedule: "0 4 * * *", Args: note{}}); err != nil {
		t.Fatal(err)
	}
	root, err := url.Parse(r.server.URL + "/some/where/")
	if err != nil {
		t.Fatal(err)
	}
	posts, gets := map[string][]string{}, map[string]bool{}
	for _, path := range []string{"", "jobs", "jobs?queue=rt&state=failed", "jobs?queue=mail&state=available", "jobs/1", "jobs/2", "jobs/new", "jobs/new?copy=1", "failures", "failures?queue=rt",
		"operations", "queues", "queues/mail", "history", "schedules", "schedules/nightly", "flows", "workers", "workers?ended=1", "channels", "channels/tail?channel=a", "storage", "doctor"} {
		text := r.page(path)
		at := root.ResolveReference(&url.URL{Path: strings.SplitN(path, "?", 2)[0]})
		to := func(relative string) string {
			u, err := at.Parse(html.UnescapeString(relative))
			if err != nil {
				t.Fatal(err)
			}
			return strings.TrimPrefix(u.Path+"?"+u.RawQuery, root.Path)
		}
		for _, l := range linked.FindAllStringSubmatch(text, -1) {
			gets[to(l[1])] = true
		}
		for _, form := range aForm.FindAllString(text, -1) {
			address := "?"
			if a := target.FindStringSubmatch(form); a != nil {
				address = a[1]
			}
			address = strings.TrimSuffix(to(address), "?")
			for _, field := range named.FindAllStringSubmatch(form, -1) {
				if isPost.MatchString(form) {
					posts[address] = append(posts[address], field[1])
				} else {
					address, _, _ = strings.Cut(address, "?")
					gets[address+"?"+field[1]+"="] = true
				}
			}
		}
	}
	if len(posts) < 12 || len(gets) < 20 {
		t.Fatalf("found too few forms and links: %v, %v", posts, gets)
	}
	for path, fields := range posts {
		answer, text := r.ask("POST", path, "~=refused", "Accept", "application/json")
		known := strings.FieldsFunc(text, func(c rune) bool { return strings.ContainsRune(`,. :"{}`, c) })
		for _, field := range fields {
			if answer.StatusCode != http.StatusBadRequest || field != "back" && field != "sure" && !slices.Contains(known, field) {
				t.Errorf("a form sends %s to %s, which answers %s: %s", field, path, answer.Status, text)
			}
		}
	}
	for path := range gets {
		if answer, text := r.ask("GET", path, "", "Accept", "application/json"); strings.Contains(text, "There is no field") {
			t.Errorf("a page leads to %s, which answers %s: %s", path, answer.Status, text)
		}
	}
}
