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

// provider returns the provider, which is asked to describe itself once.
func (a *access) provider(ctx context.Context) (*provider, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.found != nil:
		return a.found, nil
	case a.trouble != nil && time.Since(a.tried) < askAgain:
		return nil, a.trouble
	}
	a.found, a.trouble = a.discover(ctx)
	a.tried = time.Now()
	return a.found, a.trouble
}

func (a *access) discover(ctx context.Context) (*provider, error) {
	p := &provider{client: &http.Client{Timeout: callWithin}}
	ctx = oidc.ClientContext(context.WithoutCancel(ctx), p.client) // others wait for the answer, too
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
