package work_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/weir-pg/weir/cmd/internal/server"
	"github.com/weir-pg/weir/cmd/internal/web"
)

// TestATokenForAnotherDatabaseWorksNothing: whatever queues it names, also as the next token of a session, which keeps the one that it has. Where there are several databases, one that
// names none is for none.
func TestATokenForAnotherDatabaseWorksNothing(t *testing.T) {
	t.Parallel()
	secret := []byte("0123456789abcdef0123456789abcdef")
	a, err := web.NewJWT(web.JWTConfig{Secret: secret})
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t, func(c *server.Config) {
		c.Web = web.Config{Authorizer: a, Databases: func() []string { return []string{"app"} }, Several: true}
	})
	token := func(databases ...string) string {
		claim := m{"work": []string{"mail"}}
		if databases != nil {
			claim["databases"] = databases
		}
		text, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"exp": time.Now().Add(time.Hour).Unix(), "weir": claim}).SignedString(secret)
		if err != nil {
			t.Fatal(err)
		}
		return "?access_token=" + text
	}
	own, others := token("other", "app"), []string{token("other"), token()}
	s.enqueue("mail", "welcome", "{}")
	take := m{"queues": m{"mail": 1}}
	status, taken := s.call("POST", "/v1/work/take"+own, take)
	if status != http.StatusOK || len(taken.Jobs) != 1 {
		t.Fatalf("%d %+v", status, taken)
	}
	attempt := taken.Jobs[0].Token
	for _, foreign := range others {
		for _, try := range []struct {
			method, path string
			body         m
		}{
			{"POST", "take", take},
			{"POST", "record", m{"ends": []m{{"token": attempt}}}},
			{"POST", "progress", m{"entries": []m{{"token": attempt, "progress": 0.5}}}},
			{"DELETE", taken.Worker, nil},
			{"GET", "ws", nil},
		} {
			if status, said := s.call(try.method, "/v1/work/"+try.path+foreign, try.body); status != http.StatusForbidden || said.Error != "the token is not for this database" {
				t.Errorf("%s %s: %d %+v", try.method, try.path, status, said)
			}
		}
	}
	k := s.connect(own)
	k.send(m{"type": "open", "queues": m{"mail": 1}})
	if f := k.next(); f.Type != "opened" {
		t.Fatalf("%+v", f)
	}
	for _, foreign := range others {
		k.send(m{"type": "auth", "token": strings.TrimPrefix(foreign, "?access_token=")})
		if f := k.next(); f.Type != "error" || f.Code != "denied" {
			t.Errorf("the next token of a session: %+v", f)
		}
	}
	k.send(m{"type": "record", "ends": []m{{"token": attempt, "output": "done"}}})
	if f := k.next(); f.Type != "recorded" || len(f.Results) != 1 || !f.Results[0].Recorded {
		t.Errorf("%+v", f)
	}
}
