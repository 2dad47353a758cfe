package web

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/weir-pg/weir/internal/hub"
)

// Authorizer decides who may do what.
type Authorizer interface {
	// Authorize says what the bearer of the token may do. An error that Denied or NoToken made is told to the client; others are
	// logged, and the client is told to try again.
	Authorize(ctx context.Context, ask Ask) (Grant, error)
}

// revisable is an Authorizer that may take back what it has said: whenever Revision changes, those who are connected are asked for anew.
type revisable interface{ Revision() uint64 }

// revision is the Authorizer's.
func (w *Web) revision() uint64 {
	if a, ok := w.Authorizer.(revisable); ok {
		return a.Revision()
	}
	return 0
}

// Action is what a client wants to do.
type Action string

// The actions. Connect is about no channels: it asks whether the token is any good, when a WebSocket opens.
const (
	Connect   Action = "connect"
	Subscribe Action = "subscribe"
	Publish   Action = "publish"
	WaitJobs  Action = "jobs" // the filters are queues
)

// Ask is a question to an Authorizer.
type Ask struct {
	Token   string // empty: the client sent none
	Action  Action
	Filters []hub.Filter // what it is about; none: whether the client may do it at all, before it is listened to any further
	Remote  string       // the client's address
}

// Grant is an answer: what is allowed, which may be more than was asked for, and until when.
type Grant struct {
	Allow   []hub.Filter // nil: nothing
	Expires time.Time    // zero: never
	User    string       // whose token it is, for operators; empty: not known
}

// covers returns the first of the channels that the grant does not allow.
func (g Grant) covers(filters []hub.Filter) (denied string, ok bool) {
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

func (g Grant) expired(now time.Time) bool { return !g.Expires.IsZero() && !now.Before(g.Expires) }

// Denied makes the error of an Authorizer that knows the client and does not let it.
func Denied(text, hint string) error { return fail(http.StatusForbidden, "denied", text, hint) }

// NoToken makes the error of an Authorizer for a token that is missing, wrong or expired.
func NoToken(text, hint string) error {
	return fail(http.StatusUnauthorized, "unauthorized", text, hint)
}

var noToken = NoToken("no token was sent", "send it as Authorization: Bearer, as access_token in the URL, or as WebSocket subprotocol bearer.TOKEN")

// authorize asks whether the client may do it with all of the filters.
func (w *Web) authorize(ctx context.Context, ask Ask) (Grant, error) {
	grant, err := w.Authorizer.Authorize(ctx, ask)
	if err == nil && grant.expired(time.Now()) {
		err = NoToken("the token has expired", "get a new one")
	}
	if err == nil {
		if channel, ok := grant.covers(ask.Filters); !ok {
			err = Denied(fmt.Sprintf("%s %q is not allowed", ask.Action, channel), "the token must allow the channel, or a pattern that it lies within")
		}
	}
	if err != nil {
		f := w.explain("authorise a client", err)
		w.metrics.refused(f.Code)
		return Grant{}, f
	}
	return grant, nil
}

// tokenPrefix begins the subprotocol that carries a token, for browsers can't set headers for a WebSocket.
const tokenPrefix = "bearer."

// token returns what the client shows: in the header, as a subprotocol, or in the URL.
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

// nobody may do anything.
type nobody struct{}

func (nobody) Authorize(context.Context, Ask) (Grant, error) {
	return Grant{}, Denied("this server lets nobody in", "whoever runs it must configure tokens, a callback, or anonymous access")
}

// everybody may do everything.
type everybody struct{}

func (everybody) Authorize(context.Context, Ask) (Grant, error) {
	return Grant{Allow: []hub.Filter{hub.Pattern(">")}}, nil
}
