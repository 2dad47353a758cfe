package hub

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/weir-pg/weir/internal/store"
)

// Position is a place in the log of messages: after the message with this index of this tick, and before the next. Messages of a tick
// count from 1, so index 0 is before its first. All hubs on one database agree on positions: one taken from a hub can be resumed at another.
//
// The epoch is that of the last tick that lies before the position, be it in part: of the tick before where the index is 0. It tells
// logs apart that were one and have parted, as in a failover that lost something: a position is of a log where that tick is of that epoch.
type Position struct {
	Epoch int64
	Tick  int64
	Index int32
}

// anyEpoch is for positions of one's own making, which are good in whichever log.
const anyEpoch = -1

// String gives the form that clients keep: "epoch.tick.index".
func (p Position) String() string {
	b := strconv.AppendInt(make([]byte, 0, 40), p.Epoch, 10)
	b = strconv.AppendInt(append(b, '.'), p.Tick, 10)
	return string(strconv.AppendInt(append(b, '.'), int64(p.Index), 10))
}

// ParsePosition reads what String wrote.
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
	return Position{}, fmt.Errorf("position %q is not of the form epoch.tick.index, such as 93154770125.1042.3", s)
}

// Before tells whether p lies before q, in one log.
func (p Position) Before(q Position) bool {
	return p.Tick < q.Tick || p.Tick == q.Tick && p.Index < q.Index
}

// behind is the position behind a tick.
func behind(p store.Place) Position { return Position{Epoch: p.Epoch, Tick: p.Tick + 1} }

// reached is the last tick that lies before p, be it in part.
func (p Position) reached() store.Place {
	if p.Index > 0 {
		return store.Place{Epoch: p.Epoch, Tick: p.Tick}
	}
	return store.Place{Epoch: p.Epoch, Tick: max(p.Tick-1, 0)}
}

// IsZero tells whether p is the zero position: the beginning of the log. A message that was not logged has it too.
func (p Position) IsZero() bool { return p == Position{} }

func later(p, q Position) Position {
	if p.Before(q) {
		return q
	}
	return p
}
