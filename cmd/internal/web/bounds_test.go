package web

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

// raw sends text to the server, and returns the connection and a reader of the answer.
func (r *rig) raw(text string) (net.Conn, *bufio.Reader) {
	r.t.Helper()
	conn, err := new(net.Dialer).DialContext(r.t.Context(), "tcp", strings.TrimPrefix(r.server.URL, "http://"))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(generous))
	if _, err := io.WriteString(conn, text); err != nil {
		r.t.Fatal(err)
	}
	return conn, bufio.NewReader(conn)
}

// TestStrangersAreRefusedUnread: a client that may not publish is refused before any of its body has arrived.
func TestStrangersAreRefusedUnread(t *testing.T) {
	t.Parallel()
	r := newRig(t, newMemory(), withSecret(t))
	for token, want := range map[string]int{
		"": 401, "nonsense": 401,
		hs256(t, may([]string{">"}, nil, nil)):        403, // only for subscribing
		hs256(t, may(nil, []string{"mine.>"}, nil)):   403, // the channel is in the URL
		hs256(t, may(nil, []string{"your.own"}, nil)): 0,   // the server waits for the body
	} {
		_, answers := r.raw("POST /v1/publish?channel=your.own HTTP/1.1\r\nHost: x\r\nContent-Length: 2000000\r\nAuthorization: Bearer " + token + "\r\n\r\n")
		if want == 0 {
			continue
		}
		response, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		if response.Body.Close(); response.StatusCode != want {
			t.Errorf("status %d, want %d", response.StatusCode, want)
		}
	}
}

// TestLongListsCostLittle: long lists of two-byte elements, which would take forty bytes each in memory, are refused before they are built.
func TestLongListsCostLittle(t *testing.T) {
	pgtest.Alone(t, "it measures what the whole process allocates")
	r := newRig(t, newMemory(), nil)
	list := "[{}" + strings.Repeat(",{}", 700_000) + "]"
	ws := r.ws("")
	ws.conn.SetReadLimit(-1)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 4 {
		if status, answer := r.post("", list, nil); status != 413 || answer["code"] != "limit" {
			t.Errorf("a long list is answered %d %v", status, answer)
		}
		for _, key := range []string{"messages", "channels"} {
			if s := ws.ask(`{"type":"publish",%q:%s}`, key, strings.ReplaceAll(list, "{}", `""`)[:len(list)-len(list)/3]+`"]`); s.Code != "limit" && s.Code != "bad_request" {
				t.Errorf("a long list of %s is answered %v", key, s)
			}
		}
	}
	runtime.ReadMemStats(&after)
	// The figure includes the client's and the server's copies: each of the twelve requests is read in growing buffers.
	if took := after.TotalAlloc - before.TotalAlloc; took > 12*12*uint64(len(list)) {
		t.Errorf("%d MB were allocated for %d MB of requests", took>>20, 12*len(list)>>20)
	}
	if status, _ := r.post("", "[{\"channel\":\"a\"}"+strings.Repeat(`,{"channel":"a"}`, 999)+"]", nil); status != 200 {
		t.Errorf("a thousand messages are answered %d", status)
	}
}

// asked returns an Authorizer with a callback that denies channels ending in admin, and counts the questions to it.
func asked(t *testing.T) (Authorizer, *atomic.Int64) {
	var questions atomic.Int64
	service := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		questions.Add(1)
		var q question
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			t.Error(err)
		}
		for _, c := range q.Channels {
			if strings.HasSuffix(c, "admin") {
				rw.WriteHeader(http.StatusForbidden)
				return
			}
		}
		fmt.Fprint(rw, `{"allow": true}`)
	}))
	t.Cleanup(service.Close)
	a, err := NewCallback(CallbackConfig{URL: service.URL, Timeout: generous, Cache: -1})
	if err != nil {
		t.Fatal(err)
	}
	return a, &questions
}

