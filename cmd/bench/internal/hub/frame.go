package hub

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"

	"github.com/weir-pg/weir/cmd/internal/load"
)

// Transport is a way to subscribe at a hub.
type Transport string

// The transports.
const (
	PG  Transport = "pg"  // PostgreSQL's wire protocol
	WS  Transport = "ws"  // WebSocket
	SSE Transport = "sse" // Server-Sent Events
)

func (t Transport) check() error {
	if _, ok := framings[t]; !ok {
		return fmt.Errorf("bench: %q is not a valid transport: use pg, ws or sse", t)
	}
	return nil
}

// frame is one message or other unit that a hub sends to a subscriber.
type frame struct {
	message bool
	number  int64 // number of the message
	ping    bool  // it must be answered
	failure error // not nil if the hub ends the connection
}

// framing returns the next frame in b and its length; 0: it is incomplete.
type framing func(b []byte) (frame, int)

var framings = map[Transport]framing{PG: pgFrame, WS: wsFrame, SSE: sseFrame}

// digits returns the number at the start of a payload.
func digits(b []byte) (n int64) {
	for _, c := range b {
		if c < '0' || c > '9' {
			break
		}
		n = 10*n + int64(c-'0')
	}
	return n
}

func pgFrame(b []byte) (f frame, n int) {
	if len(b) < 5 {
		return f, 0
	}
	if n = int(binary.BigEndian.Uint32(b[1:])) + 1; len(b) < n {
		return f, 0
	}
	switch b[0] {
	case 'A':
		if end := bytes.IndexByte(b[9:n], 0); end >= 0 {
			f.message, f.number = true, digits(b[9+end+1:n])
		}
	case 'E':
		f.failure = serverError(b[5:n])
	}
	return f, n
}

var payloadKey = []byte(`"payload":"`)

func jsonFrame(b []byte) (f frame) {
	if at := bytes.Index(b, payloadKey); at >= 0 {
		f.message, f.number = true, digits(b[at+len(payloadKey):])
	}
	return f
}

func wsFrame(b []byte) (f frame, n int) {
	if len(b) < 2 {
		return f, 0
	}
	head, size := 2, int(b[1]&0x7f)
	switch {
	case size == 126 && len(b) >= 4:
		head, size = 4, int(binary.BigEndian.Uint16(b[2:]))
	case size == 127 && len(b) >= 10:
		head, size = 10, int(binary.BigEndian.Uint64(b[2:]))
	case size >= 126:
		return f, 0
	}
	if n = head + size; len(b) < n {
		return f, 0
	}
	switch b[0] & 0xf {
	case 0x1:
		f = jsonFrame(b[head:n])
	case 0x8:
		f.failure = fmt.Errorf("the hub has closed the WebSocket: %q", b[min(head+2, n):n])
	case 0x9:
		f.ping = true
	}
	return f, n
}

// wsPong answers a ping. Clients must mask what they send; a mask of zeros changes nothing.
var wsPong = []byte{0x8a, 0x80, 0, 0, 0, 0}

func sseFrame(b []byte) (f frame, n int) {
	end := bytes.Index(b, []byte("\n\n"))
	if end < 0 {
		return f, 0
	}
	if bytes.HasPrefix(b, []byte("event: end")) {
		f.failure = fmt.Errorf("the hub has ended the stream: %q", b[:end])
		return f, end + 2
	}
	return jsonFrame(b[:end]), end + 2
}

// subscriber is a connection that has subscribed, with the bytes read after that.
type subscriber struct {
	conn net.Conn
	rest []byte
}

// subscribe connects client i and subscribes.
func subscribe(ctx context.Context, t Transport, address string, a *account, i int, channel string) (s subscriber, err error) {
	if t == PG {
		w, err := a.login(ctx, address, i)
		if err != nil {
			return s, err
		}
		defer w.bound(ctx)()
		if err := w.listen(channel); err != nil {
			w.reset()
			return s, err
		}
		return subscriber{w.conn, w.rest()}, nil
	}
	conn, err := load.Dial(ctx, address, i)
	if err != nil {
		return s, err
	}
	w := &wire{conn: conn, buf: make([]byte, 1024)}
	defer w.bound(ctx)()
	if t == WS {
		err = w.webSocket(address, channel)
	} else {
		err = w.events(address, channel)
	}
	if err != nil {
		conn.Close()
		return s, fmt.Errorf("subscribe at %s: %w", address, err)
	}
	return subscriber{conn, w.rest()}, nil
}

// webSocket performs the handshake and subscribes.
func (w *wire) webSocket(address, channel string) error {
	const handshake = "GET /v1/ws HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: d2VpciBiZW5jaCBrZXkgMQ==\r\n\r\n"
	if _, err := fmt.Fprintf(w.conn, handshake, address); err != nil {
		return err
	}
	if err := w.head("101"); err != nil {
		return err
	}
	request := fmt.Sprintf(`{"type":"subscribe","channels":[%q]}`, channel)
	if len(request) > 125 {
		return fmt.Errorf("the channel name %q is too long for a frame of the bench", channel)
	}
	b := append([]byte{0x81, 0x80 | byte(len(request)), 0, 0, 0, 0}, request...)
	if _, err := w.conn.Write(b); err != nil {
		return err
	}
	return w.subscribed(wsFrame)
}

func (w *wire) events(address, channel string) error {
	if _, err := fmt.Fprintf(w.conn, "GET /v1/events?channel=%s HTTP/1.1\r\nHost: %s\r\n\r\n", url.QueryEscape(channel), address); err != nil {
		return err
	}
	if err := w.head("200"); err != nil {
		return err
	}
	return w.subscribed(sseFrame)
}

// head reads the head of an HTTP response.
func (w *wire) head(status string) error {
	end := []byte("\r\n\r\n")
	for n := 1; ; n = w.end - w.begin + 1 {
		if err := w.need(n); err != nil {
			return err
		}
		b := w.buf[w.begin:w.end]
		if at := bytes.Index(b, end); at >= 0 {
			if w.begin += at + len(end); !bytes.HasPrefix(b, []byte("HTTP/1.1 "+status)) {
				return fmt.Errorf("the hub answered %q", b)
			}
			return nil
		}
	}
}

// subscribed reads frames up to the confirmation of the subscription.
func (w *wire) subscribed(next framing) error {
	for n := 1; ; n = w.end - w.begin + 1 {
		if err := w.need(n); err != nil {
			return err
		}
		for {
			b := w.buf[w.begin:w.end]
			f, size := next(b)
			if size == 0 {
				break
			}
			w.begin += size
			switch b = b[:size]; {
			case f.failure != nil:
				return f.failure
			case bytes.Contains(b, []byte(`"type":"subscribed"`)):
				return nil
			case bytes.Contains(b, []byte(`"type":"error"`)):
				return errors.New("the hub answered " + strconv.Quote(string(b)))
			}
		}
	}
}
