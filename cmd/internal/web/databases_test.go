package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/weir-pg/weir/internal/hub"
)

// forDatabases returns a token that allows everything in the databases, which may be any JSON; nil: the claim is missing.
func forDatabases(t testing.TB, databases any) string {
	return hs256(t, may([]string{">"}, []string{">"}, func(c jwt.MapClaims) {
		claim := c["weir"].(map[string]any)
		claim["jobs"], claim["work"], claim["enqueue"] = []string{">"}, []string{">"}, []string{">"}
		if c["sub"] = "ada"; databases != nil {
			claim["databases"] = databases
		}
	}))
}

// below has the rig's clients reach it below a path.
func (r *rig) below(path string) {
	r.server.Close()
	r.server = httptest.NewServer(http.StripPrefix(path, r.web))
	r.server.URL += path
}

// statuses returns how each kind of request with the token is answered, and what the refusals say.
func (r *rig) statuses(token string) (all map[string]int, refusals string) {
	r.t.Helper()
	all = map[string]int{}
	for _, path := range []string{"events?channel=a", "jobs/wait?queue=a"} {
		answer, end := r.get("/v1/"+path, bearerOf(token))
		if all[path] = answer.StatusCode; answer.StatusCode != http.StatusOK {
			text, err := io.ReadAll(answer.Body)
			if err != nil {
				r.t.Fatal(err)
			}
			refusals += string(text)
		}
		end()
	}
	for _, query := range []string{"", "?channel=a"} {
		body := `{"channel": "a", "payload": "x"}`
		status, answer := r.post(query, body, bearerOf(token))
		if all["publish"+query] = status; status != http.StatusOK {
			refusals += fmt.Sprintln(answer)
		}
	}
	for _, action := range []Action{WaitJobs, Work, Enqueue} {
		for _, queue := range []string{"", "?queue=a"} { // whether it may at all, and there
			status, answer := r.ask(string(action)+queue, "", bearerOf(token))
			if all[string(action)+queue] = status; status != http.StatusOK {
				refusals += answer
			}
		}
	}
	c, answer, err := r.dial("", nil, "weir.v1", "bearer."+token)
	if all["ws"] = answer.StatusCode; err == nil {
		defer c.close()
		all["ws"] = http.StatusOK
		if s := c.ask(`{"type":"subscribe","channels":["b"]}`); s.Type != "subscribed" {
			all["ws"] = 0
			refusals += s.Error + s.Hint
		}
		if s := c.ask(`{"type":"publish","channel":"a"}`); s.Type != "published" {
			all["ws"] = 0
			refusals += s.Error + s.Hint
		}
	}
	return all, refusals
}

// TestATokenIsWorthNothingAtOtherDatabases: one that names databases, at any hub that knows its own names; one that names none, where there are several. Names are exact.
func TestATokenIsWorthNothingAtOtherDatabases(t *testing.T) {
	t.Parallel()
	named := []string{"app", "app.db1-5432"}
	hubs := map[string]func(*Config){
		"unknown":  func(*Config) {},
		"one":      func(c *Config) { c.Databases = func() []string { return named } },
		"several":  func(c *Config) { c.Databases, c.Several = func() []string { return named }, true },
		"nameless": func(c *Config) { c.Databases, c.Several = func() []string { return nil }, true },
	}
	hundred := make([]string, 101)
	for i := range hundred {
		hundred[i] = "app"
	}
	for name, change := range hubs {
		r := newRig(t, newMemory(), func(c *Config) {
			withSecret(t)(c)
			c.Endpoints, c.Jobs = []Endpoints{&desk{}}, waiter{}
			change(c)
		})
		r.below("/databases/app")
		for _, try := range []struct {
			databases any
			want      map[string]int // by hub; 200 if it is missing
		}{
			{[]string{"app"}, map[string]int{"nameless": 403}},
			{[]string{"other", "app.db1-5432"}, map[string]int{"nameless": 403}},
			{hundred[:100], map[string]int{"nameless": 403}},
			{[]string{"other"}, map[string]int{"one": 403, "several": 403, "nameless": 403}},
			{[]string{"App", "app.*", "*", ">", "app.", "ap"}, map[string]int{"one": 403, "several": 403, "nameless": 403}},
			{[]string{}, map[string]int{"one": 403, "several": 403, "nameless": 403}},
			{nil, map[string]int{"several": 403, "nameless": 403}},
			{json.RawMessage("null"), map[string]int{"several": 403, "nameless": 403}},
			{hundred, map[string]int{"one": 401, "several": 401, "nameless": 401}},
			{"app", map[string]int{"unknown": 401, "one": 401, "several": 401, "nameless": 401}},
		} {
			want, found := try.want[name]
			if !found {
				want = http.StatusOK
			}
			statuses, refusals := r.statuses(forDatabases(t, try.databases))
			for what, status := range statuses {
				if status != want {
					t.Errorf("%s, a token for %v: %s is answered %d, want %d: %s", name, try.databases, what, status, want, refusals)
				}
			}
			if want == 403 && name != "nameless" {
				for _, part := range []string{"the token is not for this database", `databases`, `claim weir`, `app`, `app.db1-5432`} {
					if n := strings.Count(refusals, part); n < len(statuses)-1 { // a WebSocket's is not shown
						t.Errorf("%s, a token for %v: %q is %d times in %s", name, try.databases, part, n, refusals)
					}
				}
			}
		}
	}
	if _, err := New(Config{Hub: newRig(t, newMemory(), nil).hub, Several: true}); err == nil {
		t.Error("a Web that can't know whether tokens are for its database is not refused")
	}
}

