package web

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/internal/pgtest"
)

// generous is longer than any single step takes on a busy machine.
const generous = time.Minute

// memory is a log of messages in memory: a source for hubs.
type memory struct {
	mu      sync.Mutex
	ticks   []*hub.Part // ticks[i] is tick first+i
	first   int64
	changed chan struct{}
	refuse  func(hub.Draft) error // nil: nothing is refused
	replays sync.RWMutex          // a test that holds it has replays wait
}

// epoch is the epoch of all ticks.
const epoch = 7

func newMemory() *memory { return &memory{first: 1, changed: make(chan struct{})} }

func (m *memory) newest() hub.Position {
	return hub.Position{Epoch: epoch, Tick: m.first + int64(len(m.ticks))}
}

func (m *memory) end() hub.Position {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.newest()
}

func (m *memory) Newest(context.Context) (hub.Position, error) { return m.end(), nil }

func (m *memory) Next(ctx context.Context, after hub.Position) ([]*hub.Part, error) {
	m.mu.Lock()
	changed := m.changed
	m.mu.Unlock()
	if parts, err := m.read(after); len(parts) > 0 || err != nil {
		return parts, err
	}
	select {
	case <-changed:
	case <-time.After(50 * time.Millisecond):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return m.read(after)
}

func (m *memory) Read(_ context.Context, after hub.Position) ([]*hub.Part, error) {
	m.replays.RLock()
	defer m.replays.RUnlock()
	return m.read(after)
}

func (m *memory) read(after hub.Position) ([]*hub.Part, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if after.Tick < m.first && m.first > 1 {
		return nil, &hub.TruncatedError{From: hub.Position{Epoch: epoch, Tick: m.first}}
	}
	if m.newest().Before(after) || after.Tick > 0 && after.Epoch >= 0 && after.Epoch != epoch {
		return nil, &hub.SetBackError{To: m.newest()}
	}
	i := max(after.Tick-m.first, 0)
	if i >= int64(len(m.ticks)) {
		return nil, nil
	}
	var parts []*hub.Part
	for _, p := range m.ticks[i:min(i+100, int64(len(m.ticks)))] {
		parts = append(parts, copied(p))
	}
	return parts, nil
}

// copied returns a copy for one hub: a hub owns the messages that it reads.
func copied(p *hub.Part) *hub.Part {
	c := *p
	c.Messages = nil
	for _, m := range p.Messages {
		c.Messages = append(c.Messages, &hub.Message{Position: m.Position, Channel: m.Channel, Payload: m.Payload, Binary: m.Binary})
	}
	return &c
}

func (m *memory) Publish(_ context.Context, drafts []hub.Draft) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range drafts {
		if m.refuse != nil {
			if err := m.refuse(d); err != nil {
				return &hub.RefusedError{Err: err}
			}
		}
	}
	tick := m.newest().Tick
	p := &hub.Part{Tick: tick, Epoch: epoch, Prior: epoch, At: time.Now(), First: 1, Last: int32(len(drafts)), End: true}
	for i, d := range drafts {
		p.Messages = append(p.Messages, &hub.Message{
			Position: hub.Position{Epoch: epoch, Tick: tick, Index: int32(i + 1)}, Channel: d.Channel, Payload: d.Payload, Binary: d.Binary,
		})
	}
	m.ticks = append(m.ticks, p)
	close(m.changed)
	m.changed = make(chan struct{})
	return nil
}

// truncate deletes the oldest n ticks.
func (m *memory) truncate(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ticks, m.first = m.ticks[n:], m.first+int64(n)
}

// rig is a hub behind HTTP.
type rig struct {
	t       testing.TB
	source  *memory
	hub     *hub.Hub
	web     *Web
	server  *httptest.Server
	stopHub func() // stops it and waits
}

