package main

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/cmd/internal/oidc"
	"github.com/weir-pg/weir/cmd/internal/server"
	"github.com/weir-pg/weir/cmd/internal/ui"
	"github.com/weir-pg/weir/internal/connstring"
	"github.com/weir-pg/weir/weirui"
)

// uiFlags configure the web UI. It is served if one of them says who may use it.
type uiFlags struct {
	UIUsers       string `name:"ui-users" xor:"ui" type:"existingfile" placeholder:"FILE" help:"Serve the web UI, to the users in this file, who log in with passwords: weir ui-password prints the line of one. Read every second."`
	UIProxyHeader string `name:"ui-proxy-header" xor:"ui" placeholder:"NAME" help:"Serve the web UI, to users whom a reverse proxy has authenticated and names in this header, such as X-Forwarded-User."`
	UIOIDCIssuer  string `name:"ui-oidc-issuer" xor:"ui" placeholder:"URL" help:"Serve the web UI, to users who log in at this OpenID Connect provider."`
	UIOpen        string `name:"ui-open" xor:"ui" placeholder:"ROLE" help:"Serve the web UI, to everybody as viewer, operator or admin, on loopback addresses only."`

	UIRole []string `name:"ui-role" sep:"none" placeholder:"VALUE=ROLE" help:"Role, viewer, operator or admin, of a group, or of a user if the proxy names no groups; * stands for all others. May be repeated. Default: groups that are named like roles."`

	UIProxyFrom        []string `name:"ui-proxy-from" placeholder:"CIDR" help:"With --ui-proxy-header: networks of the proxies. May be repeated."`
	UIProxyGroupHeader string   `name:"ui-proxy-group-header" placeholder:"NAME" help:"With --ui-proxy-header: header with the user's groups, separated by commas. Default: none, and --ui-role is about users."`

	UIOIDCClient     string `name:"ui-oidc-client" placeholder:"ID" help:"With --ui-oidc-issuer: the ID of this client at the provider."`
	UIOIDCSecretFile string `name:"ui-oidc-secret-file" type:"existingfile" placeholder:"FILE" help:"With --ui-oidc-issuer: the client's secret. It also seals sessions, so give all hubs the same."`
	UIOIDCRoleClaim  string `name:"ui-oidc-role-claim" placeholder:"NAME" help:"With --ui-oidc-issuer: claim with the user's groups (groups)."`
	UIURL            string `name:"ui-url" placeholder:"URL" help:"With --ui-oidc-issuer: where browsers reach the web UI, such as https://ops.example.com/ui/. Register it at the provider with auth/callback as redirect URI."`

	UIListen   string   `name:"ui-listen" placeholder:"ADDR" help:"Address of the web UI's own. Default: /ui/ of --listen-http."`
	UIReadOnly bool     `name:"ui-read-only" help:"Let nobody change anything in the web UI."`
	UIRedact   []string `name:"ui-redact" placeholder:"FIELD" help:"Name of fields whose values the web UI does not show, in addition to password, token and others. May be repeated."`
	UIList     string   `name:"ui-list" type:"existingfile" placeholder:"FILE" help:"Show the databases of a list as well, a connection string in each line. It is read again every 15 seconds: databases come and go."`
	UIDatabase []string `name:"ui-database" sep:"none" placeholder:"NAME=URL" help:"Further database to show in the web UI, or, with the name of --database's, how the web UI connects to that. May be repeated."`
}

// kind returns how users of the UI are authenticated; "": it is not served.
func (f uiFlags) kind() string {
	switch {
	case f.UIUsers != "":
		return "passwords"
	case f.UIProxyHeader != "":
		return "proxy"
	case f.UIOIDCIssuer != "":
		return "oidc"
	case f.UIOpen != "":
		return "open"
	}
	return ""
}

