package oidc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
)

// provider is an OpenID Connect provider that has described itself.
type provider struct {
	*oidc.Provider
	oauth    oauth2.Config
	verifier *oidc.IDTokenVerifier
	client   *http.Client
	logout   string // where users log out there; "": it does not say
}

// question is that to the provider to describe itself.
type question struct {
	began time.Time
	done  chan struct{} // closed when the others are set
	ended time.Time
	found *provider
	err   error
}

// provider returns the provider, once it has described itself. Those who ask at the same time ask it once; one that does not answer delays none of them for long, and
// those who come later not at all.
func (a *access) provider(ctx context.Context) (*provider, error) {
	q := a.question(ctx)
	late := time.NewTimer(patience - time.Since(q.began))
	defer late.Stop()
	select {
	case <-q.done:
		return q.found, q.err
	default:
	}
	select {
	case <-q.done:
		return q.found, q.err
	case <-late.C:
		return nil, fmt.Errorf("the provider has not described itself within %s", patience)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// question returns the newest question, or asks another if that was in vain.
func (a *access) question(ctx context.Context) *question {
	a.mu.Lock()
	defer a.mu.Unlock()
	if q := a.asked; q != nil {
		select {
		case <-q.done:
			if q.found != nil || time.Since(q.ended) < askAgain {
				return q
			}
		default:
			return q
		}
	}
	q := &question{began: time.Now(), done: make(chan struct{})}
	a.asked = q
	go func(ctx context.Context) { // ends with its calls, which have a timeout
		defer close(q.done)
		q.found, q.err = a.discover(ctx)
		q.ended = time.Now()
	}(context.WithoutCancel(ctx)) // others wait for the answer, too
	return q
}

// found is the provider, if it has described itself.
func (a *access) found() *provider {
	a.mu.Lock()
	q := a.asked
	a.mu.Unlock()
	if q == nil {
		return nil
	}
	select {
	case <-q.done:
		return q.found
	default:
		return nil
	}
}

func (a *access) discover(ctx context.Context) (*provider, error) {
	p := &provider{client: &http.Client{Timeout: callWithin}}
	ctx = oidc.ClientContext(ctx, p.client)
	var err error
	if p.Provider, err = oidc.NewProvider(ctx, a.Issuer); err != nil {
		return nil, fmt.Errorf("ask the provider to describe itself: %w", err)
	}
	var described struct {
		Scopes []string `json:"scopes_supported"`
		Logout string   `json:"end_session_endpoint"`
	}
	if err := p.Provider.Claims(&described); err != nil {
		return nil, fmt.Errorf("read how the provider describes itself: %w", err)
	}
	scopes := []string{oidc.ScopeOpenID, "profile", "email"}
	if !slices.Contains(scopes, a.RoleClaim) && slices.Contains(described.Scopes, a.RoleClaim) {
		scopes = append(scopes, a.RoleClaim) // some providers have a scope for the claim groups, others refuse it
	}
	p.oauth = oauth2.Config{
		ClientID: a.ClientID, ClientSecret: a.ClientSecret, Endpoint: p.Endpoint(), Scopes: scopes,
		RedirectURL: a.base.JoinPath("auth/callback").String(),
	}
	p.verifier = p.Provider.VerifierContext(ctx, &oidc.Config{ClientID: a.ClientID, Now: a.now})
	if isURL(described.Logout) {
		p.logout = described.Logout
	}
	return p, nil
}

// logoutURL is where the user can log out at the provider.
func (p *provider) logoutURL(client string) string {
	if p.logout == "" {
		return ""
	}
	u, err := url.Parse(p.logout)
	if err != nil {
		return ""
	}
	q := u.Query()
	q.Set("client_id", client)
	u.RawQuery = q.Encode()
	return u.String()
}

// redeem exchanges a code for what the provider says about the user.
func (p *provider) redeem(ctx context.Context, code string, l login, claim string) (claims, error) {
	ctx, cancel := context.WithTimeout(oidc.ClientContext(ctx, p.client), callWithin)
	defer cancel()
	token, err := p.oauth.Exchange(ctx, code, oauth2.VerifierOption(l.Verifier))
	if err != nil {
		var refused *oauth2.RetrieveError
		if errors.As(err, &refused) { // its text has the whole answer
			return nil, fmt.Errorf("the provider refuses the code with %s, %.200q", refused.Response.Status, refused.ErrorCode)
		}
		return nil, fmt.Errorf("exchange the code: %w", err)
	}
	raw, ok := token.Extra("id_token").(string)
	if !ok {
		return nil, errors.New("the provider's answer has no ID token: allow the scope openid for this client")
	}
	id, err := p.verifier.Verify(ctx, raw)
	if err != nil {
		return nil, fmt.Errorf("verify the ID token: %w", err)
	}
	if id.Nonce != l.Nonce {
		return nil, errors.New("the ID token is from another login")
	}
	var said claims
	if err := id.Claims(&said); err != nil {
		return nil, fmt.Errorf("read the ID token: %w", err)
	}
	_, ok = said[claim]
	if named := said.text("preferred_username") != "" || said.text("email") != ""; ok && named || p.UserInfoEndpoint() == "" {
		return said, nil
	}
	// Some providers keep the token small, and say the rest when asked.
	more, err := p.UserInfo(ctx, oauth2.StaticTokenSource(token))
	if err != nil {
		return nil, fmt.Errorf("ask the provider about the user: %w", err)
	}
	if more.Subject != id.Subject {
		return nil, errors.New("the provider's answer is about another user")
	}
	var rest claims
	if err := more.Claims(&rest); err != nil {
		return nil, fmt.Errorf("read what the provider says about the user: %w", err)
	}
	for name, value := range rest {
		if _, ok := said[name]; !ok {
			said[name] = value
		}
	}
	return said, nil
}

// claims are what a provider says about a user.
type claims map[string]any

func (c claims) text(name string) string {
	text, _ := c[name].(string)
	return text
}

// user is the user's name, for people.
func (c claims) user() string {
	if name := c.text("preferred_username"); name != "" {
		return name
	}
	if email := c.text("email"); email != "" && c["email_verified"] == true {
		return email
	}
	return c.text("sub")
}

// values are the texts of a claim. An address that the provider has not verified says nothing.
func (c claims) values(name string) (all []string) {
	if name == "email" && c["email_verified"] != true {
		return nil
	}
	switch v := c[name].(type) {
	case string:
		return []string{v}
	case []any:
		for _, one := range v {
			if text, ok := one.(string); ok {
				all = append(all, text)
			}
		}
	}
	return all
}
