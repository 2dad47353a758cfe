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

// failure is what a client is told. Code is for programs and does not change; Text and Hint are for people.
type failure struct {
	Status int    `json:"-"`
	Code   string `json:"code"`
	Text   string `json:"error"`
	Hint   string `json:"hint,omitempty"`
	After  int    `json:"-"` // seconds until it makes sense to try again
}

func (f *failure) Error() string { return f.Text }

func fail(status int, code, text, hint string) *failure {
	return &failure{Status: status, Code: code, Text: text, Hint: hint}
}

func badRequest(text, hint string) *failure {
	return fail(http.StatusBadRequest, "bad_request", text, hint)
}

// explain makes of an error what a client may know. What is not the client's doing is logged, and told in general words alone.
func (w *Web) explain(doing string, err error) *failure {
	var f *failure
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
		return fail(http.StatusServiceUnavailable, "draining", "this server is stopping", "connect again: another takes over")
	}
	w.log.Warn("weir: "+doing, "error", err)
	return fail(http.StatusServiceUnavailable, "unavailable", "the server can't do it now", "try again; if it goes on, the server's log says why")
}

// unreadable says what is wrong with a client's JSON in words that need no knowledge of Go.
func unreadable(err error) string {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Sprintf("it is not JSON, as its byte %d shows", syntax.Offset)
	case errors.As(err, &kind) && kind.Field == "":
		return "it can't be JSON's " + kind.Value
	case errors.As(err, &kind):
		// Where a type is embedded, its name stands in the field's.
		return fmt.Sprintf("%q can't be JSON's %s", strings.ReplaceAll(kind.Field, "draftJSON.", ""), kind.Value)
	}
	return err.Error() // one of our own
}

// write answers an HTTP request with the failure.
func (f *failure) write(rw http.ResponseWriter) {
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

// marshal encodes a value of this package's own types, which can't fail.
func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func serveNothing(rw http.ResponseWriter, r *http.Request) {
	fail(http.StatusNotFound, "not_found", "there is nothing at "+r.Method+" "+r.URL.Path,
		"GET /v1/ws, GET /v1/events, POST /v1/publish, GET /healthz, GET /readyz and GET /metrics are here").write(rw)
}
