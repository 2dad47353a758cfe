package weirui

import (
	"net"
	"strings"
)

// isLocalName reports whether the host of a request is localhost or an IP address: not a name that its owner may point at this server.
func isLocalName(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.ToLower(strings.Trim(host, "[]")), ".")
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || net.ParseIP(host) != nil
}
