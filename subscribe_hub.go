package weir

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-pg/weir/internal/sleep"
)

// hubFollower reads a hub's event stream (Server-Sent Events).
type hubFollower struct {
	SubscribeConfig
	hubs       []*url.URL
	urls       []string     // the hubs' event streams
	next       int          // index of the URL to try next
	current    atomic.Int64 // index of the hub that it has subscribed at last
	subscribed bool         // a hub has accepted this subscription before, so a hub that refuses it now may be at fault
}

const (
	silence      = 90 * time.Second      // a hub sends something every 25 s; after this silence, its connection is lost
	reconnectMin = 50 * time.Millisecond // longest first pause after a loss
	reconnectMax = 5 * time.Second       // longest pause
	lineMax      = 6*(16<<20) + 64<<10   // of an event: the largest possible payload, with every byte escaped in JSON
)

func newHubFollower(c SubscribeConfig) (*hubFollower, error) {
	f := &hubFollower{SubscribeConfig: c, next: rand.IntN(len(c.Hubs))}
	for _, address := range c.Hubs {
		u, err := hubURL(address)
		if err != nil {
			return nil, err
		}
		query := url.Values{"channel": c.Channels}
		if c.Presence {
			query.Set("presence", "true")
		}
		f.hubs = append(f.hubs, u)
		f.urls = append(f.urls, u.JoinPath("/v1/events").String()+"?"+query.Encode())
	}
	if f.HTTP == nil {
		f.HTTP = &http.Client{}
	}
	return f, nil
}

// refusedError is a hub's refusal that trying again does not change.
type refusedError struct{ text string }

func (e *refusedError) Error() string { return e.text }

func (f *hubFollower) run(ctx context.Context, s *Subscription, subscribed func()) error {
	pause := reconnectMin
	var lost time.Time // when the loss was logged; zero: subscribed
	ready := func() {
		f.current.Store(int64(f.next))
		if f.subscribed = true; !lost.IsZero() {
			f.Logger.Warn("weir: subscribed at a hub again", "hub", f.urls[f.next], "after", time.Since(lost).Round(time.Millisecond))
			lost = time.Time{}
		}
		subscribed()
	}
	for {
		began := time.Now()
		err := f.stream(ctx, s, ready)
		var refused *refusedError
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.As(err, &refused) {
			return err
		}
		f.next = (f.next + 1) % len(f.urls)
		if time.Since(began) > reconnectMax {
			pause = reconnectMin
		}
		// Full jitter, so that a hub's clients do not all reconnect to the next hub at once.
		wait := rand.N(pause)
		level := slog.LevelDebug
		if lost.IsZero() {
			level, lost = slog.LevelWarn, time.Now() // warn once per outage
		}
		pause = min(2*pause, reconnectMax)
		f.Logger.Log(ctx, level, "weir: lost the hub, trying the next until one answers", "error", err, "in", wait)
		if !sleep.For(ctx, wait) {
			return ctx.Err()
		}
	}
}

// stream reads one hub's stream until it ends.
func (f *hubFollower) stream(ctx context.Context, s *Subscription, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watchdog := time.AfterFunc(silence, cancel)
	defer watchdog.Stop()
	response, err := f.open(ctx, s.given)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	in := bufio.NewScanner(response.Body)
	in.Buffer(make([]byte, 4096), lineMax)
	var e sseEvent
	for in.Scan() {
		watchdog.Reset(silence)
		if len(in.Bytes()) > 0 {
			e.line(in.Bytes())
			continue
		}
		// While the subscription's reader is busy, nothing is read: that is not the hub's silence.
		watchdog.Stop()
		if err := e.give(ctx, s, !f.subscribed, ready); err != nil {
			return err
		}
		watchdog.Reset(silence)
		e = sseEvent{}
	}
	if err := in.Err(); errors.Is(err, bufio.ErrTooLong) {
		return &refusedError{fmt.Sprintf("the hub %s sent an event larger than %d bytes", response.Request.URL.Host, lineMax)}
	} else if err != nil {
		return fmt.Errorf("read the hub's events: %w", err)
	}
	return io.ErrUnexpectedEOF
}

