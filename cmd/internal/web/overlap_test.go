package web

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// TestARevocationEndsStreamsThatAreBeingMade: it may come right after a token was accepted, and before the stream is known as its user's.
func TestARevocationEndsStreamsThatAreBeingMade(t *testing.T) {
	t.Parallel()
	token := hs256(t, may([]string{">"}, nil, func(c jwt.MapClaims) { c["sub"] = "ada" }))
	other := hs256(t, may([]string{">"}, nil, func(c jwt.MapClaims) { c["sub"] = "bob" }))
	transports := map[string]func(r *rig) client{
		"websocket": func(r *rig) client {
			c, _, err := r.dial("", http.Header{"Authorization": {"Bearer " + token}})
			if err != nil {
				t.Fatal(err)
			}
			return c
		},
		"new token": func(r *rig) client {
			c, _, err := r.dial("", http.Header{"Authorization": {"Bearer " + other}})
			if err != nil {
				t.Fatal(err)
			}
			c.say(`{"type":"auth","token":%q}`, token)
			return c
		},
		"events": func(r *rig) client { return r.sse("?channel=a&access_token="+token, "") },
	}
	for name, open := range transports {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var revoked atomic.Bool
			var r *rig
			a, err := NewJWT(JWTConfig{Secret: secret})
			if err != nil {
				t.Fatal(err)
			}
			r = newRig(t, newMemory(), func(c *Config) {
				c.Authorizer = a
				c.Revoked = func(user string, _ time.Time) bool {
					if user != "ada" || revoked.Swap(true) {
						return user == "ada"
					}
					r.web.EndUser("ada", true)
					return false // as it was a moment ago
				}
			})
			c := open(r)
			if end := c.end(); end != "4401" && end != "expired" {
				t.Errorf("it ended with %q", end)
			}
		})
	}
}

// TestAnAnswerFromBeforeADisconnectionIsNotReused: a callback that was asked before it knew that the user is banned is asked again.
func TestAnAnswerFromBeforeADisconnectionIsNotReused(t *testing.T) {
	t.Parallel()
	var r *rig
	var banned atomic.Bool
	service := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		if banned.Swap(true) {
			rw.WriteHeader(http.StatusUnauthorized)
			return
		}
		r.web.EndUser("ada", false)
		fmt.Fprint(rw, `{"allow": true, "user": "ada"}`)
	}))
	t.Cleanup(service.Close)
	a, err := NewCallback(CallbackConfig{URL: service.URL, Timeout: generous, Cache: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	r = newRig(t, newMemory(), func(c *Config) { c.Authorizer = a })
	c, _, err := r.dial("", bearerOf("token"))
	if err != nil {
		t.Fatal(err)
	}
	if end := c.end(); end != "4401" {
		t.Errorf("a connection that was being made ended with %q", end)
	}
	if _, response, err := r.dial("", bearerOf("token")); err == nil || response == nil || response.StatusCode != http.StatusUnauthorized {
		t.Errorf("another connection is accepted: %v", err)
	}
}

// TestARateInAnAnswerIsOne: 0 and less would otherwise be no limit, where somebody meant that nothing may be published.
func TestARateInAnAnswerIsOne(t *testing.T) {
	t.Parallel()
	for _, rate := range []string{"0", "-1"} {
		if g, err := parseAnswer([]byte(`{"allow": true, "publish_rate": `+rate+`}`), nil); err == nil {
			t.Errorf("publish_rate %s is accepted as %v", rate, *g.Terms.PublishRate)
		}
	}
}
