package web

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/time/rate"

	limits "github.com/weir-pg/weir/cmd/internal/rate"
	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/internal/sleep"
)

// subprotocol is selected for a client that offers subprotocols, as it does to send its token.
const subprotocol = "weir.v1"

const (
	readBuffer  = 256 // bytes; longer frames are read past it
	writeBuffer = 144 // bytes, for the frames that coder/websocket writes: control frames, each of which must be one Write
)

func (w *Web) serveWebSocket(rw http.ResponseWriter, r *http.Request) {
	policy, err := slowPolicy(r)
	if err != nil {
		w.explain("", err).write(rw)
		return
	}
	remote, token := strings.Clone(w.ClientAddress(r)), strings.Clone(token(r)) // clones don't keep the request alive
	revision, revocations := w.revision(), w.revocations.Load()                 // before the Authorizer is asked
	var grant Grant
	if token != "" || !w.Policies.Set().Anyone() { // otherwise it may use the channels that are open to anyone
		grant, err = w.authorize(r.Context(), Ask{Token: token, Action: Connect, Remote: remote})
	}
	if err != nil {
		w.explain("", err).write(rw)
		return
	}
	s := &stream{web: w, kind: webSocketKind{}, remote: remote, token: token}
	if f := w.enter(s); f != nil {
		f.write(rw)
		return
	}
	s.livesBy(token, grant, revision)
	ws := &webSocket{stream: s, rate: newRate(w.Limits)}
	ws.conn, err = websocket.Accept(hijack{rw, ws}, r, &websocket.AcceptOptions{
		Subprotocols:       []string{subprotocol},
		InsecureSkipVerify: true, // sameOrigin has checked the origin
		OnPingReceived:     ws.pong,
		OnPongReceived:     func(context.Context, []byte) { s.heard() },
	})
	if err != nil {
		w.exit(s) // Accept has answered
		return
	}
	ws.conn.SetReadLimit(w.Limits.carrier())
	ws.allow(Connect, grant)
	if err := s.join(hub.Options{MaxBytes: w.Limits.QueueBytes, Slow: policy}); err != nil {
		s.close(err)
	} else if err := s.confirm(revocations); err != nil {
		s.leave(err)
	}
	// net/http's goroutine, its buffers and the request are released when this handler returns.
	go ws.serve()
}

// hijack gives coder/websocket small buffers, and a connection that writes through the stream.
type hijack struct {
	http.ResponseWriter
	ws *webSocket
}

func (h hijack) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return nil, nil, err
	}
	dropDead(conn, h.ws.web.WriteTimeout)
	if buffered.Writer.Buffered() > 0 { // the answer to the handshake
		if err := buffered.Writer.Flush(); err != nil {
			return nil, nil, err
		}
	}
	h.ws.attach(taken{Conn: conn, polite: true})
	early, _ := buffered.Reader.Peek(buffered.Reader.Buffered()) // from a client that did not wait for the answer
	shim := &frames{Conn: conn, stream: h.ws.stream, early: slices.Clone(early)}
	return shim, bufio.NewReadWriter(bufio.NewReaderSize(shim, readBuffer), bufio.NewWriterSize(shim, writeBuffer)), nil
}

// frames is the connection as coder/websocket sees it: each Write is one frame.
type frames struct {
	net.Conn
	stream *stream
	early  []byte // already read by net/http
}

func (f *frames) Read(b []byte) (int, error) {
	if len(f.early) > 0 {
		n := copy(b, f.early)
		f.early = f.early[n:]
		return n, nil
	}
	return f.Conn.Read(b)
}

func (f *frames) Write(b []byte) (int, error) {
	f.stream.mu.Lock()
	defer f.stream.mu.Unlock()
	if err := f.stream.write(b, hub.Position{}); err != nil && !errors.Is(err, errClosing) {
		return 0, err
	}
	return len(b), nil // nothing is written after the stream's farewell
}

// webSocket is a stream that also receives requests.
type webSocket struct {
	*stream
	conn *websocket.Conn
	rate *rate.Limiter // of messages that it publishes

	requests limits.Cell
	pause    time.Duration // until the next request is read

	// Used only by the reader and by the request that it waits for.
	grants  grants
	ends    time.Time // when the first of its grants expires; zero: never
	filters map[hub.Filter]struct{}
	resumed bool // the first subscribe has been processed
}

// serve reads requests until the connection ends.
func (ws *webSocket) serve() {
	defer ws.web.exit(ws.stream)
	if ws.heard(); ws.sub != nil {
		ws.startTimer()
	}
	for {
		ws.life.busy.Store(false)
		kind, r, err := ws.conn.Reader(context.Background())
		ws.life.busy.Store(true)
		ws.heard()
		if err != nil {
			break
		}
		b, taken, err := ws.take(r)
		if err != nil {
			break
		}
		if ws.sub == nil {
			taken()
			continue // the hub has closed and the client was told so: wait for it to close, and ignore its requests
		}
		// Processing a request needs a larger stack than waiting for one, and this goroutine would keep it.
		done := make(chan error)
		go func() { done <- ws.hear(kind, b) }()
		err = <-done
		taken()
		if err != nil {
			break
		}
		if ws.pause > 0 {
			sleep.For(ws.web.ctx, min(ws.pause, maxPause))
			ws.pause = 0
		}
		ws.heard() // nobody has asked it meanwhile
	}
	ws.linger()
	ws.leave(errGone)
	_ = ws.conn.CloseNow()
}

// take reads a frame, within BodyTimeout.
func (ws *webSocket) take(from io.Reader) (b []byte, done func(), err error) {
	ctx, cancel := context.WithTimeout(ws.web.ctx, ws.web.BodyTimeout)
	defer cancel()
	ws.readBy(time.Now().Add(ws.web.BodyTimeout))
	b, done, err = ws.web.readAll(ctx, from)
	if err == nil {
		ws.readBy(time.Time{})
	}
	return b, done, err
}

// readBy sets the read deadline, unless the stream is being closed and has set its own.
func (ws *webSocket) readBy(t time.Time) {
	ws.deadline.Lock()
	defer ws.deadline.Unlock()
	if conn, ok := ws.link.(taken); ok && !ws.closing {
		_ = conn.SetReadDeadline(t)
	}
}

// linger continues to read for a while after coder/websocket has sent a close frame to a client that violated the protocol: closing with
// unread data would make the kernel reset the connection, and the client might lose the close frame.
func (ws *webSocket) linger() {
	if ws.sub != nil {
		ws.sub.Leave()
	}
	ws.deadline.Lock()
	closing := ws.closing
	conn, ok := ws.link.(taken)
	ws.deadline.Unlock()
	if closing || !ok || conn.SetReadDeadline(time.Now().Add(closeGrace)) != nil {
		return
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(conn.Conn, ws.web.Limits.carrier()))
}

// pong answers a ping through the stream: coder/websocket would mistake a write that waits its turn for a dead connection.
func (ws *webSocket) pong(_ context.Context, payload []byte) bool {
	ws.heard()
	ws.mu.Lock()
	defer ws.mu.Unlock()
	_ = ws.write(appendFrame(nil, opPong, payload), hub.Position{})
	return false
}

// slowPolicy parses the parameter slow.
func slowPolicy(r *http.Request) (hub.Policy, error) {
	switch v := r.URL.Query().Get("slow"); v {
	case "", "cut":
		return hub.CutOff, nil
	case "skip":
		return hub.SkipAhead, nil
	default:
		return 0, badRequest(fmt.Sprintf("%.50q is not a valid value of slow", v), "use cut, which ends a stream that does not keep up, or skip, which skips it ahead with a gap")
	}
}
