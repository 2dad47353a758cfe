package weirui_test

import (
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/weirui"
)

func TestEachEndpointChecksTheRole(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue(note{Text: "hello"}, &weir.Options{Queue: "mail"})
	fill := strings.NewReplacer("{id}", fmt.Sprint(id), "{name}", "mail", "{$}", "")
	seen := map[weirui.Role]int{}
	for _, e := range weirui.Endpoints(t) {
		for role := weirui.Nobody; role <= weirui.Admin; role++ {
			r.role = role
			answer, text := r.ask(e.Method, fill.Replace(e.Path), "")
			if refused := answer.StatusCode == http.StatusForbidden; refused != (role < e.Role) {
				t.Errorf("%s %s, which requires %s, answers %s with %d: %s", e.Method, e.Path, e.Role, role, answer.StatusCode, text)
			}
		}
		seen[e.Role]++
	}
	for _, role := range []weirui.Role{weirui.Viewer, weirui.Operator, weirui.Admin} {
		if seen[role] == 0 {
			t.Errorf("no endpoint requires %s", role)
		}
	}
}

func TestAReadOnlyUIChangesNothingForAnybody(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *weirui.Config) { c.ReadOnly = true })
	r.enqueue(note{Text: "hello"}, &weir.Options{Queue: "mail"})
	for _, e := range weirui.Endpoints(t) {
		if e.Method != "POST" {
			continue
		}
		if answer, _ := r.ask("POST", strings.NewReplacer("{id}", "1", "{name}", "mail").Replace(e.Path), ""); answer.StatusCode != http.StatusForbidden {
			t.Errorf("POST %s: %s", e.Path, answer.Status)
		}
	}
	if text := r.page("queues"); strings.Contains(text, `method="post"`) {
		t.Error("the page of queues has the form of an action")
	}
}

func TestAnotherSiteCanDoNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue(note{Text: "hello"}, nil)
	for _, header := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Origin", "https://elsewhere.example"}} {
		if answer, _ := r.ask("POST", fmt.Sprintf("jobs/%d/cancel", id), "", header...); answer.StatusCode != http.StatusForbidden {
			t.Errorf("with %v: %s", header, answer.Status)
		}
	}
	if j, err := r.client.Job(t.Context(), id); err != nil || j.State != weir.StateAvailable {
		t.Errorf("the job is %v, %v", j, err)
	}
	answer, _ := r.ask("GET", "jobs", "")
	if policy := answer.Header.Get("Content-Security-Policy"); !strings.Contains(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") {
		t.Errorf("the policy is %q", policy)
	}
}

func TestAFormComesBackToItsOwnSite(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue(note{Text: "hello"}, nil)
	for back, want := range map[string]string{
		"jobs?state=failed": "../../jobs?state=failed", "": "../../", "//evil.example/": "../../", "https://evil.example": "../../", "/etc": "../../", "../../x": "../../", `\\evil.example`: "../../",
		"javascript:alert(1)": "../../",
	} {
		answer, _ := r.ask("POST", fmt.Sprintf("jobs/%d/cancel", id), url.Values{"back": {back}, "sure": {"yes"}}.Encode())
		if got := answer.Header.Get("Location"); answer.StatusCode != http.StatusSeeOther || got != want {
			t.Errorf("back to %q: %s, %q, want %q", back, answer.Status, got, want)
		}
	}
}

var link = regexp.MustCompile(`(?:href|src|action)="([^"]*)"`)

func TestAllLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue(note{Text: "hello"}, &weir.Options{Queue: "a/b ?&c", Key: "acme"})
	r.schedule(weir.Schedule{Name: oddName, Schedule: "@daily", Args: note{}, Options: &weir.Options{Queue: "a/b ?&c"}})
	r.flow(weir.Flow{Name: "flow", OnDone: newNote("done", "a/b ?&c"), Tasks: []weir.Task{{Name: "first", Job: newNote("1", "a/b ?&c")}, {Name: "second", After: []string{"first"}, Job: newNote("2", "a/b ?&c")}}})
	next, seen := []string{""}, map[string]bool{"": true}
	for len(next) > 0 && len(seen) < 500 {
		at := next[0]
		next = next[1:]
		answer, text := r.ask("GET", at, "")
		if answer.StatusCode != http.StatusOK {
			t.Errorf("GET %q: %s", at, answer.Status)
			continue
		}
		if !strings.HasPrefix(answer.Header.Get("Content-Type"), "text/html") {
			continue
		}
		base, err := url.Parse(r.server.URL + "/some/where/" + at)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			to, err := base.Parse(html.UnescapeString(m[1]))
			if err != nil {
				t.Errorf("%q links to %q: %v", at, m[1], err)
				continue
			}
			if strings.HasPrefix(m[0], "action") || to.Host != base.Host {
				continue
			}
			path, below := strings.CutPrefix(to.EscapedPath(), "/some/where/")
			if !below {
				t.Errorf("%q links to %q, which is outside", at, m[1])
			} else if to.RawQuery != "" {
				path += "?" + to.RawQuery
			}
			if !seen[path] {
				seen[path] = true
				next = append(next, path)
			}
		}
	}
	if len(seen) < 20 {
		t.Errorf("only %d pages are linked", len(seen))
	}
}

