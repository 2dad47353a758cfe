package web

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// begun is the answer to a subscribe that asks for history.
type begun struct {
	Type     string
	Position string
	History  []said
	Complete bool
}

func (b begun) String() string {
	texts := make([]string, len(b.History))
	for i, m := range b.History {
		texts[i] = m.String()
	}
	return fmt.Sprint(b.Type, " ", strings.Join(texts, " "), " ", b.Complete)
}

// TestASubscriptionBeginsWithTheLastMessages: of each channel and pattern, as many as were asked for, in the log's order, each once; what follows is
// delivered; and a client that lost its connection continues there, without the history.
func TestASubscriptionBeginsWithTheLastMessages(t *testing.T) {
	t.Parallel()
	r := newRig(t, newMemory(), nil)
	for i := range 10 {
		r.publish(fmt.Sprintf("a=%d", i), fmt.Sprintf("b.x=%d", i), "other=0")
	}
	r.publish("c=binary")
	eventually(t, func() error {
		if r.hub.Position() != r.source.end() {
			return fmt.Errorf("the hub is at %s", r.hub.Position())
		}
		return nil
	})
	read := func(b []byte) (got begun) {
		t.Helper()
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatal(err)
		}
		return got
	}
	ask := func(c *wsClient, format string, args ...any) begun {
		t.Helper()
		c.say(format, args...)
		_, b, err := c.conn.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return read(b)
	}

	ws := r.ws("")
	if got, want := ask(ws, `{"type":"subscribe","channels":["a","b.*"],"last":2}`), "subscribed a=8 b.x=8 a=9 b.x=9 true"; got.String() != want || got.Position != "7.12.0" {
		t.Errorf("got %q at %s, want %q", got, got.Position, want)
	}
	// Another channel later, and one that it has already; neither is delivered twice from then on.
	if got, want := ask(ws, `{"type":"subscribe","channels":["c","a","a"],"last":1}`), "subscribed a=9 c=binary true"; got.String() != want {
		t.Errorf("got %q, want %q", got, want)
	}
	r.publish("a=10", "c=11", "b.x=12")
	expect(t, ws, "a=10", "c=11", "b.x=12")
	for _, wrong := range []string{
		`{"type":"subscribe","channels":["d"],"last":1001}`, `{"type":"subscribe","channels":["d"],"last":-1}`,
		`{"type":"subscribe","channels":["d"],"last":1,"position":"7.1.0"}`,
	} {
		if got := ws.ask("%s", wrong); got.Code != "bad_request" {
			t.Errorf("%s is answered by %+v", wrong, got)
		}
	}

	// curl-like: an event stream, first without a position and then with one.
	sse := r.sse("?channel=a&channel=b.*&channel=a&last=1", "")
	if event, got := rawEvent(t, sse); event.id != "7.13.0" || read([]byte(event.data)).String() != "subscribed a=10 b.x=12 true" {
		t.Errorf("got %q at %s", got, event.id)
	}
	again := r.sse("?channel=a&channel=b.*&last=1", "7.12.1")
	if event, _ := rawEvent(t, again); strings.Contains(event.data, "history") {
		t.Errorf("a stream that continues begins with %s", event.data)
	}
	expect(t, again, "b.x=12")
	response, _ := r.get("/v1/events?channel=a&last=many", nil)
	if text, _ := io.ReadAll(response.Body); response.StatusCode != http.StatusBadRequest {
		t.Errorf("last=many: %d %s", response.StatusCode, text)
	}
}

type event struct{ id, data string }

// rawEvent reads an event without interpreting it.
func rawEvent(t *testing.T, c *sseClient) (e event, all string) {
	t.Helper()
	for {
		line, err := c.lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		all += line
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch {
		case name == "id":
			e.id = value
		case name == "data":
			e.data = value
		case name == "" && e.data != "":
			return e, all
		}
	}
}

// TestAThousandChannelsWithHistoryAreBounded: a client that asks for the longest history of as many channels as it may have receives no more
// than its queue may hold, the newest of them, and is told that there is more.
func TestAThousandChannelsWithHistoryAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, newMemory(), nil)
	names := make([]string, 1000)
	for i := range names {
		names[i] = fmt.Sprintf("c.%d", i)
	}
	for range 20 {
		all := slices.Clone(names)
		for i := range all {
			all[i] += "=" + strings.Repeat("x", 100)
		}
		r.publish(all...)
	}
	eventually(t, func() error {
		if r.hub.Position() != r.source.end() {
			return fmt.Errorf("the hub is at %s", r.hub.Position())
		}
		return nil
	})
	list, _ := json.Marshal(names)
	c := r.ws("")
	c.say(`{"type":"subscribe","channels":%s,"last":1000}`, list)
	_, b, err := c.conn.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got begun
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if n := len(got.History); got.Complete || n < 1000 || n > 10000 || len(b) > 4<<20 {
		t.Errorf("%d messages in %d bytes, complete: %v", n, len(b), got.Complete)
	}
	if last := got.History[len(got.History)-1]; last.Position != "7.20.1000" {
		t.Errorf("the history ends at %s", last.Position)
	}
	r.publish("c.7=live")
	expect(t, c, "c.7=live")
}