func (f *hubFollower) open(ctx context.Context, at Position) (*http.Response, error) {
	address := f.urls[f.next]
	if f.Last > 0 && at == "" && !f.subscribed {
		address += "&last=" + strconv.Itoa(f.Last)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "text/event-stream")
	if at != "" {
		request.Header.Set("Last-Event-ID", string(at))
	}
	if f.Token != nil {
		token, err := askToken(ctx, f.Token)
		if err != nil {
			return nil, err
		}
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := f.HTTP.Do(request)
	if err != nil {
		return nil, err
	}
	kind := response.Header.Get("Content-Type")
	if response.StatusCode == http.StatusOK && strings.HasPrefix(kind, "text/event-stream") {
		return response, nil
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusOK {
		return nil, fmt.Errorf("%s is not a hub: it answered with the content type %q", request.URL.Host, kind)
	}
	err = hubRefusal(response)
	switch response.StatusCode {
	case http.StatusForbidden:
		return nil, &refusedError{err.Error()}
	case http.StatusUnauthorized: // a new token may be accepted
		if f.Token == nil {
			return nil, &refusedError{fmt.Sprintf("the hub %s requires a token: set SubscribeConfig.Token (weir listen: --token, or WEIR_TOKEN)", request.URL.Host)}
		}
		if !f.subscribed {
			return nil, &refusedError{err.Error()}
		}
	case http.StatusBadRequest, http.StatusNotFound, http.StatusRequestEntityTooLarge, http.StatusRequestURITooLong:
		if !f.subscribed {
			return nil, &refusedError{err.Error()}
		}
	}
	return nil, err
}

// hubRefusal returns a hub's error response as an error.
func hubRefusal(response *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(response.Body, 4096))
	var said struct{ Error, Hint string }
	if json.Unmarshal(text, &said) == nil && said.Error != "" {
		text = []byte(strings.TrimSuffix(said.Error+": "+said.Hint, ": "))
	}
	return fmt.Errorf("the hub %s answered %s: %s", response.Request.URL.Host, response.Status, bytes.TrimSpace(text))
}

// sseEvent is an event being read.
type sseEvent struct {
	id, kind string
	data     []byte
}

func (e *sseEvent) line(line []byte) {
	field, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(field) {
	case "id":
		e.id = string(value)
	case "event":
		e.kind = string(value)
	case "data":
		e.data = append(e.data, value...)
	}
}

// hubMessage is a message as hubs write it.
type hubMessage struct {
	Channel  string
	Payload  string
	Base64   []byte `json:"payload_base64"` // nil: the payload is text
	Position Position
}

func (m hubMessage) public() Message {
	if m.Base64 != nil {
		return Message{Channel: m.Channel, Payload: m.Base64, Binary: true, Position: m.Position}
	}
	return Message{Channel: m.Channel, Payload: []byte(m.Payload), Position: m.Position}
}

// give passes the event to the subscription. first reports that it has not been subscribed before.
func (e *sseEvent) give(ctx context.Context, s *Subscription, first bool, ready func()) error {
	switch e.kind {
	case "message":
		var m hubMessage
		if err := json.Unmarshal(e.data, &m); err != nil {
			return fmt.Errorf("read a message of the hub: %w", err)
		}
		m.Position = Position(e.id)
		out := m.public()
		return s.give(ctx, Event{Message: &out})
	case "gap":
		var g struct{ From, To, Reason string }
		if err := json.Unmarshal(e.data, &g); err != nil {
			return fmt.Errorf("read a gap of the hub: %w", err)
		}
		return s.give(ctx, Event{Gap: &Gap{From: Position(g.From), To: Position(g.To), Reason: g.Reason}})
	case "presence":
		var p PresenceChange
		if err := json.Unmarshal(e.data, &p); err != nil {
			return fmt.Errorf("read a change of members of the hub: %w", err)
		}
		return s.give(ctx, Event{Presence: &p})
	case "subscribed":
		var h struct {
			History  []hubMessage
			Complete bool
		}
		if err := json.Unmarshal(e.data, &h); err != nil {
			return fmt.Errorf("read the hub's answer: %w", err)
		}
		if first { // later, somebody may be reading it
			s.history = History{Messages: make([]Message, len(h.History)), Complete: h.Complete}
			for i, m := range h.History {
				s.history.Messages[i] = m.public()
			}
		}
		if e.id != "" {
			s.move(Position(e.id))
		}
		ready()
	case "heartbeat":
		if e.id != "" {
			s.move(Position(e.id))
		}
	}
	return nil
}
