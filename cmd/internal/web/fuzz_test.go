package web

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/weir-pg/weir/internal/hub"
)

// sunk is a link that keeps everything written to it.
type sunk struct{ bytes.Buffer }

func (*sunk) SetWriteDeadline(time.Time) error { return nil }
func (*sunk) HangUp(time.Time)                 {}

// FuzzHear: the server answers any frame in JSON, and survives it.
func FuzzHear(f *testing.F) {
	for _, seed := range []string{
		`{"type":"subscribe","id":1,"channels":["a.*",">"],"position":"7.1.2"}`, `{"type":"unsubscribe","channels":["x"]}`,
		`{"type":"publish","channel":"a","payload":"\u0000"}`, `{"type":"publish","messages":[{"channel":"a","payload_base64":"AA=="},null]}`,
		`{"type":"auth","token":"x"}`, `{"type":"ping","id":{"a":[1]}}`, `null`, `[]`, `{"id":"`, "\xff",
	} {
		f.Add([]byte(seed))
	}
	r := newRig(f, newMemory(), func(c *Config) { c.Limits.PublishRate = 1e9 })
	f.Fuzz(func(t *testing.T, said []byte) {
		link := &sunk{}
		s := &stream{web: r.web, kind: eventKind{}, link: link}
		var err error
		if s.sub, err = r.hub.Join(s, hub.Options{}); err != nil {
			t.Fatal(err)
		}
		defer s.sub.Leave()
		ws := &webSocket{stream: s}
		if err := ws.hear(websocket.MessageText, said); err != nil {
			t.Fatal(err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		_, data, ok := bytes.Cut(link.Bytes(), []byte("data: "))
		data, _, _ = bytes.Cut(data, []byte("\n"))
		if !ok || !json.Valid(data) {
			t.Fatalf("%q is answered by %q", said, link.Bytes())
		}
	})
}