// TestOnePostAsksTheCallbackTwiceAtMost: a POST causes one question about the client and one about all of its channels; a POST with too many
// messages causes only the first.
func TestOnePostAsksTheCallbackTwiceAtMost(t *testing.T) {
	t.Parallel()
	a, questions := asked(t)
	r := newRig(t, newMemory(), func(c *Config) { c.Authorizer = a })
	list := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,{"channel":"c%d"}`, i)
		}
		return "[" + b.String()[1:] + "]"
	}
	for _, try := range []struct {
		token, body  string
		status, asks int
	}{
		{"t", list(1000), 200, 2},
		{"t", list(1001), 413, 1},
		{"t", `[{"channel":"a"},{"channel":"a"},{"channel":"admin"}]`, 403, 2},
		{"", list(1000), 401, 0},
	} {
		questions.Store(0)
		header := http.Header{}
		if try.token != "" {
			header = bearerOf(try.token)
		}
		if status, answer := r.post("", try.body, header); status != try.status || int(questions.Load()) != try.asks {
			t.Errorf("%.40s: status %d %v after %d questions, want %d after %d", try.body, status, answer, questions.Load(), try.status, try.asks)
		}
	}
}

// TestALiteralGrantIsNoPattern: permission to publish to a channel that is named like a pattern permits only that channel.
func TestALiteralGrantIsNoPattern(t *testing.T) {
	t.Parallel()
	a, _ := asked(t)
	r := newRig(t, newMemory(), func(c *Config) { c.Authorizer = a })
	c, _, err := r.dial("", bearerOf("t"))
	if err != nil {
		t.Fatal(err)
	}
	if s := c.ask(`{"type":"publish","channel":"chat.*"}`); s.Type != "published" {
		t.Fatalf("got %+v", s)
	}
	if s := c.ask(`{"type":"publish","channel":"chat.admin"}`); s.Code != "denied" {
		t.Errorf("published without permission: %+v", s)
	}
}

// TestSlowBodiesAreEnded: a request whose body, or a frame whose rest, does not arrive in time is ended, on any path.
func TestSlowBodiesAreEnded(t *testing.T) {
	pgtest.Alone(t, "a client that sends nothing for a moment counts as slow")
	r := newRig(t, newMemory(), func(c *Config) { c.BodyTimeout = 200 * time.Millisecond })
	for _, path := range []string{"/v1/publish", "/v1/publish?channel=a", "/v1/events", "/nowhere", "/readyz"} {
		_, answers := r.raw("POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n[")
		for {
			if _, err := answers.ReadByte(); err != nil {
				if !errors.Is(err, io.EOF) {
					t.Errorf("%s: %v, want the connection's end", path, err)
				}
				break
			}
		}
	}
	// A frame whose rest does not arrive ends a WebSocket.
	conn, answers := r.raw("GET /v1/ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n")
	if response, err := http.ReadResponse(answers, nil); err != nil || response.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte{0x81, 0x80 | 126, 0xff, 0xff, 1, 2, 3, 4, '{'}); err != nil { // a text frame of 65535 bytes, of which one arrives
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, answers); err != nil {
		t.Errorf("%v, want the connection's end", err)
	}
}

// TestEverythingThatWaitsCountsAsAConnection: waits for jobs and requests to publish count towards the limit of connections, as streams do.
func TestEverythingThatWaitsCountsAsAConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t, newMemory(), func(c *Config) { c.Limits.Connections, c.Jobs = 2, waiter{} })
	r.raw("POST /v1/publish?channel=a HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n")
	var waits sync.WaitGroup
	waits.Go(func() { r.get("/v1/jobs/wait?queue=a&since=0", nil) })
	eventually(t, func() error {
		if n := r.web.count(); n != 2 {
			return fmt.Errorf("%d count", n)
		}
		return nil
	})
	for _, path := range []string{"/v1/jobs/wait?queue=a", "/v1/events?channel=a"} {
		if response, _ := r.get(path, nil); response.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("%s: status %d, want 503", path, response.StatusCode)
		}
	}
	if status, _ := r.post("?channel=a", "x", nil); status != http.StatusServiceUnavailable {
		t.Errorf("publish: status %d, want 503", status)
	}
	r.web.stop()
	waits.Wait()
}