// TestAnybodyMayUseADatabaseThatIsOpen: names change nothing for anonymous clients.
func TestAnybodyMayUseADatabaseThatIsOpen(t *testing.T) {
	t.Parallel()
	r := newRig(t, newMemory(), func(c *Config) {
		c.Endpoints, c.Jobs = []Endpoints{&desk{}}, waiter{}
		c.Databases, c.Several = func() []string { return []string{"app"} }, true
	})
	statuses, refusals := r.statuses("")
	for what, status := range statuses {
		if status != http.StatusOK {
			t.Errorf("%s is answered %d: %s", what, status, refusals)
		}
	}
}

// TestANewTokenMustBeForTheDatabaseToo: a WebSocket's token can't be replaced by one for another database; the old one stays.
func TestANewTokenMustBeForTheDatabaseToo(t *testing.T) {
	t.Parallel()
	r := newRig(t, newMemory(), func(c *Config) {
		withSecret(t)(c)
		c.Databases, c.Several = func() []string { return []string{"app"} }, true
	})
	c, _, err := r.dial("", bearerOf(forDatabases(t, []string{"app"})))
	if err != nil {
		t.Fatal(err)
	}
	for _, subscribed := range []bool{false, true} {
		for _, databases := range []any{[]string{"other"}, nil} {
			if s := c.ask(`{"type":"auth","token":%q}`, forDatabases(t, databases)); s.Code != "denied" || s.Error != "the token is not for this database" {
				t.Errorf("a token for %v, subscribed: %v: %+v", databases, subscribed, s)
			}
		}
		if s := c.ask(`{"type":"auth","token":%q}`, forDatabases(t, []string{"other", "app"})); s.Type != "authorized" {
			t.Errorf("the right token: %+v", s)
		}
		if s := c.ask(`{"type":"subscribe","channels":["a"]}`); s.Type != "subscribed" {
			t.Errorf("%+v", s)
		}
	}
	r.publish("a=still here")
	expect(t, c, "a=still here")
}

