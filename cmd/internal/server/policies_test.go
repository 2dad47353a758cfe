package server

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestPoliciesHoldOnEveryTransport: what the channels file allows and limits, it does over WebSocket, Server-Sent Events, POST and the wire
// protocol; and a connection that a change of the file no longer allows ends.
func TestPoliciesHoldOnEveryTransport(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	path := filepath.Join(t.TempDir(), "channels.json")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"channels": [
		{"match": "inbox.{user}", "subscribe": "self", "publish": "nobody"},
		{"match": "news.*", "subscribe": "anyone", "publish": "nobody", "history": 2},
		{"match": "chat.*", "subscribe": "user", "publish": "user", "payload_bytes": 10, "publish_rate": 0.001, "publish_burst": 2, "history": 0}
	]}`)
	s := start(t, Config{Database: url, PGAuth: Trust, ChannelsFile: path, Web: web.Config{Authorizer: authorizer(t), Heartbeat: 500 * time.Millisecond}})
	pool := pgtest.Pool(t, url)
	for i := range 4 {
		if _, err := pool.Exec(t.Context(), `SELECT weir.publish('news.sport', $1), weir.publish('chat.1', $1), weir.publish('inbox.ada', $1)`, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	ada, bob := tokenFor(t, "ada", []string{"orders.>"}, []string{"orders.>"}, nil), tokenFor(t, "bob", []string{">"}, []string{">"}, nil)
	code := func(o object) any { return o["code"] }

	ws := open(t, s, ada)
	for _, c := range []struct{ request, want string }{
		{`{"type":"subscribe","channels":["inbox.ada","chat.1","news.*","orders.*"]}`, ""},
		{`{"type":"subscribe","channels":["inbox.bob"]}`, "denied"},
		{`{"type":"subscribe","channels":["inbox.*"]}`, "denied"},
		{`{"type":"subscribe","channels":["other"]}`, "denied"},
		{`{"type":"publish","channel":"inbox.bob","payload":"x"}`, "denied"},
		{`{"type":"publish","channel":"news.sport","payload":"x"}`, "denied"},
		{`{"type":"publish","channel":"chat.1","payload":"12345678901"}`, "limit"},
	} {
		if got := ws.ask("%s", c.request); fmt.Sprint(code(got)) != c.want && !(c.want == "" && got["type"] == "subscribed") {
			t.Errorf("%s is answered by %v", c.request, got)
		}
	}
	ws.say(`{"type":"publish","messages":[{"channel":"chat.1","payload":"1"},{"channel":"chat.2","payload":"2"}]}`)
	ws.await("published")
	ws.say(`{"type":"publish","channel":"chat.3","payload":"3"}`)
	if got := ws.await("error"); code(got) != "limit" || got["retry_after"] == nil {
		t.Errorf("a third message at once is answered by %v", got)
	}
	// A token for everything opens neither another user's inbox nor a channel on which nobody publishes.
	other := open(t, s, bob)
	for _, r := range []string{`{"type":"subscribe","channels":[">"]}`, `{"type":"subscribe","channels":["inbox.ada"]}`, `{"type":"publish","channel":"news.x","payload":""}`} {
		if got := other.ask("%s", r); code(got) != "denied" {
			t.Errorf("%s is answered by %v", r, got)
		}
	}
	pgtest.Until(t, "what was published is in the history of a limited channel, and of one without", func() bool {
		got := open(t, s, bob).ask(`{"type":"subscribe","channels":["news.sport","chat.1"],"last":10}`)
		return len(got["history"].([]any)) == 2 && got["complete"] == false
	})
	// Without a token.
	stranger := open(t, s, "")
	if got := stranger.ask(`{"type":"subscribe","channels":["news.sport"]}`); got["type"] != "subscribed" {
		t.Errorf("a channel for anyone: %v", got)
	}
	if got := stranger.ask(`{"type":"subscribe","channels":["chat.1"]}`); code(got) != "denied" {
		t.Errorf("a channel for users: %v", got)
	}
	if got := stranger.ask(`{"type":"subscribe","channels":["orders.1"]}`); code(got) != "unauthorized" {
		t.Errorf("a channel for tokens: %v", got)
	}

	at := "http://" + s.HTTPAddr().String()
	for _, c := range []struct {
		method, path, token, body string
		want                      int
	}{
		{"GET", "/v1/events?channel=news.sport&last=3", "", "", http.StatusOK},
		{"GET", "/v1/events?channel=chat.1", "", "", http.StatusUnauthorized},
		{"GET", "/v1/events?channel=chat.1", ada, "", http.StatusOK},
		{"GET", "/v1/events?channel=inbox.ada", ada, "", http.StatusOK},
		{"GET", "/v1/events?channel=inbox.ada", bob, "", http.StatusForbidden},
		{"GET", "/v1/events?channel=orders.1", ada, "", http.StatusOK},
		{"GET", "/v1/events?channel=other", ada, "", http.StatusForbidden},
		{"POST", "/v1/publish?channel=news.sport", bob, "x", http.StatusForbidden},
		{"POST", "/v1/publish", bob, `{"channel":"news.sport","payload":"x"}`, http.StatusForbidden},
		{"POST", "/v1/publish", "", `{"channel":"news.sport","payload":"x"}`, http.StatusForbidden},
		{"POST", "/v1/publish", "", `{"channel":"orders.1","payload":"x"}`, http.StatusUnauthorized},
		{"POST", "/v1/publish", ada, `{"channel":"orders.1","payload":"x"}`, http.StatusOK},
		{"POST", "/v1/publish", ada, `{"channel":"other","payload":"x"}`, http.StatusForbidden},
		{"POST", "/v1/publish?channel=chat.9", bob, "12345678901", http.StatusRequestEntityTooLarge},
		{"POST", "/v1/publish", bob, `[{"channel":"chat.9","payload":"1"},{"channel":"orders.9","payload":"1"}]`, http.StatusOK},
		{"POST", "/v1/publish?channel=chat.9", ada, "x", http.StatusTooManyRequests}, // she has used hers up over WebSocket
		{"POST", "/v1/publish?channel=chat.9", bob, "2", http.StatusOK},
		{"POST", "/v1/publish?channel=chat.9", bob, "3", http.StatusTooManyRequests},
	} {
		status, header, text := request(t, c.method, at+c.path, c.token, c.body)
		if status != c.want || status == http.StatusTooManyRequests && header.Get("Retry-After") == "" {
			t.Errorf("%s %s %s: %d %s, want %d", c.method, c.path, c.body, status, text, c.want)
		}
	}

	pg, err := pgx.Connect(t.Context(), fmt.Sprintf("postgres://carl@%s/db", s.PGAddr()))
	if err != nil {
		t.Fatal(err)
	}
	defer pg.Close(t.Context())
	for _, c := range []struct{ sql, want string }{
		{`LISTEN "inbox.carl"`, ""}, {`LISTEN "news.sport"`, ""}, {`LISTEN other`, ""}, {`LISTEN "inbox.ada"`, "42501"},
		{`NOTIFY "news.sport"`, "42501"}, {`SELECT weir.publish('news.sport', 'x')`, "42501"}, {`NOTIFY "chat.1", '12345678901'`, "22023"},
		{`NOTIFY "chat.1", '1'`, ""}, {`NOTIFY "chat.1", '2'`, ""}, {`NOTIFY "chat.1", '3'`, "53400"}, {`NOTIFY other`, ""},
	} {
		if _, err := pg.Exec(t.Context(), c.sql); sqlstate(err) != c.want {
			t.Errorf("%s: %v, want %q", c.sql, err, c.want)
		}
	}

	// Nobody may use news any more, and inboxes are for the owners of tokens.
	write(`{"channels": [{"match": "news.*", "subscribe": "nobody"}, {"match": "chat.*", "subscribe": "user"}]}`)
	for name, c := range map[string]*socket{"stranger": stranger, "ada": ws} {
		if got := c.end(); got != 4403 {
			t.Errorf("%s's connection ended with code %d, want 4403", name, got)
		}
	}
	if _, err := dial(t, s, ""); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("no channel is for anyone now, but a client without a token connects: %v", err)
	}
	if err := s.pg.Recheck(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := pg.WaitForNotification(t.Context()); err == nil || !strings.Contains(err.Error(), "28000") {
		// It may first receive what it is still allowed to.
		for err == nil {
			_, err = pg.WaitForNotification(t.Context())
		}
		if sqlstate(err) != "28000" {
			t.Errorf("a listener on a channel that is for nobody now: %v", err)
		}
	}
}
