package cluster

import (
	"hash/crc32"
	"math/bits"
	"strings"

	"github.com/weir-pg/weir/internal/hub"
)

// A channel's bucket has two halves: the upper four bits come from its first word, so that a pattern that begins with a word needs only 16
// buckets; the lower four come from the whole name. All hubs of a version must agree on it.
const buckets = 256

func bucketOf(channel string) byte {
	word, _, _ := strings.Cut(channel, ".")
	return byte(hash(word)>>24)&0xf0 | byte(hash(channel)>>24)&0x0f
}

// hash spreads the checksums of similar names.
func hash(s string) uint32 {
	return crc32.ChecksumIEEE([]byte(s)) * 2654435761 // 32 bits of the golden ratio: Knuth's multiplicative hash
}

// set is a set of buckets.
type set [buckets / 64]uint64

func (s *set) add(b byte)      { s[b/64] |= 1 << (b % 64) }
func (s *set) remove(b byte)   { s[b/64] &^= 1 << (b % 64) }
func (s *set) has(b byte) bool { return s[b/64]&(1<<(b%64)) != 0 }

func (s *set) contains(t *set) bool {
	for i := range s {
		if t[i]&^s[i] != 0 {
			return false
		}
	}
	return true
}

// each calls f for every bucket of the set, in order.
func (s *set) each(f func(byte)) {
	for i, word := range s {
		for ; word != 0; word &= word - 1 {
			f(byte(i*64 + bits.TrailingZeros64(word)))
		}
	}
}

func (s *set) and(t *set) (both set) {
	for i := range s {
		both[i] = s[i] & t[i]
	}
	return both
}

// addFilter adds the buckets of all channels that the filter matches.
func (s *set) addFilter(f hub.Filter) {
	if channel, ok := f.(hub.Channel); ok {
		s.add(bucketOf(string(channel)))
		return
	}
	word, _, _ := strings.Cut(f.String(), ".")
	if word == "*" || word == ">" {
		*s = set{^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)}
		return
	}
	first := byte(hash(word)>>24) & 0xf0
	for i := range byte(16) {
		s.add(first | i)
	}
}

// coverage is the set of buckets whose messages a part contains.
type coverage struct{ set }

// Covers implements hub.Coverage.
func (c coverage) Covers(filters []hub.Filter) bool {
	var wanted set
	for _, f := range filters {
		wanted.addFilter(f)
	}
	return c.contains(&wanted)
}
