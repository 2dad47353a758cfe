package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/weir-pg/weir/cmd/internal/policy"
	"github.com/weir-pg/weir/cmd/internal/presence"
)

// newRoom is newRig with channels that have presence, for clients with tokens.
func newRoom(t *testing.T) *rig {
	t.Helper()
	path := filepath.Join(t.TempDir(), "channels.json")
	if err := os.WriteFile(path, []byte(`{"channels": [{"match": "room.*", "presence": true}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	policies, err := policy.Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	authorizer, err := NewJWT(JWTConfig{Secret: secret})
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, newMemory(), func(c *Config) {
		c.Policies, c.Authorizer, c.Heartbeat = policies, authorizer, time.Hour
		c.Presence = presence.New(presence.Config{Hub: c.Hub, On: policies.Set().PresenceOf, Every: 10 * time.Millisecond})
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); r.web.Presence.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return r
}

// ada returns a header with a token.
func ada(t *testing.T) http.Header {
	t.Helper()
	return bearerOf(hs256(t, may([]string{">"}, nil, func(c jwt.MapClaims) { c["sub"] = "ada" })))
}

// TestAnAnswerNamesTheMembersOfTheMomentInWhichItIsWritten: not those of a moment ago, since when the client may have been told that one has left.
func TestAnAnswerNamesTheMembersOfTheMomentInWhichItIsWritten(t *testing.T) {
	t.Parallel()
	r := newRoom(t)
	c, _, err := r.dial("", ada(t))
	if err != nil {
		t.Fatal(err)
	}
	var s *stream
	r.web.mu.Lock()
	for s = range r.web.all {
	}
	r.web.mu.Unlock()
	s.mu.Lock() // something is being written
	c.say(`{"type":"presence","id":7,"channel":"room.1"}`)
	eventually(t, func() error {
		stacks := make([]byte, 4<<20)
		for stack := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			if strings.Contains(stack, "(*webSocket).hear(") && strings.Contains(stack, "(*Mutex).Lock") {
				return nil
			}
		}
		return errors.New("the answer does not wait to be written")
	})
	r.web.Presence.Enter("room.1", "bob", nil)
	s.mu.Unlock()
	_, b, err := c.conn.Read(t.Context())
	var got struct {
		Type string
		ID   int
		presence.Members
	}
	if err != nil || json.Unmarshal(b, &got) != nil || got.Type != "members" || got.ID != 7 || got.Count != 1 || got.Users[0].User != "bob" {
		t.Errorf("the answer is %s, %v", b, err)
	}
}

// TestAStreamThatHasCaughtUpIsToldToAskForTheMembers of those channels that any have joined or left since it was told that it is subscribed: it received no event, and may have asked before. In a
// storm of connections that are made again, members join and leave somewhere all the time: those of other channels are not asked for twice.
func TestAStreamThatHasCaughtUpIsToldToAskForTheMembers(t *testing.T) {
	t.Parallel()
	for transport, resume := range map[string]func(*rig, string) client{
		"websocket": func(r *rig, at string) client {
			c, _, err := r.dial("", ada(t))
			if err != nil {
				t.Fatal(err)
			}
			c.say(`{"type":"subscribe","channels":["room.1","room.2","room.*"],"position":%q,"presence":true}`, at)
			return c
		},
		"sse": func(r *rig, at string) client {
			return r.sse("?channel=room.1&channel=room.2&channel=room.*&presence=true&access_token="+token(&http.Request{Header: ada(t)}), at)
		},
	} {
		t.Run(transport, func(t *testing.T) {
			t.Parallel()
			r := newRoom(t)
			p := r.web.Presence
			enter := func(room, user string) {
				t.Helper()
				told := p.Told()
				p.Enter(room, user, nil)
				eventually(t, func() error {
					if !p.ToldSince(room, told) {
						return fmt.Errorf("%s has joined %s, and nobody was told", user, room)
					}
					return nil
				})
			}
			enter("room.1", "ada") // on another connection, so that the one that resumes changes nothing
			enter("room.2", "ada")
			at := r.source.end()
			r.publish("room.1=missed")
			r.publish("other=x") // the hub's memory holds no more than this
			eventually(t, func() error {
				if r.hub.Position() != r.source.end() {
					return fmt.Errorf("the hub is at %s", r.hub.Position())
				}
				return nil
			})
			r.source.replays.Lock()
			c := resume(r, at.String())
			expect(t, c, "subscribed")
			enter("room.1", "bob")
			enter("room.3", "bob")
			r.source.replays.Unlock()
			expect(t, c, "room.1=missed")
			if got := expect(t, c, "presence"); got.Channel != "room.1" || got.Count != 2 || got.Joined != nil {
				t.Errorf("the event is of %s, has %d members, and joined: %s", got.Channel, got.Count, got.Joined)
			}
			r.publish("room.1=later")
			expect(t, c, "room.1=later")
		})
	}
}

// TestWhoHasLeftAChannelForGoodWasToldOf: though nothing is known of the channel any more.
func TestWhoHasLeftAChannelForGoodWasToldOf(t *testing.T) {
	t.Parallel()
	p := newRoom(t).web.Presence
	p.Enter("room.1", "ada", nil)
	eventually(t, func() error {
		if !p.ToldSince("room.1", 0) {
			return errors.New("nobody was told that ada has joined")
		}
		return nil
	})
	told := p.Told()
	p.Leave("room.1", "ada")
	eventually(t, func() error {
		if !p.ToldSince("room.1", told) {
			return errors.New("nobody was told that ada has left")
		}
		return nil
	})
}

// TestInfoThatIsNoTextIsLeftOut: the log takes text only, and would refuse whatever else the hub announces with it.
func TestInfoThatIsNoTextIsLeftOut(t *testing.T) {
	t.Parallel()
	for info, want := range map[string]string{`{"name":"Ada"}`: `{"name":"Ada"}`, "\"\xff\"": ""} {
		if got := infoOf(json.RawMessage(info)); string(got) != want {
			t.Errorf("of %q %q is left", info, got)
		}
	}
}
