package model

import (
	"encoding/binary"
	"math/bits"
)

// xid is the id of a transaction. 0 is a transaction that ended before all others, and whose rows every snapshot sees.
type xid = uint8

// set is a set of numbers below 64, one per bit. Like all of a state it consists of bytes, so that there are no gaps between fields: a state is one
// stretch of memory, which is compared and hashed many times faster.
type set [8]uint8

func setOf(word uint64) (s set) {
	binary.LittleEndian.PutUint64(s[:], word)
	return s
}

// from returns the set of all numbers from x on.
func from(x uint8) set { return setOf(^(1<<x - 1)) }

func (s set) word() uint64       { return binary.LittleEndian.Uint64(s[:]) }
func (s set) has(x uint8) bool   { return s.word()>>x&1 == 1 }
func (s *set) add(x uint8)       { *s = setOf(s.word() | 1<<x) }
func (s *set) drop(x uint8)      { *s = setOf(s.word() &^ (1 << x)) }
func (s set) below(x uint8) int  { return bits.OnesCount64(s.without(from(x)).word()) }
func (s set) with(other set) set { return setOf(s.word() | other.word()) }
func (s set) without(o set) set  { return setOf(s.word() &^ o.word()) }
func (s set) empty() bool        { return s == set{} }

// xids is a set of transaction ids.
type xids = set

// snapshot is a snapshot of PostgreSQL: transactions from max on had not begun, and those in running had not ended.
type snapshot struct {
	max     xid
	running xids
}

func (s snapshot) sees(x xid) bool { return x == 0 || x < s.max && !s.running.has(x) }

// server is what PostgreSQL itself does: it assigns ids in one order, commits in another, and after a fault keeps only the
// beginning of its log.
//
// A transaction commits and becomes visible in one step. In PostgreSQL the commit record is written a moment earlier: a fault in
// that moment leaves a commit without an answer, which the model has as well.
type server struct {
	next    xid  // the next id to be assigned
	open    xids // in progress
	tail    table[commit]
	flushed uint8 // number of commits of tail that are on disk
}

// commit is a committed transaction that a fault may still undo. Commits are in the order of their records in the log.
type commit struct {
	by    xid
	acked bool // a client was told, and may rely on it
}

func (s *server) begin() xid {
	if s.next == 0 {
		s.next = 1
	}
	x := s.next
	if x >= 62 {
		panic(noRoom("too many transaction ids"))
	}
	s.next++
	s.open.add(x)
	return x
}

func (s *server) snapshot() snapshot { return snapshot{max: max(s.next, 1), running: s.open} }

// commit ends a transaction. A flush writes the log to disk up to its record; acked says that the client relies on the commit.
func (s *server) commit(x xid, flush, acked bool) {
	s.open.drop(x)
	s.tail.add(commit{x, acked})
	if flush {
		s.flushed = s.tail.n
	}
}

func (s *server) committed(x xid) bool { return x == 0 || !s.open.has(x) }

// lose undoes all but the first n commits of the tail, and everything in progress. The ids of what is lost are assigned again, but
// never one that the surviving log contains: next is set by the caller, who knows its rows.
func (s *server) lose(n uint8) (lost xids) {
	lost = s.open
	for i := n; i < s.tail.n; i++ {
		lost.add(s.tail.row[i].by)
		s.tail.row[i] = commit{}
	}
	s.tail.n, s.flushed, s.open = n, n, xids{}
	return lost
}
