package web

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestKeysThatNobodyHasAskedForAreNotUnreadable: they are read when somebody asks, so after a quiet time they are old, and are read before a token is judged by them. Only if they
// can't be read then, they are dropped.
func TestKeysThatNobodyHasAskedForAreNotUnreadable(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keys.json")
	text, err := json.Marshal(map[string]any{"keys": []any{map[string]string{
		"kty": "EC", "kid": "one", "alg": "ES256", "crv": "P-256",
		"x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU", "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0", // of RFC 7515
	}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	var log pgtest.Log
	s, err := openKeySet(JWTConfig{KeysFile: path, Logger: log.Logger()})
	if err != nil {
		t.Fatal(err)
	}
	quiet := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.tried, s.good = s.tried.Add(-time.Hour), s.good.Add(-time.Hour)
	}
	before := s.revision
	quiet()
	if after := s.changes(); after != before {
		t.Errorf("after a quiet time, the keys seem to have changed, %d times", after-before)
	}
	if _, err := s.find("ES256", "one"); err != nil {
		t.Errorf("after a quiet time: %v", err)
	}
	if text := log.String(); text != "" {
		t.Errorf("the log: %s", text)
	}
	quiet()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := s.find("ES256", "one"); err == nil || !strings.Contains(log.String(), "not been readable for too long") {
		t.Errorf("old keys, which can't be read: %v, and the log: %s", err, log.String())
	}
	if s.changes() == before {
		t.Error("who has logged in by keys that were dropped is not asked again")
	}
}
