package main

import (
	"bytes"
	"net/netip"
	"os"

	"github.com/weir-pg/weir/cmd/internal/web"
)

// webFlags say who may do what over HTTP.
type webFlags struct {
	Anonymous     bool   `xor:"auth" help:"Let everybody who reaches the HTTP address subscribe and publish. Elsewhere than on loopback it needs --host."`
	JWTSecretFile string `name:"jwt-secret-file" xor:"auth" type:"existingfile" placeholder:"FILE" help:"Secret of 32 bytes or more that HTTP clients' tokens are signed with (HS256)."`
	JWKSFile      string `name:"jwks-file" xor:"auth" type:"existingfile" placeholder:"FILE" help:"Public keys of HTTP clients' tokens (a JWK set; RS256, ES256). Read every second; keys that are gone from it count no more."`
	JWKSURL       string `name:"jwks-url" xor:"auth" placeholder:"URL" help:"Where to get them instead. Read every minute."`
	JWTAudience   string `name:"jwt-audience" placeholder:"NAME" help:"Whom tokens must be for. Default: anybody."`
	JWTIssuer     string `name:"jwt-issuer" placeholder:"NAME" help:"Whom tokens must be from. Default: anybody."`
	AuthURL       string `name:"auth-url" xor:"auth" placeholder:"URL" help:"HTTP service that is asked what a client may do."`

	Host           []string `placeholder:"NAME" help:"With --anonymous: the names by which clients reach this hub, besides its addresses and localhost; repeatable; * stands for any characters."`
	TrustedProxies []string `name:"trusted-proxies" placeholder:"CIDR" help:"Networks of proxies whose X-Forwarded-For, or Forwarded, says who the client is; repeatable. Default: none."`

	Origin []string `placeholder:"ORIGIN" help:"Web origin whose pages may connect, such as https://app.example.com; repeatable. Default: the server's own."`

	MaxConnections int     `default:"200000" placeholder:"N" help:"WebSocket and SSE connections at once (${default})."`
	MaxPerAddress  int     `placeholder:"N" help:"Of them from one client address. Default: no limit."`
	PublishRate    float64 `placeholder:"N" help:"Messages a second that one WebSocket may publish. Default: no limit."`
}

// kind is how HTTP clients are let in.
func (f webFlags) kind() string {
	switch {
	case f.Anonymous:
		return "anonymous"
	case f.JWTSecretFile != "" || f.JWKSFile != "" || f.JWKSURL != "":
		return "tokens"
	case f.AuthURL != "":
		return "callback"
	}
	return "nobody"
}

func (f webFlags) config() (web.Config, error) {
	c := web.Config{
		Anonymous: f.Anonymous, Origins: f.Origin, Hosts: f.Host,
		Limits: web.Limits{Connections: f.MaxConnections, PerAddress: f.MaxPerAddress, PublishRate: f.PublishRate},
	}
	if len(f.Host) > 0 && !f.Anonymous {
		return c, usagef("--host goes with --anonymous: where clients show tokens, any name will do")
	}
	var proxies []netip.Prefix
	for _, text := range f.TrustedProxies {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return c, usagef("--trusted-proxies: %q is no network: write it as 10.0.0.0/8, or 192.0.2.7/32 for one address", text)
		}
		proxies = append(proxies, p.Masked())
	}
	if len(proxies) > 0 {
		c.ClientAddress = web.ClientBehind(proxies)
	}
	var err error
	switch {
	case f.JWTSecretFile != "" || f.JWKSFile != "" || f.JWKSURL != "":
		tokens := web.JWTConfig{KeysFile: f.JWKSFile, KeysURL: f.JWKSURL, Audience: f.JWTAudience, Issuer: f.JWTIssuer}
		if f.JWTSecretFile != "" {
			secret, err := os.ReadFile(f.JWTSecretFile)
			if err != nil {
				return c, usagef("--jwt-secret-file: %s", err)
			}
			tokens.Secret = bytes.TrimRight(secret, "\r\n")
		}
		c.Authorizer, err = web.NewJWT(tokens)
	case f.JWTAudience != "" || f.JWTIssuer != "":
		return c, usagef("--jwt-audience and --jwt-issuer go with --jwt-secret-file, --jwks-file or --jwks-url")
	case f.AuthURL != "":
		c.Authorizer, err = web.NewCallback(web.CallbackConfig{URL: f.AuthURL})
	}
	if err != nil {
		return c, usagef("%s", err)
	}
	return c, nil
}