// newRig serves a hub on the source; change, if not nil, changes the configuration.
func newRig(t testing.TB, source *memory, change func(*Config)) *rig {
	t.Helper()
	r := &rig{t: t, source: source}
	quiet := slog.New(slog.DiscardHandler)
	r.hub = hub.New(hub.Config{Source: source, Logger: quiet, RingBytes: 1}) // with so small a ring, replays read the source
	c := Config{Hub: r.hub, Logger: quiet, Anonymous: true}
	if change != nil {
		change(&c)
	}
	var err error
	if r.web, err = New(c); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { r.hub.Run(ctx); close(done) }()
	r.stopHub = func() { stop(); <-done }
	r.server = httptest.NewServer(r.web)
	t.Cleanup(func() {
		r.stopHub()
		ctx, cancel := context.WithTimeout(context.Background(), generous)
		defer cancel()
		if err := r.web.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		r.server.Close()
	})
	eventually(t, func() error { return r.web.ready() })
	return r
}

// publish logs messages as one tick, directly in the source.
func (r *rig) publish(messages ...string) {
	r.t.Helper()
	drafts := make([]hub.Draft, len(messages))
	for i, m := range messages {
		channel, payload, _ := strings.Cut(m, "=")
		drafts[i] = hub.Draft{Channel: channel, Payload: []byte(payload)}
	}
	if err := r.source.Publish(r.t.Context(), drafts); err != nil {
		r.t.Fatal(err)
	}
}

// said is an object that the server sends on a stream.
type said struct {
	Type     string
	ID       json.RawMessage
	Channel  string
	Payload  string
	Base64   string `json:"payload_base64"`
	Position string
	From, To string
	Reason   string
	Code     string
	Error    string
	Hint     string

	RetryAfter int `json:"retry_after"`
	Expires    string

	Joined []json.RawMessage
	Count  int

	eventID string // of an event stream
}

func (s said) String() string {
	switch s.Type {
	case "message":
		return s.Channel + "=" + s.Payload + s.Base64
	case "gap":
		return "gap " + s.Reason
	case "error":
		return "error " + s.Code
	}
	return s.Type
}

func (s said) at(t testing.TB) hub.Position {
	t.Helper()
	p, err := hub.ParsePosition(s.Position)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// client is a stream's other end.
type client interface {
	next() said
	close()
	end() string // waits for the end, and returns its close code or reason
}

// wsClient speaks WebSocket.
type wsClient struct {
	t     testing.TB
	conn  *websocket.Conn
	pings atomic.Int32 // that it got
}

func (r *rig) dial(query string, header http.Header, protocols ...string) (*wsClient, *http.Response, error) {
	ctx, cancel := context.WithTimeout(r.t.Context(), generous)
	defer cancel()
	c := &wsClient{t: r.t}
	conn, response, err := websocket.Dial(ctx, r.server.URL+"/v1/ws"+query, &websocket.DialOptions{
		HTTPHeader: header, Subprotocols: protocols, OnPingReceived: func(context.Context, []byte) bool { c.pings.Add(1); return true },
	})
	if err != nil {
		return nil, response, err
	}
	conn.SetReadLimit(-1)
	c.conn = conn
	r.t.Cleanup(c.close)
	return c, response, nil
}

func (r *rig) ws(query string) *wsClient {
	r.t.Helper()
	c, _, err := r.dial(query, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

func (c *wsClient) say(format string, args ...any) {
	c.t.Helper()
	if err := c.conn.Write(c.t.Context(), websocket.MessageText, fmt.Appendf(nil, format, args...)); err != nil {
		c.t.Fatal(err)
	}
}

// ask sends a request and returns the next object from the server that is not a heartbeat.
func (c *wsClient) ask(format string, args ...any) said {
	c.t.Helper()
	c.say(format, args...)
	for {
		if s := c.next(); s.Type != "heartbeat" {
			return s
		}
	}
}

func (c *wsClient) read() (said, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), generous)
	defer cancel()
	_, b, err := c.conn.Read(ctx)
	if err != nil {
		return said{}, err
	}
	var s said
	return s, json.Unmarshal(b, &s)
}

func (c *wsClient) next() said {
	c.t.Helper()
	s, err := c.read()
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

func (c *wsClient) close() { _ = c.conn.CloseNow() }

func (c *wsClient) end() string {
	for {
		if _, err := c.read(); err != nil {
			return fmt.Sprintf("%d", websocket.CloseStatus(err))
		}
	}
}

// sseClient reads an event stream.
type sseClient struct {
	t        testing.TB
	response *http.Response
	lines    *bufio.Reader
	cancel   context.CancelFunc
	retry    string // the newest reconnection delay that the server sent
}

func (r *rig) get(path string, header http.Header) (*http.Response, context.CancelFunc) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.server.URL+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	if header != nil {
		request.Header = header
	}
	response, err := r.server.Client().Do(request)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { cancel(); response.Body.Close() })
	return response, cancel
}

