package hub

import (
	"fmt"
	"strconv"
	"strings"
)

// Position is a place in the log of messages: after the message with this index of this tick, and before the next. Messages of a tick
// count from 1, so index 0 is before its first. All hubs on one database agree on positions: one taken from a hub can be resumed at another.
type Position struct {
	Tick  int64
	Index int32
}

// String gives the form that clients keep: "tick.index".
func (p Position) String() string {
	return strconv.FormatInt(p.Tick, 10) + "." + strconv.FormatInt(int64(p.Index), 10)
}

// ParsePosition reads what String wrote.
func ParsePosition(s string) (Position, error) {
	tick, index, ok := strings.Cut(s, ".")
	t, err := strconv.ParseInt(tick, 10, 64)
	if err == nil && ok {
		var i int64
		i, err = strconv.ParseInt(index, 10, 32)
		if err == nil && t >= 0 && i >= 0 && (t > 0 || i == 0) {
			return Position{Tick: t, Index: int32(i)}, nil
		}
	}
	if len(s) > 64 {
		s = s[:64] + "…"
	}
	return Position{}, fmt.Errorf("position %q is not of the form tick.index, such as 1042.3", s)
}

// Before tells whether p lies before q.
func (p Position) Before(q Position) bool {
	return p.Tick < q.Tick || p.Tick == q.Tick && p.Index < q.Index
}

// IsZero tells whether p is the zero position: the beginning of the log. A message that was not logged has it too.
func (p Position) IsZero() bool { return p == Position{} }

func later(p, q Position) Position {
	if p.Before(q) {
		return q
	}
	return p
}
