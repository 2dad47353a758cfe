package web

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/weir-pg/weir/internal/hub"
)

// message is a message's JSON, the same for both kinds of stream.
type message struct {
	Type     string  `json:"type"`
	Channel  string  `json:"channel"`
	Payload  *string `json:"payload,omitempty"`
	Base64   *string `json:"payload_base64,omitempty"`
	Position string  `json:"position,omitempty"`
}

func messageJSON(m *hub.Message) []byte {
	if hub.IsInternal(m.Channel) { // an event about members
		return m.Payload
	}
	out := message{Type: "message", Channel: m.Channel}
	if m.Binary {
		text := base64.StdEncoding.EncodeToString(m.Payload)
		out.Base64 = &text
	} else {
		text := string(m.Payload)
		out.Payload = &text
	}
	if !m.Position.IsZero() {
		out.Position = m.Position.String()
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // payloads are often JSON or XML, and browsers don't interpret this as a page
	if err := e.Encode(out); err != nil {
		panic(err) // strings can always be encoded
	}
	return bytes.TrimSuffix(b.Bytes(), []byte{'\n'})
}

// webSocketKind encodes events as frames, each with one JSON object.
type webSocketKind struct{}

func (webSocketKind) name() string { return "websocket" }

func (webSocketKind) message(m *hub.Message) []byte {
	return m.Encoded(hub.FormatJSON, func(m *hub.Message) []byte { return appendFrame(nil, opText, messageJSON(m)) })
}

func (webSocketKind) append(dst []byte, _ hub.Position, e outgoing) []byte {
	return appendFrame(dst, opText, marshal(e))
}

func (webSocketKind) probe(dst []byte) []byte { return appendFrame(dst, opPing, nil) }

// Close codes in addition to those of RFC 6455.
const (
	closeExpired websocket.StatusCode = 4401
	closeDenied  websocket.StatusCode = 4403
	closeSlow    websocket.StatusCode = 4408
)

func (webSocketKind) farewell(reason error) []byte {
	code, text := websocket.StatusInternalError, "the stream has failed: connect again"
	var limit *hub.LimitError
	switch {
	case errors.As(reason, &limit):
		code, text = websocket.StatusTryAgainLater, "a limit of this server: try again later" // the name of a channel may be longer than a reason
	case errors.Is(reason, hub.ErrClosed):
		code, text = websocket.StatusServiceRestart, "this server is stopping: connect again"
	case errors.Is(reason, hub.ErrSlow):
		code, text = closeSlow, "you did not keep up: connect again and resume"
	case errors.Is(reason, errExpired):
		code, text = closeExpired, "your token has expired: connect again with a new one"
	case errors.Is(reason, errDenied):
		code, text = closeDenied, errDenied.Error()
	case errors.Is(reason, errEnded):
		code, text = websocket.StatusPolicyViolation, "an operator closed this connection"
	case errors.Is(reason, errSilent):
		code, text = websocket.StatusPolicyViolation, "you do not answer pings"
	}
	return appendFrame(nil, opClose, append(binary.BigEndian.AppendUint16(nil, uint16(code)), text...))
}

const (
	opText  = 0x1
	opClose = 0x8
	opPing  = 0x9
	opPong  = 0xa
)

// appendFrame appends a complete WebSocket frame, unmasked as servers send them.
func appendFrame(dst []byte, opcode byte, payload []byte) []byte {
	const final = 0x80
	dst = append(dst, final|opcode)
	switch n := len(payload); {
	case n < 126:
		dst = append(dst, byte(n))
	case n < 1<<16:
		dst = binary.BigEndian.AppendUint16(append(dst, 126), uint16(n))
	default:
		dst = binary.BigEndian.AppendUint64(append(dst, 127), uint64(n))
	}
	return append(dst, payload...)
}

// eventKind encodes events as text/event-stream.
type eventKind struct{}

func (eventKind) name() string { return "sse" }

func (eventKind) message(m *hub.Message) []byte {
	return m.Encoded(hub.FormatSSE, func(m *hub.Message) []byte { return appendEvent(nil, m.Position, eventName(m), messageJSON(m)) })
}

func eventName(m *hub.Message) string {
	if hub.IsInternal(m.Channel) {
		return "presence"
	}
	return "message"
}

func (eventKind) append(dst []byte, at hub.Position, e outgoing) []byte {
	return appendEvent(dst, at, e.Type, marshal(e))
}

func (eventKind) probe(dst []byte) []byte { return dst }

// farewell gives each client a random delay when all are told to reconnect at once.
func (eventKind) farewell(reason error) []byte {
	if errors.Is(reason, hub.ErrClosed) {
		return fmt.Appendf(nil, "retry: %d\n\n", 500+rand.IntN(4500))
	}
	text := reason.Error()
	if endCode(reason) == "unavailable" {
		text = "the stream has failed"
	}
	return appendEvent(nil, hub.Position{}, "end", marshal(outgoing{Type: "end", Failure: &Failure{Code: endCode(reason), Text: text}}))
}

func endCode(reason error) string {
	var limit *hub.LimitError
	switch {
	case errors.As(reason, &limit):
		return "limit"
	case errors.Is(reason, hub.ErrSlow):
		return "slow"
	case errors.Is(reason, errExpired):
		return "expired"
	case errors.Is(reason, errDenied):
		return "denied"
	}
	return "unavailable"
}

// appendEvent appends an event. JSON has no line breaks, so the data is one line.
func appendEvent(dst []byte, at hub.Position, event string, data []byte) []byte {
	if !at.IsZero() {
		dst = append(append(append(dst, "id: "...), at.String()...), '\n')
	}
	dst = append(append(append(dst, "event: "...), event...), "\ndata: "...)
	return append(append(dst, data...), "\n\n"...)
}

// buffer collects the events of one write.
type buffer struct{ bytes []byte }

// bufferBytes limits one write, unless a single message is longer.
const bufferBytes = 32 << 10

var buffers = sync.Pool{New: func() any { return &buffer{bytes: make([]byte, 0, bufferBytes)} }}

func takeBuffer() *buffer { return buffers.Get().(*buffer) }

func (b *buffer) give() {
	if cap(b.bytes) <= 2*bufferBytes {
		b.bytes = b.bytes[:0]
		buffers.Put(b)
	}
}

// reconnectAfter returns the delay that an event stream tells its client to wait before it reconnects.
func reconnectAfter() time.Duration { return time.Second + rand.N(2*time.Second) }
