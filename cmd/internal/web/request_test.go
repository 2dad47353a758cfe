package web

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/weir-pg/weir/internal/hub"
)

func TestEveryRequestIsAnswered(t *testing.T) {
	t.Parallel()
	r := newRig(t, newMemory(), func(c *Config) { c.Heartbeat = time.Hour })
	c := r.ws("")
	answers := func(request, kind, code string) said {
		t.Helper()
		s := c.ask("%s", request)
		if s.Type != kind || s.Code != code {
			t.Errorf("%s: got %+v, want %s %s", request, s, kind, code)
		}
		if kind == "error" && s.Error == "" {
			t.Errorf("%s: the error has no text", request)
		}
		return s
	}
	if s := answers(`{"type":"ping","id":"a-1"}`, "pong", ""); string(s.ID) != `"a-1"` {
		t.Errorf("the answer's id is %s", s.ID)
	}
	if s := answers(`{"type":"subscribe","id":7,"channels":["a","b.*","a"]}`, "subscribed", ""); string(s.ID) != "7" || s.Position == "" {
		t.Errorf("got %+v", s)
	}
	answers(`{"type":"subscribe","channels":["c"]}`, "subscribed", "")
	answers(`{"type":"subscribe","channels":["c"],"position":"7.1.0"}`, "error", "bad_request")
	answers(`{"type":"subscribe","channels":[]}`, "error", "bad_request")
	answers(`{"type":"subscribe","channels":["a.>.b"]}`, "error", "bad_request")
	answers(`{"type":"subscribe","channels":["`+strings.Repeat("x", 256)+`"]}`, "error", "bad_request")
	answers(`{"type":"subscribe","channels":"a"}`, "error", "bad_request")
	answers(`{"type":"what"}`, "error", "bad_request")
	answers(`{"type":"ping","id":"`+strings.Repeat("x", 100)+`"}`, "error", "bad_request")
	answers(`nonsense`, "error", "bad_request")
	answers(`{"type":"publish","channel":"","payload":"x"}`, "error", "bad_request")
	answers(`{"type":"publish"}`, "error", "bad_request")
	answers(`{"type":"publish","messages":[]}`, "error", "bad_request")
	answers(`{"type":"publish","channel":"a","payload":"x","payload_base64":"eA=="}`, "error", "bad_request")
	answers(`{"type":"publish","channel":"a","payload_base64":"???"}`, "error", "bad_request")
	if err := c.conn.Write(t.Context(), websocket.MessageBinary, []byte{1}); err != nil {
		t.Fatal(err)
	}
	if s := c.next(); s.Code != "bad_request" {
		t.Errorf("a binary frame: %+v", s)
	}

	answers(`{"type":"publish","id":1,"channel":"other"}`, "published", "")
	publishes := func(request string, want ...string) {
		t.Helper()
		c.say("%s", request)
		got := map[string]int{}
		for range len(want) + 1 { // the answer and the messages arrive in any order
			got[c.next().String()]++
		}
		for _, w := range append(want, "published") {
			if got[w] != 1 {
				t.Errorf("%s: got %v, want %s once", request, got, w)
			}
		}
	}
	publishes(`{"type":"publish","channel":"a","payload":"1"}`, "a=1")
	publishes(`{"type":"publish","messages":[{"channel":"b.x","payload":"2"},{"channel":"c","payload_base64":"AP8="}]}`, "b.x=2", "c=AP8=")

	answers(`{"type":"unsubscribe","id":8,"channels":["a","never.had"]}`, "unsubscribed", "")
	publishes(`{"type":"publish","messages":[{"channel":"a","payload":"not for it"},{"channel":"c","payload":"3"}]}`, "c=3")
}

func TestSubscribingLaterKeepsOrderAndPositions(t *testing.T) {
	t.Parallel()
	source := newMemory()
	r := newRig(t, source, nil)
	for i := range 50 {
		r.publish(fmt.Sprintf("a=%d", i))
	}
	c := r.ws("")
	// The second request arrives while history is being read for the first.
	c.say(`{"type":"subscribe","id":1,"channels":["a"],"position":"0.0.0"}`)
	c.say(`{"type":"subscribe","id":2,"channels":["b"]}`)
	c.say(`{"type":"unsubscribe","id":3,"channels":["a"]}`)
	expect(t, c, "subscribed")
	for i := range 50 {
		expect(t, c, fmt.Sprintf("a=%d", i))
	}
	if s := expect(t, c, "subscribed"); s.at(t).Tick < 50 {
		t.Errorf("subscribed at %s, behind what was delivered", s.Position)
	}
	expect(t, c, "unsubscribed")
	r.publish("a=no", "b=yes")
	expect(t, c, "b=yes")
}

