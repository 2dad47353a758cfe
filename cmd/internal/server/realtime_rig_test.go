package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/golang-jwt/jwt/v5"

	"github.com/weir-pg/weir/cmd/internal/web"
)

var secret = []byte("a secret of 32 bytes or more, for tests")

// authorizer accepts the tokens of tokenFor.
func authorizer(t testing.TB) web.Authorizer {
	t.Helper()
	a, err := web.NewJWT(web.JWTConfig{Secret: secret})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// tokenFor returns a token of a user, with further claims; subscribe and publish are patterns.
func tokenFor(t testing.TB, user string, subscribe, publish []string, more jwt.MapClaims) string {
	t.Helper()
	claims := jwt.MapClaims{
		"exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix(), "sub": user, "weir": map[string]any{"subscribe": subscribe, "publish": publish},
	}
	for name, value := range more {
		claims[name] = value
	}
	signed, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString(secret)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

// socket is a WebSocket's client.
type socket struct {
	t    testing.TB
	conn *websocket.Conn
}

func dial(t testing.TB, s *Server, token string) (*socket, error) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	options := &websocket.DialOptions{HTTPHeader: http.Header{}}
	if token != "" {
		options.HTTPHeader.Set("Authorization", "Bearer "+token)
	}
	conn, response, err := websocket.Dial(ctx, fmt.Sprintf("http://%s/v1/ws", s.HTTPAddr()), options)
	if err != nil {
		if response != nil {
			err = fmt.Errorf("status %d: %w", response.StatusCode, err)
		}
		return nil, err
	}
	conn.SetReadLimit(-1)
	t.Cleanup(func() { _ = conn.CloseNow() })
	return &socket{t, conn}, nil
}

func open(t testing.TB, s *Server, token string) *socket {
	t.Helper()
	c, err := dial(t, s, token)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// object is anything that a hub sends.
type object map[string]any

func (o object) String() string { b, _ := json.Marshal(map[string]any(o)); return string(b) }

// read returns the next object that is not a heartbeat.
func (c *socket) read() (object, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	for {
		_, b, err := c.conn.Read(ctx)
		if err != nil {
			return nil, err
		}
		var o object
		if err := json.Unmarshal(b, &o); err != nil || o["type"] != "heartbeat" {
			return o, err
		}
	}
}

func (c *socket) next() object {
	c.t.Helper()
	o, err := c.read()
	if err != nil {
		c.t.Fatal(err)
	}
	return o
}

// await skips everything up to an object of a type.
func (c *socket) await(kind string) object {
	c.t.Helper()
	for {
		if o := c.next(); o["type"] == kind {
			return o
		}
	}
}

func (c *socket) say(format string, args ...any) {
	c.t.Helper()
	if err := c.conn.Write(c.t.Context(), websocket.MessageText, fmt.Appendf(nil, format, args...)); err != nil {
		c.t.Fatal(err)
	}
}

// ask sends a request and returns the answer; messages and heartbeats may come before it.
func (c *socket) ask(format string, args ...any) object {
	c.t.Helper()
	c.say(format, args...)
	for {
		if o := c.next(); o["type"] != "message" && o["type"] != "heartbeat" {
			return o
		}
	}
}

// end waits for the end of the connection, and returns its close code.
func (c *socket) end() int {
	for {
		if _, err := c.read(); err != nil {
			return int(websocket.CloseStatus(err))
		}
	}
}

// request sends an HTTP request, and returns the status, the header and the body, which for event streams is what arrives until the first event.
func request(t testing.TB, method, url, token, body string) (int, http.Header, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.Header.Get("Content-Type") != "text/event-stream" {
		b, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, response.Header, string(b)
	}
	var all bytes.Buffer
	for b := make([]byte, 4096); !strings.Contains(all.String(), "data: "); {
		n, err := response.Body.Read(b)
		all.Write(b[:n])
		if err != nil {
			t.Fatal(err)
		}
	}
	return response.StatusCode, response.Header, all.String()
}
