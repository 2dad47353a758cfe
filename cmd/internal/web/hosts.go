package web

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path"
	"strings"
)

// named tells whether a request is for a name that this server has. A page of elsewhere can make a name of its own point here (DNS
// rebinding), and is of the server's own origin then; it can't do so with an address.
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

func (w *Web) refuseName(rw http.ResponseWriter, r *http.Request) {
	w.metrics.refused("host")
	fail(http.StatusForbidden, "host", fmt.Sprintf("this server does not go by the name %.100q", r.Host),
		"it lets everybody in, so whoever runs it must say under which names, or use its address").write(rw)
}

// ClientBehind returns a Config.ClientAddress for a server behind proxies. Of what they say of those who came to them, only what a trusted
// one has said counts: so the list of addresses is read from its end, up to the first that is no proxy's.
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
		said := forwarded(r.Header)
		for i := len(said) - 1; i >= 0 && trusted(at); i-- {
			next, ok := address(said[i])
			if !ok {
				break
			}
			at = next
		}
		return at.String()
	}
}

// forwarded returns the addresses that proxies have noted, the nearest last. Where both headers are there one of them is the client's own
// invention, and nobody knows which.
func forwarded(h http.Header) (all []string) {
	list, standard := h.Values("X-Forwarded-For"), h.Values("Forwarded")
	switch {
	case len(list) > 0 && len(standard) > 0:
		return nil
	case len(list) > 0:
		return strings.Split(strings.Join(list, ","), ",")
	}
	for element := range strings.SplitSeq(strings.Join(standard, ","), ",") { // RFC 7239; quoted strings have no commas where there are addresses
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

// address reads an address with or without a port.
func address(s string) (netip.Addr, bool) {
	s = strings.TrimSpace(s)
	if at, err := netip.ParseAddrPort(s); err == nil {
		return at.Addr().Unmap().WithZone(""), true
	}
	at, err := netip.ParseAddr(strings.Trim(s, "[]"))
	return at.Unmap().WithZone(""), err == nil
}
