package push_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

// accepting is a service that answers 202, and tells what it got.
func accepting(t testing.TB) (*endpoint, chan pushed) {
	got := make(chan pushed, 100)
	return newService(t, func(rw http.ResponseWriter, _ *http.Request, p pushed) {
		rw.WriteHeader(http.StatusAccepted)
		got <- p
	}), got
}

// TestAnAcceptedJobRunsUntilItIsReported: at any hub, with any outcome, signed with either secret. A report that is repeated, with another output, is answered, and changes nothing.
func TestAnAcceptedJobRunsUntilItIsReported(t *testing.T) {
	t.Parallel()
	s, got := accepting(t)
	second := newSecret()
	r := newRig(t, strings.Replace(s.of("e", "q = 10"), `"]`, `", "`+second+`"]`, 1))
	other := "http://" + r.start().HTTPAddr().String()
	for _, try := range []struct {
		report map[string]any
		state  string
		error  string
		output string
	}{
		{map[string]any{"output": "sent"}, "completed", "", "sent"},
		{map[string]any{"outcome": "completed", "output": map[string]int{"n": 1}}, "completed", "", `{"n":1}`},
		{map[string]any{}, "completed", "", ""},
		{map[string]any{"outcome": "failed", "error": "no such account", "final": true}, "failed", "no such account", ""},
		{map[string]any{"outcome": "failed", "error": "busy", "delay": 3600}, "scheduled", "busy", ""},
		{map[string]any{"outcome": "snoozed", "delay": 3600}, "scheduled", "", ""},
		{map[string]any{"outcome": "cancelled"}, "cancelled", "", ""},
	} {
		for _, hub := range []string{r.url, other} {
			id := r.enqueue("q", "k", 1)[0]
			p := pgtest.Receive(t, got, "the job was pushed")
			try.report["token"] = p.Token
			secret := s.secret
			if hub == other {
				secret = second
			}
			if status, answer := r.report(hub, "e", secret, try.report); status != 200 || answer != `{"recorded":true}` {
				t.Errorf("%v: %d %s", try.report, status, answer)
			}
			if got := r.until(id, try.state); got.Error != try.error || got.Output != try.output {
				t.Errorf("%v: %+v", try.report, got)
			}
			for _, hub := range []string{r.url, other} {
				if status, answer := r.report(hub, "e", secret, map[string]any{"token": p.Token, "output": "again"}); status != 200 {
					t.Errorf("%v, repeated: %d %s", try.report, status, answer)
				}
			}
			if got := r.job(id); got.Output != try.output {
				t.Errorf("a repeated report has changed the job to %+v", got)
			}
		}
	}
	for _, hub := range []string{r.url, other} {
		pgtest.Until(t, "no hub waits for a report", func() bool {
			return !strings.Contains(get(t, hub+"/metrics"), `weir_push_accepted_jobs{endpoint="e"} 1`)
		})
	}
}

// TestAReportMayComeBeforeTheAnswer: an endpoint that reports while its request is under way has reported.
func TestAReportMayComeBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	var r *rig
	ready := make(chan struct{})
	s := newService(t, nil)
	s.handle = func(rw http.ResponseWriter, _ *http.Request, p pushed) {
		<-ready
		if status, answer := r.report(r.url, "e", s.secret, map[string]any{"token": p.Token, "output": "early"}); status != 200 || answer != `{"recorded":true}` {
			t.Errorf("%d %s", status, answer)
		}
		rw.WriteHeader(http.StatusAccepted)
	}
	r = newRig(t, s.of("e", "q = 1"))
	close(ready)
	for _, id := range r.enqueue("q", "k", 20) {
		if got := r.until(id, "completed"); got.Output != "early" {
			t.Errorf("%+v", got)
		}
	}
	pgtest.Until(t, "all requests are answered", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.running == 0
	})
}

