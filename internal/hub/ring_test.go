package hub

import (
	"bytes"
	"sync"
	"testing"
)

// TestEncodingsCountInTheRing: encodings made for resuming subscribers count in the ring's size, whenever they are made, and are subtracted with
// their part.
func TestEncodingsCountInTheRing(t *testing.T) {
	t.Parallel()
	const size, parts, limit = 1000, 200, 50_000
	r := ring{limit: limit}
	var all []*Part
	var encoding sync.WaitGroup
	for i := range parts {
		p := &Part{Tick: int64(i + 1), First: 1, Last: 1, End: true, Messages: []*Message{{Position: Position{Tick: int64(i + 1), Index: 1}, Payload: make([]byte, size)}}}
		r.add(p, r.open(p))
		all = append(all, p)
		mine := all[max(0, i-20):] // some of them have left the ring
		for _, f := range []Format{FormatPG, FormatJSON, FormatSSE} {
			encoding.Go(func() {
				for _, p := range mine {
					p.Messages[0].Encoded(f, func(*Message) []byte { return bytes.Repeat([]byte{0}, 5*size) })
				}
			})
		}
	}
	encoding.Wait()
	r.trim()
	want := r.bytes
	for _, p := range r.parts {
		for f := range formats {
			if b := p.Messages[0].encoded[f].Load(); b != nil {
				want += len(*b)
			}
		}
	}
	if got := r.size(); got != want || got > limit || len(r.parts) == 0 {
		t.Errorf("%d parts count %d bytes, and use %d of %d", len(r.parts), got, want, limit)
	}
	if r.clear(); r.size() != 0 {
		t.Errorf("an empty ring counts %d bytes", r.size())
	}
}
