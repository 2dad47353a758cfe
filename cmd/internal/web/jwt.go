package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/weir-pg/weir/internal/hub"
)

// JWTConfig defines which tokens are valid. Set Secret, a source of keys (KeysFile or KeysURL), or both.
type JWTConfig struct {
	Secret   []byte        // for HS256; at least 32 bytes
	KeysFile string        // a JWK set, for RS256 and ES256; read every second
	KeysURL  string        // the URL of one, used instead of KeysFile; read every minute
	Audience string        // required in the claim aud; empty: any
	Issuer   string        // required in the claim iss; empty: any
	Leeway   time.Duration // how far clocks may differ; 0: 5 s
	Logger   *slog.Logger  // nil: slog.Default()
}

const (
	defaultLeeway = 5 * time.Second
	minSecret     = 32  // bytes: RFC 7518 requires the length of the hash
	maxPatterns   = 100 // in one claim, or names of databases
)

// claims are a token's claims that are read here.
type claims struct {
	jwt.RegisteredClaims
	Weir struct {
		Info      json.RawMessage `json:"info"`
		Databases []string        `json:"databases"` // nil: the claim is missing
		Subscribe []string        `json:"subscribe"`
		Publish   []string        `json:"publish"`
		Jobs      []string        `json:"jobs"`
		Work      []string        `json:"work"`
		Enqueue   []string        `json:"enqueue"`
	} `json:"weir"`
}

// bearer authorizes clients by signed tokens.
type bearer struct {
	secret []byte
	keys   *keySet // nil: no keys
	parser *jwt.Parser
	leeway time.Duration
}

// NewJWT returns an Authorizer that verifies JSON Web Tokens.
func NewJWT(c JWTConfig) (Authorizer, error) {
	b := &bearer{secret: c.Secret, leeway: c.Leeway}
	if b.leeway == 0 {
		b.leeway = defaultLeeway
	}
	var methods []string
	if len(c.Secret) > 0 {
		if len(c.Secret) < minSecret {
			return nil, fmt.Errorf("web: the secret for tokens has %d bytes: use at least %d random bytes", len(c.Secret), minSecret)
		}
		methods = append(methods, "HS256")
	}
	if c.KeysFile != "" || c.KeysURL != "" {
		var err error
		if b.keys, err = openKeySet(c); err != nil {
			return nil, err
		}
		methods = append(methods, "RS256", "ES256")
	}
	if len(methods) == 0 {
		return nil, errors.New("web: nothing to verify tokens with: set a secret, a keys file, or a keys URL")
	}
	options := []jwt.ParserOption{jwt.WithValidMethods(methods), jwt.WithExpirationRequired(), jwt.WithLeeway(b.leeway)}
	if c.Audience != "" {
		options = append(options, jwt.WithAudience(c.Audience))
	}
	if c.Issuer != "" {
		options = append(options, jwt.WithIssuer(c.Issuer))
	}
	b.parser = jwt.NewParser(options...)
	return b, nil
}

// Authorize implements Authorizer.
func (b *bearer) Authorize(_ context.Context, ask Ask) (Grant, error) {
	if ask.Token == "" {
		return Grant{}, noToken
	}
	var c claims
	if _, err := b.parser.ParseWithClaims(ask.Token, &c, b.key); err != nil {
		return Grant{}, NoToken("the token is not valid: "+err.Error(), "get a new one")
	}
	if err := c.checkDatabase(ask); err != nil {
		return Grant{}, err
	}
	var patterns []string
	switch ask.Action {
	case Subscribe:
		patterns = c.Weir.Subscribe
	case Publish:
		patterns = c.Weir.Publish
	case WaitJobs:
		patterns = c.Weir.Jobs
	case Work:
		patterns = c.Weir.Work
	case Enqueue:
		patterns = c.Weir.Enqueue
	}
	if len(patterns) > maxPatterns {
		return Grant{}, NoToken(fmt.Sprintf("the token has %d patterns; the limit is %d", len(patterns), maxPatterns), "use broader patterns")
	}
	if len(patterns) == 0 && ask.Action != Connect {
		return Grant{}, Denied(fmt.Sprintf("%s is not allowed", ask.Action), fmt.Sprintf("the token's claim weir needs a list of allowed names under %q", ask.Action))
	}
	allow, err := hub.ParseFilters(patterns)
	if err != nil {
		return Grant{}, NoToken("the token's claim weir is not valid: "+err.Error(), "")
	}
	grant := Grant{Allow: allow, Expires: c.ExpiresAt.Add(b.leeway), User: c.Subject, Info: infoOf(c.Weir.Info)}
	if c.IssuedAt != nil {
		grant.Issued = c.IssuedAt.Time
	}
	return grant, nil
}

// checkDatabase returns an error if the token is for other databases, or does not say for which it is where there are several.
func (c *claims) checkDatabase(ask Ask) error {
	named := c.Weir.Databases
	switch {
	case !ask.Several && (named == nil || ask.Databases == nil):
		return nil
	case len(named) > maxPatterns:
		return NoToken(fmt.Sprintf("the token names %d databases; the limit is %d", len(named), maxPatterns), "use several tokens")
	case slices.ContainsFunc(named, func(name string) bool { return slices.Contains(ask.Databases, name) }):
		return nil
	}
	hint := `list its name under "databases" in the token's claim weir`
	for i, name := range ask.Databases {
		hint += []string{": ", " or "}[min(i, 1)] + strconv.Quote(name)
	}
	return Denied("the token is not for this database", hint)
}

// Revision implements revisable.
func (b *bearer) Revision() uint64 {
	if b.keys == nil {
		return 0
	}
	return b.keys.changes()
}

// key returns the key that verifies a token's signature. The signing method decides which kind of key that is, so a token can't be signed
// with a public key as if it were the secret.
func (b *bearer) key(t *jwt.Token) (any, error) {
	if _, ok := t.Header["crit"]; ok { // RFC 7515: a token with critical parameters that are not understood is invalid
		return nil, errors.New("it has critical header parameters (crit), which are not supported")
	}
	method := t.Method.Alg()
	if method == "HS256" {
		return b.secret, nil
	}
	id, _ := t.Header["kid"].(string)
	return b.keys.find(method, id)
}