// config returns how the UI is served; nil: not at all. database is that of the hub, or list the databases of all hubs. client returns the address of a request's client; nil: that of the connection.
func (f uiFlags) config(ctx context.Context, database string, list func() ([]string, error), client func(*http.Request) string, log *slog.Logger) (*server.UI, error) {
	if err := f.check(); err != nil || f.kind() == "" {
		return nil, err
	}
	c := ui.Config{Listen: f.UIListen, Database: database, List: list, Others: map[string]string{}}
	c.Logger, c.ReadOnly, c.Redact = log, f.UIReadOnly, slices.Concat(weirui.DefaultRedact, f.UIRedact)
	for _, text := range f.UIDatabase {
		name, url, ok := strings.Cut(text, "=")
		if !ok || !databaseName(name) {
			return nil, usagef("--ui-database must have the form NAME=URL, as billing=postgres://user:password@host:port/database: the name has 1 to 63 letters, digits, hyphens, underscores and dots")
		}
		if _, twice := c.Others[name]; twice {
			return nil, usagef("--ui-database: there are two with the name %s", name)
		}
		if _, err := pgxpool.ParseConfig(url); err != nil {
			return nil, usagef("--ui-database %s: %s", name, connstring.Misread(err))
		}
		c.Others[name] = url
	}
	if f.UIList != "" {
		c.List = func() ([]string, error) { return readList(nil, f.UIList) }
	}
	roles, err := f.roles()
	if err != nil {
		return nil, err
	}
	switch f.kind() {
	case "open":
		c.Open, _ = weirui.ParseRole(f.UIOpen)
	case "passwords":
		c.Access, err = weirui.Password(weirui.PasswordConfig{File: f.UIUsers, ClientAddress: client, Logger: log})
	case "proxy":
		var from []netip.Prefix
		if from, err = networks("--ui-proxy-from", f.UIProxyFrom); err != nil {
			return nil, err
		}
		c.Access, err = weirui.Proxy(weirui.ProxyConfig{Header: f.UIProxyHeader, RoleHeader: f.UIProxyGroupHeader, Roles: roles, From: from, Logger: log})
	case "oidc":
		var secret []byte
		if f.UIOIDCSecretFile != "" {
			if secret, err = os.ReadFile(f.UIOIDCSecretFile); err != nil {
				return nil, usagef("--ui-oidc-secret-file: %s", err)
			}
		}
		c.Access, err = oidc.New(ctx, oidc.Config{
			Issuer: f.UIOIDCIssuer, ClientID: f.UIOIDCClient, ClientSecret: strings.TrimSpace(string(secret)), URL: f.UIURL, RoleClaim: f.UIOIDCRoleClaim, Roles: roles, ClientAddress: client, Logger: log,
		})
	}
	if err != nil {
		return nil, usagef("the web UI: %s", strings.TrimPrefix(err.Error(), "weirui: "))
	}
	return ui.New(c)
}

// databaseName reports whether a database may be shown by this name, which is a part of addresses.
func databaseName(name string) bool {
	return isDatabaseName(name) && name != "." && name != ".."
}

var isDatabaseName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,63}$`).MatchString

// check refuses flags that go with others which are not given.
func (f uiFlags) check() error {
	proxy, issuer := f.UIProxyHeader != "", f.UIOIDCIssuer != ""
	_, isRole := weirui.ParseRole(f.UIOpen)
	switch {
	case f.kind() == "" && (f.UIListen != "" || f.UIReadOnly || len(f.UIRedact) > 0 || len(f.UIDatabase) > 0 || f.UIList != ""):
		return usagef("--ui-listen, --ui-read-only, --ui-redact, --ui-database and --ui-list require a flag that says who may use the web UI: --ui-users, --ui-proxy-header, --ui-oidc-issuer or --ui-open")
	case f.UIList == "-":
		return usagef("--ui-list - can be read only once, and the list is read again and again: write it to a file")
	case !proxy && (len(f.UIProxyFrom) > 0 || f.UIProxyGroupHeader != ""):
		return usagef("--ui-proxy-from and --ui-proxy-group-header require --ui-proxy-header")
	case !issuer && (f.UIOIDCClient != "" || f.UIOIDCSecretFile != "" || f.UIOIDCRoleClaim != "" || f.UIURL != ""):
		return usagef("--ui-oidc-client, --ui-oidc-secret-file, --ui-oidc-role-claim and --ui-url require --ui-oidc-issuer")
	case !proxy && !issuer && len(f.UIRole) > 0:
		return usagef("--ui-role requires --ui-proxy-header or --ui-oidc-issuer: the file of --ui-users says itself who has which role")
	case proxy && len(f.UIProxyFrom) == 0:
		return usagef("--ui-proxy-header requires --ui-proxy-from: anybody else could send the header")
	case proxy && f.UIProxyGroupHeader == "" && len(f.UIRole) == 0:
		return usagef("--ui-proxy-header requires --ui-role or --ui-proxy-group-header: otherwise nobody has a role")
	case issuer && (f.UIOIDCClient == "" || f.UIURL == ""):
		return usagef("--ui-oidc-issuer requires --ui-oidc-client and --ui-url")
	case f.UIOpen != "" && !isRole:
		return usagef("--ui-open must be viewer, operator or admin, got %q", f.UIOpen)
	}
	return nil
}

func (f uiFlags) roles() (weirui.Roles, error) {
	roles := weirui.Roles{}
	for _, text := range f.UIRole {
		at := strings.LastIndex(text, "=") // names of groups may contain it
		if at < 1 {
			return nil, usagef("--ui-role must have the form VALUE=ROLE, as ops=admin, got %q", text)
		}
		role, ok := weirui.ParseRole(text[at+1:])
		if !ok {
			return nil, usagef("--ui-role %s: the role must be viewer, operator or admin, got %q", text[:at], text[at+1:])
		}
		roles[text[:at]] = role
	}
	return roles, nil
}
