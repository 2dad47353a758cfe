package weirui

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/weir-pg/weir/internal/hub"
)

const (
	tailRate     = 100                    // messages shown in a second
	shownBytes   = 4 << 10                // of a payload
	redactBytes  = 64 << 10               // JSON beyond that is not read, and so not shown
	tailPause    = 100 * time.Millisecond // between two writes
	tailBeat     = 15 * time.Second       // between two signs of life
	tailWriteFor = 10 * time.Second       // how long a write may take
	tailReadyFor = 10 * time.Second       // how long the database may take to answer at first
	tailFor      = 10 * time.Minute       // then the browser connects again, and its user's role is looked up again
)

// showTail is the page on which the messages of a channel, or of a pattern of channels, are shown as they come.
func showTail(v *visit) (*view, error) {
	channel := strings.TrimSpace(v.URL.Query().Get("channel"))
	if channel == "" {
		return nil, badInput("Name a channel, or a pattern such as orders.>, in ?channel=.")
	}
	if _, err := hub.ParseFilter(channel); err != nil {
		return nil, badInput("%s", sentence(err.Error()))
	}
	return &view{template: "tail", title: "Messages on " + channel, data: struct {
		Channel string `json:"channel"`
	}{channel}}, nil
}

// streamTail streams the messages of a channel, or of a pattern, as Server-Sent Events: from now on, or after the position that the client names in
// Last-Event-ID. An error: nothing has been sent yet.
func streamTail(v *visit, w http.ResponseWriter) error {
	name := strings.TrimSpace(v.URL.Query().Get("channel"))
	if name == "" {
		return badInput("Name a channel, or a pattern such as orders.>, in ?channel=.")
	}
	filter, err := hub.ParseFilter(name)
	if err != nil {
		return badInput("%s", sentence(err.Error()))
	}
	var after hub.Position
	if last := v.Header.Get("Last-Event-ID"); last != "" {
		if after, err = hub.ParsePosition(last); err != nil {
			return badInput("%s", sentence("Last-Event-ID: "+err.Error()))
		}
	}
	ending := v.ui.servers.ending(v.Context())
	h, err := v.db.tails.enter(v.ui, v.db, v.user.Name)
	if err != nil {
		return err
	}
	defer v.db.tails.leave(v.user.Name)
	t := newTail()
	sub, err := h.Join(t, hub.Options{Slow: hub.SkipAhead})
	if err != nil {
		return err
	}
	defer sub.Leave()
	ready, cancel := context.WithTimeout(v.Context(), tailReadyFor)
	defer cancel()
	if _, err := read(ready, v.db, "settings", v.db.client.Settings); err != nil { // says at once what the hub would go on trying
		return err
	}
	if err := sub.Subscribe(ready); err != nil { // waits until the hub knows the end of the log
		return err
	}
	if after.IsZero() {
		after = sub.Position()
	}
	if err := sub.Resume(v.Context(), after, filter); err != nil {
		return err
	}

	s := newEventStream(w)
	s.event("ready", after, map[string]string{"channel": name})
	s.allowed = func() bool { return v.mayStill(Viewer) }
	s.follow(v.Context(), ending, v.ui, t, sub.Position)
	return nil
}

// follow sends what a tail gathers until its client leaves, the server shuts down or the hub has ended it. position is how far the client is if there is
// nothing to send.
func (s *eventStream) follow(ctx context.Context, ending <-chan struct{}, u *UI, t *tail, position func() hub.Position) {
	beat, end := time.NewTicker(tailBeat), time.NewTimer(tailFor)
	defer beat.Stop()
	defer end.Stop()
	woken, pause := t.woken, (<-chan time.Time)(nil)
	for s.send() == nil {
		select {
		case <-woken:
			s.add(u, t)
			woken, pause = nil, time.After(tailPause)
		case <-pause:
			woken, pause = t.woken, nil
		case <-beat.C:
			if s.allowed != nil && !s.allowed() {
				return
			}
			at := position()
			if s.add(u, t); s.buffer.Len() == 0 { // what comes after at may have been gathered since, but nothing before it is left
				s.mark(at)
			}
		case err := <-t.closed:
			s.event("problem", hub.Position{}, map[string]string{"error": sentence(err.Error())})
			_ = s.send()
			return
		case <-end.C:
			return
		case <-ending:
			return
		case <-ctx.Done():
			return
		}
	}
}

// tail gathers what is to be sent to one client. It is the hub's sink, and never keeps the hub waiting: what is too much is counted.
type tail struct {
	woken  chan struct{} // something has been gathered
	closed chan error    // why the hub has ended it

	mu      sync.Mutex
	since   time.Time // when the second began in which shown were gathered
	shown   int
	waiting []arrival
	leftOut int
	gap     *hub.Gap
	at      hub.Position // after all of these
}

func newTail() *tail { return &tail{woken: make(chan struct{}, 1), closed: make(chan error, 1)} }

// arrival is a message that has arrived.
type arrival struct {
	at       time.Time
	position hub.Position
	channel  string
	payload  []byte // as far as it may be needed
	size     int
	binary   bool
}

