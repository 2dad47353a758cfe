package web

import (
	"log/slog"
	"net/http"
	"strings"
	"time"
)

// Refuse answers a request with a failure, for what serves several Webs.
func Refuse(rw http.ResponseWriter, f *Failure) {
	rw.Header().Set("Cache-Control", "no-store")
	f.write(rw)
}

// Healthy answers a supervisor, as a Web does.
func Healthy(rw http.ResponseWriter, status string) {
	rw.Header().Set("Cache-Control", "no-store")
	reply(rw, http.StatusOK, health{status})
}

// RefusePage is Refuse for clients that may be web pages, of whatever origin: see sameOrigin. What a browser asks before that is answered as ever, or the page would not learn more.
func RefusePage(rw http.ResponseWriter, r *http.Request, f *Failure) {
	if r.Method == http.MethodOptions {
		servePreflight(rw, r)
		return
	}
	h := rw.Header()
	h.Add("Vary", "Origin")
	if r.Header.Get("Origin") != "" {
		h.Set("Access-Control-Allow-Origin", "*")
		h.Set("Access-Control-Expose-Headers", "Retry-After")
	}
	Refuse(rw, f)
}

// Check returns an error if New would return one for what is written in the configuration.
func (c Config) Check() error {
	_, err := parseOrigins(c.Origins)
	return err
}

// Preflight answers a request that a browser makes before it lets a page send a token, as any Web does, and reports whether it was one.
func Preflight(rw http.ResponseWriter, r *http.Request) bool {
	if r.Method != http.MethodOptions || !strings.HasPrefix(r.URL.Path, "/v1/") {
		return false
	}
	servePreflight(rw, r)
	return true
}

// Admits returns why a request would be refused by one of several Webs, which does not exist yet, as far as that can be told from the token and the path; nil: it may be
// accepted.
func Admits(c Config, r *http.Request, log *slog.Logger) *Failure {
	if !strings.HasPrefix(r.URL.Path, "/v1/") {
		return fail(http.StatusNotFound, "not_found", r.Method+" "+r.URL.Path+" does not exist", "what a hub serves is below /v1/")
	}
	w := &Web{Config: c, log: log}
	w.admission()
	var err error
	if w.origins, err = parseOrigins(c.Origins); err != nil {
		return w.explain("check the origin of a client", err)
	}
	if f := w.foreign(r); f != nil {
		return f
	}
	if token(r) == "" && c.Policies.Set().Anyone() { // some channels are open to it
		return nil
	}
	grant, err := w.Authorizer.Authorize(r.Context(), Ask{Token: token(r), Action: Connect, Remote: w.ClientAddress(r), Databases: w.Databases(), Several: true})
	if err == nil && grant.Expired(time.Now()) {
		err = NoToken("the token has expired", "get a new one")
	}
	if err != nil {
		return w.explain("authorize a client", err)
	}
	return nil
}