// TestAStreamEndsWhenItsTokenNoLongerNamesTheDatabase: because the database has got another name. Others stay, and the name's new database has its own clients.
func TestAStreamEndsWhenItsTokenNoLongerNamesTheDatabase(t *testing.T) {
	t.Parallel()
	var current atomic.Pointer[[]string]
	current.Store(&[]string{"app.db1-5432", "app"})
	r := newRig(t, newMemory(), func(c *Config) {
		withSecret(t)(c)
		c.Databases, c.Several, c.Heartbeat = func() []string { return *current.Load() }, true, 20*time.Millisecond
	})
	open := func(databases ...string) (socket *wsClient, events *sseClient) {
		token := forDatabases(t, databases)
		socket, _, err := r.dial("", bearerOf(token))
		if err != nil {
			t.Fatal(err)
		}
		if s := socket.ask(`{"type":"subscribe","channels":["a"]}`); s.Type != "subscribed" {
			t.Fatalf("%+v", s)
		}
		return socket, r.sse("?channel=a&access_token="+token, "")
	}
	ends, endsToo := open("app")
	stays, staysToo := open("app", "app.db1-5432")
	staysToo.next() // subscribed
	current.Store(&[]string{"app.db1-5432"})
	if code := ends.end(); code != "4403" {
		t.Errorf("the WebSocket is closed with %s", code)
	}
	if code := endsToo.end(); code != "denied" {
		t.Errorf("the event stream ends with %q", code)
	}
	r.publish("a=still here")
	expect(t, stays, "a=still here")
	expect(t, staysToo, "a=still here")
}

// TestDatabasesShareACallback: it is told for which database a client asks, and its answer holds there alone. When a user is disconnected from one, it is not asked again about the others.
func TestDatabasesShareACallback(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	asked := map[string]int{}
	service := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		var q map[string]any
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			t.Error(err)
		}
		database, is := q["database"].(string)
		if !is {
			database = "unknown"
		}
		mu.Lock()
		asked[database]++
		mu.Unlock()
		fmt.Fprintf(rw, `{"allow": %v, "user": "ada"}`, database != "b.db2-5432")
	}))
	t.Cleanup(service.Close)
	a, err := NewCallback(CallbackConfig{URL: service.URL, Timeout: generous, Cache: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	rigOf := func(names ...string) *rig {
		return newRig(t, newMemory(), func(c *Config) {
			if c.Authorizer = a; names != nil {
				c.Databases, c.Several = func() []string { return names }, true
			}
		})
	}
	rigs := map[string]*rig{"a.db1-5432": rigOf("a.db1-5432", "a"), "b.db2-5432": rigOf("b.db2-5432", "b"), "c": rigOf("c"), "unknown": rigOf()}
	check := func(when string, want map[string]int) {
		t.Helper()
		for name, r := range rigs {
			allowed := http.StatusOK
			if name == "b.db2-5432" {
				allowed = http.StatusForbidden
			}
			for range 2 {
				if status, answer := r.post("?channel=x", "x", bearerOf("t")); status != allowed {
					t.Errorf("%s, at %s: %d %v, want %d", when, name, status, answer, allowed)
				}
			}
			mu.Lock()
			if asked[name] != want[name] {
				t.Errorf("%s, the callback was asked %d times for %s, want %d", when, asked[name], name, want[name])
			}
			mu.Unlock()
		}
	}
	check("at first", map[string]int{"a.db1-5432": 1, "b.db2-5432": 1, "c": 1, "unknown": 1})
	socket, _, err := rigs["c"].dial("", bearerOf("t"))
	if err != nil {
		t.Fatal(err)
	}
	if s := socket.ask(`{"type":"subscribe","channels":["y"]}`); s.Type != "subscribed" {
		t.Fatalf("%+v", s)
	}
	rigs["a.db1-5432"].web.EndUser("ada", false)
	check("when a user was disconnected from a", map[string]int{"a.db1-5432": 2, "b.db2-5432": 1, "c": 3, "unknown": 1})
	rigs["unknown"].web.EndUser("ada", false)
	check("when a user was disconnected from a database without a name", map[string]int{"a.db1-5432": 2, "b.db2-5432": 1, "c": 3, "unknown": 2})
	rigs["c"].publish("y=still here")
	expect(t, socket, "y=still here")
}

// TestManyDatabasesShareAnAuthorizer: at the same time, while users are disconnected and names change.
func TestManyDatabasesShareAnAuthorizer(t *testing.T) {
	t.Parallel()
	service := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		var q question
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			t.Error(err)
		}
		fmt.Fprintf(rw, `{"allow": %v}`, q.Token == q.Database)
	}))
	t.Cleanup(service.Close)
	callback, err := NewCallback(CallbackConfig{URL: service.URL, Timeout: generous})
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := NewJWT(JWTConfig{Secret: secret})
	if err != nil {
		t.Fatal(err)
	}
	const databases, rounds = 8, 50
	var all sync.WaitGroup
	for _, a := range []Authorizer{callback, tokens} {
		own, others := make([]string, databases), make([]string, databases)
		for i := range databases {
			if own[i] = fmt.Sprint("d", i); a == tokens {
				own[i] = forDatabases(t, []string{own[i]})
			}
		}
		for i := range databases {
			others[i] = own[(i+1)%databases]
		}
		for i := range databases {
			name := fmt.Sprint("d", i)
			var turn atomic.Int64
			names := func() []string {
				if turn.Add(1)%2 == 0 {
					return []string{name}
				}
				return []string{name, "also " + name}
			}
			w, err := New(Config{Hub: hub.New(hub.Config{Source: newMemory()}), Authorizer: a, Databases: names, Several: true})
			if err != nil {
				t.Fatal(err)
			}
			for range 4 {
				all.Go(func() {
					for round := range rounds {
						for token, want := range map[string]bool{own[i]: true, others[i]: false} {
							ask := Ask{Token: token, Action: Subscribe, Filters: []hub.Filter{hub.Channel(fmt.Sprint("c", round))}}
							if _, err := w.authorize(context.Background(), ask); (err == nil) != want {
								t.Errorf("%s: %v, want %v", name, err, want)
							}
						}
						w.EndUser("ada", false)
						w.revision()
					}
				})
			}
		}
	}
	all.Wait()
}

