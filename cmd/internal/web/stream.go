package web

import (
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/weir-pg/weir/internal/hub"
)

// stream is a client's connection, and the hub's sink for it.
type stream struct {
	web    *Web
	kind   kind
	link   link            // set by attach
	sub    *hub.Subscriber // set by join
	remote string
	number uint64 // unique in this Web
	since  time.Time
	token  string // the client's newest

	mu      sync.Mutex // one write at a time
	written hub.Position
	broken  error // not nil: nothing can be written any more

	// closing has its own lock, so that a write that blocks can be given a deadline.
	deadline sync.Mutex
	closing  bool
	doomed   bool      // it was closed before it had a connection
	renewed  time.Time // when the write deadline was last extended

	life life

	missed *missed // set before a Resume whose client wants events about members
}

// link is what a stream writes to. A Write either writes everything or breaks the stream.
type link interface {
	SetWriteDeadline(time.Time) error
	Write([]byte) (int, error)
	HangUp(by time.Time) // closes it; if by is not zero, the client may close it first until then
}

// kind is an encoding of events, for WebSocket or SSE.
type kind interface {
	name() string
	message(m *hub.Message) []byte                         // shared by all streams: must not be modified
	append(dst []byte, at hub.Position, e outgoing) []byte // e moves the client to at, unless that is zero
	probe(dst []byte) []byte                               // sent with a heartbeat, to make the client answer
	farewell(reason error) []byte                          // the last thing written
}

// outgoing is anything sent to a client except a message.
type outgoing struct {
	Type     string          `json:"type"`
	ID       json.RawMessage `json:"id,omitempty"`
	Position string          `json:"position,omitempty"`
	From     string          `json:"from,omitempty"`
	To       string          `json:"to,omitempty"`
	Reason   hub.Reason      `json:"reason,omitempty"`
	Expires  *time.Time      `json:"expires,omitempty"`
	*history
	*membersAnswer
	*Failure
}

var (
	errClosing = errors.New("the connection is being closed")
	errSilent  = errors.New("the client does not answer")
	errExpired = errors.New("the token has expired")
	errDenied  = errors.New("you may no longer use these channels")
	errGone    = errors.New("the client has disconnected")
)

// Deliver implements hub.Sink.
func (s *stream) Deliver(events []hub.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(events) == 1 && events[0].Message != nil {
		return s.write(s.kind.message(events[0].Message), events[0].Position())
	}
	var at hub.Position
	b := takeBuffer()
	defer b.give()
	for _, e := range events {
		if e.Message == nil {
			b.bytes = s.kind.append(b.bytes, e.Gap.To, outgoing{
				Type: "gap", From: e.Gap.From.String(), To: e.Gap.To.String(), Reason: e.Gap.Reason,
			})
		} else if m := s.kind.message(e.Message); len(b.bytes)+len(m) <= cap(b.bytes) {
			b.bytes = append(b.bytes, m...)
		} else {
			if err := s.write(b.bytes, at); err != nil {
				return err
			}
			b.bytes = b.bytes[:0]
			if len(m) <= cap(b.bytes) {
				b.bytes = append(b.bytes, m...)
			} else if err := s.write(m, e.Position()); err != nil {
				return err
			}
		}
		if p := e.Position(); !p.IsZero() {
			if e.Message == nil && !s.written.Before(p) {
				// The log was set back: positions sent before are not positions of this log, and must not be sent again.
				s.written = hub.Position{}
			}
			at = p
		}
	}
	return s.write(b.bytes, at)
}

// write writes to the client, which is then at the position. The caller holds mu.
func (s *stream) write(b []byte, at hub.Position) error {
	if s.broken != nil {
		return s.broken
	}
	if len(b) > 0 {
		if err := s.allowWrite(); err != nil {
			return err
		}
		if _, err := s.link.Write(b); err != nil {
			s.broken = err
			return err
		}
		s.web.metrics.sent(s.kind, len(b))
	}
	if s.written.Before(at) {
		s.written = at
	}
	return nil
}

func (s *stream) allowWrite() error {
	s.deadline.Lock()
	defer s.deadline.Unlock()
	if s.closing {
		return errClosing
	}
	// Not for each write: extending it costs about as much as a small write.
	if now := time.Now(); now.Sub(s.renewed) > s.web.WriteTimeout/8 {
		s.renewed = now
		return s.link.SetWriteDeadline(now.Add(s.web.WriteTimeout))
	}
	return nil
}

// tell writes one object to the client.
func (s *stream) tell(e outgoing) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tellLocked(hub.Position{}, e)
}

func (s *stream) tellLocked(at hub.Position, e outgoing) error {
	b := takeBuffer()
	defer b.give()
	b.bytes = s.kind.append(b.bytes, at, e)
	return s.write(b.bytes, at)
}

// position returns the client's position: it has received everything on its channels up to there. It never goes back. The caller holds mu, so
// nothing is written at the same time, and events that the hub is delivering do not count yet.
func (s *stream) position() hub.Position {
	if at := s.sub.Position(); s.written.Before(at) {
		s.written = at
	}
	return s.written
}

// standsAt adds the client's position to e and writes it. The client has received everything up to floor at least, unless that is zero.
func (s *stream) standsAt(floor hub.Position, e outgoing) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.written.Before(floor) {
		s.written = floor
	}
	if !s.written.IsZero() {
		e.Position = s.written.String()
	}
	return s.tellLocked(s.written, e)
}

// Close implements hub.Sink.
func (s *stream) Close(reason error) { s.close(reason) }

// leave ends the stream from this side. It may be called at any time after enter.
func (s *stream) leave(reason error) {
	s.deadline.Lock()
	sub := s.sub
	s.deadline.Unlock()
	if sub != nil {
		sub.Leave()
	}
	s.close(reason)
}

// attach gives the stream its connection.
func (s *stream) attach(l link) {
	s.deadline.Lock()
	s.link = l
	doomed := s.doomed
	s.deadline.Unlock()
	if doomed {
		s.close(errGone) // its client has received no answer yet
	}
}

// join makes the stream a subscriber of the hub.
func (s *stream) join(o hub.Options) error {
	sub, err := s.web.Hub.Join(s, o)
	if err != nil {
		return err
	}
	s.deadline.Lock()
	s.sub = sub
	ends := s.closing
	s.deadline.Unlock()
	if ends {
		sub.Leave()
	}
	return nil
}

// close lets a write in progress finish within closeGrace, and tells the client the reason. The connection is closed immediately, or when the
// client has answered, at most closeGrace later. The stream's reader sees that and ends the stream.
func (s *stream) close(reason error) {
	end := time.Now().Add(closeGrace)
	s.deadline.Lock()
	if s.link == nil {
		s.doomed = true
	}
	if s.closing || s.link == nil {
		s.deadline.Unlock()
		return
	}
	s.closing = true
	_ = s.link.SetWriteDeadline(end)
	s.deadline.Unlock()
	s.stopTimer()

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken == nil && !errors.Is(reason, errGone) {
		_, s.broken = s.link.Write(s.kind.farewell(reason))
	} else {
		end = time.Time{}
	}
	if s.broken == nil {
		s.broken = errClosing
	} else {
		end = time.Time{}
	}
	s.link.HangUp(end)
}
