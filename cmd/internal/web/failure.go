package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/weir-pg/weir/internal/hub"
)

// Failure is an error sent to a client. Code is for programs and does not change; Text and Hint are for people.
type Failure struct {
	Status int    `json:"-"`
	Code   string `json:"code"`
	Text   string `json:"error"`
	Hint   string `json:"hint,omitempty"`
	After  int    `json:"retry_after,omitempty"` // seconds until it makes sense to try again
}

func (f *Failure) Error() string { return f.Text }

// Fail returns a failure.
func Fail(status int, code, text, hint string) *Failure {
	return &Failure{Status: status, Code: code, Text: text, Hint: hint}
}

func fail(status int, code, text, hint string) *Failure { return Fail(status, code, text, hint) }

func badRequest(text, hint string) *Failure {
	return fail(http.StatusBadRequest, "bad_request", text, hint)
}

// explain converts an error to what the client may know of it. An error that the client did not cause is logged, and described to the client
// only in general terms.
func (w *Web) explain(doing string, err error) *Failure {
	var f *Failure
	var refused *hub.RefusedError
	var limit *hub.LimitError
	switch {
	case errors.As(err, &f):
		return f
	case errors.As(err, &limit):
		return fail(http.StatusTooManyRequests, "limit", limit.Error(), "")
	case errors.As(err, &refused):
		return badRequest(refused.Error(), "")
	case errors.Is(err, hub.ErrClosed), errors.Is(err, context.Canceled):
		return fail(http.StatusServiceUnavailable, "draining", "this server is stopping", "connect again: another server takes over")
	}
	w.log.Warn("weir: "+doing, "error", err)
	return fail(http.StatusServiceUnavailable, "unavailable", "the server can't process the request now", "try again; if this persists, see the server's log")
}

// unreadable describes what is wrong with a client's JSON without the vocabulary of Go.
func unreadable(err error) string {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Sprintf("it is not valid JSON at byte %d", syntax.Offset)
	case errors.As(err, &kind) && kind.Field == "":
		return "it has the wrong JSON type: " + kind.Value
	case errors.As(err, &kind):
		// The path of a field includes the names of embedded types.
		return fmt.Sprintf("%q has the wrong JSON type: %s", strings.ReplaceAll(kind.Field, "draftJSON.", ""), kind.Value)
	}
	return err.Error() // from UnmarshalJSON in this package
}

// write answers an HTTP request with the failure.
func (f *Failure) write(rw http.ResponseWriter) {
	h := rw.Header()
	switch f.Status {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", `Bearer realm="weir"`)
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		h.Set("Retry-After", strconv.Itoa(max(1, f.After)))
	}
	reply(rw, f.Status, f)
}

// reply answers an HTTP request with JSON.
func reply(rw http.ResponseWriter, status int, v any) {
	rw.Header().Set("Content-Type", "application/json")
	rw.Header().Set("Cache-Control", "no-store")
	rw.WriteHeader(status)
	_, _ = rw.Write(append(marshal(v), '\n'))
}

// marshal encodes a value of one of this package's types, which can't fail.
func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func (w *Web) serveNothing(rw http.ResponseWriter, r *http.Request) {
	if p := r.URL.Path; len(w.Endpoints) == 0 && (strings.HasPrefix(p, "/v1/work/") || p == "/v1/jobs" || strings.HasPrefix(p, "/v1/jobs/")) {
		fail(http.StatusNotFound, "not_found", "this server does not serve jobs", "its operator can have it serve them: weir serve --jobs").write(rw)
		return
	}
	hint := "use GET /v1/ws, GET /v1/events, GET /v1/presence, POST /v1/publish, GET /healthz, GET /readyz or GET /metrics"
	if len(w.Endpoints) > 0 {
		hint += "; for jobs POST /v1/jobs, GET /v1/jobs/{id}, POST /v1/jobs/{id}/cancel, and what is below /v1/work/"
	}
	if w.UI != nil {
		hint += "; the web UI is at /ui/"
	}
	fail(http.StatusNotFound, "not_found", r.Method+" "+r.URL.Path+" does not exist", hint).write(rw)
}
