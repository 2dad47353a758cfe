// Package oidc lets users into the web UI who log in at an OpenID Connect provider: authorization code flow with PKCE, sessions in sealed cookies, and roles
// from a claim.
//
// Nothing is stored: any number of servers with the same configuration accept each other's sessions. A logout is remembered by the process that it reaches.
package oidc

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/weir-pg/weir/internal/seldom"
	"github.com/weir-pg/weir/weirui"
)

// Config configures an Access. Issuer, ClientID and URL are required.
type Config struct {
	Issuer   string // the provider's URL, below which it describes itself in .well-known/openid-configuration
	ClientID string

	// ClientSecret is what the provider knows this client by. Sessions are sealed with a key derived from it, so that all servers with the same secret accept them. "": the
	// provider relies on PKCE alone, and sessions are those of this process.
	ClientSecret string

	URL string // where browsers reach the UI. The redirect URI to register at the provider is this, with auth/callback

	RoleClaim string // a claim that is a text or a list of texts; "": groups
	Roles     weirui.Roles

	// ClientAddress returns the address of a request's client, for the log. nil: the address that the connection comes from.
	ClientAddress func(*http.Request) string

	Logger *slog.Logger // nil: slog.Default()
}

const (
	sessionFor  = time.Hour        // then the provider is asked again, usually without the user noticing
	loginWithin = 10 * time.Minute // the user has to log in at the provider
	callWithin  = 10 * time.Second // each call of the provider
	askAgain    = 5 * time.Second  // after it could not be reached
	patience    = 3 * time.Second  // logins wait for a provider that is being asked to describe itself
	callsAtOnce = 8                // logins that are being checked
	waitAtMost  = 100              // logins that wait for that
	enterWithin = 5 * time.Second  // how long
	loginsOpen  = 8                // of a browser: each of its tabs may begin one
	shortest    = 16               // bytes of a client secret
)

// access implements weirui.Access.
type access struct {
	Config
	base   *url.URL // URL, with a slash at its end
	prefix string   // of the names of cookies
	seal   *seal
	origin *http.CrossOriginProtection
	calls  chan struct{}
	now    func() time.Time

	waiting chan struct{}
	revoked revoked

	mu    sync.Mutex
	asked *question // the newest; nil: none yet

	unreached, failed, nobodies seldom.Log
}

// New returns an Access. It tries to reach the provider; if it can't, it logs that, and tries again with the next login.
func New(ctx context.Context, c Config) (weirui.Access, error) {
	a, err := newAccess(c)
	if err != nil {
		return nil, err
	}
	if _, err := a.provider(ctx); err != nil {
		a.Logger.Warn("weir: the UI's identity provider can't be reached, so nobody can log in to the UI: check the issuer, and that this machine reaches it", "issuer", c.Issuer, "error", err)
	}
	return a, nil
}

func newAccess(c Config) (*access, error) {
	base, err := baseURL(c.URL)
	switch {
	case c.ClientID == "":
		return nil, errors.New("the client's ID is missing: register a client at the provider")
	case !isURL(c.Issuer):
		return nil, fmt.Errorf("%q is not an issuer: it is the provider's URL, as https://login.example.com", c.Issuer)
	case err != nil:
		return nil, err
	case c.ClientSecret != "" && len(c.ClientSecret) < shortest:
		return nil, fmt.Errorf("the client's secret has %d bytes, and sessions are sealed with it: it must have %d at least", len(c.ClientSecret), shortest)
	}
	if c.RoleClaim == "" {
		c.RoleClaim = "groups"
	}
	if c.ClientAddress == nil {
		c.ClientAddress = func(r *http.Request) string { return r.RemoteAddr }
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	a := &access{Config: c, base: base, origin: http.NewCrossOriginProtection(), calls: make(chan struct{}, callsAtOnce), waiting: make(chan struct{}, waitAtMost), now: time.Now}
	secret := []byte(c.ClientSecret)
	if len(secret) == 0 {
		secret = make([]byte, 32)
		_, _ = rand.Read(secret) // never fails
	}
	// Whoever changes what decides about roles ends all sessions that were begun before.
	if a.seal, err = newSeal(secret, fmt.Sprintf("%q %q %q %q %v", c.Issuer, c.ClientID, base, c.RoleClaim, c.Roles)); err != nil {
		return nil, err
	}
	switch {
	case base.Scheme == "https" && base.Path == "/":
		a.prefix = "__Host-"
	case base.Scheme == "https":
		a.prefix = "__Secure-"
	}
	return a, nil
}

// baseURL parses the address of the UI.
func baseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || !isURL(text) || u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		return nil, fmt.Errorf("%q is not the address of the UI: it is where browsers reach it, as https://ops.example.com/weir/", text)
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		return nil, fmt.Errorf("%s is not encrypted, and sessions could be stolen: have browsers reach the UI by https", u)
	}
	if !strings.HasSuffix(u.Path, "/") {
		u.Path += "/"
	}
	return u, nil
}

func isURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != ""
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || ip != nil && ip.IsLoopback()
}

// Identify implements weirui.Access.
func (a *access) Identify(w http.ResponseWriter, r *http.Request) (weirui.User, bool) {
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch path := r.URL.Path; {
	case path == "/auth/callback" && reads:
		a.callback(w, r)
		return weirui.User{}, false
	case path == "/auth/login" && reads:
		a.begin(w, r, "")
		return weirui.User{}, false
	case path == "/auth/logout" && r.Method == http.MethodPost:
		a.logout(w, r)
		return weirui.User{}, false
	case strings.HasPrefix(path, "/auth/"):
		show(w, r, page{Status: http.StatusNotFound, Title: "Not found", Text: "There is no such page.", Link: "", Follow: "Go to the UI"})
		return weirui.User{}, false
	}
	if s, ok := a.session(r); ok {
		return weirui.User{Name: s.Name, Role: s.Role, Logout: "auth/logout"}, true
	}
	// Only somebody who looks at a page can log in at another.
	if !reads || r.Header.Get("Weir-Fragment") != "" || !strings.Contains(r.Header.Get("Accept"), "text/html") {
		show(w, r, page{Status: http.StatusUnauthorized, Title: "Not logged in", Text: "You are not logged in, or your session has ended.", Link: "auth/login", Follow: "Log in"})
		return weirui.User{}, false
	}
	a.begin(w, r, pathOf(r))
	return weirui.User{}, false
}

// logout ends the session, in this process. That of the provider continues.
func (a *access) logout(w http.ResponseWriter, r *http.Request) {
	if err := a.origin.Check(r); err != nil {
		show(w, r, page{Status: http.StatusForbidden, Title: "Forbidden", Text: "This request comes from another site.", Link: "", Follow: "Go to the UI"})
		return
	}
	if s, ok := a.session(r); ok {
		a.revoked.add(s, a.now()) // whoever has a copy of the cookie is out, too
		a.Logger.Info("weir: a user has logged out of the UI", "user", s.Name, "address", a.ClientAddress(r))
	}
	a.forget(w, sessionCookie)
	p := page{Status: http.StatusOK, Title: "Logged out", Text: "You are logged out here.", Link: "auth/login", Follow: "Log in again"}
	if found := a.found(); found != nil {
		p.Provider = found.logoutURL(a.ClientID)
	}
	show(w, r, p)
}
