package hub

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/weir-pg/weir/internal/store"
)

// Position is a place in the log of messages: after the message with this index in this tick, and before the next one. A tick's messages
// count from 1, so index 0 is before the first. All hubs on one database agree on positions: a client can resume at any of them.
//
// The epoch is that of the last tick that lies, at least partly, before the position: the previous tick if the index is 0. It distinguishes
// logs that share a history, as after a failover that lost data: a position belongs to the log in which that tick has that epoch.
type Position struct {
	Epoch int64
	Tick  int64
	Index int32
}

// anyEpoch makes a position valid in any log.
const anyEpoch = -1

// String returns the form that clients store: "epoch.tick.index".
func (p Position) String() string {
	b := strconv.AppendInt(make([]byte, 0, 40), p.Epoch, 10)
	b = strconv.AppendInt(append(b, '.'), p.Tick, 10)
	return string(strconv.AppendInt(append(b, '.'), int64(p.Index), 10))
}

// ParsePosition parses String's format.
func ParsePosition(s string) (Position, error) {
	epoch, rest, _ := strings.Cut(s, ".")
	tick, index, _ := strings.Cut(rest, ".")
	e, err1 := strconv.ParseUint(epoch, 10, 63)
	t, err2 := strconv.ParseUint(tick, 10, 63)
	i, err3 := strconv.ParseUint(index, 10, 31)
	if err1 == nil && err2 == nil && err3 == nil && t < math.MaxInt64 && (t > 0 || i == 0) {
		return Position{Epoch: int64(e), Tick: int64(t), Index: int32(i)}, nil
	}
	if len(s) > 64 {
		s = s[:64] + "…"
	}
	return Position{}, fmt.Errorf("position %q is not valid: it must have the form epoch.tick.index, such as 93154770125.1042.3", s)
}

// Before reports whether p lies before q. Both must be of the same log.
func (p Position) Before(q Position) bool {
	return p.Tick < q.Tick || p.Tick == q.Tick && p.Index < q.Index
}

// Behind returns the position after a tick.
func Behind(p store.Place) Position { return Position{Epoch: p.Epoch, Tick: p.Tick + 1} }

// Reached returns the last tick that lies, at least partly, before p.
func (p Position) Reached() store.Place {
	if p.Index > 0 {
		return store.Place{Epoch: p.Epoch, Tick: p.Tick}
	}
	return store.Place{Epoch: p.Epoch, Tick: max(p.Tick-1, 0)}
}

// IsZero reports whether p is the zero position: the beginning of the log, or that of a message that was not logged.
func (p Position) IsZero() bool { return p == Position{} }

func later(p, q Position) Position {
	if p.Before(q) {
		return q
	}
	return p
}
