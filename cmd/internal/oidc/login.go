package oidc

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/weir-pg/weir/weirui"
)

// login is a login that has begun. It is in a cookie of its own, so that each tab of a browser may begin one.
type login struct {
	State    string    `json:"state"`
	Nonce    string    `json:"nonce"`
	Verifier string    `json:"verifier"`
	Back     string    `json:"back"` // below the UI
	Until    time.Time `json:"until"`
}

const loginCookie = "weir_login_" // with the first letters of the state

var isState = regexp.MustCompile(`^[A-Z2-7]{26,64}$`).MatchString // what rand.Text returns

// begin sends the browser to the provider.
func (a *access) begin(w http.ResponseWriter, r *http.Request, back string) {
	p, err := a.provider(r.Context())
	if err != nil {
		a.unreached.Warn(a.Logger, "weir: nobody can log in to the UI: the identity provider can't be reached", "issuer", a.Issuer, "address", a.ClientAddress(r), "error", err)
		show(w, r, page{Status: http.StatusBadGateway, Title: "Nobody can log in", Text: "The identity provider can't be reached. Try again in a moment; the server's log says more.", Link: "auth/login", Follow: "Try again"})
		return
	}
	var open []string
	for _, c := range r.Cookies() {
		if name, ok := strings.CutPrefix(c.Name, a.prefix); ok && strings.HasPrefix(name, loginCookie) {
			open = append(open, name)
		}
	}
	if len(open) >= loginsOpen { // they would fill the header of each request
		for _, name := range open {
			a.forget(w, name)
		}
	}
	l := login{State: rand.Text(), Nonce: rand.Text(), Verifier: oauth2.GenerateVerifier(), Back: back, Until: a.now().Add(loginWithin)}
	if err := a.keep(w, nameOf(l.State), l, loginWithin); err != nil {
		http.Error(w, "The login can't begin.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Location", p.oauth.AuthCodeURL(l.State, oidc.Nonce(l.Nonce), oauth2.S256ChallengeOption(l.Verifier)))
	w.WriteHeader(http.StatusSeeOther)
}

func nameOf(state string) string { return loginCookie + state[:8] }

// callback ends a login: the provider has sent the browser back.
func (a *access) callback(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	state := q.Get("state")
	var l login
	if !isState(state) || !a.kept(r, nameOf(state), &l) || l.State != state || a.now().After(l.Until) {
		a.refuse(w, r, http.StatusBadRequest, "This login was not begun in this browser, or too long ago. The UI's address is "+a.base.String(), errors.New("no such login has begun in this browser"))
		return
	}
	a.forget(w, nameOf(state))
	if text := q.Get("error"); text != "" {
		a.refuse(w, r, http.StatusForbidden, fmt.Sprintf("The identity provider has not let you in: %.200q, %.200q.", text, q.Get("error_description")), fmt.Errorf("the provider says %.200q", text))
		return
	}
	p, err := a.provider(r.Context())
	if err != nil {
		a.refuse(w, r, http.StatusBadGateway, "The identity provider can't be reached. Try again in a moment.", err)
		return
	}
	if !a.enter(r.Context()) {
		a.refuse(w, r, http.StatusServiceUnavailable, "Too many are logging in just now. Try again.", errors.New("too many logins at a time"))
		return
	}
	defer func() { <-a.calls }()
	said, err := p.redeem(r.Context(), q.Get("code"), l, a.RoleClaim)
	if err != nil {
		a.refuse(w, r, http.StatusBadGateway, "The login has failed. Try again; the server's log says more.", err)
		return
	}
	values := said.values(a.RoleClaim)
	s := session{ID: rand.Text(), Name: cut(said.user()), Role: a.Roles.Of(values...), Until: a.now().Add(sessionFor)}
	if s.Role == weirui.Nobody {
		a.nobodies.Warn(a.Logger, "weir: a user of the identity provider has no role in the UI: give one to a value of the claim", "user", s.Name, "claim", a.RoleClaim, "values", fmt.Sprintf("%.500q", values), "address", a.ClientAddress(r))
		show(w, r, page{
			Status: http.StatusForbidden, Title: "No role", Text: fmt.Sprintf("%s has no role here: ask who operates this server for one. The identity provider says of you: %s is %.500q.", s.Name, a.RoleClaim, values),
			Link: "auth/login", Follow: "Log in as somebody else", Provider: p.logoutURL(a.ClientID),
		})
		return
	}
	if err := a.keep(w, sessionCookie, s, sessionFor); err != nil {
		a.refuse(w, r, http.StatusInternalServerError, "The session can't begin.", err)
		return
	}
	a.Logger.Info("weir: a user has logged in to the UI", "user", s.Name, "subject", said.text("sub"), "role", s.Role.String(), "address", a.ClientAddress(r))
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Location", "../"+l.Back) // relative: it can't lead elsewhere
	w.WriteHeader(http.StatusSeeOther)
}

// enter waits for a moment until few enough logins are being checked; false: it has waited in vain.
func (a *access) enter(ctx context.Context) bool {
	select {
	case a.waiting <- struct{}{}:
		defer func() { <-a.waiting }()
	default:
		return false
	}
	late := time.NewTimer(enterWithin)
	defer late.Stop()
	select {
	case a.calls <- struct{}{}:
		return true
	case <-late.C:
	case <-ctx.Done():
	}
	return false
}

// refuse shows why a login has failed, and logs it.
func (a *access) refuse(w http.ResponseWriter, r *http.Request, status int, text string, err error) {
	a.failed.Warn(a.Logger, "weir: a login to the UI has failed", "address", a.ClientAddress(r), "error", err)
	show(w, r, page{Status: status, Title: "Not logged in", Text: text, Link: "auth/login", Follow: "Log in"})
}

// pathOf is where a request goes to, below the UI, to come back to; "": to its first page.
func pathOf(r *http.Request) string {
	to := strings.TrimPrefix(r.URL.EscapedPath(), "/")
	if clean := path.Clean(r.URL.Path); clean != r.URL.Path && clean+"/" != r.URL.Path {
		return "" // it may not be below the UI
	}
	if r.URL.RawQuery != "" {
		to += "?" + r.URL.RawQuery
	}
	if len(to) > 1000 {
		return ""
	}
	return to
}

func cut(text string) string {
	if len(text) <= 200 {
		return text
	}
	return strings.ToValidUTF8(text[:200], "")
}
