package cluster

import (
	"encoding/binary"
	"errors"
	"math"
	"time"

	"github.com/weir-pg/weir/internal/hub"
)

// A frame begins with the version, its kind, and the sender's id. Numbers are varints; lengths precede what they measure.
const version = 2

type kind byte

const (
	kindBeat kind = iota + 1
	kindHead
	kindData
	kindRelay
)

// ident identifies a hub: it is chosen at random when the hub starts.
type ident [8]byte

const frameHead = 2 + len(ident{})

func newFrame(k kind, from ident, room int) []byte {
	b := make([]byte, 0, frameHead+room)
	return append(append(b, version, byte(k)), from[:]...)
}

var (
	errVersion = errors.New("the frame has another version")
	errFrame   = errors.New("the frame is damaged")
)

// openFrame returns a frame's kind, sender, and a cursor on the rest.
func openFrame(b []byte) (k kind, from ident, rest cursor, err error) {
	if len(b) == 0 || b[0] != version {
		return 0, from, rest, errVersion
	}
	if len(b) < frameHead {
		return 0, from, rest, errFrame
	}
	copy(from[:], b[2:])
	return kind(b[1]), from, cursor{b: b[frameHead:]}, nil
}

// cursor decodes received bytes. Invalid input sets bad; nothing is read past the end.
type cursor struct {
	b   []byte
	bad bool
}

func (c *cursor) number(limit uint64) uint64 {
	n, size := binary.Uvarint(c.b)
	if size <= 0 || n > limit {
		c.bad, c.b = true, nil
		return 0
	}
	c.b = c.b[size:]
	return n
}

func (c *cursor) long() int64   { return int64(c.number(math.MaxInt64)) }
func (c *cursor) index() int32  { return int32(c.number(math.MaxInt32)) }
func (c *cursor) octet() byte   { return byte(c.number(math.MaxUint8)) }
func (c *cursor) bytes() []byte { return c.take(c.number(math.MaxInt32)) }

func (c *cursor) take(n uint64) []byte {
	if n > uint64(len(c.b)) {
		c.bad, c.b = true, nil
		return nil
	}
	taken := c.b[:n:n]
	c.b = c.b[n:]
	return taken
}

func (c *cursor) position() hub.Position {
	return hub.Position{Epoch: c.long(), Tick: c.long(), Index: c.index()}
}

func (c *cursor) err() error {
	if c.bad {
		return errFrame
	}
	return nil
}

func appendBytes[T string | []byte](b []byte, s T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendPosition(b []byte, p hub.Position) []byte {
	b = binary.AppendUvarint(b, uint64(p.Epoch))
	return binary.AppendUvarint(binary.AppendUvarint(b, uint64(p.Tick)), uint64(p.Index))
}

// beat is a heartbeat.
type beat struct {
	role Role
	at   hub.Position // the sender's position
	name string
}

func (m beat) append(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(m.role))
	return appendBytes(appendPosition(b, m.at), m.name)
}

func readBeat(c cursor) (m beat, err error) {
	m.role = Role(c.octet())
	m.at = c.position()
	m.name = string(c.bytes())
	return m, c.err()
}

// head describes a part of a tick.
type head struct {
	tick         int64
	epoch, prior int64 // of the tick, and of the tick before it
	cut          int64 // when it was cut, in µs since 1970
	first, last  int32
	end          bool
	absent       bool // its messages are not sent: hubs read the part from the database
	filled       set  // the buckets that have messages
	contents     [buckets]content
}

// content is the number of pieces and messages of a part in a bucket.
type content struct{ pieces, messages uint32 }

const (
	flagEnd    = 1
	flagAbsent = 2
)

// part returns the part without its messages.
func (h *head) part() *hub.Part {
	return &hub.Part{Tick: h.tick, Epoch: h.epoch, Prior: h.prior, At: time.UnixMicro(h.cut), First: h.first, Last: h.last, End: h.end}
}

