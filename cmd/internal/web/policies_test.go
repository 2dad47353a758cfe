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