func TestWithoutItsSlashTheUIIsFound(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ui, err := weirui.New(weirui.Config{Databases: []weirui.Database{{Pool: r.pool}}, Access: r})
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	http.StripPrefix("/some/where", ui).ServeHTTP(w, httptest.NewRequest("GET", "/some/where?x=1", nil))
	if got := w.Header().Get("Location"); w.Code != http.StatusSeeOther || got != "where/" {
		t.Errorf("redirects with %d to %q", w.Code, got)
	}
}

func TestJobsAreFoundByTheirAddress(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 3 {
		r.enqueue(note{Text: fmt.Sprintf("a%d", i)}, &weir.Options{Queue: "mail", Key: "acme"})
	}
	r.enqueue(note{Text: "b"}, &weir.Options{Queue: "files"})
	for query, want := range map[string]int{"": 4, "queue=mail": 3, "queue=mail&state=available": 3, "state=failed": 0, "key=acme&queue=mail": 3, "kind=other": 0, "queue=none": 0} {
		var list struct{ Jobs []weir.JobInfo }
		if r.data("jobs?"+query, &list); len(list.Jobs) != want {
			t.Errorf("%q finds %d jobs, want %d", query, len(list.Jobs), want)
		}
	}
	for query, want := range map[string]string{"state=odd": "There is no state", "flow=x": "A flow is the number", "meta=%5B": "Meta is a JSON object", "after=zzz": "not a valid cursor"} {
		if answer, text := r.ask("GET", "jobs?"+query, ""); answer.StatusCode != http.StatusBadRequest || !strings.Contains(text, want) {
			t.Errorf("%q: %s, without %q: %s", query, answer.Status, want, text)
		}
	}
	for range 60 {
		r.enqueue(note{Text: "c"}, &weir.Options{Queue: "many"})
	}
	type page struct {
		Jobs []weir.JobInfo
		Next string
	}
	var first, second page
	r.data("jobs?queue=many&state=available", &first)
	r.data("jobs?queue=many&state=available&after="+url.QueryEscape(first.Next), &second)
	if len(first.Jobs) != 50 || len(second.Jobs) != 10 || second.Next != "" || second.Jobs[0].ID == first.Jobs[0].ID {
		t.Errorf("pages of %d and %d jobs", len(first.Jobs), len(second.Jobs))
	}
}

func TestAJobIsCancelledRetriedAndCopied(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue(note{Text: "hello"}, &weir.Options{Queue: "mail", Key: "acme", Priority: 3, Meta: map[string]string{"tenant": "acme"}})
	if said := r.do(fmt.Sprintf("jobs/%d/cancel", id), nil); said != fmt.Sprintf("Job %d is cancelled.", id) {
		t.Errorf("says %q", said)
	}
	if text := r.page(fmt.Sprintf("jobs/%d", id)); !strings.Contains(text, "cancelled") || !strings.Contains(text, "tenant") {
		t.Errorf("the page is %s", text)
	}
	form := r.page(fmt.Sprintf("jobs/new?copy=%d", id))
	for _, want := range []string{`value="mail"`, `value="note"`, `value="acme"`, "hello", "<option selected>3"} {
		if !strings.Contains(form, want) {
			t.Errorf("the form lacks %q: %s", want, form)
		}
	}
	r.do("jobs", url.Values{"queue": {"mail"}, "kind": {"note"}, "args": {`{"text": "<b>again</b>"}`}, "priority": {"4"}, "max_attempts": {"3"}, "delay": {"1h"}})
	page, err := r.client.Jobs(t.Context(), weir.JobsParams{Queue: "mail", States: []weir.State{weir.StateScheduled}})
	if err != nil || len(page.Jobs) != 1 {
		t.Fatalf("%v, %v", page, err)
	}
	if j := page.Jobs[0]; j.Priority != 4 || j.MaxAttempts != 3 || time.Until(*j.RunAt) < 50*time.Minute {
		t.Errorf("the copy is %+v", j)
	}
	if text := r.page(fmt.Sprintf("jobs/%d", page.Jobs[0].ID)); strings.Contains(text, "<b>again") || !strings.Contains(text, "&lt;b&gt;again") {
		t.Errorf("the page is not escaped: %s", text)
	}
	for form, want := range map[string]string{"kind=note&args=%7B": "not valid JSON", "kind=&args=1": "kind", "kind=note&delay=soon": "delay is a duration", "kind=note&priority=9": "priority", "kind=note&args=%5B%5D": "Args must be a JSON object"} {
		if answer, text := r.ask("POST", "jobs", form); answer.StatusCode != http.StatusBadRequest || !strings.Contains(text, want) {
			t.Errorf("%q: %s without %q: %s", form, answer.Status, want, text)
		}
	}
	if answer, _ := r.ask("GET", "jobs/99999", ""); answer.StatusCode != http.StatusNotFound {
		t.Errorf("an unknown job: %s", answer.Status)
	}
}