// TestAnAcceptedJobThatIsNotReportedFails: after its time, and is pushed again; a report of the earlier attempt is too late.
func TestAnAcceptedJobThatIsNotReportedFails(t *testing.T) {
	t.Parallel()
	s, got := accepting(t)
	r := newRig(t, s.of("e", "q = 1", `accepted_timeout = "1s"`))
	id := r.enqueue("q", "k", 1)[0]
	first := pgtest.Receive(t, got, "the job was pushed")
	if got := r.until(id, "scheduled"); !strings.Contains(got.Error, "e has accepted it, but has not reported its end within 1s") {
		t.Errorf("%+v", got)
	}
	if status, answer := r.report(r.url, "e", s.secret, map[string]any{"token": first.Token}); status != 200 || !strings.Contains(answer, `"recorded":false`) {
		t.Errorf("a late report: %d %s", status, answer)
	}
	again := pgtest.Receive(t, got, "the job was pushed again")
	if again.ID != id || again.Attempt != 2 || again.Token == first.Token || again.header.Get("webhook-id") != first.header.Get("webhook-id") {
		t.Errorf("%s", again.body)
	}
	if status, answer := r.report(r.url, "e", s.secret, map[string]any{"token": again.Token}); status != 200 || answer != `{"recorded":true}` {
		t.Errorf("%d %s", status, answer)
	}
	r.until(id, "completed")
}

// TestAnAcceptedJobOutlivesItsLease: while its hub lives, nobody else gets it, however long its endpoint works; when the hub stops, it is pushed again, by another.
func TestAnAcceptedJobOutlivesItsLease(t *testing.T) {
	t.Parallel()
	s, got := accepting(t)
	r := newRig(t, s.of("e", "q = 1"))
	id := r.enqueue("q", "k", 1)[0]
	first := pgtest.Receive(t, got, "the job was pushed")
	select {
	case p := <-got:
		t.Fatalf("it was pushed again: %s", p.body)
	case <-time.After(7 * time.Second): // two leases, and what a sweep takes
	}
	if got := r.job(id); got.State != "running" || got.Attempt != 1 {
		t.Fatalf("%+v", got)
	}
	other := r.start()
	r.stop(r.hub)
	again := pgtest.Receive(t, got, "the job was pushed again")
	if again.Attempt != 1 || again.header.Get("webhook-id") != first.header.Get("webhook-id") {
		t.Errorf("%s, want the same attempt", again.body)
	}
	at := "http://" + other.HTTPAddr().String()
	if status, answer := r.report(at, "e", s.secret, map[string]any{"token": first.Token}); status != 200 || !strings.Contains(answer, `"recorded":false`) {
		t.Errorf("a report with the token of the hub that has stopped: %d %s", status, answer)
	}
	if status, answer := r.report(at, "e", s.secret, map[string]any{"token": again.Token, "output": "done"}); status != 200 || answer != `{"recorded":true}` {
		t.Errorf("%d %s", status, answer)
	}
	if got := r.until(id, "completed"); got.Output != "done" {
		t.Errorf("%+v", got)
	}
}