// Deliver implements hub.Sink.
func (t *tail) Deliver(events []hub.Event) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if now.Sub(t.since) >= time.Second {
		t.since, t.shown = now, 0
	}
	for _, e := range events {
		switch m := e.Message; {
		case m == nil:
			t.gap, t.at = e.Gap, e.Gap.To
			continue
		case t.shown >= tailRate || len(t.waiting) >= tailRate:
			t.leftOut++
		default:
			t.shown++
			a := arrival{now, m.Position, m.Channel, m.Payload, len(m.Payload), m.Binary}
			if len(a.payload) > redactBytes { // so that what waits here is bounded
				a.payload = bytes.Clone(a.payload[:shownBytes+1])
			}
			t.waiting = append(t.waiting, a)
		}
		if p := e.Message.Position; !p.IsZero() {
			t.at = p
		}
	}
	select {
	case t.woken <- struct{}{}:
	default:
	}
	return nil
}

// Close implements hub.Sink.
func (t *tail) Close(err error) { t.closed <- err }

// take returns what has been gathered.
func (t *tail) take() (arrivals []arrival, leftOut int, gap *hub.Gap, at hub.Position) {
	t.mu.Lock()
	defer t.mu.Unlock()
	arrivals, leftOut, gap, at = t.waiting, t.leftOut, t.gap, t.at
	t.waiting, t.leftOut, t.gap = nil, 0, nil
	return arrivals, leftOut, gap, at
}

// add adds what a tail has gathered.
func (s *eventStream) add(u *UI, t *tail) {
	arrivals, leftOut, gap, at := t.take()
	if gap != nil {
		s.event("gap", gap.To, map[string]string{"reason": string(gap.Reason)})
	}
	for _, a := range arrivals {
		s.event("", a.position, u.shownMessage(a))
	}
	if leftOut > 0 {
		s.event("left", at, map[string]int{"messages": leftOut})
	}
}

// shownMessage is a message as it is shown.
type shownMessage struct {
	At      time.Time `json:"at"`
	Channel string    `json:"channel"`
	Payload string    `json:"payload"`
	Bytes   int       `json:"bytes"`
	Note    string    `json:"note,omitempty"` // how the payload differs from what was published
}

// shownMessage hides secret fields, and cuts what is long.
func (u *UI) shownMessage(a arrival) shownMessage {
	m := shownMessage{At: a.at.UTC(), Channel: a.channel, Bytes: a.size}
	first := bytes.TrimLeft(a.payload, " \t\r\n")
	isJSON := len(first) > 0 && (first[0] == '{' || first[0] == '[')
	switch {
	case isJSON && a.size > redactBytes:
		m.Note = fmt.Sprintf("not shown: JSON of more than %d kB", redactBytes>>10)
		return m
	case isJSON:
		a.payload = u.redact(a.payload)
	case a.binary:
		a.payload = []byte(hex.EncodeToString(a.payload[:min(len(a.payload), shownBytes/2)]))
		m.Note = "bytes"
		if a.size > shownBytes/2 {
			m.Note = "bytes, cut"
		}
	}
	m.Payload = cut(strings.ToValidUTF8(string(a.payload), "\uFFFD"), shownBytes)
	if m.Note == "" && (a.size > redactBytes || len(a.payload) > shownBytes) {
		m.Note = "cut"
	}
	return m
}

// eventStream writes Server-Sent Events.
type eventStream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	buffer  bytes.Buffer // what is sent next
	allowed func() bool  // whether the client may still have it, which is asked now and then; nil: it may
}

func newEventStream(w http.ResponseWriter) *eventStream {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // for proxies that would wait for more
	s := &eventStream{w: w, control: http.NewResponseController(w)}
	s.buffer.WriteString("retry: 2000\n\n")
	return s
}

// event adds an event; a client that has received it resumes after at, unless that is zero.
func (s *eventStream) event(name string, at hub.Position, data any) {
	text, err := json.Marshal(data)
	if err != nil {
		return // these types have no values that can't be encoded
	}
	if name != "" {
		fmt.Fprintf(&s.buffer, "event: %s\n", name)
	}
	if !at.IsZero() {
		fmt.Fprintf(&s.buffer, "id: %s\n", at)
	}
	fmt.Fprintf(&s.buffer, "data: %s\n\n", text)
}

// mark adds a sign of life, which tells the client from where to resume.
func (s *eventStream) mark(at hub.Position) {
	s.buffer.WriteString(":\n")
	if !at.IsZero() {
		fmt.Fprintf(&s.buffer, "id: %s\n", at)
	}
	s.buffer.WriteString("\n")
}

// send sends what was added.
func (s *eventStream) send() error {
	if s.buffer.Len() == 0 {
		return nil
	}
	// A server's own timeout is for requests that are answered at once. Where it can't be changed, the browser connects again.
	if err := s.control.SetWriteDeadline(time.Now().Add(tailWriteFor)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if _, err := s.w.Write(s.buffer.Bytes()); err != nil {
		return err
	}
	s.buffer.Reset()
	return s.control.Flush()
}
