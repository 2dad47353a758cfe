package main

import (
	"bytes"
	"net/netip"
	"os"

	"github.com/weir-pg/weir/cmd/internal/web"
)

// webFlags configure what HTTP clients may do.
type webFlags struct {
	Anonymous     bool   `xor:"auth" help:"Let every HTTP client subscribe and publish, without authentication. On addresses other than loopback it needs --host."`
	JWTSecretFile string `name:"jwt-secret-file" xor:"auth" type:"existingfile" placeholder:"FILE" help:"Secret with which HTTP clients' tokens are signed (HS256), 32 bytes or more."`
	JWKSFile      string `name:"jwks-file" xor:"auth" type:"existingfile" placeholder:"FILE" help:"Public keys for HTTP clients' tokens (a JWK set; RS256, ES256). Read every second; removed keys are no longer accepted."`
	JWKSURL       string `name:"jwks-url" xor:"auth" placeholder:"URL" help:"URL of the public keys instead of a file. Read every minute."`
	JWTAudience   string `name:"jwt-audience" placeholder:"NAME" help:"Required audience of tokens. Default: any."`
	JWTIssuer     string `name:"jwt-issuer" placeholder:"NAME" help:"Required issuer of tokens. Default: any."`
	AuthURL       string `name:"auth-url" xor:"auth" placeholder:"URL" help:"HTTP service that decides what a client may do."`

	Host           []string `placeholder:"NAME" help:"With --anonymous: host names under which clients reach this hub, in addition to its addresses and localhost. May be repeated; * matches any characters."`
	TrustedProxies []string `name:"trusted-proxies" placeholder:"CIDR" help:"Networks of proxies whose X-Forwarded-For or Forwarded header is trusted for the client's address. May be repeated. Default: none."`

	Origin []string `placeholder:"ORIGIN" help:"Web origin whose pages may connect, such as https://app.example.com. May be repeated. Default: the server's own origin."`

	MaxConnections int     `default:"200000" placeholder:"N" help:"Maximum number of WebSocket and SSE connections (${default})."`
	MaxPerAddress  int     `placeholder:"N" help:"Maximum number of these connections per client address. Default: no limit."`
	MaxChannels    int     `default:"1000" placeholder:"N" help:"Maximum number of channels and patterns of one WebSocket or event stream (${default})."`
	RequestRate    float64 `default:"1000" placeholder:"N" help:"Requests per second that one WebSocket may send, and ten times as many at once; 0: no limit (${default})."`
	ClientRate     float64 `default:"10000" placeholder:"N" help:"HTTP and WebSocket requests per second by one user, or from one address, and ten times as many at once; 0: no limit (${default})."`
	PublishRate    float64 `placeholder:"N" help:"Maximum number of messages per second that one WebSocket may publish. Default: no limit."`
}

// kind returns how HTTP clients are authenticated.
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
		Limits: web.Limits{Connections: f.MaxConnections, PerAddress: f.MaxPerAddress, Subscriptions: f.MaxChannels, PublishRate: f.PublishRate, RequestRate: f.RequestRate, ClientRate: f.ClientRate},
	}
	if f.MaxChannels < 1 {
		return c, usagef("--max-channels must be at least 1, got %d", f.MaxChannels)
	}
	if f.RequestRate < 0 || f.ClientRate < 0 || f.PublishRate < 0 {
		return c, usagef("--request-rate, --client-rate and --publish-rate must not be negative: 0 is no limit")
	}
	if len(f.Host) > 0 && !f.Anonymous {
		return c, usagef("--host requires --anonymous: clients that present tokens may use any host name")
	}
	proxies, err := networks("--trusted-proxies", f.TrustedProxies)
	if err != nil {
		return c, err
	}
	if len(proxies) > 0 {
		c.ClientAddress = web.ClientBehind(proxies)
	}
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
		return c, usagef("--jwt-audience and --jwt-issuer require --jwt-secret-file, --jwks-file or --jwks-url")
	case f.AuthURL != "":
		c.Authorizer, err = web.NewCallback(web.CallbackConfig{URL: f.AuthURL})
	}
	if err != nil {
		return c, usagef("%s", err)
	}
	return c, nil
}

// networks parses the values of a flag.
func networks(flag string, texts []string) (all []netip.Prefix, err error) {
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, usagef("%s: %q is not a valid network: write it as 10.0.0.0/8, or 192.0.2.7/32 for one address", flag, text)
		}
		all = append(all, p.Masked())
	}
	return all, nil
}
