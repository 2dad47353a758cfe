package hub

import "sync/atomic"

// Message is one message. All its subscribers share it, so it is never changed.
type Message struct {
	Position Position // zero: not logged, only relayed
	Channel  string
	Payload  []byte
	Binary   bool // Payload is not text

	encoded [formats]atomic.Pointer[[]byte]
	account *account // of its part in the ring; nil: it is not in the ring
}

// Format is a transport's encoding of messages.
type Format uint8

// The encodings stored with a message. Each is computed once, however many subscribers receive it.
const (
	FormatPG Format = iota
	FormatJSON
	FormatSSE
	formats
)

// Encoded returns the message in a format. It calls encode unless the encoding is already stored.
func (m *Message) Encoded(f Format, encode func(*Message) []byte) []byte {
	if p := m.encoded[f].Load(); p != nil {
		return *p
	}
	b := encode(m) // two concurrent calls compute the same
	if m.encoded[f].CompareAndSwap(nil, &b) {
		m.account.add(int64(len(b)))
	}
	return b
}

// account counts the bytes of the encodings of a part's messages while the part is in the ring.
type account struct {
	part atomic.Int64  // this part's; negative: it has left the ring
	ring *atomic.Int64 // all parts'
}

func (a *account) add(n int64) {
	if a == nil {
		return
	}
	for {
		was := a.part.Load()
		if was < 0 {
			return
		}
		if a.part.CompareAndSwap(was, was+n) {
			a.ring.Add(n) // even if close has just subtracted n: the sum is right in the end
			return
		}
	}
}

// close subtracts what has been counted, and stops counting.
func (a *account) close() { a.ring.Add(-a.part.Swap(-1)) }

// size is the message's size in a queue, in bytes.
func (m *Message) size() int { return len(m.Payload) + len(m.Channel) + 64 }

// Draft is a message to publish.
type Draft struct {
	Channel string
	Payload []byte
	Binary  bool
	Keep    bool // deliver it even if the same transaction has published an identical message
}

// Event is a message or a gap, as passed to a sink.
type Event struct {
	Message *Message // nil: a gap
	Gap     *Gap
}

// Position returns the subscriber's position after the event; zero for a message that was not logged.
func (e Event) Position() Position {
	if e.Message != nil {
		return e.Message.Position
	}
	return e.Gap.To
}

// Gap reports that messages after From and up to To may be missing.
type Gap struct {
	From, To Position
	Reason   Reason
}

// Reason is why there is a gap.
type Reason string

const (
	Truncated Reason = "truncated" // the log no longer reaches back to the requested position
	Slow      Reason = "slow"      // the subscriber did not keep up, and was skipped ahead
	Unknown   Reason = "unknown"   // the position is not of this log: it is from another database, or the log was set back
)
