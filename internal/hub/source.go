package hub

import (
	"context"
	"fmt"
	"time"
)

// Part is a tick, or a part of a tick that is too long to hold in memory.
type Part struct {
	Tick     int64
	Epoch    int64      // of the tick
	Prior    int64      // of the previous tick
	At       time.Time  // when the tick was cut, by the database's clock
	First    int32      // index of the part's first message, counting those left out
	Last     int32      // and of its last
	End      bool       // it is the last part of its tick
	Messages []*Message // without duplicates of an earlier message of the same transaction
	Covers   Coverage   // nil: the part holds the tick's messages of all channels
}

// Coverage describes the channels whose messages a part holds. Its values can be compared, and equal ones cover the same.
type Coverage interface {
	Covers(filters []Filter) bool
}

// Before returns the position where the part begins.
func (p *Part) Before() Position {
	return Position{Epoch: p.epochAt(p.First - 1), Tick: p.Tick, Index: p.First - 1}
}

// After returns the position after the part.
func (p *Part) After() Position {
	if p.End {
		return Position{Epoch: p.Epoch, Tick: p.Tick + 1}
	}
	return Position{Epoch: p.Epoch, Tick: p.Tick, Index: p.Last}
}

// epochAt returns the epoch of a position in the part's tick.
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
	// Newest returns a position after every message that was committed before the call.
	Newest(ctx context.Context) (Position, error)
	// Next waits for a short time for ticks after the position, and returns them in order without a hole, or none. Only one hub calls it,
	// never concurrently.
	Next(ctx context.Context, after Position) ([]*Part, error)
	// Read returns history after the position, in order and without a hole. It returns none if the log ends there, and then
	// the position belongs to this log.
	Read(ctx context.Context, after Position) ([]*Part, error)
	// Publish logs messages in one transaction and returns once it is committed.
	Publish(ctx context.Context, drafts []Draft) error
}

// Interested is a source that returns only the messages that some filter selects.
type Interested interface {
	// Want returns once Next will return the filters' messages that are published from then on. Each Want is followed
	// by one Unwant of each filter. Unwant may be called with the hub's locks held: it must not wait.
	Want(ctx context.Context, filters []Filter) error
	Unwant(filters []Filter)
}

// Relay is a source that relays messages to other hubs without logging them.
type Relay interface {
	Relay(ctx context.Context, draft Draft) error
	// Relayed calls f for every message that another hub relays, until ctx ends.
	Relayed(ctx context.Context, f func(Draft))
}

// SetBackError is returned by Next and Read for a position that does not belong to this log: it lies past the log's end, or its tick has another
// epoch here. The log was set back to an earlier state, as by a failover or a restore, or it is another database's.
type SetBackError struct{ To Position } // where to continue: the end of the history that both logs share, if it is known

func (e *SetBackError) Error() string {
	return fmt.Sprintf("the position does not belong to this log of messages: continue from %s", e.To)
}

// TruncatedError is returned by Next and Read if the log does not reach back to the position. It begins at From.
type TruncatedError struct{ From Position }

func (e *TruncatedError) Error() string {
	return fmt.Sprintf("the log of messages begins at %s: older messages were truncated", e.From)
}
