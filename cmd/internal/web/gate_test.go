package web

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// desk is an endpoint of another package: it answers who may do what with the queues in the URL, and the length of the body.
type desk struct {
	gate *Gate
	wait chan struct{} // if set, it waits for this or for the end of the server, and for the request's context
}

func (d *desk) Register(g *Gate) {
	d.gate = g
	g.Handle("POST /v1/desk/{action}", func(rw http.ResponseWriter, r *http.Request) {
		c, release, err := g.Admit(r)
		if err != nil {
			g.Refuse(rw, "", err)
			return
		}
		defer release()
		grant, err := g.Authorize(r.Context(), c, Action(r.PathValue("action")), r.URL.Query()["queue"]...)
		if err != nil {
			g.Refuse(rw, "", err)
			return
		}
		body, done, err := g.Read(r.Context(), rw, r, 100)
		if err != nil {
			g.Refuse(rw, "", err)
			return
		}
		defer done()
		if d.wait != nil {
			select {
			case <-d.wait:
			case <-r.Context().Done():
				err = r.Context().Err()
			case <-g.Context().Done():
				err = g.Context().Err()
			}
			if err != nil {
				g.Refuse(rw, "", err)
				return
			}
		}
		Reply(rw, http.StatusOK, fmt.Sprintf("%s may: %d bytes", grant.User, len(body)))
	})
}

// TestTokensNameTheQueuesToWorkAndToEnqueue: for endpoints of other packages, a token allows an action on the queues that it names for it, and on no others.
func TestTokensNameTheQueuesToWorkAndToEnqueue(t *testing.T) {
	t.Parallel()
	r := newRig(t, newMemory(), func(c *Config) { withSecret(t)(c); c.Endpoints = []Endpoints{&desk{}} })
	may := func(work, enqueue any) string {
		return hs256(t, may([]string{">"}, []string{">"}, func(c jwt.MapClaims) {
			c["sub"], c["weir"].(map[string]any)["work"], c["weir"].(map[string]any)["enqueue"] = "ada", work, enqueue
		}))
	}
	for _, try := range []struct {
		token, at string
		want      int
	}{
		{may([]string{"mail", "files.*"}, nil), "work?queue=mail&queue=files.big", 200},
		{may([]string{"mail", "files.*"}, nil), "work", 200},
		{may([]string{"mail", "files.*"}, nil), "work?queue=mail&queue=files", 403},
		{may([]string{"mail"}, nil), "enqueue?queue=mail", 403},
		{may([]string{"mail"}, nil), "enqueue", 403},
		{may([]string{"mail"}, nil), "jobs?queue=mail", 403},
		{may(nil, []string{"mail"}), "enqueue?queue=mail", 200},
		{may(nil, []string{"mail"}), "work?queue=mail", 403},
		{may(nil, nil), "enqueue?queue=mail", 403},
		{may([]string{""}, nil), "work?queue=mail", 401}, // not a name
		{"nonsense", "work?queue=mail", 401},
	} {
		status, answer := r.ask(try.at, "body", bearerOf(try.token))
		if status != try.want || status == 200 && answer != "\"ada may: 4 bytes\"\n" || status == 403 && !strings.Contains(answer, "queue") && !strings.Contains(answer, "claim") {
			t.Errorf("%s: %d %s, want %d", try.at, status, answer, try.want)
		}
	}
}

// TestAPathThatDoesNotExistIsAnsweredWithThoseThatDo: with those of jobs, if the server serves them.
func TestAPathThatDoesNotExistIsAnsweredWithThoseThatDo(t *testing.T) {
	t.Parallel()
	for _, endpoints := range [][]Endpoints{nil, {&desk{}}} {
		r := newRig(t, newMemory(), func(c *Config) { c.Endpoints = endpoints })
		answer, end := r.get("/v1/nothing", nil)
		text, err := io.ReadAll(answer.Body)
		end()
		if err != nil || answer.StatusCode != 404 || !strings.Contains(string(text), "GET /v1/presence") || strings.Contains(string(text), "POST /v1/jobs") != (endpoints != nil) {
			t.Errorf("with %d further endpoints: %s %s %v", len(endpoints), answer.Status, text, err)
		}
	}
}