// TestAWebMayBeBelowAPath: what is answered there leads nobody out of it.
func TestAWebMayBeBelowAPath(t *testing.T) {
	t.Parallel()
	r := newRig(t, newMemory(), func(c *Config) {
		c.UI = http.NotFoundHandler()
		c.Endpoints = []Endpoints{&desk{}}
	})
	r.below("/databases/app")
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for _, path := range []string{"", "/", "//", "/.", "/..", "/v1", "/v1/", "//v1/ws", "/v1//ws", "/v1/ws/", "/./v1/ws", "/v1/../ws", "/%2e%2e/v1/ws", "/v1/desk//work", "//healthz", "/healthz/", "/ui//jobs", "/ui/../x", "//ui/", "/metrics/"} {
		for _, method := range []string{"GET", "POST", "OPTIONS", "HEAD"} {
			request, err := http.NewRequestWithContext(t.Context(), method, r.server.URL+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := client.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			answer.Body.Close()
			if to := answer.Header.Get("Location"); to != "" || answer.StatusCode/100 == 3 {
				t.Errorf("%s %q is answered %s, Location %q", method, path, answer.Status, to)
			}
		}
	}
	socket, events := r.ws(""), r.sse("?channel=a", "")
	socket.ask(`{"type":"subscribe","channels":["a"]}`)
	events.next() // subscribed
	if status, answer := r.post("?channel=a", "x", nil); status != http.StatusOK {
		t.Errorf("publish: %d %v", status, answer)
	}
	expect(t, socket, "a=x")
	expect(t, events, "a=x")
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		if answer, _ := r.get(path, nil); answer.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", path, answer.Status)
		}
	}
}

// TestACallbackIsNotAskedForADatabaseWithoutAName: of several, or it would allow what it does not know.
func TestACallbackIsNotAskedForADatabaseWithoutAName(t *testing.T) {
	t.Parallel()
	service := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(rw, `{"allow": true}`)
	}))
	t.Cleanup(service.Close)
	a, err := NewCallback(CallbackConfig{URL: service.URL, Timeout: generous})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		names   []string
		several bool
		refused bool
	}{{[]string{"a.db1-5432"}, true, false}, {[]string{}, true, true}, {nil, false, false}} {
		_, err := a.Authorize(t.Context(), Ask{Token: "t", Action: Connect, Databases: c.names, Several: c.several})
		var refusal *Failure
		if refused := errors.As(err, &refusal) && refusal.Status == http.StatusForbidden; refused != c.refused || !refused && err != nil {
			t.Errorf("%q, one of several: %v: %v", c.names, c.several, err)
		}
	}
}
