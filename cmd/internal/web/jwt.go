package web

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/weir-pg/weir/internal/hub"
)

// JWTConfig says which tokens count. One of Secret and KeysFile, or both, is needed.
type JWTConfig struct {
	Secret   []byte        // for HS256; at least 32 bytes
	KeysFile string        // a JWK set, for RS256 and ES256; it is read every second
	KeysURL  string        // or where to get one; it is read every minute
	Audience string        // tokens must be for it; empty: for anybody
	Issuer   string        // tokens must be from it; empty: from anybody
	Leeway   time.Duration // by which clocks may differ; 0: 5 s
	Logger   *slog.Logger  // nil: slog.Default()
}

const (
	defaultLeeway = 5 * time.Second
	minSecret     = 32  // bytes: as long as the hash, says RFC 7518
	maxPatterns   = 100 // of one claim
)

// claims are those of a token that matter here.
type claims struct {
	jwt.RegisteredClaims
	Weir struct {
		Subscribe []string `json:"subscribe"`
		Publish   []string `json:"publish"`
		Jobs      []string `json:"jobs"`
	} `json:"weir"`
}

// bearer authorises by tokens that somebody else has signed.
type bearer struct {
	secret []byte
	keys   *keySet // nil: none
	parser *jwt.Parser
	leeway time.Duration
}

// NewJWT returns an Authorizer that reads JSON Web Tokens.
func NewJWT(c JWTConfig) (Authorizer, error) {
	b := &bearer{secret: c.Secret, leeway: c.Leeway}
	if b.leeway == 0 {
		b.leeway = defaultLeeway
	}
	var methods []string
	if len(c.Secret) > 0 {
		if len(c.Secret) < minSecret {
			return nil, fmt.Errorf("web: the secret for tokens has %d bytes: use at least %d random ones", len(c.Secret), minSecret)
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
		return nil, errors.New("web: tokens need a secret, a file of keys, or a URL of them")
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
	var patterns []string
	switch ask.Action {
	case Subscribe:
		patterns = c.Weir.Subscribe
	case Publish:
		patterns = c.Weir.Publish
	case WaitJobs:
		patterns = c.Weir.Jobs
	}
	if len(patterns) > maxPatterns {
		return Grant{}, NoToken(fmt.Sprintf("the token has %d patterns, at most %d are read", len(patterns), maxPatterns), "use broader ones")
	}
	if len(patterns) == 0 && ask.Action != Connect {
		return Grant{}, Denied(fmt.Sprintf("%s is not allowed", ask.Action), fmt.Sprintf("the token's claim weir must name channels in %q", ask.Action))
	}
	allow, err := hub.ParseFilters(patterns)
	if err != nil {
		return Grant{}, NoToken("the token's claim weir can't be read: "+err.Error(), "")
	}
	return Grant{Allow: allow, Expires: c.ExpiresAt.Add(b.leeway), User: c.Subject}, nil
}

// Revision implements revisable.
func (b *bearer) Revision() uint64 {
	if b.keys == nil {
		return 0
	}
	return b.keys.changes()
}

// key finds what a token's signature is checked with. The method decides which kind it is, so that nobody signs with a public key as
// if it were the secret.
func (b *bearer) key(t *jwt.Token) (any, error) {
	if _, ok := t.Header["crit"]; ok { // RFC 7515: what is critical and not understood makes a token one that does not count
		return nil, errors.New("it has critical header parameters, and none are understood here")
	}
	method := t.Method.Alg()
	if method == "HS256" {
		return b.secret, nil
	}
	id, _ := t.Header["kid"].(string)
	return b.keys.find(method, id)
}