// TestAReportWithoutAGoodSignatureIsRefused: and so are those that are old, from the future, of another endpoint, or for attempts that the endpoint did not get. The job goes on.
func TestAReportWithoutAGoodSignatureIsRefused(t *testing.T) {
	t.Parallel()
	s, got := accepting(t)
	foreign, theirs := accepting(t)
	r := newRig(t, s.of("e", "q = 1")+foreign.of("foreign", "f = 1"))
	id := r.enqueue("q", "k", 1)[0]
	p := pgtest.Receive(t, got, "the job was pushed")
	r.enqueue("f", "k", 1)
	other := pgtest.Receive(t, theirs, "the other was pushed")
	report := map[string]any{"token": p.Token, "output": "forged"}
	body := []byte(fmt.Sprintf(`{"output":"forged","token":%q}`, p.Token))
	set := func(name, value string) func(*http.Request) {
		return func(q *http.Request) {
			if q.Header.Del(name); value != "" {
				q.Header.Set(name, value)
			}
		}
	}
	at := func(off time.Duration) func(*http.Request) {
		return func(q *http.Request) { signAt(t, q.Header, s.secret, "msg_1", time.Now().Add(off), body) }
	}
	for what, try := range map[string]struct {
		endpoint, secret string
		report           map[string]any
		change           func(*http.Request)
		status           int
	}{
		"another secret":              {"e", newSecret(), report, nil, 401},
		"the other endpoint's secret": {"e", foreign.secret, report, nil, 401},
		"no signature":                {"e", s.secret, report, set("webhook-signature", ""), 401},
		"no id":                       {"e", s.secret, report, set("webhook-id", ""), 401},
		"another id":                  {"e", s.secret, report, set("webhook-id", "msg_2"), 401},
		"an id with a dot":            {"e", s.secret, report, set("webhook-id", "msg.1"), 401},
		"a long id":                   {"e", s.secret, report, set("webhook-id", strings.Repeat("x", 1000)), 401},
		"no time":                     {"e", s.secret, report, set("webhook-timestamp", ""), 401},
		"another time":                {"e", s.secret, report, set("webhook-timestamp", fmt.Sprint(time.Now().Unix()-1)), 401},
		"no number as the time":       {"e", s.secret, report, set("webhook-timestamp", "now"), 401},
		"a strange number":            {"e", s.secret, report, set("webhook-timestamp", fmt.Sprintf("+%d", time.Now().Unix())), 401},
		"an old one":                  {"e", s.secret, report, at(-6 * time.Minute), 401},
		"one from the future":         {"e", s.secret, report, at(6 * time.Minute), 401},
		"a signature of nothing":      {"e", s.secret, report, set("webhook-signature", "v1,"), 401},
		"another version": {"e", s.secret, report, func(q *http.Request) {
			set("webhook-signature", strings.Replace(q.Header.Get("webhook-signature"), "v1,", "v1a,", 1))(q)
		}, 401},
		"many wrong signatures": {"e", s.secret, report, func(q *http.Request) {
			set("webhook-signature", strings.Repeat("v1,AAAA ", 20)+q.Header.Get("webhook-signature"))(q)
		}, 401},
		"an unknown endpoint":      {"nobody", s.secret, report, nil, 404},
		"the other endpoint":       {"foreign", foreign.secret, report, nil, 400},
		"the other endpoint's job": {"e", s.secret, map[string]any{"token": other.Token}, nil, 400},
		"no token":                 {"e", s.secret, map[string]any{}, nil, 400},
		"a token without its end":  {"e", s.secret, map[string]any{"token": strings.Split(p.Token, ".")[0]}, nil, 400},
		"another outcome":          {"e", s.secret, map[string]any{"token": p.Token, "outcome": "great"}, nil, 400},
		"another field":            {"e", s.secret, map[string]any{"token": p.Token, "result": "great"}, nil, 400},
		"a negative delay":         {"e", s.secret, map[string]any{"token": p.Token, "outcome": "snoozed", "delay": -1}, nil, 400},
		"too much":                 {"e", s.secret, map[string]any{"token": p.Token, "output": strings.Repeat("x", 3<<20)}, nil, 413},
	} {
		changes := []func(*http.Request){}
		if try.change != nil {
			changes = append(changes, try.change)
		}
		if status, answer := r.report(r.url, try.endpoint, try.secret, try.report, changes...); status != try.status {
			t.Errorf("%s: %d %s, want %d", what, status, answer, try.status)
		}
	}
	if got := r.job(id); got.State != "running" {
		t.Errorf("the job is %+v", got)
	}
	for what, change := range map[string]func(*http.Request){
		"a second signature": func(q *http.Request) { set("webhook-signature", "v1,AAAA v2,x "+q.Header.Get("webhook-signature"))(q) },
	} {
		if status, answer := r.report(r.url, "e", s.secret, report, change); status != 200 {
			t.Errorf("%s: %d %s", what, status, answer)
		}
	}
	r.until(id, "completed")
}
