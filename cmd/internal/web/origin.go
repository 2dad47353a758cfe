package web

import (
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strings"
)

// origins are patterns of hosts, or of scheme://host, in lower case.
type origins []string

func parseOrigins(patterns []string) (origins, error) {
	all := make(origins, len(patterns))
	for i, p := range patterns {
		if _, err := path.Match(p, ""); err != nil || p == "" {
			return nil, fmt.Errorf("web: origin %q is not a pattern: write a host or scheme://host, such as https://*.example.com", p)
		}
		all[i] = strings.ToLower(strings.TrimSuffix(p, "/"))
	}
	return all, nil
}

// allow reports whether a page may connect. Clients other than pages send no Origin; this check is not about them.
func (o origins) allow(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	if err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host) {
		return true
	}
	for _, pattern := range o {
		if pattern == "*" {
			return true
		}
		if err != nil || u.Host == "" {
			continue // "null" and the like
		}
		target := strings.ToLower(u.Host)
		if strings.Contains(pattern, "://") {
			target = strings.ToLower(u.Scheme + "://" + u.Host)
		}
		if ok, _ := path.Match(pattern, target); ok {
			return true
		}
	}
	return false
}

// sameOrigin refuses pages of origins that are not allowed, and adds the headers that let browsers read the answer. A refusal may be read by any page:
// one that can't read it takes it for a lost connection, and tries again for ever.
func (w *Web) sameOrigin(next http.HandlerFunc) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Add("Vary", "Origin")
		origin := r.Header.Get("Origin")
		if f := w.foreign(r); f != nil {
			if origin != "" {
				rw.Header().Set("Access-Control-Allow-Origin", "*")
			}
			w.metrics.refused(f.Code)
			f.write(rw)
			return
		}
		if origin != "" {
			rw.Header().Set("Access-Control-Allow-Origin", origin)
			rw.Header().Set("Access-Control-Expose-Headers", "Retry-After, Idempotent-Replayed")
		}
		next(rw, r)
	}
}

// foreign returns why a request is refused whoever makes it; nil: it is not.
func (w *Web) foreign(r *http.Request) *Failure {
	if !w.named(r) {
		return refusedName(r)
	}
	if !w.origins.allow(r) {
		return fail(http.StatusForbidden, "origin", fmt.Sprintf("pages of origin %.200q are not allowed to connect to %.200q", r.Header.Get("Origin"), r.Host),
			"the server's operator can allow the origin")
	}
	return nil
}

// servePreflight answers the request that a browser makes before it lets a page send a token or JSON to another origin. It is the same for all
// pages, because it is not what protects: sameOrigin refuses what follows, with the reason.
func servePreflight(rw http.ResponseWriter, _ *http.Request) {
	h := rw.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Access-Control-Allow-Methods", "GET, POST, DELETE")
	h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Last-Event-ID, Idempotency-Key")
	h.Set("Access-Control-Max-Age", "600")
	rw.WriteHeader(http.StatusNoContent)
}