func (r *rig) sse(query, lastEventID string) *sseClient {
	r.t.Helper()
	header := http.Header{}
	if lastEventID != "" {
		header.Set("Last-Event-ID", lastEventID)
	}
	response, cancel := r.get("/v1/events"+query, header)
	if response.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(response.Body)
		r.t.Fatalf("status %d: %s", response.StatusCode, b)
	}
	return &sseClient{t: r.t, response: response, lines: bufio.NewReader(response.Body), cancel: cancel}
}

func (c *sseClient) read() (said, error) {
	timeout := time.AfterFunc(generous, c.cancel)
	defer timeout.Stop()
	var s said
	event, data := "", ""
	for {
		line, err := c.lines.ReadString('\n')
		if err != nil {
			return s, err
		}
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch name {
		case "id":
			s.eventID = value
		case "event":
			event = value
		case "data":
			data = value
		case "retry":
			c.retry = value
		case "":
			if data == "" {
				continue
			}
			if err := json.Unmarshal([]byte(data), &s); err != nil {
				return s, err
			}
			if s.Type != event {
				return s, fmt.Errorf("event %q has data of type %q", event, s.Type)
			}
			return s, nil
		}
	}
}

func (c *sseClient) next() said {
	c.t.Helper()
	s, err := c.read()
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

func (c *sseClient) close() { c.cancel() }

func (c *sseClient) end() string {
	last := ""
	for {
		s, err := c.read()
		if err != nil {
			return last
		}
		if s.Type == "end" {
			last = s.Code
		}
	}
}

// transports runs a test over both transports. open opens a stream on the channels, and returns it with the first object that it receives;
// position is where to resume, or empty.
func transports(t *testing.T, test func(t *testing.T, open func(r *rig, position string, channels ...string) (client, said))) {
	t.Run("websocket", func(t *testing.T) {
		test(t, func(r *rig, position string, channels ...string) (client, said) {
			r.t.Helper()
			c := r.ws("")
			list, _ := json.Marshal(channels)
			return c, c.ask(`{"type":"subscribe","channels":%s,"position":%q}`, list, position)
		})
	})
	t.Run("sse", func(t *testing.T) {
		test(t, func(r *rig, position string, channels ...string) (client, said) {
			r.t.Helper()
			c := r.sse("?"+url.Values{"channel": channels}.Encode(), position)
			return c, c.next()
		})
	})
}

// expect reads all of these, in this order, and nothing else except heartbeats.
func expect(t testing.TB, c client, want ...string) (last said) {
	t.Helper()
	for _, w := range want {
		last = c.next()
		for last.Type == "heartbeat" {
			last = c.next()
		}
		if last.String() != w {
			t.Fatalf("got %q %+v, want %q", last, last, w)
		}
	}
	return last
}

func eventually(t testing.TB, f func() error) {
	t.Helper()
	pgtest.Eventually(t, f)
}

func newTLSServer(h http.Handler) *httptest.Server {
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = true
	s.StartTLS()
	return s
}
