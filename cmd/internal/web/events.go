package web

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-pg/weir/internal/hub"
)

// wanted is the request for an event stream.
type wanted struct {
	filters []hub.Filter
	resume  bool
	after   hub.Position
	last    int
	events  bool // about the channels' members
	terms   *Terms
	policy  hub.Policy

	revocations uint64 // from before the client was authorized
}

func (w *Web) parseWanted(r *http.Request) (want wanted, err error) {
	q := r.URL.Query()
	if want.filters, err = w.parseFilters(q["channel"]); err != nil {
		return want, err
	}
	if want.policy, err = slowPolicy(r); err != nil {
		return want, err
	}
	if text := q.Get("last"); text != "" {
		if want.last, err = strconv.Atoi(text); err != nil {
			return want, badRequest(fmt.Sprintf("%.50q is not a number of messages", text), "send last=20")
		}
		if err := w.checkLast(want.last); err != nil {
			return want, err
		}
	}
	switch text := q.Get("presence"); text {
	case "", "false":
	case "true":
		want.events = true
	default:
		return want, badRequest(fmt.Sprintf("%.50q is not a valid value of presence", text), "send presence=true")
	}
	at := r.Header.Get("Last-Event-ID")
	if at == "" {
		at = q.Get("position")
	}
	if want.resume = at != ""; want.resume {
		if want.after, err = hub.ParsePosition(at); err != nil {
			return want, badRequest(err.Error(), "use the id of an event")
		}
	}
	return want, nil
}

func (w *Web) serveEvents(rw http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		fail(http.StatusMethodNotAllowed, "bad_request", "an event stream must be requested with GET", "").write(rw)
		return
	}
	want, err := w.parseWanted(r)
	if err != nil {
		w.explain("", err).write(rw)
		return
	}
	remote := strings.Clone(w.ClientAddress(r))
	token, revision := strings.Clone(token(r)), w.revision() // before the Authorizer is asked
	want.revocations = w.revocations.Load()
	grant, err := w.admitClient(r.Context(), Ask{Token: token, Action: Subscribe, Filters: want.filters, Remote: remote})
	if err == nil {
		err = w.placeFor(want.filters)
	}
	if err != nil {
		w.explain("", err).write(rw)
		return
	}
	s := &stream{web: w, kind: eventKind{}, remote: remote}
	if f := w.enter(s); f != nil {
		f.write(rw)
		return
	}
	want.terms = grant.Terms
	s.holds(want.filters...)
	s.livesBy(token, grant, revision)
	s.until(grant.Expires)
	head := rw.Header()
	head.Set("Content-Type", "text/event-stream")
	head.Set("Cache-Control", "no-store")
	head.Set("X-Accel-Buffering", "no") // nginx would otherwise buffer events
	if r.ProtoMajor == 1 {
		if conn, ok := w.takeEvents(rw); ok {
			s.attach(taken{Conn: conn})
			go s.serveTaken(conn, eventsHead(head), want) // net/http's goroutine, its buffers and the request are released when this handler returns
			return
		}
	}
	defer w.exit(s)
	over := make(chan struct{})
	s.attach(&lent{response: rw, controller: http.NewResponseController(rw), over: over})
	s.begin(nil, want)
	select {
	case <-over:
	case <-r.Context().Done():
		s.leave(errGone)
		<-over // another goroutine may be closing it already
	}
}

// takeEvents takes the connection over from net/http, if possible.
func (w *Web) takeEvents(rw http.ResponseWriter) (net.Conn, bool) {
	conn, _, err := http.NewResponseController(rw).Hijack()
	if err != nil {
		return nil, false
	}
	_ = conn.SetDeadline(time.Time{})
	dropDead(conn, w.WriteTimeout)
	return conn, true
}

// eventsHead returns the head of a response that ends with its connection.
func eventsHead(h http.Header) []byte {
	var b strings.Builder
	b.WriteString("HTTP/1.1 200 OK\r\nConnection: close\r\n")
	_ = h.Write(&b)
	b.WriteString("\r\n")
	return []byte(b.String())
}

// serveTaken serves a stream until its client closes the connection; anything that the client sends is ignored.
func (s *stream) serveTaken(conn net.Conn, head []byte, want wanted) {
	defer s.web.exit(s)
	s.begin(head, want)
	for some := make([]byte, 16); ; {
		if _, err := conn.Read(some); err != nil {
			break
		}
	}
	s.leave(errGone)
}

// begin writes the stream's first event and subscribes. The response has status 200 already, so if something fails the client reconnects:
// an EventSource gives up permanently when its request is refused.
func (s *stream) begin(head []byte, want wanted) {
	err := s.opening(head)
	if err == nil {
		err = s.join(hub.Options{MaxBytes: s.web.Limits.QueueBytes, Slow: want.policy})
	}
	if err == nil {
		err = s.confirm(want.revocations)
	}
	if err != nil {
		s.leave(err)
		return
	}
	ctx, cancel := context.WithTimeout(s.web.ctx, patience)
	defer cancel()
	s.startTimer()
	var events []hub.Filter
	if want.events {
		events = s.web.eventsOf(want.filters)
	}
	answer := outgoing{Type: "subscribed"}
	if want.resume {
		answer.Position = want.after.String()
		s.misses(events)
		if err = s.standsAt(want.after, answer); err == nil {
			err = s.sub.Resume(ctx, want.after, slices.Concat(want.filters, events)...)
		}
	} else {
		err = s.followLast(ctx, answer, want.last, distinct(want.filters), events, want.terms)
	}
	if err == nil {
		s.enters(want.filters)
	}
	if err != nil {
		s.web.log.Debug("weir: start an event stream", "error", err)
		s.leave(err)
	}
}

// opening writes what precedes all events.
func (s *stream) opening(head []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.write(fmt.Appendf(head, "retry: %d\n\n", reconnectAfter().Milliseconds()), hub.Position{})
}