func TestSecretFieldsAreNeverShown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue(note{Text: "hello", Password: "hunter2"}, &weir.Options{Queue: "mail", Meta: map[string]any{"deep": []any{map[string]string{"API-Key": "hunter2"}}}})
	r.fail("mail", func(note) error { return errors.New("no") })
	for _, path := range []string{"jobs", "jobs?state=failed", fmt.Sprintf("jobs/%d", id), fmt.Sprintf("jobs/new?copy=%d", id)} {
		for _, accept := range []string{"text/html", "application/json"} {
			if _, text := r.ask("GET", path, "", "Accept", accept); strings.Contains(text, "hunter2") {
				t.Errorf("%s as %s shows the secret: %s", path, accept, text)
			}
		}
	}
	if answer, text := r.ask("POST", "jobs", url.Values{"kind": {"note"}, "args": {`{"password": "[redacted]"}`}}.Encode()); answer.StatusCode != http.StatusBadRequest {
		t.Errorf("a copy with what was not shown: %s: %s", answer.Status, text)
	}
}

func TestAQueueIsPausedResumedAndLimited(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue(note{Text: "hello"}, &weir.Options{Queue: "mail"})
	if err := r.client.SetLimit(t.Context(), "mail", weir.Limit{PerKey: true, Running: 2}); err != nil {
		t.Fatal(err)
	}
	r.do("queues/mail/pause", nil)
	if answer, text := r.ask("POST", "queues/mial/pause", "", "Accept", "application/json"); answer.StatusCode != http.StatusNotFound || !strings.Contains(text, `There is no queue \"mial\".`) {
		t.Errorf("a queue that is not there: %s: %s", answer.Status, text)
	}
	if text := r.page("queues"); !strings.Contains(text, "paused") || !strings.Contains(text, "Resume") {
		t.Errorf("the page is %s", text)
	}
	r.do("queues/mail/resume", nil)
	limits := func() (all []weir.QueueLimit) {
		all, err := r.client.Limits(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	r.do("queues/mail/limit", url.Values{"running": {"7"}, "starts": {"10"}, "per": {"1m"}})
	if l := limits(); len(l) != 2 || l[0].Running != 7 || l[0].Rate.Starts != 10 || l[0].Rate.Per != time.Minute {
		t.Errorf("the limits are %+v", l)
	}
	for range 2 {
		r.do("queues/mail/limit", nil)
		if l := limits(); len(l) != 1 || !l[0].PerKey {
			t.Errorf("the limits are %+v, and only those of the keys are left", l)
		}
	}
	for _, verb := range []string{"pause", "resume"} {
		if answer, text := r.ask("POST", "queues/none/"+verb, ""); answer.StatusCode != http.StatusNotFound || !strings.Contains(text, "There is no queue") || strings.Contains(text, "retention") {
			t.Errorf("%s of an unknown queue: %s: %s", verb, answer.Status, text)
		}
	}
}

func TestManyTabsCostWhatOneDoes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue(note{Text: "hello"}, &weir.Options{Queue: "mail"})
	const tabs, looks = 100, 5
	before, began := r.pool.Stat().AcquireCount(), time.Now()
	var all sync.WaitGroup
	for range tabs {
		all.Go(func() {
			for range looks {
				if answer, _ := r.ask("GET", "queues", ""); answer.StatusCode != http.StatusOK {
					t.Errorf("answers %s", answer.Status)
				}
			}
		})
	}
	all.Wait()
	// The page makes two calls of the database, at most once a second.
	most := 2 * (int64(time.Since(began)/time.Second) + 2)
	if n := r.pool.Stat().AcquireCount() - before; n > most {
		t.Errorf("%d pages used the database %d times, at most %d expected", tabs*looks, n, most)
	}
}

func TestAnActionThatCannotBeReadDoesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue(note{Text: "hello"}, &weir.Options{Queue: "mail"})
	if err := r.client.SetLimit(t.Context(), "mail", weir.Limit{Running: 3, Rate: weir.Rate{Starts: 2.5, Per: time.Minute, Burst: 200}}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ path, body, kind string }{
		{"queues/mail/limit", `{"running": 5}`, "application/json"}, {"queues/mail/limit", "running=5", "text/plain"}, {"queues/mail/limit", "--x\r\n", "multipart/form-data; boundary=x"}, {"queues/mail/limit?running=5", "", ""},
	} {
		if answer, text := r.ask("POST", c.path, c.body, "Content-Type", c.kind); answer.StatusCode != http.StatusUnsupportedMediaType && answer.StatusCode != http.StatusBadRequest {
			t.Errorf("%s as %q: %s: %s", c.path, c.kind, answer.Status, text)
		}
	}
	limit := func() weir.Limit {
		limits, err := r.client.Limits(t.Context())
		if err != nil || len(limits) != 1 {
			t.Fatalf("%+v, %v", limits, err)
		}
		return limits[0].Limit
	}
	r.do("queues/mail/limit", url.Values{"running": {"4"}, "starts": {"2.5"}, "per": {"1m0s"}})
	if l := limit(); l.Running != 4 || l.Rate.Burst != 200 || l.Rate.Starts != 2.5 {
		t.Errorf("the limit is %+v: the burst stays with the rate", l)
	}
}