func (r *rig) post(query, body string, header http.Header) (int, map[string]any) {
	r.t.Helper()
	request, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, r.server.URL+"/v1/publish"+query, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	for k, v := range header {
		request.Header[k] = v
	}
	response, err := r.server.Client().Do(request)
	if err != nil {
		r.t.Fatal(err)
	}
	defer response.Body.Close()
	b, _ := io.ReadAll(response.Body)
	var answer map[string]any
	if err := json.Unmarshal(b, &answer); err != nil {
		r.t.Fatalf("status %d: %s: %v", response.StatusCode, b, err)
	}
	return response.StatusCode, answer
}

func TestPublishOverHTTP(t *testing.T) {
	t.Parallel()
	source := newMemory()
	source.refuse = func(d hub.Draft) error {
		if d.Channel == "refused" {
			return errors.New("the database does not take it")
		}
		return nil
	}
	r := newRig(t, source, func(c *Config) { c.Limits.MessageBytes = 1000 })
	c := r.ws("")
	c.ask(`{"type":"subscribe","channels":[">"]}`)
	for _, try := range []struct {
		query, body string
		status      int
		want        []string
	}{
		{"", `{"channel":"a","payload":"1"}`, 200, []string{"a=1"}},
		{"", ` [{"channel":"a","payload":"2"},{"channel":"b","payload_base64":"AA=="}]`, 200, []string{"a=2", "b=AA=="}},
		{"?channel=c", `{"raw":true}`, 200, []string{`c={"raw":true}`}},
		{"?channel=c", "\xff", 200, []string{"c=/w=="}},
		{"?channel=c", "", 200, []string{"c="}},
		{"", `[{"channel":"a","payload":"none of both"},{"channel":"","payload":"2"}]`, 400, nil},
		{"", `[{"channel":"a","payload":"none of both"},{"channel":"refused"}]`, 400, nil},
		{"", `[]`, 400, nil},
		{"", ``, 400, nil},
		{"", `nonsense`, 400, nil},
		{"?channel=", `x`, 400, nil},
		{"?channel=c", strings.Repeat("x", 1001), 413, nil},
		{"?channel=c", strings.Repeat("x", 10000), 413, nil},
		{"?channel=c", strings.Repeat("x", 1000), 200, []string{"c=" + strings.Repeat("x", 1000)}},
	} {
		status, answer := r.post(try.query, try.body, nil)
		if status != try.status {
			t.Errorf("%s %.50s: status %d %v, want %d", try.query, try.body, status, answer, try.status)
			continue
		}
		if status != 200 && (answer["error"] == "" || answer["code"] == "") {
			t.Errorf("%s %.50s: the error says nothing: %v", try.query, try.body, answer)
		}
		if status == 200 && answer["published"] != float64(len(try.want)) {
			t.Errorf("%s %.50s: %v were published, want %d", try.query, try.body, answer["published"], len(try.want))
		}
		expect(t, c, try.want...)
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	r := newRig(t, newMemory(), func(c *Config) {
		c.Limits = Limits{Connections: 3, PerAddress: 2, Subscriptions: 3, MessageBytes: 100, ChannelBytes: 10, PublishRate: 0.001, PublishBurst: 2}
		c.ClientAddress = func(r *http.Request) string { return r.URL.Query().Get("from") }
	})
	refused := func(code string, s said) {
		t.Helper()
		if s.Type != "error" || s.Code != code {
			t.Errorf("got %+v, want the error %s", s, code)
		}
	}
	c := r.ws("?from=a")
	refused("limit", c.ask(`{"type":"subscribe","channels":["1","2","3","4"]}`))
	c.ask(`{"type":"subscribe","channels":["1","2","3"]}`)
	refused("limit", c.ask(`{"type":"subscribe","channels":["4"]}`))
	if s := c.ask(`{"type":"subscribe","channels":["1","2"]}`); s.Type != "subscribed" {
		t.Errorf("subscribing again to the same channels: %+v", s)
	}
	c.ask(`{"type":"unsubscribe","channels":["1"]}`)
	if s := c.ask(`{"type":"subscribe","channels":["4"]}`); s.Type != "subscribed" {
		t.Errorf("subscribing after unsubscribing from another channel: %+v", s)
	}
	refused("bad_request", c.ask(`{"type":"publish","channel":"longer than ten"}`))
	refused("limit", c.ask(`{"type":"publish","channel":"x","payload":%q}`, strings.Repeat("x", 101)))
	for range 2 {
		if s := c.ask(`{"type":"publish","channel":"x"}`); s.Type != "published" {
			t.Errorf("got %+v", s)
		}
	}
	refused("limit", c.ask(`{"type":"publish","channel":"x"}`))

	r.sse("?from=a&channel=x", "")
	status := func(from string, want int) {
		t.Helper()
		if response, _ := r.get("/v1/events?channel=x&from="+from, nil); response.StatusCode != want {
			t.Errorf("from %s: status %d, want %d", from, response.StatusCode, want)
		} else if want != 200 && response.Header.Get("Retry-After") == "" {
			t.Error("the answer has no Retry-After header")
		}
	}
	status("a", http.StatusTooManyRequests)
	status("b", http.StatusOK)
	status("c", http.StatusServiceUnavailable)
	c.close()
	eventually(t, func() error {
		if n := r.web.count(); n != 2 {
			return fmt.Errorf("%d streams, want 2", n)
		}
		return nil
	})
	status("a", http.StatusOK)
	if _, response, err := r.dial("?from=z", nil); err == nil || response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a WebSocket beyond the limit: %v, want status 503", err)
	}
}

func TestFramesThatAreTooLongEndTheConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t, newMemory(), func(c *Config) { c.Limits.MessageBytes = 1000 })
	c := r.ws("")
	c.say(`{"type":"publish","channel":"x","payload":%q}`, bytes.Repeat([]byte("x"), 10000))
	if code := c.end(); code != "1009" {
		t.Errorf("closed with %s, want 1009", code)
	}
}

func TestEventStreamsRefuseWhatTheyDoNotUnderstand(t *testing.T) {
	t.Parallel()
	r := newRig(t, newMemory(), nil)
	for _, path := range []string{"/v1/events", "/v1/events?channel=", "/v1/events?channel=a&slow=what", "/v1/events?channel=a&position=x", "/v1/ws?slow=what"} {
		response, _ := r.get(path, nil)
		var answer Failure
		if err := json.NewDecoder(response.Body).Decode(&answer); err != nil || response.StatusCode != 400 || answer.Text == "" {
			t.Errorf("%s: status %d %+v %v, want 400", path, response.StatusCode, answer, err)
		}
	}
	if response, _ := r.get("/v2/events", nil); response.StatusCode != http.StatusNotFound {
		t.Errorf("status %d, want 404", response.StatusCode)
	}
	// The header takes precedence over the URL, which an EventSource never changes.
	r.publish("a=1")
	r.publish("a=2")
	c := r.sse("?channel=a&position=7.1.0", "7.1.1")
	expect(t, c, "subscribed", "a=2")
}

func TestEventStreamsOverHTTP2(t *testing.T) {
	t.Parallel()
	r := newRig(t, newMemory(), func(c *Config) { c.Heartbeat = 5 * time.Millisecond })
	r.server.Close()
	r.server = newTLSServer(r.web)
	t.Cleanup(r.server.Close)
	c := r.sse("?channel=a", "")
	if c.response.ProtoMajor != 2 {
		t.Fatalf("the response uses %s", c.response.Proto)
	}
	expect(t, c, "subscribed")
	r.publish("a=1", "a=2")
	expect(t, c, "a=1", "a=2")
	expectType(t, c, "heartbeat")
	gone := r.sse("?channel=a", "")
	expect(t, gone, "subscribed")
	gone.close()
	eventually(t, func() error {
		if n := r.web.count(); n != 1 {
			return fmt.Errorf("%d streams, want 1", n)
		}
		return nil
	})
	r.stopHub()
	c.retry = ""
	if c.end(); c.retry == "" {
		t.Error("the event stream ended without a reconnection delay")
	}
}
