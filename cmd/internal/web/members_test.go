package web

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

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
	return newRig(t, newMemory(), func(c *Config) {
		c.Policies, c.Authorizer = policies, authorizer
		c.Presence = presence.New(presence.Config{Hub: c.Hub, On: policies.Set().PresenceOf})
	})
}

// TestAnAnswerNamesTheMembersOfTheMomentInWhichItIsWritten: not those of a moment ago, since when the client may have been told that one has left.
func TestAnAnswerNamesTheMembersOfTheMomentInWhichItIsWritten(t *testing.T) {
	t.Parallel()
	r := newRoom(t)
	c, _, err := r.dial("", http.Header{"Authorization": {"Bearer " + hs256(t, may([]string{">"}, nil, func(c jwt.MapClaims) { c["sub"] = "ada" }))}})
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
