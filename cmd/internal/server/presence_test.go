package server

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestClientsSeeWhoIsOnAChannel: at all hubs and over WebSocket, SSE and HTTP: who is there, who joins and who leaves, with what their tokens say about them. Where there is no
// presence, and for who may not subscribe, nothing is seen.
func TestClientsSeeWhoIsOnAChannel(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	path := filepath.Join(t.TempDir(), "channels.json")
	if err := os.WriteFile(path, []byte(`{"channels": [{"match": "room.*", "presence": true}, {"match": "quiet.*"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	var hubs []*Server
	for range 2 {
		hubs = append(hubs, start(t, Config{Database: url, PGAuth: Trust, ChannelsFile: path, Web: web.Config{Authorizer: authorizer(t)}}))
	}
	token := func(user string, channels ...string) string {
		return tokenFor(t, user, channels, channels, jwt.MapClaims{"weir": map[string]any{"subscribe": channels, "publish": channels, "info": map[string]string{"name": strings.ToUpper(user)}}})
	}
	ada := open(t, hubs[0], token("ada", ">"))
	if got := ada.ask(`{"type":"subscribe","channels":["room.1","quiet.1","room.*"],"presence":true,"last":5}`); got["type"] != "subscribed" {
		t.Fatal(got)
	}
	// presence waits for an event in which somebody joins or leaves.
	presence := func(c *socket, kind, user string) {
		t.Helper()
		for {
			o := c.await("presence")
			if text := fmt.Sprint(o[kind]); o["channel"] == "room.1" && strings.Contains(text, user) {
				return
			}
		}
	}
	presence(ada, "joined", "ada")
	bob := open(t, hubs[1], token("bob", ">"))
	if got := bob.ask(`{"type":"subscribe","channels":["room.1"],"presence":true}`); got["type"] != "subscribed" {
		t.Fatal(got)
	}
	presence(ada, "joined", "map[info:map[name:BOB] user:bob]")
	pgtest.Until(t, "the hub of bob knows ada", func() bool {
		bob.say(`{"type":"presence","id":1,"channel":"room.1"}`)
		got := bob.await("members")
		return got["count"] == 2.0 && fmt.Sprint(got["users"]) == "[map[info:map[name:ADA] user:ada] map[info:map[name:BOB] user:bob]]"
	})

	// An event stream is a member, too, and receives events.
	request2, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://%s/v1/events?channel=room.1&presence=true&access_token=%s", hubs[1].HTTPAddr(), token("carl", "room.1")), nil)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := http.DefaultClient.Do(request2)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	presence(ada, "joined", "carl")
	for _, c := range []struct {
		path, token string
		want        int
		says        string
	}{
		{"channel=room.1", token("dan", "room.1"), 200, `"user":"carl"`},
		{"channel=room.1&after=bob", token("dan", "room.1"), 200, `"count":3}`},
		{"channel=room.1", token("dan", "room.2"), 403, "denied"},
		{"channel=room.1", "", 401, "unauthorized"},
		{"channel=quiet.1", token("dan", ">"), 403, "has no presence"},
		{"channel=$weir.x", token("dan", ">"), 400, "bad_request"},
	} {
		if status, _, text := request(t, "GET", fmt.Sprintf("http://%s/v1/presence?%s", hubs[0].HTTPAddr(), c.path), c.token, ""); status != c.want || !strings.Contains(text, c.says) {
			t.Errorf("GET /v1/presence?%s: %d %s, want %d %s", c.path, status, text, c.want, c.says)
		}
	}
	if got := bob.ask(`{"type":"unsubscribe","channels":["room.1"]}`); got["type"] != "unsubscribed" && got["type"] != "presence" {
		t.Error(got)
	}
	presence(ada, "left", "bob")
	lines := bufio.NewScanner(stream.Body)
	for left := false; !left; {
		if !lines.Scan() {
			t.Fatalf("the event stream has ended: %v", lines.Err())
		}
		left = strings.Contains(lines.Text(), `"type":"presence"`) && strings.Contains(lines.Text(), `"left":["bob"]`)
	}
	stream.Body.Close()
	presence(ada, "left", "carl")
	// Messages are delivered as ever, and no client receives what hubs say to each other.
	ada.say(`{"type":"publish","channel":"room.2","payload":"hi"}`)
	for {
		o := ada.next()
		if o["type"] == "message" {
			if o["channel"] != "room.2" {
				t.Errorf("received %v", o)
			}
			break
		}
	}
}

// TestListenersAreNoMembers: over the wire protocol there is no presence, and the channels on which hubs tell each other of members can't be listened on.
func TestListenersAreNoMembers(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "channels.json")
	if err := os.WriteFile(path, []byte(`{"channels": [{"match": "room.*", "presence": true}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, Config{Database: pgtest.Database(t), PGAuth: Trust, ChannelsFile: path, Web: web.Config{Authorizer: authorizer(t)}})
	carl, err := pgx.Connect(t.Context(), fmt.Sprintf("postgres://carl@%s/db", s.PGAddr()))
	if err != nil {
		t.Fatal(err)
	}
	defer carl.Close(t.Context())
	if _, err := carl.Exec(t.Context(), `LISTEN "room.1"`); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{`LISTEN "$weir.presence"`, `LISTEN "$weir.members.room.1"`, `NOTIFY "$weir.presence"`} {
		if _, err := carl.Exec(t.Context(), sql); sqlstate(err) != "42501" || !strings.Contains(err.Error(), "for hubs alone") {
			t.Errorf("%s: %v", sql, err)
		}
	}
	ada := open(t, s, tokenFor(t, "ada", []string{">"}, []string{">"}, nil))
	if got := ada.ask(`{"type":"subscribe","channels":["room.1"],"presence":true}`); got["type"] != "subscribed" {
		t.Fatal(got)
	}
	if got := ada.await("presence"); got["count"] != 1.0 {
		t.Errorf("a listener is counted: %v", got)
	}
	ada.say(`{"type":"publish","channel":"room.1","payload":"hi"}`)
	if got := received(t, carl); got != "room.1=hi" {
		t.Errorf("the listener received %s", got)
	}
}

// TestAConnectionWithAnotherTokenIsItsUsers: on all channels that it has subscribed to, and with what that token says of the user.
func TestAConnectionWithAnotherTokenIsItsUsers(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "channels.json")
	if err := os.WriteFile(path, []byte(`{"channels": [{"match": "room.*", "presence": true}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, Config{Database: pgtest.Database(t), PGAuth: Trust, ChannelsFile: path, Web: web.Config{Authorizer: authorizer(t)}})
	token := func(user, name string) string {
		return tokenFor(t, user, nil, nil, jwt.MapClaims{"weir": map[string]any{"subscribe": []string{">"}, "info": name}})
	}
	members := func(channel, want string) {
		t.Helper()
		pgtest.Until(t, "the members of "+channel+" are "+want, func() bool {
			_, _, text := request(t, "GET", fmt.Sprintf("http://%s/v1/presence?channel=%s", s.HTTPAddr(), channel), token("guest", ""), "")
			return strings.Contains(text, `"users":[`+want+`]`)
		})
	}
	c := open(t, s, token("ada", "Ada"))
	c.ask(`{"type":"subscribe","channels":["room.1"]}`)
	members("room.1", `{"user":"ada","info":"Ada"}`)
	c.ask(`{"type":"auth","token":%q}`, token("ada", "Ada L."))
	members("room.1", `{"user":"ada","info":"Ada L."}`)
	c.ask(`{"type":"auth","token":%q}`, token("bob", "Bob"))
	c.ask(`{"type":"subscribe","channels":["room.2"]}`)
	members("room.2", `{"user":"bob","info":"Bob"}`)
	members("room.1", `{"user":"bob","info":"Bob"}`)
}

// TestPresenceThatIsSwitchedOnFindsThoseWhoAreThere: whoever has subscribed before the file gives the channel presence becomes a member, over WebSocket and SSE.
func TestPresenceThatIsSwitchedOnFindsThoseWhoAreThere(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "channels.json")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"channels": [{"match": "room.*"}]}`)
	s := start(t, Config{Database: pgtest.Database(t), PGAuth: Trust, ChannelsFile: path, Web: web.Config{Authorizer: authorizer(t), Heartbeat: 200 * time.Millisecond}})
	ada := open(t, s, tokenFor(t, "ada", []string{">"}, []string{">"}, nil))
	for _, channel := range []string{"room.1", "room.2"} {
		if got := ada.ask(`{"type":"subscribe","channels":[%q]}`, channel); got["type"] != "subscribed" {
			t.Fatal(got)
		}
	}
	if got := ada.ask(`{"type":"unsubscribe","channels":["room.2"]}`); got["type"] != "unsubscribed" {
		t.Fatal(got)
	}
	write(`{"channels": [{"match": "room.*", "presence": true}]}`)
	pgtest.Until(t, "ada is a member", func() bool { return s.presence.List("room.1", "", 0).Count == 1 })
	if n := s.presence.List("room.2", "", 0).Count; n != 0 {
		t.Errorf("of the channel that she has left, %d are members", n)
	}
}
