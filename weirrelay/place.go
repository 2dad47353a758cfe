package weirrelay

import (
	"context"
	"fmt"
	"strings"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/hub"
)

// place is where a position lies in the database's log. Once the log was set back, as by a failover that lost ticks, the numbers of ticks are used again: so a position that
// was lost lies where both logs part, whatever its tick is.
type place struct {
	hub.Position
	here  bool // the position is of this log
	known bool // its log, and this one, have a part in common; otherwise it counts as before all that is known
}

// places has places of positions.
type places map[weir.Position]place

// places asks the database where positions lie.
func (r *relay) places(ctx context.Context, positions ...weir.Position) (places, error) {
	is := places{}
	for _, at := range positions {
		if _, ok := is[at]; ok || at == "" {
			continue
		}
		p, err := hub.ParsePosition(string(at))
		if err != nil {
			return nil, fmt.Errorf("the position of the relay, or of its target: %w", err)
		}
		reached := p.Reached()
		last, known, err := r.store.SharedUpto(ctx, reached)
		if err != nil {
			return nil, err
		}
		here := known && last.Tick == reached.Tick
		if known && !here {
			p = hub.Behind(last)
		}
		is[at] = place{p, here, known}
	}
	return is, nil
}

// before reports whether a position lies before another one.
func (is places) before(at, other weir.Position) bool {
	a, o := is[at], is[other]
	return o.known && (!a.known || a.Before(o.Position))
}

// later returns the later one of two positions, and the first of them if neither is.
func (is places) later(at, other weir.Position) weir.Position {
	if at == "" || is.before(at, other) {
		return other
	}
	return at
}

// passed has, of each of the newest logs from which this process has passed on messages, the last position up to which it has. A server that starts begins another log, and if the database is restored
// from a copy of an earlier time, it knows nothing of that one.
type passed []weir.Position

const passedMost = 20

func (p *passed) reach(at weir.Position) {
	epoch := func(at weir.Position) string {
		e, _, _ := strings.Cut(string(at), ".")
		return e
	}
	n := len(*p)
	switch {
	case n > 0 && epoch((*p)[n-1]) == epoch(at):
		(*p)[n-1] = at
	case n == passedMost:
		*p = append((*p)[1:], at)
	default:
		*p = append(*p, at)
	}
}