// from returns the position before the part, and to the one after it.
func (h *head) from() hub.Position { return h.part().Before() }
func (h *head) to() hub.Position   { return h.part().After() }

func (h *head) append(b []byte) []byte {
	flags := byte(0)
	if h.end {
		flags |= flagEnd
	}
	if h.absent {
		flags |= flagAbsent
	}
	b = append(b, flags)
	for _, n := range [...]int64{h.tick, h.epoch, h.prior, h.cut, int64(h.first), int64(h.last)} {
		b = binary.AppendUvarint(b, uint64(n))
	}
	for _, word := range h.filled {
		b = binary.LittleEndian.AppendUint64(b, word)
	}
	h.filled.each(func(bucket byte) {
		b = binary.AppendUvarint(b, uint64(h.contents[bucket].pieces))
		b = binary.AppendUvarint(b, uint64(h.contents[bucket].messages))
	})
	return b
}

func readHead(c cursor) (*head, error) {
	h := &head{}
	if flags := c.take(1); flags != nil {
		h.end, h.absent = flags[0]&flagEnd != 0, flags[0]&flagAbsent != 0
	}
	h.tick, h.epoch, h.prior, h.cut = c.long(), c.long(), c.long(), c.long()
	h.first, h.last = c.index(), c.index()
	if words := c.take(buckets / 8); words != nil {
		for i := range h.filled {
			h.filled[i] = binary.LittleEndian.Uint64(words[i*8:])
		}
	}
	h.filled.each(func(bucket byte) {
		h.contents[bucket] = content{uint32(c.number(math.MaxUint32)), uint32(c.number(math.MaxUint32))}
	})
	if h.tick < 1 || h.tick == math.MaxInt64 || h.first < 1 || !h.from().Before(h.to()) {
		c.bad = true
	}
	return h, c.err()
}

// data is a piece of a part's messages in a bucket.
type data struct {
	at     hub.Position // the head's from
	bucket byte
	piece  uint32 // from 0
	bytes  []byte
}

func (m data) append(b []byte) []byte {
	b = append(appendPosition(b, m.at), m.bucket)
	return append(binary.AppendUvarint(b, uint64(m.piece)), m.bytes...)
}

func readData(c cursor) (m data, err error) {
	m.at = c.position()
	if b := c.take(1); b != nil {
		m.bucket = b[0]
	}
	m.piece = uint32(c.number(math.MaxUint32))
	m.bytes = c.b
	return m, c.err()
}

const flagBinary = 1

// appendMessage appends a message to a bucket's bytes.
func appendMessage(b []byte, m *hub.Message) []byte {
	b = binary.AppendUvarint(b, uint64(m.Position.Index))
	return appendDraft(b, hub.Draft{Channel: m.Channel, Payload: m.Payload, Binary: m.Binary})
}

func appendDraft(b []byte, d hub.Draft) []byte {
	flags := byte(0)
	if d.Binary {
		flags |= flagBinary
	}
	return appendBytes(appendBytes(append(b, flags), d.Channel), d.Payload)
}

// readMessages decodes a bucket's messages and appends them to into; their tick and epoch are those of the position of. Payloads share b's memory.
func readMessages(into []*hub.Message, b []byte, of hub.Position, count uint32) ([]*hub.Message, error) {
	c := cursor{b: b}
	for range count {
		at := hub.Position{Epoch: of.Epoch, Tick: of.Tick, Index: c.index()}
		d, err := readDraft(&c)
		if err != nil {
			return into, err
		}
		into = append(into, &hub.Message{Position: at, Channel: d.Channel, Payload: d.Payload, Binary: d.Binary})
	}
	if len(c.b) != 0 {
		return into, errFrame
	}
	return into, nil
}

func readDraft(c *cursor) (d hub.Draft, err error) {
	if flags := c.take(1); flags != nil {
		d.Binary = flags[0]&flagBinary != 0
	}
	d.Channel = string(c.bytes())
	d.Payload = c.bytes()
	return d, c.err()
}
