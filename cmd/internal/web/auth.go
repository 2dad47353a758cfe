package web

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/weir-pg/weir/internal/hub"
)

// Authorizer decides what clients may do. Several Webs may share one, each for a database of its own.
type Authorizer interface {
	// Authorize returns what the bearer of the token may do. An error from Denied or NoToken is sent to the client; any other error is
	// logged, and the client is told to try again.
	Authorize(ctx context.Context, ask Ask) (Grant, error)
}

// revisable is an Authorizer that can revoke grants: whenever Revision changes, the tokens of connected clients are checked again.
type revisable interface{ Revision() uint64 }

// revision changes whenever the Authorizer's does, the policies do, or the database gets other names.
func (w *Web) revision() (revision uint64) {
	if a, ok := w.Authorizer.(revisable); ok {
		revision = a.Revision()
	}
	_, renamed := w.names.are(w.Databases)
	return revision + w.Policies.Version()<<32 + renamed // each only grows, so that none undoes another's change
}

// Action is what a client wants to do.
type Action string

// The actions. Connect has no channels: it asks whether the token is valid, when a WebSocket opens.
const (
	Connect   Action = "connect"
	Subscribe Action = "subscribe"
	Publish   Action = "publish"
	WaitJobs  Action = "jobs"    // the filters are queues
	Work      Action = "work"    // the same: take jobs from them, record how they ended
	Enqueue   Action = "enqueue" // the same: add jobs to them, look these up, cancel them
)

// about returns what the action's filters are.
func (a Action) about() string {
	switch a {
	case WaitJobs, Work, Enqueue:
		return "queue"
	}
	return "channel"
}

// Ask is a question to an Authorizer.
type Ask struct {
	Token   string // empty: the client sent none
	Action  Action
	Filters []hub.Filter // the channels; none: whether the client may do it at all, before the rest of its request is read
	Remote  string       // the client's address

	Databases []string // Config.Databases; nil: unknown
	Several   bool     // Config.Several
}

// Grant is an Authorizer's answer: what is allowed, which may be more than was asked for, and until when.
type Grant struct {
	Allow   []hub.Filter    // nil: nothing
	Expires time.Time       // zero: never
	User    string          // whose token it is; empty: unknown
	Info    json.RawMessage // about the user, for other members of a channel; nil: nothing
	Issued  time.Time       // when the token was issued; zero: it has none, or does not say
	Terms   *Terms          // further limits of what is allowed; nil: none
}

// Terms limit what a callback allows, in addition to the policies of the channels. What is nil is not limited.
type Terms struct {
	PayloadBytes *int     `json:"payload_bytes"` // of a message
	PublishRate  *float64 `json:"publish_rate"`  // messages per second
	History      *int     `json:"history"`       // messages with which a subscription may begin
}

// Covers reports whether the grant allows all of the channels; if not, it returns the first that is denied.
func (g Grant) Covers(filters []hub.Filter) (denied string, ok bool) {
	for _, f := range filters {
		if !allowed(g.Allow, f) {
			return f.String(), false
		}
	}
	return "", true
}

func allowed(allow []hub.Filter, f hub.Filter) bool {
	for _, a := range allow {
		if a.Contains(f) {
			return true
		}
	}
	return false
}

// Expired reports whether the grant has ended.
func (g Grant) Expired(now time.Time) bool { return !g.Expires.IsZero() && !now.Before(g.Expires) }

// Denied returns the error of an Authorizer that accepts the token but does not allow the action.
func Denied(text, hint string) error { return fail(http.StatusForbidden, "denied", text, hint) }

// NoToken returns the error of an Authorizer for a token that is missing, invalid or expired.
func NoToken(text, hint string) error {
	return fail(http.StatusUnauthorized, "unauthorized", text, hint)
}

var noToken = NoToken("the request has no token", "send it as Authorization: Bearer, as access_token in the URL, or as WebSocket subprotocol bearer.TOKEN")

// authorize asks the Authorizer, and returns an error unless all of the filters are allowed.
func (w *Web) authorize(ctx context.Context, ask Ask) (Grant, error) {
	ask.Databases, _ = w.names.are(w.Databases)
	ask.Several = w.Several
	grant, err := w.Authorizer.Authorize(ctx, ask)
	if err == nil && grant.Expired(time.Now()) {
		err = NoToken("the token has expired", "get a new one")
	}
	if _, asks := w.Authorizer.(*callback); err == nil && !asks && grant.User != "" && w.Revoked != nil && w.Revoked(grant.User, grant.Issued) {
		err = NoToken("the token has been revoked", "get a new one")
	}
	if err == nil {
		if name, ok := grant.Covers(ask.Filters); !ok {
			err = Denied(fmt.Sprintf("%s %q is not allowed", ask.Action, name), fmt.Sprintf("use a token that allows this %s, or a pattern that contains it", ask.Action.about()))
		}
	}
	if err != nil {
		f := w.explain("authorize a client", err)
		w.metrics.refused(f.Code)
		return Grant{}, f
	}
	w.authorized.Add(1)
	return grant, nil
}

// tokenPrefix starts the subprotocol that carries a token, because browsers can't set headers for a WebSocket.
const tokenPrefix = "bearer."

// token returns the client's token: from the header, a subprotocol, or the URL.
func token(r *http.Request) string {
	if scheme, value, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(value)
	}
	for _, header := range r.Header.Values("Sec-WebSocket-Protocol") {
		for protocol := range strings.SplitSeq(header, ",") {
			if value, ok := strings.CutPrefix(strings.TrimSpace(protocol), tokenPrefix); ok {
				return value
			}
		}
	}
	return r.URL.Query().Get("access_token")
}

// nobody refuses all clients.
type nobody struct{}

func (nobody) Authorize(context.Context, Ask) (Grant, error) {
	return Grant{}, Denied("this server refuses all clients", "its operator has to configure tokens, a callback, or anonymous access")
}

// everybody allows everything to all clients.
type everybody struct{}

func (everybody) Authorize(context.Context, Ask) (Grant, error) {
	return Grant{Allow: []hub.Filter{hub.Pattern(">")}}, nil
}
