package web

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path"
	"strings"
)

// named reports whether a request uses one of the server's names. A foreign page can make a name of its own point to this server (DNS
// rebinding), and then has the server's own origin; it can't do that with an address.
func (w *Web) named(r *http.Request) bool {
	if w.Hosts == nil {
		return true
	}
	name := r.Host
	if host, _, err := net.SplitHostPort(name); err == nil {
		name = host
	}
	name = strings.ToLower(strings.Trim(name, "[]"))
	if _, err := netip.ParseAddr(name); err == nil || name == "localhost" {
		return true
	}
	for _, pattern := range w.Hosts {
		if ok, _ := path.Match(strings.ToLower(pattern), name); ok {
			return true
		}
	}
	return false
}

func refusedName(r *http.Request) *Failure {
	return fail(http.StatusForbidden, "host", fmt.Sprintf("%.100q is not a name of this server", r.Host),
		"use its address, or have its operator configure this name: a server that allows anonymous access only answers to configured names")
}

// ClientBehind returns a Config.ClientAddress for a server behind proxies. Only addresses noted by a trusted proxy count: so the list of
// addresses is read from its end, up to the first that is not a trusted proxy's.
func ClientBehind(proxies []netip.Prefix) func(*http.Request) string {
	trusted := func(a netip.Addr) bool {
		for _, p := range proxies {
			if p.Contains(a) {
				return true
			}
		}
		return false
	}
	return func(r *http.Request) string {
		peer := peerAddress(r)
		at, err := netip.ParseAddr(peer)
		if at = at.Unmap().WithZone(""); err != nil || !trusted(at) {
			return peer
		}
		noted := forwarded(r.Header)
		for i := len(noted) - 1; i >= 0 && trusted(at); i-- {
			next, ok := address(noted[i])
			if !ok {
				break
			}
			at = next
		}
		return at.String()
	}
}

// forwarded returns the addresses that proxies have noted, the nearest last. If both headers are present, it returns none: the client may have
// forged one of them, and it is unknown which.
func forwarded(h http.Header) (all []string) {
	list, standard := h.Values("X-Forwarded-For"), h.Values("Forwarded")
	switch {
	case len(list) > 0 && len(standard) > 0:
		return nil
	case len(list) > 0:
		return strings.Split(strings.Join(list, ","), ",")
	}
	for element := range strings.SplitSeq(strings.Join(standard, ","), ",") { // RFC 7239; quoted addresses contain no commas
		of := ""
		for pair := range strings.SplitSeq(element, ";") {
			if name, value, _ := strings.Cut(strings.TrimSpace(pair), "="); strings.EqualFold(name, "for") {
				of = strings.Trim(value, `"`)
			}
		}
		all = append(all, of)
	}
	return all
}

// address parses an address with or without a port.
func address(s string) (netip.Addr, bool) {
	s = strings.TrimSpace(s)
	if at, err := netip.ParseAddrPort(s); err == nil {
		return at.Addr().Unmap().WithZone(""), true
	}
	at, err := netip.ParseAddr(strings.Trim(s, "[]"))
	return at.Unmap().WithZone(""), err == nil
}
