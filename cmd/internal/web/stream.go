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
	number uint64 // among all, and
	since  time.Time
	token  string // what the client showed last

	mu      sync.Mutex // one write at a time
	written hub.Position
	broken  error // nothing can be written any more

	// closing is guarded by its own lock, so that a write which blocks can be given a deadline.
	deadline sync.Mutex
	closing  bool
	doomed   bool      // it was told to end before it had a connection
	renewed  time.Time // when the deadline of writes was last moved on

	life life
}

// link is what a stream writes to. A Write either takes everything or breaks the stream.
type link interface {
	SetWriteDeadline(time.Time) error
	Write([]byte) (int, error)
	HangUp(by time.Time) // closes it, or waits that long for the client to do so
}

// kind is WebSocket's or SSE's way to say things.
type kind interface {
	name() string
	message(m *hub.Message) []byte                         // shared by all streams: nobody changes it
	append(dst []byte, at hub.Position, e outgoing) []byte // e moves the client to at, unless that is zero
	probe(dst []byte) []byte                               // what goes with a heartbeat, to make the client answer
	farewell(reason error) []byte
}

// outgoing is everything but a message that a client is told.
type outgoing struct {
	Type     string          `json:"type"`
	ID       json.RawMessage `json:"id,omitempty"`
	Position string          `json:"position,omitempty"`
	From     string          `json:"from,omitempty"`
	To       string          `json:"to,omitempty"`
	Reason   hub.Reason      `json:"reason,omitempty"`
	Expires  *time.Time      `json:"expires,omitempty"`
	*failure
}

var (
	errClosing = errors.New("the connection is being closed")
	errSilent  = errors.New("the client does not answer")
	errExpired = errors.New("the token has expired")
	errGone    = errors.New("the client has gone")
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
				// The log was set back: positions that have been given out are not of it, and must not be given out again.
				s.written = hub.Position{}
			}
			at = p
		}
	}
	return s.write(b.bytes, at)
}

// write writes to the client, who then stands at the position. The caller holds mu.
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
	// Not for each write: moving it costs about as much as a small write does.
	if now := time.Now(); now.Sub(s.renewed) > s.web.WriteTimeout/8 {
		s.renewed = now
		return s.link.SetWriteDeadline(now.Add(s.web.WriteTimeout))
	}
	return nil
}

// tell writes one thing to the client.
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

// position is where the client stands: it has got everything of its channels up to there. It never goes back. The caller holds mu, so
// nothing is written meanwhile, and what the hub is handing over is not counted as delivered.
func (s *stream) position() hub.Position {
	if at := s.sub.Position(); s.written.Before(at) {
		s.written = at
	}
	return s.written
}

// standsAt adds where the client stands to e and writes it. known, where not zero, is as far as the client has got at least.
func (s *stream) standsAt(known hub.Position, e outgoing) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.written.Before(known) {
		s.written = known
	}
	if !s.written.IsZero() {
		e.Position = s.written.String()
	}
	return s.tellLocked(s.written, e)
}

// Close implements hub.Sink.
func (s *stream) Close(reason error) { s.close(reason) }

// leave ends the stream from this side. It may come at any time from when the stream has entered.
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
		s.close(errGone) // its client has not even been answered
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

// close lets a write that is under way finish within closeGrace, and tells the client why. The connection is closed at once, or when the
// client has answered, closeGrace later at most. Whoever serves the stream sees that and ends it.
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