func TestAnotherSiteCannotHavePagesRead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for mode, want := range map[string]int{"no-cors": http.StatusForbidden, "cors": http.StatusForbidden, "navigate": http.StatusOK} {
		if answer, _ := r.ask("GET", "jobs", "", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", mode); answer.StatusCode != want {
			t.Errorf("%s: %s", mode, answer.Status)
		}
	}
	if answer, _ := r.ask("GET", "static/", ""); answer.StatusCode != http.StatusNotFound {
		t.Errorf("the list of static files: %s", answer.Status)
	}
}

func TestSecretsInTextsThatAreNoJSONAreHidden(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"password": "hunter2"}` + "\n" + `{"password": "hunter2"}`, `{"x": {"password": "hunter2"}, "x": 1}`, `{"inner": "{\"api_key\": \"hunter2\"}"}`, `{"password": "hunter2"`, `result: {"token": ["hunter2", "hunter2"]}`, "\ufeff" + `{"secret": "hunter2"}`,
	} {
		if got := weirui.Redact(text); strings.Contains(got, "hunter2") {
			t.Errorf("%s is shown as %s", text, got)
		}
	}
	for _, text := range []string{`sent to "ada": ok`, `{"note": "the password: none"}`, "plain"} {
		if got := weirui.Redact(text); strings.Contains(got, "redacted") {
			t.Errorf("%s is shown as %s", text, got)
		}
	}
}

// stranger is an Access that lets nobody in.
type stranger struct{}

func (stranger) Identify(w http.ResponseWriter, _ *http.Request) (weirui.User, bool) {
	http.Error(w, "who are you?", http.StatusUnauthorized)
	return weirui.User{}, false
}

// TestWhoIsNotLetInSeesNoPage: nor the names of the databases, whatever the path looks like. Style sheets and scripts are for everybody.
func TestWhoIsNotLetInSeesNoPage(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *weirui.Config) {
		c.Access = stranger{}
		c.Databases = []weirui.Database{{Name: "acme", Pool: c.Databases[0].Pool}, {Name: "emca", Pool: c.Databases[0].Pool}}
	})
	for _, path := range []string{"", "db/acme/", "nothing", "static", "static%2fx", "static%2fweir.css", "static%2f..%2fdb%2facme%2fjobs", "static/..%2fdb%2facme%2fjobs", "static/nothing"} {
		for _, method := range []string{"GET", "POST", "PUT"} {
			answer, text := r.ask(method, path, "")
			if answer.StatusCode != http.StatusUnauthorized && answer.StatusCode != http.StatusNotFound || strings.Contains(text, "acme") {
				t.Errorf("%s %s: %s\n%s", method, path, answer.Status, text)
			}
		}
	}
	if answer, _ := r.ask("GET", "static/weir.css", ""); answer.StatusCode != http.StatusOK {
		t.Errorf("the style sheet: %s", answer.Status)
	}
}
