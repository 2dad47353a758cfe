package web

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/time/rate"

	"github.com/weir-pg/weir/internal/hub"
)

// subprotocol is what a client that offers subprotocols, to carry its token, gets.
const subprotocol = "weir.v1"

const (
	readBuffer  = 256 // of an idle WebSocket; longer frames are read past it
	writeBuffer = 144 // for what coder/websocket writes itself: control frames, each of which must be one Write
)

func (w *Web) serveWebSocket(rw http.ResponseWriter, r *http.Request) {
	policy, err := slowPolicy(r)
	if err != nil {
		w.explain("", err).write(rw)
		return
	}
	remote, token := strings.Clone(w.ClientAddress(r)), strings.Clone(token(r)) // they outlive the request, which must not
	revision := w.revision()                                                    // before the question
	grant, err := w.authorize(r.Context(), Ask{Token: token, Action: Connect, Remote: remote})
	if err != nil {
		w.explain("", err).write(rw)
		return
	}
	s := &stream{web: w, kind: webSocketKind{}, remote: remote, token: token}
	if f := w.enter(s); f != nil {
		f.write(rw)
		return
	}
	s.livesBy(token, strings.Clone(grant.User), revision)
	ws := &webSocket{stream: s, rate: newRate(w.Limits)}
	ws.conn, err = websocket.Accept(hijack{rw, ws}, r, &websocket.AcceptOptions{
		Subprotocols:       []string{subprotocol},
		InsecureSkipVerify: true, // sameOrigin has looked
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
	}
	// net/http's goroutine, its buffers and the request end with this handler.
	go ws.serve()
}

// hijack gives coder/websocket a connection whose writes are the stream's, with small buffers.
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
	if buffered.Writer.Buffered() > 0 { // the handshake's answer
		if err := buffered.Writer.Flush(); err != nil {
			return nil, nil, err
		}
	}
	h.ws.attach(taken{Conn: conn, polite: true})
	early, _ := buffered.Reader.Peek(buffered.Reader.Buffered()) // of a client that did not wait for the answer
	shim := &frames{Conn: conn, stream: h.ws.stream, early: slices.Clone(early)}
	return shim, bufio.NewReadWriter(bufio.NewReaderSize(shim, readBuffer), bufio.NewWriterSize(shim, writeBuffer)), nil
}

// frames is the connection as coder/websocket sees it: each Write is a frame of its own.
type frames struct {
	net.Conn
	stream *stream
	early  []byte // read already
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
	return len(b), nil // after the stream's own goodbye nothing else is said
}

// webSocket is a stream that also listens.
type webSocket struct {
	*stream
	conn *websocket.Conn
	rate *rate.Limiter

	// The reader's alone, and of the request it waits for.
	grants  grants
	ends    time.Time // of the first grant that the stream lives by; zero: never
	filters map[hub.Filter]struct{}
	resumed bool // the first subscribe has been
}

// serve reads what the client says until the connection ends.
func (ws *webSocket) serve() {
	defer ws.web.exit(ws.stream)
	if ws.heard(); ws.sub != nil {
		ws.startTimer()
	}
	for {
		kind, r, err := ws.conn.Reader(context.Background())
		if err != nil {
			break
		}
		ws.heard()
		b, taken, err := ws.take(r)
		if err != nil {
			break
		}
		if ws.sub == nil {
			taken()
			continue // the hub has closed, and the client has been told: it is waited for to close, and not heard
		}
		// What a request does needs a larger stack than waiting for one, and this goroutine would keep it.
		done := make(chan error)
		go func() { done <- ws.hear(kind, b) }()
		err = <-done
		taken()
		if err != nil {
			break
		}
	}
	ws.linger()
	ws.leave(errGone)
	_ = ws.conn.CloseNow()
}

// take reads a frame, which must come soon.
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

// readBy sets the deadline for reading, unless the stream is being closed and has set its own.
func (ws *webSocket) readBy(t time.Time) {
	ws.deadline.Lock()
	defer ws.deadline.Unlock()
	if conn, ok := ws.link.(taken); ok && !ws.closing {
		_ = conn.SetReadDeadline(t)
	}
}

// linger reads on for a while after coder/websocket has said goodbye to a client that broke a rule: closing with something unread
// would make the kernel reset the connection, and the client might lose the goodbye.
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

// pong answers a ping in the stream's own way: coder/websocket would take a write that waits its turn for a dead connection.
func (ws *webSocket) pong(_ context.Context, payload []byte) bool {
	ws.heard()
	ws.mu.Lock()
	defer ws.mu.Unlock()
	_ = ws.write(appendFrame(nil, opPong, payload), hub.Position{})
	return false
}

// slowPolicy reads the parameter slow.
func slowPolicy(r *http.Request) (hub.Policy, error) {
	switch v := r.URL.Query().Get("slow"); v {
	case "", "cut":
		return hub.CutOff, nil
	case "skip":
		return hub.SkipAhead, nil
	default:
		return 0, badRequest("slow must be cut or skip", "cut ends a stream that does not keep up, skip skips it ahead with a gap")
	}
}
