package browser

import (
	"crypto/rand"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/weir-pg/weir/cmd/internal/server"
	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAnExpiredTokenIsNotTriedForEver: weir.js, imported as a module, asks for another token if it can, and otherwise closes.
func TestAnExpiredTokenIsNotTriedForEver(t *testing.T) {
	t.Parallel()
	node := nodeJS(t)
	secret := []byte(rand.Text() + rand.Text())
	authorizer, err := web.NewJWT(web.JWTConfig{Secret: secret})
	if err != nil {
		t.Fatal(err)
	}
	token := func(expires time.Time) string {
		signed, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
			"exp": expires.Unix(), "weir": map[string]any{"subscribe": []string{"a"}},
		}).SignedString(secret)
		if err != nil {
			t.Fatal(err)
		}
		return signed
	}
	s, err := server.Start(t.Context(), server.Config{Database: pgtest.Database(t), ListenHTTP: "127.0.0.1:0", Name: t.Name(), Web: web.Config{Authorizer: authorizer}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop(t.Context()) })
	program := exec.CommandContext(t.Context(), node, "--experimental-websocket", "testdata/tokens.mjs",
		"http://"+s.HTTPAddr().String(), token(time.Now().Add(time.Hour)), token(time.Now().Add(-time.Hour)))
	var errs strings.Builder
	program.Stderr = &errs
	said, err := program.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, errs.String())
	}
	for _, want := range []string{"a function's second token: open\n", "a token that stays: open\n", "an expired token that stays: closed the token", "asked 2 times\n"} {
		if !strings.Contains(string(said), want) {
			t.Errorf("%q is missing from the output:\n%s", want, said)
		}
	}
}

// nodeJS returns the path of Node.js, or skips the test.
func nodeJS(t *testing.T) string {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		if strings.Contains(os.Getenv("WEIR_TEST_REQUIRE"), "node") {
			t.Fatal("node is required by WEIR_TEST_REQUIRE but not installed")
		}
		t.Skip("node is not installed")
	}
	return node
}
