package web

import (
	"context"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/weir-pg/weir/internal/hub"
)

// Endpoints are endpoints of another package.
type Endpoints interface {
	// Register passes each of them to Gate.Handle.
	Register(*Gate)
}

// Gate lets endpoints of other packages authorize, limit and answer clients in the way of those of this package.
type Gate struct{ web *Web }

// Handle serves a pattern of http.ServeMux, such as "POST /v1/jobs". Web pages of origins that are not allowed are refused.
func (g *Gate) Handle(pattern string, h http.HandlerFunc) {
	g.web.mux.HandleFunc(pattern, g.web.sameOrigin(h))
}

// Caller is who sends a request.
type Caller struct {
	Token  string // empty: none
	Remote string // the client's address
}

// Admit counts a request, or a session that it begins, and refuses it if there are too many, or if the server is stopping. If err is nil, the
// caller must call release when the request or session has ended: Web.Shutdown waits for that.
func (g *Gate) Admit(r *http.Request) (c Caller, release func(), err error) {
	c = Caller{Token: strings.Clone(token(r)), Remote: strings.Clone(g.web.ClientAddress(r))} // clones don't keep the request alive
	if f := g.web.admit(c.Remote); f != nil {
		return c, nil, f
	}
	return c, func() { g.web.release(c.Remote) }, nil
}

// Authorize returns a grant that allows the action on all of these queues. Without queues it asks whether the client may do it at all, to
// refuse it before its body is read. Errors are for Refuse or Explain.
func (g *Gate) Authorize(ctx context.Context, c Caller, action Action, queues ...string) (Grant, error) {
	return g.web.authorize(ctx, Ask{Token: c.Token, Action: action, Filters: Literal(queues), Remote: c.Remote})
}

// Literal returns filters that match exactly these names.
func Literal(names []string) []hub.Filter {
	filters := make([]hub.Filter, len(names))
	for i, name := range names {
		filters[i] = hub.Channel(name)
	}
	return filters
}

// Revision changes when tokens may have been revoked. Who holds a grant for longer than a request remembers the revision from before it was given,
// and authorizes again when another one is returned.
func (g *Gate) Revision() uint64 { return g.web.revision() + g.web.revocations.Load()<<48 }

// Read reads a request's body of up to limit bytes. Few long bodies are held at a time: call done when the bytes are no longer needed. The body
// has to arrive in time, and afterwards the request may take as long as it likes.
func (g *Gate) Read(ctx context.Context, rw http.ResponseWriter, r *http.Request, limit int64) (body []byte, done func(), err error) {
	body, done, err = g.web.readAll(ctx, http.MaxBytesReader(rw, r.Body, limit))
	if err == nil {
		// net/http continues to read, to notice that the client is gone; at the deadline it would take it for gone.
		_ = http.NewResponseController(rw).SetReadDeadline(time.Time{})
	}
	return body, done, err
}

// ReadFrom reads a frame of a connection, within the limit of its reader, as Read does a body. It calls late, which must end the reading, when the frame has not arrived in time.
func (g *Gate) ReadFrom(ctx context.Context, frame io.Reader, late func()) (b []byte, done func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, g.web.BodyTimeout)
	defer cancel()
	defer time.AfterFunc(g.web.BodyTimeout, late).Stop()
	return g.web.readAll(ctx, frame)
}

// Context ends when the server stops, with Shutdown: what waits then answers.
func (g *Gate) Context() context.Context { return g.web.ctx }

// Explain converts an error to what the client may know of it. One that the client did not cause is logged, with what the server was doing.
func (g *Gate) Explain(doing string, err error) *Failure { return g.web.explain(doing, err) }

// Refuse answers a request with what Explain returns.
func (g *Gate) Refuse(rw http.ResponseWriter, doing string, err error) {
	g.web.explain(doing, err).write(rw)
}

// Reply answers a request with JSON.
func Reply(rw http.ResponseWriter, status int, v any) { reply(rw, status, v) }

// Unreadable describes what is wrong with a client's JSON without the vocabulary of Go.
func Unreadable(err error) string { return unreadable(err) }
