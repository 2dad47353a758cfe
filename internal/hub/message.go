package hub

import "sync/atomic"

// Message is one message, shared by all its subscribers: nobody changes it.
type Message struct {
	Position Position // zero: not logged, only passed on
	Channel  string
	Payload  []byte
	Binary   bool // Payload is not text

	encoded [formats]atomic.Pointer[[]byte]
	account *account // of the part that it is kept with; nil: it is not kept
}

// Format names an encoding that a transport gives messages.
type Format uint8

// The encodings that are kept with a message, each made once however many subscribers get it.
const (
	FormatPG Format = iota
	FormatJSON
	FormatSSE
	formats
)

// Encoded returns the message in a format, which encode makes unless it has been made before.
func (m *Message) Encoded(f Format, encode func(*Message) []byte) []byte {
	if p := m.encoded[f].Load(); p != nil {
		return *p
	}
	b := encode(m) // two at once make the same
	if m.encoded[f].CompareAndSwap(nil, &b) {
		m.account.add(int64(len(b)))
	}
	return b
}

// account counts what encodings of a part's messages take while the part is in the ring.
type account struct {
	part atomic.Int64  // this part's; less than nothing: it is not in the ring any more
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
			a.ring.Add(n) // also after a close that has just taken it off: it is on its way
			return
		}
	}
}

// close takes off what has been counted, and counts no more.
func (a *account) close() { a.ring.Add(-a.part.Swap(-1)) }

// size is what the message counts for in a queue.
func (m *Message) size() int { return len(m.Payload) + len(m.Channel) + 64 }

// Draft is a message to publish.
type Draft struct {
	Channel string
	Payload []byte
	Binary  bool
	Keep    bool // deliver it even if the same transaction publishes an identical one
}

// Event is what a sink gets: a message, or a gap.
type Event struct {
	Message *Message // nil: a gap
	Gap     *Gap
}

// Position is where the subscriber stands after the event; zero for a message that was not logged.
func (e Event) Position() Position {
	if e.Message != nil {
		return e.Message.Position
	}
	return e.Gap.To
}

// Gap says that messages after From and up to To may be missing.
type Gap struct {
	From, To Position
	Reason   Reason
}

// Reason is why there is a gap.
type Reason string

const (
	Truncated Reason = "truncated" // history no longer reaches back to the position asked for
	Slow      Reason = "slow"      // the subscriber did not keep up, and was skipped ahead
	Unknown   Reason = "unknown"   // the position is not of this log: it is from another database, or the log was set back
)
