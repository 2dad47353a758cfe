package pgwire

import (
	"encoding/binary"
	"io"
	"sync"
)

// reader splits the input into messages. While it waits for one it holds only a small buffer, because most
// connections wait most of the time. For a larger message it borrows a larger buffer.
type reader struct {
	from  io.Reader
	buf   []byte // small, or borrowed
	begin int    // of what is in buf and not yet used
	end   int
	small [256]byte
}

const mediumSize = 16 << 10

var mediumBuffers = sync.Pool{New: func() any { return new([mediumSize]byte) }}

// next returns the next n bytes, valid until it is called again.
func (r *reader) next(n int) ([]byte, error) {
	if r.begin == r.end {
		r.release()
		r.begin, r.end = 0, 0
	}
	for r.end-r.begin < n {
		if r.end == len(r.buf) || r.begin+n > len(r.buf) && n <= len(r.buf) {
			r.make(n)
		}
		got, err := r.from.Read(r.buf[r.end:])
		r.end += got
		if err != nil && r.end-r.begin < n {
			return nil, err
		}
	}
	b := r.buf[r.begin : r.begin+n : r.begin+n]
	r.begin += n
	return b, nil
}

// make makes room at the end of the buffer: for n bytes if they fit into a medium buffer, otherwise for twice the present size, so that
// memory grows only with the bytes received, whatever length a message claims.
func (r *reader) make(n int) {
	have := r.buf[r.begin:r.end]
	switch {
	case n <= len(r.buf):
		copy(r.buf, have)
	case n <= mediumSize:
		medium := mediumBuffers.Get().(*[mediumSize]byte)
		copy(medium[:], have)
		r.release()
		r.buf = medium[:]
	case len(have) < len(r.buf):
		copy(r.buf, have)
	default:
		larger := make([]byte, min(max(2*len(r.buf), mediumSize), n))
		copy(larger, have)
		r.release()
		r.buf = larger
	}
	r.begin, r.end = 0, len(have)
}

// give gives a borrowed buffer back.
func (r *reader) release() {
	if len(r.buf) == mediumSize {
		mediumBuffers.Put((*[mediumSize]byte)(r.buf))
	}
	r.buf = r.small[:]
}

// startup returns the next message of the startup phase, which has no type.
func (r *reader) startup() ([]byte, error) {
	const limit = 10_000 // as PostgreSQL
	head, err := r.next(4)
	if err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(head))
	if n < 8 || n > limit {
		return nil, errorf(protocolViolation, "invalid length of startup packet: %d", n)
	}
	return r.next(n - 4)
}

// message returns the next message's type and body.
func (r *reader) message(limit int) (byte, []byte, error) {
	head, err := r.next(5)
	if err != nil {
		return 0, nil, err
	}
	kind, n := head[0], int(binary.BigEndian.Uint32(head[1:]))
	if n < 4 {
		return 0, nil, errorf(protocolViolation, "invalid message length: %d", n)
	}
	if n-4 > limit {
		return 0, nil, errorf(protocolViolation, "message too long: %d bytes, at most %d are allowed", n-4, limit)
	}
	body, err := r.next(n - 4)
	return kind, body, err
}

// peek returns the next byte and leaves it there.
func (r *reader) peek() (byte, error) {
	b, err := r.next(1)
	if err != nil {
		return 0, err
	}
	r.begin--
	return b[0], nil
}

// rest returns the bytes read but not used yet.
func (r *reader) rest() []byte {
	b := append([]byte(nil), r.buf[r.begin:r.end]...)
	r.begin, r.end = 0, 0
	return b
}
