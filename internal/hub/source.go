package hub

import (
	"context"
	"fmt"
	"time"
)

// Part is a tick, or a stretch of a tick that is too long to hold in memory.
type Part struct {
	Tick     int64
	Epoch    int64      // of the tick
	Prior    int64      // of the tick before
	At       time.Time  // when the tick was cut, by the database's clock
	First    int32      // index of the part's first message, those left out counted
	Last     int32      // and of its last
	End      bool       // it is the last part of its tick
	Messages []*Message // without those that repeat an earlier one of their transaction
	Covers   Coverage   // nil: the part holds the tick's messages of all channels
}

// Coverage tells of which channels a part holds the messages.
type Coverage interface {
	Covers(filters []Filter) bool
}

// Before is the position where the part begins.
func (p *Part) Before() Position {
	return Position{Epoch: p.epochAt(p.First - 1), Tick: p.Tick, Index: p.First - 1}
}

// After is the position behind the part.
func (p *Part) After() Position {
	if p.End {
		return Position{Epoch: p.Epoch, Tick: p.Tick + 1}
	}
	return Position{Epoch: p.Epoch, Tick: p.Tick, Index: p.Last}
}

// epochAt is the epoch of a position in the part's tick.
func (p *Part) epochAt(index int32) int64 {
	if index > 0 {
		return p.Epoch
	}
	return p.Prior
}

func (p *Part) bytes() int {
	n := 128
	for _, m := range p.Messages {
		n += m.size()
	}
	return n
}

// Source is where ticks come from, and where published messages go.
type Source interface {
	// Newest returns the position behind the newest tick.
	Newest(ctx context.Context) (Position, error)
	// Next waits a while for ticks behind the position and returns them in order, without a hole; none if none came. One hub calls it,
	// never twice at once.
	Next(ctx context.Context, after Position) ([]*Part, error)
	// Read returns a stretch of history behind the position, in order and without a hole; none if there is nothing behind it yet, and then
	// the position is of this log.
	Read(ctx context.Context, after Position) ([]*Part, error)
	// Publish logs messages in one transaction, and returns when it is committed.
	Publish(ctx context.Context, drafts []Draft) error
}

// Interested is a source that brings only what is wanted.
type Interested interface {
	// Want returns when messages of the filters that are published from now on will be in what Next brings. Each Want is followed
	// by one Unwant of each of the filters. Unwant may be called with the hub's locks held: it does not wait.
	Want(ctx context.Context, filters []Filter) error
	Unwant(filters []Filter)
}

// Relay is a source that passes messages which are not logged to the other hubs.
type Relay interface {
	Relay(ctx context.Context, draft Draft) error
	// Relayed calls f for every message that another hub relays, until ctx ends.
	Relayed(ctx context.Context, f func(Draft))
}

// SetBackError is Next's and Read's answer to a position that is not of this log: it lies ahead of its end, or where it was is another
// epoch. The log was set back, to a state before a failover or a restore, or it is another one.
type SetBackError struct{ To Position } // where to go on: the end of what both logs have in common, where that is known

func (e *SetBackError) Error() string {
	return fmt.Sprintf("the position is not of this log of messages, which goes on from %s", e.To)
}

// TruncatedError is Next's and Read's answer when history does not reach back to the position: it begins at From.
type TruncatedError struct{ From Position }

func (e *TruncatedError) Error() string {
	return fmt.Sprintf("the log of messages begins at %s: what was before is gone", e.From)
}
