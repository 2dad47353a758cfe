package web

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestACallbackLimitsWhatItAllows: the size and the rate of messages, and the length of history; and it says who the user is, by whom rates are counted.
func TestACallbackLimitsWhatItAllows(t *testing.T) {
	t.Parallel()
	service := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		var q question
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			http.Error(rw, "what?", http.StatusBadRequest)
			return
		}
		user, _, _ := strings.Cut(q.Token, "'")
		fmt.Fprintf(rw, `{"allow": true, "user": %q, "payload_bytes": 3, "publish_rate": 0.001, "history": 1}`, user)
	}))
	t.Cleanup(service.Close)
	a, err := NewCallback(CallbackConfig{URL: service.URL, Timeout: generous})
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, newMemory(), func(c *Config) { c.Authorizer = a })
	r.publish("a=1", "a=2")
	eventually(t, func() error {
		if r.hub.Position() != r.source.end() {
			return fmt.Errorf("the hub is at %s", r.hub.Position())
		}
		return nil
	})
	c, _, err := r.dial("", bearerOf("ada's phone"))
	if err != nil {
		t.Fatal(err)
	}
	c.say(`{"type":"subscribe","channels":["a"],"last":2}`)
	_, b, err := c.conn.Read(t.Context())
	var got begun
	if err != nil || json.Unmarshal(b, &got) != nil || got.String() != "subscribed a=2 false" {
		t.Errorf("asked for 2 messages where 1 is allowed, got %s %v", b, err)
	}
	for _, try := range []struct{ payload, code string }{{"long", "limit"}, {"1", ""}, {"2", "limit"}} {
		if s := c.ask(`{"type":"publish","channel":"b","payload":%q}`, try.payload); s.Code != try.code {
			t.Errorf("%q is answered by %+v, want %q", try.payload, s, try.code)
		}
	}
	for token, want := range map[string]int{"ada's other phone": http.StatusTooManyRequests, "bob's": http.StatusOK} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.server.URL+"/v1/publish?channel=b", strings.NewReader("1"))
		if err != nil {
			t.Fatal(err)
		}
		request.Header = bearerOf(token)
		response, err := r.server.Client().Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("%s: status %d, want %d", token, response.StatusCode, want)
		}
	}
	if all := r.web.Clients(); len(all) != 1 || all[0].User != "ada" {
		t.Errorf("operators see %+v", all)
	}
}

// TestARateOfACallbackIsOfAPattern: it is counted for each channel or pattern that the answer allows, on its own; and more messages at once than its burst are refused with the burst, and no time to try again.
func TestARateOfACallbackIsOfAPattern(t *testing.T) {
	t.Parallel()
	service := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(rw, `{"allow": ["chat.*", "a"], "user": "ada", "publish_rate": 1e-10}`)
	}))
	t.Cleanup(service.Close)
	a, err := NewCallback(CallbackConfig{URL: service.URL, Timeout: generous})
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, newMemory(), func(c *Config) { c.Authorizer = a })
	c, _, err := r.dial("", bearerOf("t"))
	if err != nil {
		t.Fatal(err)
	}
	s := c.ask(`{"type":"publish","messages":[{"channel":"chat.1","payload":"1"},{"channel":"chat.2","payload":"2"}]}`)
	if s.Code != "limit" || s.RetryAfter != 0 || !strings.Contains(s.Hint, "at most 1 messages") || !strings.Contains(s.Error, "chat.*") {
		t.Errorf("a list that is longer than the burst is answered by %+v", s)
	}
	for _, try := range []struct{ channel, code string }{{"chat.1", ""}, {"a", ""}, {"chat.2", "limit"}, {"a", "limit"}} {
		if s := c.ask(`{"type":"publish","channel":%q,"payload":"1"}`, try.channel); s.Code != try.code {
			t.Errorf("a message on %s is answered by %+v, want %q", try.channel, s, try.code)
		}
	}
}

// TestALongListIsRefusedWithTheBurst: of a connection, too.
func TestALongListIsRefusedWithTheBurst(t *testing.T) {
	t.Parallel()
	r := newRig(t, newMemory(), func(c *Config) { c.Limits.PublishRate, c.Limits.PublishBurst = 1000, 2 })
	c, _, err := r.dial("", nil)
	if err != nil {
		t.Fatal(err)
	}
	if s := c.ask(`{"type":"publish","messages":[{"channel":"a","payload":"1"},{"channel":"a","payload":"2"},{"channel":"a","payload":"3"}]}`); s.Code != "limit" || s.RetryAfter != 0 || !strings.Contains(s.Hint, "at most 2 messages") {
		t.Errorf("three messages at once are answered by %+v", s)
	}
	if s := c.ask(`{"type":"publish","messages":[{"channel":"a","payload":"1"},{"channel":"a","payload":"2"}]}`); s.Code != "" {
		t.Errorf("two messages at once are answered by %+v", s)
	}
}

// TestAnIPv6HostHasOneRate: whichever addresses of its network it uses, its requests are counted together.
func TestAnIPv6HostHasOneRate(t *testing.T) {
	t.Parallel()
	r := newRig(t, newMemory(), func(c *Config) {
		c.Limits.ClientRate = 0.2 // two at once
		c.ClientAddress = func(r *http.Request) string { return r.Header.Get("From") }
	})
	for i, try := range []struct {
		from string
		want int
	}{{"2001:db8::1", http.StatusOK}, {"2001:db8::2", http.StatusOK}, {"2001:db8::3:4:5:6", http.StatusTooManyRequests}, {"2001:db8:0:1::1", http.StatusOK}} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.server.URL+"/v1/publish?channel=b", strings.NewReader("1"))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("From", try.from)
		response, err := r.server.Client().Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != try.want {
			t.Errorf("request %d, from %s: status %d, want %d", i, try.from, response.StatusCode, try.want)
		}
	}
}
