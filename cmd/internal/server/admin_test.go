package server

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestOperatorsDisconnectUsersOverHTTP: at any hub, and users are gone from all, as from SQL. Without a token of the file, which may change, and without such a file, nobody does.
func TestOperatorsDisconnectUsersOverHTTP(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	path := filepath.Join(t.TempDir(), "tokens")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const old, young = "the first token of operators", "the second token of operators"
	write(old + "\n")
	config := Config{Database: database, ListenAdmin: "127.0.0.1:0", Web: web.Config{Authorizer: authorizer(t)}}
	free := start(t, config)
	config.AdminTokenFile = path
	guarded := start(t, config)
	ask := func(s *Server, method, path, token, body string) (int, string) {
		t.Helper()
		status, _, text := request(t, method, "http://"+s.AdminAddr().String()+path, token, body)
		return status, text
	}
	token := func(user string) string {
		return tokenFor(t, user, []string{">"}, nil, jwt.MapClaims{"iat": time.Now().Add(-time.Minute).Unix()})
	}

	ada, bob := open(t, free, token("ada")), open(t, free, token("bob"))
	if status, text := ask(guarded, "POST", "/users/disconnect", old, `{"user":"ada"}`); status != http.StatusOK || strings.TrimSpace(text) != `{"disconnected":"ada"}` {
		t.Errorf("disconnecting: %d %s", status, text)
	}
	if code := ada.end(); code != 1008 {
		t.Errorf("ada's WebSocket ended with code %d", code)
	}
	ada = open(t, free, token("ada"))
	status, text := ask(guarded, "POST", "/users/revoke", old, `{"user":"ada","for":3600}`)
	var revoked struct {
		Revoked      string
		IssuedBefore time.Time `json:"issued_before"`
	}
	if err := json.Unmarshal([]byte(text), &revoked); err != nil || status != http.StatusOK || revoked.Revoked != "ada" || revoked.IssuedBefore.IsZero() {
		t.Errorf("revoking: %d %s", status, text)
	}
	if code := ada.end(); code != 4401 {
		t.Errorf("ada's WebSocket ended with code %d", code)
	}
	for _, s := range []*Server{free, guarded} {
		pgtest.Until(t, "ada's token is refused", func() bool {
			_, err := dial(t, s, token("ada"))
			return err != nil && strings.Contains(err.Error(), "401")
		})
	}
	var until time.Time
	if err := pgtest.Pool(t, database).QueryRow(t.Context(), `SELECT until FROM weir.revocations() WHERE until IS NOT NULL`).Scan(&until); err != nil || until.Sub(revoked.IssuedBefore).Round(time.Minute) != time.Hour {
		t.Errorf("revoked until %v: %v", until, err)
	}

	// Who may not, and what is wrong.
	for _, c := range []struct {
		s                         *Server
		method, path, token, body string
		want                      int
		says                      string
	}{
		{free, "POST", "/users/revoke", old, `{"user":"bob"}`, http.StatusForbidden, "no tokens for operators"},
		{free, "GET", "/clients", "", "", http.StatusOK, `"user":"bob"`},
		{guarded, "POST", "/users/revoke", "", `{"user":"bob"}`, http.StatusUnauthorized, "no token"},
		{guarded, "POST", "/users/disconnect", "a guess", `{"user":"bob"}`, http.StatusUnauthorized, "not the token"},
		{guarded, "GET", "/clients", "", "", http.StatusUnauthorized, "no token"},
		{guarded, "DELETE", "/clients?user=bob", "a guess", "", http.StatusUnauthorized, "not the token"},
		{guarded, "GET", "/clients", old, "", http.StatusOK, "clients"},
		{guarded, "GET", "/metrics", "", "", http.StatusOK, "weir_hub_live"},
		{guarded, "POST", "/users/revoke", old, `{"user":""}`, http.StatusBadRequest, "names no user"},
		{guarded, "POST", "/users/revoke", old, `{"user":"bob","for":0}`, http.StatusBadRequest, "0 seconds"},
		{guarded, "POST", "/users/revoke", old, `{"user":"bob","for":50000000}`, http.StatusBadRequest, "up to 400 days"},
		{guarded, "POST", "/users/revoke", old, `{"user":"` + strings.Repeat("b", 256) + `"}`, http.StatusBadRequest, "1 to 255 bytes"},
		{guarded, "POST", "/users/disconnect", old, `{"user":"bob","for":60}`, http.StatusBadRequest, "only a revocation lasts"},
		{guarded, "POST", "/users/disconnect", old, `{"name":"bob"}`, http.StatusBadRequest, "name"},
		{guarded, "POST", "/users/disconnect", old, strings.Repeat(" ", 5000) + `{"user":"bob"}`, http.StatusBadRequest, "not a valid request"},
	} {
		if status, text := ask(c.s, c.method, c.path, c.token, c.body); status != c.want || !strings.Contains(text, c.says) {
			t.Errorf("%s %s %s: %d %s, want %d and %q", c.method, c.path, c.body, status, text, c.want, c.says)
		}
	}
	write(old + "\n" + young + "\n")
	if status, text := ask(guarded, "GET", "/clients", young, ""); status != http.StatusOK {
		t.Errorf("with a token that was added: %d %s", status, text)
	}
	write(young)
	if status, text := ask(guarded, "GET", "/clients", old, ""); status != http.StatusUnauthorized {
		t.Errorf("with a token that was removed: %d %s", status, text)
	}
	write("short")
	if status, text := ask(guarded, "GET", "/clients", "short", ""); status != http.StatusServiceUnavailable || !strings.Contains(text, "5 characters") {
		t.Errorf("with a file that can't be used: %d %s", status, text)
	}
	if got := bob.ask(`{"type":"ping"}`); got["type"] != "pong" {
		t.Errorf("bob: %v", got)
	}
	config.ListenHTTP, config.Name = "127.0.0.1:0", "wrong"
	if s, err := Start(t.Context(), config); err == nil {
		t.Errorf("a hub starts with a token of five characters: %v", s.Stop(t.Context()))
	}
}