// TestTheCallbackIsAskedForQueues: for endpoints of other packages, the callback is asked for the action and its queues, and a client that may not is
// refused before its body is read.
func TestTheCallbackIsAskedForQueues(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 1)
	service := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		asked <- string(b)
		fmt.Fprintf(rw, `{"allow": %v}`, strings.Contains(string(b), `"work"`))
	}))
	t.Cleanup(service.Close)
	a, err := NewCallback(CallbackConfig{URL: service.URL, Timeout: generous, Cache: -1})
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, newMemory(), func(c *Config) { c.Authorizer, c.Endpoints = a, []Endpoints{&desk{}} })
	for at, want := range map[string]int{"work?queue=a&queue=b": 200, "enqueue?queue=a&queue=b": 403} {
		if status, answer := r.ask(at, "", bearerOf("t")); status != want {
			t.Errorf("%s: %d %s, want %d", at, status, answer, want)
		}
		action, _, _ := strings.Cut(at, "?")
		if q := pgtest.Receive(t, asked, "the callback was asked"); !strings.Contains(q, `"action":"`+action+`","channels":["a","b"]`) {
			t.Errorf("%s: the callback was asked %s", at, q)
		}
	}
}

// TestEndpointsOfOtherPackagesAreBoundedToo: they count as connections, refuse foreign pages, bound bodies, and answer when the server stops. What they
// wait for may take longer than a body may.
func TestEndpointsOfOtherPackagesAreBoundedToo(t *testing.T) {
	t.Parallel()
	d := &desk{wait: make(chan struct{})}
	r := newRig(t, newMemory(), func(c *Config) {
		c.Endpoints, c.Limits.Connections, c.BodyTimeout = []Endpoints{d}, 1, 500*time.Millisecond
	})
	if status, _ := r.ask("work", strings.Repeat("x", 101), nil); status != http.StatusRequestEntityTooLarge {
		t.Errorf("a long body: %d, want 413", status)
	}
	if status, _ := r.ask("work", "", http.Header{"Origin": {"https://elsewhere.example"}}); status != http.StatusForbidden {
		t.Errorf("a foreign page: %d, want 403", status)
	}
	answered := make(chan int, 1)
	waits := func() {
		go func() {
			status, _ := r.ask("work", "some", nil)
			answered <- status
		}()
		eventually(t, func() error {
			if n := r.web.count(); n != 1 {
				return fmt.Errorf("%d count", n)
			}
			return nil
		})
	}
	waits()
	if status, _ := r.ask("work", "", nil); status != http.StatusServiceUnavailable {
		t.Errorf("one more than the limit: %d, want 503", status)
	}
	select {
	case status := <-answered:
		t.Errorf("answered %d before it was time", status)
	case <-time.After(2 * r.web.BodyTimeout):
	}
	d.wait <- struct{}{}
	if status := pgtest.Receive(t, answered, "the request was answered"); status != 200 {
		t.Errorf("after longer than a body may take: %d, want 200", status)
	}
	waits()
	r.stopHub()
	if err := r.web.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if status := pgtest.Receive(t, answered, "the request was answered"); status != http.StatusServiceUnavailable {
		t.Errorf("at the stop: %d, want 503", status)
	}
	if status, _ := r.ask("work", "", nil); status != http.StatusServiceUnavailable {
		t.Errorf("after the stop: %d, want 503", status)
	}
}

// TestWhoDoesNotServeJobsSaysHowTo: without endpoints for jobs, their paths are answered with the flag that adds them.
func TestWhoDoesNotServeJobsSaysHowTo(t *testing.T) {
	t.Parallel()
	r := newRig(t, newMemory(), nil)
	for _, path := range []string{"/v1/jobs", "/v1/jobs/7", "/v1/jobs/7/cancel", "/v1/work/take", "/v1/work/ws", "/elsewhere"} {
		response, _ := r.get(path, nil)
		b, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		if names := strings.Contains(string(b), "weir serve --jobs"); response.StatusCode != 404 || names != (path != "/elsewhere") {
			t.Errorf("%s: %d %s", path, response.StatusCode, b)
		}
	}
}

// ask sends a request to desk.
func (r *rig) ask(at, body string, header http.Header) (int, string) {
	request, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, r.server.URL+"/v1/desk/"+at, strings.NewReader(body))
	if err != nil {
		r.t.Error(err)
		return 0, ""
	}
	if header != nil {
		request.Header = header
	}
	response, err := r.server.Client().Do(request)
	if err != nil {
		if !errors.Is(err, io.EOF) {
			r.t.Error(err)
		}
		return 0, ""
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err != nil {
		r.t.Error(err)
	}
	return response.StatusCode, string(b)
}
