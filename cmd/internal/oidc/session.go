package oidc

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/weir-pg/weir/weirui"
)

const sessionCookie = "weir_session"

// session is a user who has logged in.
type session struct {
	ID    string      `json:"id"`
	Name  string      `json:"name"`
	Role  weirui.Role `json:"role"`
	Until time.Time   `json:"until"`
}

// session returns the session of a request.
func (a *access) session(r *http.Request) (s session, ok bool) {
	ok = a.kept(r, sessionCookie, &s) && s.ID != "" && a.now().Before(s.Until) && s.Role > weirui.Nobody && !a.revoked.has(s)
	return s, ok
}

// keep gives the browser a cookie with a value that it can neither read nor change.
func (a *access) keep(w http.ResponseWriter, name string, value any, age time.Duration) error {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode a cookie: %w", err)
	}
	a.cookie(w, name, a.seal.close(name, text), int(age/time.Second))
	return nil
}

// kept reads a cookie that keep has set.
func (a *access) kept(r *http.Request, name string, value any) bool {
	c, err := r.Cookie(a.prefix + name)
	if err != nil {
		return false
	}
	text, ok := a.seal.open(name, c.Value)
	return ok && json.Unmarshal(text, value) == nil
}

func (a *access) forget(w http.ResponseWriter, name string) { a.cookie(w, name, "", -1) }

func (a *access) cookie(w http.ResponseWriter, name, value string, age int) {
	http.SetCookie(w, &http.Cookie{
		Name: a.prefix + name, Value: value, MaxAge: age, Path: a.base.EscapedPath(), Secure: a.base.Scheme == "https", HttpOnly: true,
		SameSite: http.SameSiteLaxMode, // strict would not send it on the way back from the provider
	})
}

// seal encrypts and authenticates.
type seal struct{ cipher cipher.AEAD }

func newSeal(secret []byte, context string) (*seal, error) {
	key, err := hkdf.Key(sha256.New, secret, nil, "weir UI sessions: "+context, 32)
	if err != nil {
		return nil, fmt.Errorf("derive the key of sessions: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("derive the key of sessions: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, fmt.Errorf("derive the key of sessions: %w", err)
	}
	return &seal{aead}, nil
}

// close seals a text, for one purpose.
func (s *seal) close(purpose string, text []byte) string {
	return base64.RawURLEncoding.EncodeToString(s.cipher.Seal(nil, nil, text, []byte(purpose)))
}

// open returns a text that was sealed for this purpose.
func (s *seal) open(purpose, sealed string) ([]byte, bool) {
	raw, err := base64.RawURLEncoding.DecodeString(sealed)
	if err != nil {
		return nil, false
	}
	text, err := s.cipher.Open(nil, nil, raw, []byte(purpose))
	return text, err == nil
}
