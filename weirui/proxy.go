package weirui

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/weir-pg/weir/internal/seldom"
)

// ProxyConfig configures Proxy. Header is required, and Roles, unless there is a RoleHeader.
type ProxyConfig struct {
	Header string // in which the proxy names the user, such as X-Forwarded-User or Remote-User

	// RoleHeader is a header in which the proxy says what decides about the role, separated by commas: the user's groups, or roles themselves. "": the name of the user
	// decides.
	RoleHeader string

	Roles Roles

	// From are the addresses of the proxies. What comes through a Unix socket is from a proxy as well, because the socket's permissions say who may connect; nil: nothing else is.
	From []netip.Prefix

	Logger *slog.Logger // nil: slog.Default()
}

// Proxy returns an Access for a server behind a reverse proxy that authenticates users, and says in headers who they are. The proxy must remove these
// headers from what its clients send. Whatever does not come from the proxy is refused.
func Proxy(c ProxyConfig) (Access, error) {
	switch {
	case c.Header == "":
		return nil, errors.New("weirui: ProxyConfig.Header is empty: name the header in which the proxy names the user, such as X-Forwarded-User")
	case c.RoleHeader == "" && len(c.Roles) == 0:
		return nil, errors.New("weirui: ProxyConfig.Roles is empty: say which users have which role, or name a RoleHeader")
	}
	for _, p := range c.From {
		if !p.IsValid() || p.Bits() == 0 {
			return nil, fmt.Errorf("weirui: ProxyConfig.From has %s, where everybody may pass for anybody: name the proxy's own addresses", p)
		}
	}
	if err := c.Roles.check(); err != nil {
		return nil, fmt.Errorf("weirui: ProxyConfig.Roles: %w", err)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return &proxy{ProxyConfig: c}, nil
}

type proxy struct {
	ProxyConfig
	strangers, strange, nobodies seldom.Log
}

// Identify implements Access.
func (p *proxy) Identify(w http.ResponseWriter, r *http.Request) (User, bool) {
	if !p.trusts(r) {
		p.strangers.Warn(p.Logger, "weir: a request to the UI does not come from its proxy: if it does, name the address among the proxy's", "address", r.RemoteAddr)
		http.Error(w, "This server is to be reached through its proxy, and "+peer(r)+" is none: its operator can name further proxies.", http.StatusForbidden)
		return User{}, false
	}
	names := r.Header.Values(p.Header)
	if len(names) != 1 || strings.TrimSpace(names[0]) == "" {
		// Of several, all but one may be what the client has sent.
		p.strange.Warn(p.Logger, "weir: the proxy of the UI does not say who the user is: have it set this header, in the place of what clients send", "header", p.Header, "times", len(names), "address", r.RemoteAddr)
		http.Error(w, fmt.Sprintf("The proxy does not say who you are: it must set the header %s, once, and has set it %d times.", p.Header, len(names)), http.StatusUnauthorized)
		return User{}, false
	}
	user := User{Name: cut(strings.TrimSpace(names[0]), 200)}
	values := []string{user.Name}
	if p.RoleHeader != "" {
		groups := r.Header.Values(p.RoleHeader)
		if len(groups) > 1 {
			p.strange.Warn(p.Logger, "weir: the proxy of the UI passes on a header that a client has sent: have it set this header, in the place of what clients send", "header", p.RoleHeader, "times", len(groups), "address", r.RemoteAddr)
			http.Error(w, fmt.Sprintf("The proxy must set the header %s at most once, and has set it %d times.", p.RoleHeader, len(groups)), http.StatusUnauthorized)
			return User{}, false
		}
		values = strings.Split(strings.Join(groups, ","), ",")
		for i := range values {
			values[i] = strings.TrimSpace(values[i])
		}
	}
	if user.Role = p.Roles.Of(values...); user.Role == Nobody {
		p.nobodies.Warn(p.Logger, "weir: a user of the proxy has no role in the UI: give one to the user, or to a group", "user", user.Name, "address", r.RemoteAddr)
		http.Error(w, fmt.Sprintf("%s has no role here: ask whoever operates this server for one.", user.Name), http.StatusForbidden)
		return User{}, false
	}
	return user, true
}

// trusts reports whether a request comes from the proxy.
func (p *proxy) trusts(r *http.Request) bool {
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.UnixAddr); ok && local != nil {
		return true
	}
	at, err := netip.ParseAddr(peer(r))
	if err != nil {
		return false
	}
	at = at.Unmap().WithZone("")
	for _, prefix := range p.From {
		if prefix.Contains(at) {
			return true
		}
	}
	return false
}

// peer is the address that the connection comes from, without its port.
func peer(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}
