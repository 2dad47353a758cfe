package web

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/internal/pgtest"
)

var secret = []byte("0123456789abcdef0123456789abcdef")

// may returns a token's claims; change, if not nil, changes them.
func may(subscribe, publish []string, change func(jwt.MapClaims)) jwt.MapClaims {
	c := jwt.MapClaims{
		"aud": "weir", "iss": "test", "exp": time.Now().Add(time.Hour).Unix(),
		"weir": map[string]any{"subscribe": subscribe, "publish": publish},
	}
	if change != nil {
		change(c)
	}
	return c
}

func sign(t testing.TB, method jwt.SigningMethod, key any, id string, c jwt.MapClaims) string {
	t.Helper()
	token := jwt.NewWithClaims(method, c)
	if id != "" {
		token.Header["kid"] = id
	}
	s, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func hs256(t testing.TB, c jwt.MapClaims) string {
	return sign(t, jwt.SigningMethodHS256, secret, "", c)
}

func withSecret(t testing.TB) func(*Config) {
	t.Helper()
	a, err := NewJWT(JWTConfig{Secret: secret, Audience: "weir", Issuer: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return func(c *Config) { c.Authorizer = a }
}

func bearerOf(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }

func TestTokensAllowWhatTheyNameAndNoMore(t *testing.T) {
	t.Parallel()
	r := newRig(t, newMemory(), withSecret(t))
	both := hs256(t, may([]string{"orders.*", "news"}, []string{"chat.>"}, nil))
	onlySubscribe := hs256(t, may([]string{">"}, nil, nil))
	onlyPublish := hs256(t, may(nil, []string{">"}, nil))
	for _, try := range []struct {
		token, channel     string
		subscribe, publish int // status
	}{
		{both, "orders.new", 200, 403},
		{both, "orders.*", 200, 403},
		{both, "orders.>", 403, 403},
		{both, "orders.new.big", 403, 403},
		{both, "news", 200, 403},
		{both, "*", 403, 403},
		{both, "chat.a", 403, 200},
		{both, "chat.a.b", 403, 200},
		{both, "chat", 403, 403},
		{onlySubscribe, "x.y", 200, 403},
		{onlySubscribe, ">", 200, 403},
		{onlyPublish, "x.y", 403, 200},
		{"", "x", 401, 401},
		{"nonsense", "x", 401, 401},
	} {
		header := bearerOf(try.token)
		if try.token == "" {
			header = http.Header{}
		}
		response, cancel := r.get("/v1/events?"+url.Values{"channel": {try.channel}}.Encode(), header)
		cancel()
		if response.StatusCode != try.subscribe {
			t.Errorf("event stream on %s: status %d, want %d", try.channel, response.StatusCode, try.subscribe)
		}
		if status, answer := r.post("?"+url.Values{"channel": {try.channel}}.Encode(), "x", header); status != try.publish {
			t.Errorf("publish to %s: status %d %v, want %d", try.channel, status, answer, try.publish)
		}
		c, response, err := r.dial("", header)
		if try.subscribe == 401 {
			if err == nil || response.StatusCode != 401 {
				t.Errorf("WebSocket with a bad token: %v, want status 401", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for request, status := range map[string]int{"subscribe": try.subscribe, "publish": try.publish} {
			// Skip messages: the client may receive what it publishes before the answer.
			s := c.ask(`{"type":%q,"channels":[%q],"channel":%q,"id":1}`, request, try.channel, try.channel)
			for s.Type == "message" {
				s = c.next()
			}
			if ok := s.Type != "error"; ok != (status == 200) || !ok && s.Code != "denied" {
				t.Errorf("WebSocket: %s %s: %+v, want as status %d", request, try.channel, s, status)
			}
			c.ask(`{"type":"unsubscribe","channels":[%q]}`, try.channel)
		}
		// If one channel is not allowed, the whole request is refused.
		if s := c.ask(`{"type":"subscribe","channels":["news","not.this.one"]}`); try.token == both && s.Code != "denied" {
			t.Errorf("got %+v, want denied", s)
		}
	}
}

func TestTokensMayComeInThreeWays(t *testing.T) {
	t.Parallel()
	r := newRig(t, newMemory(), withSecret(t))
	token := hs256(t, may([]string{"a"}, []string{"a"}, nil))
	if response, _ := r.get("/v1/events?channel=a&access_token="+token, nil); response.StatusCode != 200 {
		t.Errorf("in the URL: status %d", response.StatusCode)
	}
	if status, answer := r.post("?channel=a&access_token="+token, "x", nil); status != 200 {
		t.Errorf("in the URL, publishing: status %d %v", status, answer)
	}
	c, _, err := r.dial("", nil, "weir.v1", "bearer."+token)
	if err != nil {
		t.Fatal(err)
	}
	if p := c.conn.Subprotocol(); p != "weir.v1" {
		t.Errorf("the subprotocol is %q, want weir.v1: browsers insist on one that they offered", p)
	}
	if s := c.ask(`{"type":"subscribe","channels":["a"]}`); s.Type != "subscribed" {
		t.Errorf("as a subprotocol: %+v", s)
	}
}

func TestTokensThatAreWrongAreRefused(t *testing.T) {
	t.Parallel()
	a, err := NewJWT(JWTConfig{Secret: secret, Audience: "weir", Issuer: "test"})
	if err != nil {
		t.Fatal(err)
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	good := func(change func(jwt.MapClaims)) jwt.MapClaims { return may([]string{">"}, nil, change) }
	unsigned, err := jwt.NewWithClaims(jwt.SigningMethodNone, good(nil)).SignedString(jwt.UnsafeAllowNoneSignatureType)
	if err != nil {
		t.Fatal(err)
	}
	for name, token := range map[string]string{
		"expired":          hs256(t, good(func(c jwt.MapClaims) { c["exp"] = time.Now().Add(-time.Minute).Unix() })),
		"without exp":      hs256(t, good(func(c jwt.MapClaims) { delete(c, "exp") })),
		"not yet valid":    hs256(t, good(func(c jwt.MapClaims) { c["nbf"] = time.Now().Add(time.Minute).Unix() })),
		"other audience":   hs256(t, good(func(c jwt.MapClaims) { c["aud"] = []string{"other"} })),
		"without audience": hs256(t, good(func(c jwt.MapClaims) { delete(c, "aud") })),
		"other issuer":     hs256(t, good(func(c jwt.MapClaims) { c["iss"] = "other" })),
		"other secret":     sign(t, jwt.SigningMethodHS256, []byte(strings.Repeat("x", 32)), "", good(nil)),
		"other method":     sign(t, jwt.SigningMethodHS512, secret, "", good(nil)),
		"unsigned":         unsigned,
		"RS256, no keys":   sign(t, jwt.SigningMethodRS256, rsaKey, "", good(nil)),
		"bad pattern":      hs256(t, may([]string{"a.>.b"}, nil, nil)),
		"empty":            "",
	} {
		_, err := a.Authorize(t.Context(), Ask{Token: token, Action: Subscribe, Filters: []hub.Filter{hub.Channel("x")}})
		var f *Failure
		if !errors.As(err, &f) || f.Status != http.StatusUnauthorized {
			t.Errorf("%s: %v, want unauthorized", name, err)
		}
	}
	if _, err := a.Authorize(t.Context(), Ask{Token: hs256(t, good(nil)), Action: Subscribe}); err != nil {
		t.Errorf("a valid token: %v", err)
	}
	for name, c := range map[string]JWTConfig{"nothing": {}, "a short secret": {Secret: []byte("short")}, "no file": {KeysFile: "/does/not/exist"}} {
		if _, err := NewJWT(c); err == nil {
			t.Errorf("NewJWT accepts %s", name)
		}
	}
}

// jwks writes public keys as a JWK set, atomically, as a careful deployment does.
func jwks(t *testing.T, path string, at time.Time, keys map[string]crypto.PublicKey) {
	t.Helper()
	encode := base64.RawURLEncoding.EncodeToString
	var set struct {
		Keys []map[string]string `json:"keys"`
	}
	set.Keys = append(set.Keys, map[string]string{"kty": "oct", "kid": "not for us", "k": "AA"})
	for id, key := range keys {
		switch k := key.(type) {
		case *rsa.PublicKey:
			set.Keys = append(set.Keys, map[string]string{
				"kty": "RSA", "kid": id, "use": "sig", "alg": "RS256", "n": encode(k.N.Bytes()), "e": encode(big.NewInt(int64(k.E)).Bytes()),
			})
		case *ecdsa.PublicKey:
			b, err := k.Bytes()
			if err != nil {
				t.Fatal(err)
			}
			set.Keys = append(set.Keys, map[string]string{"kty": "EC", "kid": id, "crv": "P-256", "x": encode(b[1:33]), "y": encode(b[33:])})
		}
	}
	b, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path+".new", at, at); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func TestKeysFileIsReadAgainWhenItChanges(t *testing.T) {
	t.Parallel()
	first, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	second, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "keys.json")
	jwks(t, path, time.Now().Add(-time.Hour), map[string]crypto.PublicKey{"one": first.Public()})
	a, err := NewJWT(JWTConfig{KeysFile: path, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	check := func(token string) error {
		_, err := a.Authorize(t.Context(), Ask{Token: token, Action: Subscribe})
		return err
	}
	claims := may([]string{">"}, nil, nil)
	one := sign(t, jwt.SigningMethodRS256, first, "one", claims)
	two := sign(t, jwt.SigningMethodES256, second, "two", claims)
	if err := check(one); err != nil {
		t.Error(err)
	}
	if err := check(sign(t, jwt.SigningMethodRS256, first, "", claims)); err != nil {
		t.Errorf("a token without kid, with only one key: %v", err)
	}
	if check(sign(t, jwt.SigningMethodRS256, first, "other", claims)) == nil {
		t.Error("a token with an unknown key is accepted")
	}
	public, err := json.Marshal(first.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	if check(sign(t, jwt.SigningMethodHS256, public, "one", claims)) == nil {
		t.Error("a token signed with the public key as a secret is accepted")
	}
	if check(two) == nil {
		t.Error("the second key is accepted before it is in the file")
	}
	jwks(t, path, time.Now(), map[string]crypto.PublicKey{"two": second.Public()})
	eventually(t, func() error { return check(two) })
	if check(one) == nil {
		t.Error("the first key is still valid after it was removed")
	}
	// While the file is half written, the previous keys remain valid, but only until hold has passed.
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	keys := a.(*bearer).keys
	age := func(by time.Duration) {
		keys.mu.Lock()
		defer keys.mu.Unlock()
		keys.tried, keys.good = keys.tried.Add(-by), keys.good.Add(-by)
	}
	age(filePace.every)
	if err := check(two); err != nil {
		t.Error(err)
	}
	age(filePace.hold)
	if check(two) == nil {
		t.Error("a key is still valid although its file has been damaged for longer than hold")
	}
	// An empty set, and a deleted file, revoke all keys.
	for what, gone := range map[string]func() error{
		"the set is empty":    func() error { return os.WriteFile(path, []byte(`{"keys":[]}`), 0o600) },
		"the file is deleted": func() error { return os.Remove(path) },
	} {
		jwks(t, path, time.Now(), map[string]crypto.PublicKey{"two": second.Public()})
		eventually(t, func() error { return check(two) })
		if err := gone(); err != nil {
			t.Fatal(err)
		}
		age(filePace.every)
		if what == "the file is deleted" {
			age(filePace.hold)
		}
		if check(two) == nil {
			t.Errorf("%s, and its key is still valid", what)
		}
	}
}

// TestKeysComeFromAURL: tokens with unknown keys cause few requests, and when a key is removed, its tokens are no longer valid and connections
// that used it are closed.
func TestKeysComeFromAURL(t *testing.T) {
	t.Parallel()
	first, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "keys.json")
	jwks(t, path, time.Now(), map[string]crypto.PublicKey{"one": first.Public()})
	var asked atomic.Int64
	service := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		http.ServeFile(rw, r, path)
	}))
	t.Cleanup(service.Close)
	a, err := NewJWT(JWTConfig{KeysURL: service.URL, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, newMemory(), func(c *Config) { c.Authorizer, c.Heartbeat = a, 20*time.Millisecond })
	token := sign(t, jwt.SigningMethodRS256, first, "one", may([]string{">"}, nil, nil))
	c, _, err := r.dial("", bearerOf(token))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		other := sign(t, jwt.SigningMethodRS256, first, fmt.Sprint(i), may([]string{">"}, nil, nil))
		if _, err := a.Authorize(t.Context(), Ask{Token: other, Action: Connect}); err == nil {
			t.Error("a token with an unknown key is accepted")
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("tokens with unknown keys caused %d requests, want 1", n)
	}
	if err := os.WriteFile(path, []byte(`{"keys":[]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	keys := a.(*bearer).keys
	keys.mu.Lock()
	keys.tried = keys.tried.Add(-urlPace.every)
	keys.mu.Unlock()
	if code := c.end(); code != "4401" {
		t.Errorf("a client whose key was removed is closed with %s, want 4401", code)
	}
	if _, err := a.Authorize(t.Context(), Ask{Token: token, Action: Connect}); err == nil {
		t.Error("a token of the removed key is accepted")
	}
	if _, err := NewJWT(JWTConfig{KeysURL: "http://keys.example.com/"}); err == nil {
		t.Error("NewJWT accepts keys over http from another host")
	}
}

func TestCriticalParametersThatAreNotUnderstoodAreRefused(t *testing.T) {
	t.Parallel()
	a, err := NewJWT(JWTConfig{Secret: secret})
	if err != nil {
		t.Fatal(err)
	}
	token := jwt.NewWithClaims(jwt.SigningMethodHS256, may([]string{">"}, nil, nil))
	token.Header["crit"] = []string{"exp-in-header"}
	s, err := token.SignedString(secret)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Authorize(t.Context(), Ask{Token: s, Action: Connect}); err == nil {
		t.Error("the token is accepted")
	}
}

func TestConnectionEndsWithItsToken(t *testing.T) {
	t.Parallel()
	a, err := NewJWT(JWTConfig{Secret: secret, Leeway: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, newMemory(), func(c *Config) { c.Authorizer = a })
	soon := func() string {
		return hs256(t, may([]string{"a"}, nil, func(c jwt.MapClaims) { c["exp"] = time.Now().Add(6 * time.Second).Unix() }))
	}
	long := hs256(t, may([]string{"a", "b"}, []string{"b"}, nil))
	token := soon()
	ends, _, err := r.dial("", bearerOf(token))
	if err != nil {
		t.Fatal(err)
	}
	stays, _, err := r.dial("", bearerOf(token))
	if err != nil {
		t.Fatal(err)
	}
	sse := r.sse("?channel=a&access_token="+token, "")
	for _, c := range []*wsClient{ends, stays} {
		c.ask(`{"type":"subscribe","channels":["a"]}`)
	}
	expectType(t, sse, "subscribed")
	// A token that does not allow the stream's subscriptions changes nothing; one that does replaces the old one.
	if s := stays.ask(`{"type":"auth","token":%q}`, hs256(t, may([]string{"b"}, nil, nil))); s.Code != "denied" {
		t.Errorf("got %+v, want denied", s)
	}
	if s := stays.ask(`{"type":"auth","token":"nonsense"}`); s.Code != "unauthorized" {
		t.Errorf("got %+v, want unauthorized", s)
	}
	if s := stays.ask(`{"type":"auth","id":5,"token":%q}`, long); s.Type != "authorized" || s.Expires == "" || string(s.ID) != "5" {
		t.Errorf("got %+v, want authorized", s)
	}
	if code := ends.end(); code != "4401" {
		t.Errorf("closed with %s, want 4401", code)
	}
	if code := sse.end(); code != "expired" {
		t.Errorf("the event stream ended with %q, want expired", code)
	}
	r.publish("a=still here")
	expect(t, stays, "a=still here")
	if s := stays.ask(`{"type":"publish","channel":"b"}`); s.Type != "published" {
		t.Errorf("with the new token: %+v", s)
	}
}

func TestNobodyIsLetInByDefault(t *testing.T) {
	t.Parallel()
	r := newRig(t, newMemory(), func(c *Config) { c.Anonymous = false })
	if status, _ := r.post("?channel=a", "x", nil); status != http.StatusForbidden {
		t.Errorf("publish: status %d, want 403", status)
	}
	if response, _ := r.get("/v1/events?channel=a", nil); response.StatusCode != http.StatusForbidden {
		t.Errorf("events: status %d, want 403", response.StatusCode)
	}
	if _, response, err := r.dial("", nil); err == nil || response.StatusCode != http.StatusForbidden {
		t.Errorf("WebSocket: %v, want status 403", err)
	}
}

func TestCallbackDecides(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	questions := make(chan question, 100)
	service := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		var q question
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil || r.Method != http.MethodPost {
			http.Error(rw, "what?", http.StatusBadRequest)
			return
		}
		questions <- q
		switch {
		case q.Token == "unknown":
			rw.WriteHeader(http.StatusUnauthorized)
		case q.Token == "broken":
			rw.WriteHeader(http.StatusInternalServerError)
		case q.Token == "gibberish":
			fmt.Fprint(rw, `{"allow": 7}`)
		case q.Token == "elsewhere":
			http.Redirect(rw, r, "/again", http.StatusTemporaryRedirect)
		case q.Token == "stuck":
			<-r.Context().Done()
		case q.Action == Connect:
			fmt.Fprint(rw, `{"allow": true}`)
		case q.Action == Publish:
			fmt.Fprint(rw, `{"allow": ["mine.>"]}`)
		case q.Channels[0] == "secret":
			fmt.Fprint(rw, `{"allow": false}`)
		default:
			fmt.Fprint(rw, `{"allow": true, "expires_in": 3600}`)
		}
	}))
	t.Cleanup(service.Close)
	within := func(timeout time.Duration) *rig {
		a, err := NewCallback(CallbackConfig{URL: service.URL, Timeout: timeout, Cache: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		return newRig(t, newMemory(), func(c *Config) { c.Authorizer = a })
	}
	r := within(generous)
	c, _, err := r.dial("", bearerOf("t"))
	if err != nil {
		t.Fatal(err)
	}
	for _, try := range []struct{ request, kind, code string }{
		{`{"type":"subscribe","channels":["a","b.*"]}`, "subscribed", ""},
		{`{"type":"subscribe","channels":["secret"]}`, "error", "denied"},
		{`{"type":"publish","channel":"mine.x"}`, "published", ""},
		{`{"type":"publish","channel":"mine.y"}`, "published", ""},
		{`{"type":"publish","channel":"yours"}`, "error", "denied"},
	} {
		if s := c.ask("%s", try.request); s.Type != try.kind || s.Code != try.code {
			t.Errorf("%s: got %+v, want %s %s", try.request, s, try.kind, try.code)
		}
	}
	if q := pgtest.Receive(t, questions, "a question"); q.Token != "t" || q.Action != Connect || q.Remote != "127.0.0.1" || q.Channels == nil {
		t.Errorf("the first question was %+v", q)
	}
	// The answer for mine.x covered mine.y too; another connection that asks the same reuses an answer.
	before := asked.Load()
	if before != 5 {
		t.Errorf("%d questions were asked, want 5", before)
	}
	if other, _, err := r.dial("", bearerOf("t")); err != nil || other.ask(`{"type":"subscribe","channels":["a","b.*"]}`).Type != "subscribed" {
		t.Error("another connection is not served", err)
	}
	if n := asked.Load(); n != before {
		t.Errorf("%d more questions were asked, want none", n-before)
	}
	for token, want := range map[string]int{"unknown": 401, "broken": 503, "gibberish": 503, "elsewhere": 503, "stuck": 503} {
		r := r
		if token == "stuck" {
			r = within(100 * time.Millisecond)
		}
		if status, answer := r.post("?channel=mine.x", "x", bearerOf(token)); status != want || want == 503 && strings.Contains(fmt.Sprint(answer), "callback") {
			t.Errorf("%s: status %d %v, want %d", token, status, answer, want)
		}
	}
	if _, err := NewCallback(CallbackConfig{URL: "ftp://x"}); err == nil {
		t.Error("an ftp URL is accepted")
	}
}

func TestPagesOfOtherOriginsMayNotConnect(t *testing.T) {
	t.Parallel()
	r := newRig(t, newMemory(), func(c *Config) { c.Origins = []string{"https://*.example.com", "partner.test:8080"} })
	own, err := url.Parse(r.server.URL)
	if err != nil {
		t.Fatal(err)
	}
	for origin, ok := range map[string]bool{
		"":                           true, // not a page
		"http://" + own.Host:         true,
		"https://app.example.com":    true,
		"HTTPS://APP.EXAMPLE.COM":    true,
		"http://app.example.com":     false,
		"https://example.com":        false,
		"https://a.example.com.evil": false,
		"http://partner.test:8080":   true,
		"http://partner.test":        false,
		"http://evil.test":           false,
		"null":                       false,
	} {
		header := http.Header{}
		if origin != "" {
			header.Set("Origin", origin)
		}
		_, _, err := r.dial("", header)
		if (err == nil) != ok {
			t.Errorf("WebSocket from %q: %v, want ok = %v", origin, err, ok)
		}
		if status, _ := r.post("?channel=a", "x", header); (status == 200) != ok {
			t.Errorf("publish from %q: status %d, want ok = %v", origin, status, ok)
		}
		response, cancel := r.get("/v1/events?channel=a", header)
		cancel()
		reads := response.Header.Get("Access-Control-Allow-Origin")
		if (response.StatusCode == 200) != ok || ok && reads != origin || !ok && reads != "*" {
			t.Errorf("events from %q: status %d, which %q may read, want ok = %v", origin, response.StatusCode, reads, ok)
		}
	}
	for _, origin := range []string{"https://app.example.com", "http://evil.test"} { // which is told why it is refused by what follows
		request, err := http.NewRequestWithContext(t.Context(), http.MethodOptions, r.server.URL+"/v1/publish", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Origin", origin)
		request.Header.Set("Access-Control-Request-Method", "POST")
		response, err := r.server.Client().Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != http.StatusNoContent || !strings.Contains(response.Header.Get("Access-Control-Allow-Headers"), "Authorization") {
			t.Errorf("preflight from %q: status %d, %v", origin, response.StatusCode, response.Header)
		}
	}
	if _, err := New(Config{Hub: r.hub, Origins: []string{"[bad"}}); err == nil {
		t.Error("an invalid origin pattern is accepted")
	}
}
